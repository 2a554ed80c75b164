"""The page on trust says what each text of a configuration can reach."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from rag_eval.core.config import AnswerOverride, GoldSetConfig
from rag_eval.core.loader import Loader, loaders
from rag_eval.core.strategy import Strategy, strategy_kinds

ONLY_READ = set(
    """
    name version primary acceptance package_docs.exclude
    package_docs.exclude_sections
    hf_datasets.id_column hf_datasets.text_column bm25.name iterative.base trust.domains
    trust.authors trust.keys answers.strategy answers.verdicts
    answers.cross_section_allowed gates.required gates.advisory gates.regression grep.terms
    section.sections overrides.verdicts
    """.split()
)
"""Texts that are shown or compared, and names of other parts of the same file."""
HARMLESS = {bool, int, float, type(None)}


def types_in(annotation: Any) -> Iterator[Any]:
    """Yield the plain types of an annotation; the texts of a Literal are fixed."""
    if get_origin(annotation) is Literal:
        return
    inner = [part for part in get_args(annotation) if isinstance(part, type) or get_args(part)]
    if not inner:
        yield annotation
    for part in inner:
        yield from types_in(part)


def models_of(kind: Any) -> list[type[BaseModel]]:
    registered = {Loader: loaders, Strategy: strategy_kinds}.get(kind)
    if registered is not None:
        return list(registered().values())
    return [kind] if isinstance(kind, type) and issubclass(kind, BaseModel) else []


def label_of(model: type[BaseModel], key: str) -> str:
    """Name a part by its kind, or by the key that it stands under."""
    for tag in ("loader", "kind"):
        if tag in model.model_fields and get_args(model.model_fields[tag].annotation):
            return str(get_args(model.model_fields[tag].annotation)[0])
    return key


def texts_of(root: type[BaseModel], key: str = "") -> set[str]:
    """List the fields that hold texts, paths or anything; an inherited field counts once."""
    labels, inherited, left = set[str](), set[tuple[type, str]](), [(root, key)]
    visited = set[tuple[type, str]]()
    while left:
        model, key = left.pop(0)
        label = label_of(model, key)
        if (model, label) in visited:
            continue
        visited.add((model, label))
        if model.model_config.get("extra") == "allow":
            labels.add(f"{label}.*")
        for name, field in model.model_fields.items():
            owner = next(
                base
                for base in reversed(model.__mro__)
                if name in vars(base).get("__annotations__", ())
            )
            kinds = set(types_in(field.annotation))
            parts = {kind: models_of(kind) for kind in kinds}
            left += [(part, name) for found in parts.values() for part in found]
            others = {kind for kind, found in parts.items() if not found} - HARMLESS
            redefined = name in vars(model).get("__annotations__", ())
            if others and (redefined or (owner, name) not in inherited):
                labels.add(f"{label}.{name}".removeprefix("."))
            inherited.add((owner, name))
    return labels


def test_every_text_of_a_configuration_is_in_the_table_or_only_read(project_root: Path):
    page = (project_root / "docs" / "trust.md").read_text(encoding="utf-8")
    table = page.partition("## What a gold set can reach")[2].partition("## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`([a-z_]+\.[a-z_*]+|split)`", row)}
    found = texts_of(GoldSetConfig) | texts_of(AnswerOverride, "overrides")
    assert found - listed - ONLY_READ == set()
    assert (listed | ONLY_READ) - found == set()
    assert not listed & ONLY_READ


class Nested(BaseModel):
    place: Path | None = None


class Grown(BaseModel):
    nested: tuple[Nested, ...] = ()
    more: dict[str, Any] = {}
    count: int = 0
    choice: Literal["a", "b"] = "a"


def test_a_new_field_is_found_at_any_depth():
    assert texts_of(Grown) == {"nested.place", "more"}
