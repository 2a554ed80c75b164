"""YAML that cannot hurt: bytes -> nodes with lines, and nodes -> plain values. Every fault has its line.

Belongs here: syntax, sizes, and which YAML is taken (no aliases, no tags of other kinds, no duplicate keys). What the keys mean is in
`configuration`.
"""

import math
import re
from pathlib import Path
from typing import Any

import yaml

from rag_eval.gold.lines import readable
from rag_eval.gold.problem_list import ProblemList
from rag_eval.records.problems import quoted

MAX_BYTES = 1_000_000
MAX_NODES = 20_000
MAX_DEPTH = 32

_CORE = "tag:yaml.org,2002:"
_PLAIN = {
    _CORE + kind
    for kind in ("null", "bool", "int", "float", "str", "timestamp", "seq", "map", "merge", "value")
}
_FAULT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")


def line_of(node: yaml.Node) -> int:
    """Line of a node, from 1."""
    return int(node.start_mark.line) + 1


def _read(path: Path, problems: ProblemList) -> str | None:
    """Text of a file; faults: those of `readable`, `file_too_large`, `nul_byte`, `bad_encoding`."""
    if not readable(path, problems):
        return None
    file = str(path)
    try:
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        problems.add("unreadable_file", f"the file cannot be read: {quoted(str(error))}", file=file)
        return None
    if len(raw) > MAX_BYTES:
        problems.add(
            "file_too_large",
            "the file is too large to be a configuration",
            file=file,
            line=1,
            accepted=f"at most {MAX_BYTES} bytes",
        )
        return None
    place = raw.find(b"\x00")
    if place >= 0:
        problems.add(
            "nul_byte",
            "the file holds a NUL byte",
            file=file,
            line=raw.count(b"\n", 0, place) + 1,
            accepted="UTF-8 text",
        )
        return None
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problems.add(
            "bad_encoding",
            "the file is not UTF-8",
            file=file,
            line=raw.count(b"\n", 0, error.start) + 1,
            found=f"byte 0x{raw[error.start]:02x}",
            accepted="UTF-8",
        )
        return None


def _syntax(error: yaml.YAMLError, text: str, file: str, problems: ProblemList) -> None:
    if isinstance(error, yaml.reader.ReaderError):
        line = text.count("\n", 0, error.position) + 1
        problems.add(
            "control_character",
            "the file holds a character that YAML does not take",
            file=file,
            line=line,
            found=f"U+{ord(text[error.position]):04X}",
            accepted="printable text",
        )
        return
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    message = str(getattr(error, "problem", None) or error)
    accepted = (
        'YAML; a text that begins with > or < needs quotes: ">= 0.60"'
        if "chomping or indentation" in message
        else "YAML"
    )
    problems.add(
        "bad_yaml",
        f"not YAML: {quoted(message)}",
        file=file,
        line=mark.line + 1 if mark else 1,
        accepted=accepted,
    )


def _screen(text: str, file: str, problems: ProblemList) -> bool:
    """Whether the events are harmless: bounded in number and depth, no aliases or anchors, one document, known tags."""
    depth = count = documents = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        count += isinstance(event, yaml.NodeEvent)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(
            event, yaml.CollectionEndEvent
        )
        documents += isinstance(event, yaml.DocumentStartEvent)
        if anchor := getattr(event, "anchor", None):
            problems.add(
                "alias_refused",
                "anchors and aliases are not taken here",
                file=file,
                line=line,
                found=quoted(str(anchor)),
                accepted="the value itself",
            )
        elif documents > 1:
            problems.add(
                "several_documents",
                "the file holds more than one YAML document",
                file=file,
                line=line,
                accepted="one mapping",
            )
        elif depth > MAX_DEPTH:
            problems.add(
                "too_deep",
                "the file is nested too deeply",
                file=file,
                line=line,
                accepted=f"at most {MAX_DEPTH} levels",
            )
        elif count > MAX_NODES:
            problems.add(
                "file_too_large",
                "the file holds too many values to be a configuration",
                file=file,
                line=line,
                accepted=f"at most {MAX_NODES} values",
            )
        else:
            continue
        return False
    return True


def read_mapping(path: Path, problems: ProblemList) -> yaml.MappingNode | None:
    """Top-level mapping of a YAML file, or None with a fault.

    Faults: those of reading, `bad_yaml`, `control_character`, `alias_refused`, `several_documents`, `too_deep`, `file_too_large`,
    `not_a_mapping`, `empty_file`.
    """
    text = _read(path, problems)
    if text is None:
        return None
    file = str(path)
    try:
        if not _screen(text, file, problems):
            return None
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        _syntax(error, text, file, problems)
        return None
    if node is None:
        problems.add(
            "empty_file",
            "the file holds nothing",
            file=file,
            line=1,
            accepted="a mapping with name, corpus and strategies",
        )
    elif not isinstance(node, yaml.MappingNode):
        problems.add(
            "not_a_mapping",
            "the file is YAML but not a mapping",
            file=file,
            line=line_of(node),
            accepted="a mapping with name, corpus and strategies",
        )
    else:
        return node
    return None


def _scalar(node: yaml.ScalarNode, field: str, file: str, problems: ProblemList) -> Any:
    line = line_of(node)
    if fault := _FAULT.search(node.value):
        problems.add(
            "control_character",
            "the value holds a control character",
            file=file,
            line=line,
            field=field,
            found=f"U+{ord(fault.group()):04X}",
            accepted="printable text",
        )
        return None
    if node.tag == _CORE + "timestamp":
        return node.value
    constructor = yaml.constructor.SafeConstructor()
    try:
        value = constructor.construct_object(node)
    except (ValueError, yaml.YAMLError) as error:
        problems.add(
            "bad_value",
            f"the value cannot be read: {quoted(str(error))}",
            file=file,
            line=line,
            field=field,
            found=quoted(node.value),
        )
        return None
    if isinstance(value, float) and not math.isfinite(value):
        problems.add(
            "bad_number",
            "NaN and infinity are not taken here",
            file=file,
            line=line,
            field=field,
            found=quoted(node.value),
            accepted="a finite number",
        )
        return None
    return value


def plain(node: yaml.Node, file: str, problems: ProblemList, field: str = "") -> Any:
    """Plain value of a node (dict, list, str, int, float, bool, None); dates stay texts.

    Faults, each at its line: `duplicate_key`, `bad_key`, `bad_tag`, `bad_number`, `bad_value`, `control_character`.
    """
    if node.tag not in _PLAIN:
        problems.add(
            "bad_tag",
            "tags are not taken here",
            file=file,
            line=line_of(node),
            field=field or None,
            found=quoted(node.tag),
            accepted="plain values",
        )
        return None
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node, field, file, problems)
    if isinstance(node, yaml.SequenceNode):
        return [
            plain(item, file, problems, f"{field}[{place}]")
            for place, item in enumerate(node.value)
        ]
    result: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key, value in node.value:
        name = key.value if isinstance(key, yaml.ScalarNode) and key.tag == _CORE + "str" else None
        dotted = f"{field}.{name}" if field else str(name)
        if name is None:
            found = key.value if isinstance(key, yaml.ScalarNode) else "a list or mapping"
            problems.add(
                "bad_key",
                "a key must be a plain word",
                file=file,
                line=line_of(key),
                field=field or None,
                found=quoted(found),
                accepted="a word; quote it if YAML reads it as a number, date or truth value",
            )
        elif name in lines:
            problems.add(
                "duplicate_key",
                f"the key stands in line {lines[name]} already",
                file=file,
                line=line_of(key),
                field=dotted,
                found=quoted(name),
                accepted="each key once",
            )
        else:
            lines[name] = line_of(key)
            result[name] = plain(value, file, problems, dotted)
    return result
