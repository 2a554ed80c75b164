"""`gold_set.yaml` -> `GoldSetConfig`: every mistake named with file, line, field, what was found and what is accepted.

Belongs here: from the errors of the model back to the lines of the file. The shape itself is `rag_eval.records.gold_set`; reading YAML
safely is `yaml_nodes`; what the schema accepts at a place is `accepted`.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from rag_eval.gold.accepted import accepted_at, keys_at, suggestion
from rag_eval.gold.problem_list import ProblemList
from rag_eval.gold.yaml_nodes import line_of, plain, read_mapping
from rag_eval.records.configuration_parts import NAME
from rag_eval.records.gold_set import Floor, GoldSetConfig
from rag_eval.records.problems import InputError, Problem, quoted

CONFIG_FILE = "gold_set.yaml"

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CODES = {
    "missing": "missing_key",
    "extra_forbidden": "unknown_key",
    "union_tag_not_found": "missing_key",
}
_TAGS = ("loader", "kind")

Location = tuple[int | str, ...]


def _entry(node: yaml.Node, key: int | str) -> tuple[yaml.Node, yaml.Node] | None:
    """(key node, value node) of a mapping's key or a list's place; None where there is none."""
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            if isinstance(name, yaml.ScalarNode) and name.value == key:
                return name, value
    elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
        return node.value[key], node.value[key]
    return None


def _without_tags(location: Location) -> Location:
    """Leave out the names of union members that pydantic puts into it, after `corpus`, after a place in `strategies`."""
    parts = list(location)
    if parts[:1] == ["corpus"]:
        del parts[1:2]
    elif parts[:1] == ["strategies"]:
        del parts[2:3]
    elif parts[:1] == ["version"]:
        del parts[1:]
    return tuple(parts)


def dotted(location: Sequence[int | str]) -> str:
    """`strategies[1].rerank.lambda` of a location.

    Examples
    --------
    >>> dotted(("strategies", 1, "rerank", "lambda"))
    'strategies[1].rerank.lambda'
    """
    return "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in location
    ).removeprefix(".")


def _find(root: yaml.MappingNode, location: Location) -> tuple[int, yaml.Node | None]:
    """Line of the deepest part of a location that the file has, and its value; None where the last part is absent."""
    line = 1
    node: yaml.Node = root
    for part in location:
        entry = _entry(node, part)
        if entry is None:
            return line, None
        line, node = line_of(entry[0]), entry[1]
    return line, node


def _shown(node: yaml.Node | None) -> str | None:
    if node is None:
        return None
    if isinstance(node, yaml.ScalarNode):
        return quoted(node.value) if node.value else "nothing"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"


def _refined(root: yaml.MappingNode, location: Location, message: str) -> Location:
    """Location of a rule over several keys: the first key that its message names, singular or plural."""
    _, node = _find(root, location)
    for word in _WORD.findall(message):
        for key in (word, word.removesuffix("s")):
            if node is not None and _entry(node, key):
                return (*location, key)
    return location


def _problem(error: Any, root: yaml.MappingNode, file: str) -> Problem:
    kind, message = str(error["type"]), str(error["msg"]).removeprefix("Value error, ")
    location = _without_tags(tuple(error["loc"]))
    code = _CODES.get(kind, "wrong_type" if kind.endswith("_type") else "bad_value")
    if kind == "extra_forbidden":
        keys = keys_at(root, location[:-1])
        line, _ = _find(root, location)
        near = suggestion(str(location[-1]), keys)
        return Problem(
            code,
            f"the key is not known{near}",
            file,
            line,
            dotted(location),
            quoted(str(location[-1])),
            ", ".join(keys),
        )
    if kind.startswith("union_tag"):
        _, owner = _find(root, location)
        tag = next((name for name in _TAGS if name in str(error["ctx"]["discriminator"])), _TAGS[0])
        location = (*location, tag)
        tags = str(error["ctx"].get("expected_tags", "")).replace("'", "") or accepted_at(
            root, location
        )
        line, node = _find(root, location)
        message = (
            f"{tag} is missing"
            if node is None
            else f"{tag} is not one of the known ones{suggestion(_shown(node) or '', tags.split(', '))}"
        )
        return Problem(
            code,
            message,
            file,
            line_of(owner) if node is None and owner is not None else line,
            dotted(location),
            _shown(node),
            tags,
        )
    if kind == "missing":
        line, _ = _find(root, location)
        return Problem(
            code,
            f"{location[-1]} is missing",
            file,
            line,
            dotted(location),
            None,
            accepted_at(root, location),
        )
    if kind == "value_error":
        location = _refined(root, location, message)
        accepted = message
    else:
        accepted = accepted_at(root, location)
    line, node = _find(root, location)
    near = (
        suggestion(_shown(node) or "", accepted.split(", "))
        if kind in {"literal_error", "enum"}
        else ""
    )
    return Problem(
        code,
        message[:1].lower() + message[1:] + near,
        file,
        line,
        dotted(location) or None,
        _shown(node),
        accepted,
    )


def _floors(data: dict[str, Any], root: yaml.MappingNode, file: str, problems: ProblemList) -> None:
    """Report every acceptance floor that cannot be read, then leave the block out: the model would only report the first."""
    floors = data.get("acceptance")
    if not isinstance(floors, dict):
        return
    before = problems.n_errors
    for measure, text in floors.items():
        try:
            Floor.parse(measure, text)
        except ValueError:
            line, node = _find(root, ("acceptance", measure))
            code = "bad_value" if isinstance(text, str) else "wrong_type"
            problems.add(
                code,
                "the floor cannot be read",
                file=file,
                line=line,
                field=f"acceptance.{measure}",
                found=_shown(node),
                accepted='">= number" or "<= number", in quotes',
            )
    if problems.n_errors > before:
        del data["acceptance"]


def load_config(folder: Path) -> GoldSetConfig:
    """Read `gold_set.yaml` of a folder.

    Numbers, texts and truth values are not converted into each other: `"5"` is no number and `yes` is no name.

    Raises
    ------
    InputError
        With every mistake found, each with line, field, found and accepted. Codes: `missing_key`, `unknown_key`, `wrong_type`, `bad_value`,
        `name_mismatch` (the name must be the folder's), and those of `yaml_nodes`.
    """
    path = folder / CONFIG_FILE
    problems = ProblemList()
    root = read_mapping(path, problems)
    data = plain(root, str(path), problems) if root is not None else None
    if root is None or not isinstance(data, dict):
        raise InputError(problems.listed())
    _floors(data, root, str(path), problems)
    marked = {(problem.line, problem.field) for problem in problems.listed()}
    config: GoldSetConfig | None = None
    try:
        config = GoldSetConfig.model_validate_json(
            json.dumps(data), strict=True
        )  # JSON: lists may be tuples, nothing else is converted
    except ValidationError as error:
        errors = error.errors(include_url=False)
        places = [item["loc"] for item in errors]
        # a list whose only item is wrong counts as too short as well: the item's own mistake is what to mend
        kept = [
            item
            for item in errors
            if item["type"] != "too_short"
            or not any(
                len(place) > len(item["loc"]) and place[: len(item["loc"])] == item["loc"]
                for place in places
            )
        ]
        found = [_problem(item, root, str(path)) for item in kept]
        unique = {(problem.line, problem.field, problem.code): problem for problem in found}
        problems.extend(problem for key, problem in unique.items() if key[:2] not in marked)
    name = data.get("name")
    expected = folder.resolve().name
    if isinstance(name, str) and name != expected and re.match(NAME, name):
        problems.add(
            "name_mismatch",
            "the name must be that of the folder",
            file=str(path),
            line=_find(root, ("name",))[0],
            field="name",
            found=quoted(name),
            accepted=quoted(expected),
        )
    problems.raise_errors()
    if config is None:  # the model refused something that no problem above names
        raise InputError(Problem("bad_value", "the configuration cannot be used", str(path), 1))
    return config


def discover(gold_sets: Path) -> dict[str, Path]:
    """Gold sets below a folder: name -> folder, sorted by name. A folder counts when it holds `gold_set.yaml`; hidden ones do not.

    The files are not read, so that one broken gold set does not hide the others; `load_config` holds each to its folder's name.

    Raises
    ------
    InputError
        `missing_folder`; `bad_name` where a folder's name cannot be that of a gold set.
    """
    if not gold_sets.is_dir():
        raise InputError(
            Problem(
                "missing_folder",
                "the folder of gold sets does not exist",
                str(gold_sets),
                accepted="a folder with one folder for each gold set",
            )
        )
    folders = sorted(
        path.parent
        for path in gold_sets.glob(f"*/{CONFIG_FILE}")
        if not path.parent.name.startswith(".")
    )
    bad = [folder for folder in folders if not re.fullmatch(NAME, folder.name)]
    if bad:
        raise InputError(
            [
                Problem(
                    "bad_name",
                    "the folder's name cannot be that of a gold set",
                    str(folder),
                    None,
                    "name",
                    quoted(folder.name),
                    NAME,
                )
                for folder in bad
            ]
        )
    return {folder.name: folder for folder in folders}
