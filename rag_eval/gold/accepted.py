"""What `gold_set.yaml` accepts at a place, told from the model's own JSON Schema, so that messages never fall behind the model."""

import difflib
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from rag_eval.records.gold_set import GoldSetConfig

_KINDS = {
    "string": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping",
    "null": "nothing",
}
_BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "above",
    "maximum": "at most",
    "exclusiveMaximum": "below",
    "pattern": "of the form",
    "minItems": "with at least",
}


@functools.lru_cache(maxsize=1)
def _schema() -> dict[str, Any]:
    return GoldSetConfig.model_json_schema()


def _deref(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in schema:
        schema = _schema()["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    return schema


def _options(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [_deref(option) for option in schema.get("anyOf", schema.get("oneOf", [schema]))]


def _value(node: yaml.Node | None, key: int | str) -> yaml.Node | None:
    if isinstance(node, yaml.MappingNode):
        return next((value for name, value in node.value if name.value == key), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
        return node.value[key]  # type: ignore[no-any-return]  # PyYAML's stubs do not say what a list holds
    return None


def _chosen(schema: Mapping[str, Any], node: yaml.Node | None) -> list[Mapping[str, Any]]:
    """Members of a union that fit: the one that the file's tag (`loader`, `kind`) names, else all."""
    schema = _deref(schema)
    if "discriminator" in schema:
        tag = _value(node, schema["discriminator"]["propertyName"])
        named = (
            schema["discriminator"]["mapping"].get(tag.value)
            if isinstance(tag, yaml.ScalarNode)
            else None
        )
        if named is not None:
            return [_deref({"$ref": named})]
    return _options(schema)


def _at(root: yaml.Node, location: Sequence[int | str]) -> list[Mapping[str, Any]]:
    """Schemas that may stand at a location."""
    node: yaml.Node | None = root
    here = _chosen(_schema(), root)
    for part in location:
        node = _value(node, part)
        below: list[Mapping[str, Any]] = []
        for schema in here:
            inner = (
                schema.get("items")
                if isinstance(part, int)
                else schema.get("properties", {}).get(part) or schema.get("additionalProperties")
            )
            if isinstance(inner, Mapping):
                below.extend(_chosen(inner, node))
        here = below
    return here


def keys_at(root: yaml.Node, location: Sequence[int | str]) -> list[str]:
    """Keys that a mapping at a location accepts, in the model's order."""
    return list(
        dict.fromkeys(key for schema in _at(root, location) for key in schema.get("properties", {}))
    )


def _describe(schema: Mapping[str, Any]) -> str:
    if "enum" in schema or "const" in schema:
        return ", ".join(str(value) for value in schema.get("enum", [schema.get("const")]))
    if schema.get("properties"):
        return f"a mapping with the keys {', '.join(schema['properties'])}"
    kind = _KINDS.get(str(schema.get("type")), "a value")
    bounds = " and ".join(
        f"{words} {schema[key]}{' items' if key == 'minItems' else ''}"
        for key, words in _BOUNDS.items()
        if key in schema
    )
    note = f" ({schema['description']})" if "description" in schema else ""
    items = ""
    if isinstance(schema.get("items"), Mapping):
        inner = list(
            dict.fromkeys(_describe(option) for option in _options(_deref(schema["items"])))
        )
        items = f" of: {' or '.join(inner)}"
    return " ".join(part for part in (f"{kind}{items}", bounds) if part) + note


def accepted_at(root: yaml.Node, location: Sequence[int | str]) -> str:
    """One phrase for what is accepted at a location: literal values, or kind and bounds."""
    return (
        " or ".join(dict.fromkeys(_describe(schema) for schema in _at(root, location))) or "nothing"
    )


def suggestion(found: str, accepted: Sequence[str]) -> str:
    """`; did you mean bm25?` when something accepted is near, else nothing."""
    near = difflib.get_close_matches(found, accepted, n=1)
    return f"; did you mean {near[0]}?" if near else ""
