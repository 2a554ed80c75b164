"""Write the reference pages from the program itself: its commands, settings and models.

`docs/generate.py` writes the pages that are kept, and a test fails when they are stale. The site
adds the page of the report, which is too long to keep, through the hook `on_files`.
"""

import ast
import inspect
import itertools
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import notebook
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from pydantic import BaseModel

DOCS = Path(__file__).resolve().parent
GUARD_RECORD = DOCS.parent / "benchmarks" / "guard_figures.jsonl"
FOLDERS = {"home", "reports", "gold_sets", "help", "wait"}
"""Options of many commands, which the page explains once."""
NOT_GIVEN = {("Embedding", "config")}
"""Fields that a gold set may not give."""
REPORT_HEAD = """---
search: {boost: 0.1}
---
# Fields of the report

The fields of `retrieval-metrics.json`. Its JSON Schema is
`rag_eval/reporting/retrieval-metrics.schema.json`.

"""
NAMES = {"string": "text", "integer": "whole number", "boolean": "true or false"}
PATTERNS = {r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$": "name"}

Schema = Mapping[str, Any]


def cell(text: object) -> str:
    """Write a text into a cell of a Markdown table; outside of code, < is escaped."""
    line = " ".join(str(text).split()).replace("|", "\\|")
    return re.sub(r"(`[^`]*`)|<", lambda found: found[1] or "&lt;", line)


def table(head: str, rows: list[list[str]]) -> str:
    """Lay out a Markdown table; `head` names the columns, separated by bars."""
    names = head.split("|")
    lines = [names, ["---"] * len(names), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


# ---- Commands


def commands() -> str:
    """List every command with its options, as `rag-eval COMMAND --help` shows them."""
    import typer.main

    from rag_eval.cli.app import app

    group: Any = typer.main.get_command(app)
    return "".join(describe(group.commands, "rag-eval"))


def describe(group: Mapping[str, Any], program: str) -> Iterator[str]:
    """Yield a section for each command; a group of commands holds those of its own."""
    for name, command in group.items():
        level = "##" if program == "rag-eval" else "###"
        shown = [one for one in command.params if one.name not in FOLDERS and not one.hidden]
        title = f"{program} {name}".removeprefix("rag-eval ")
        yield f"\n{level} {title}\n\n{cell(command.help)}\n"
        if shown:
            yield "\n" + "".join(map(option, shown))
        if hasattr(command, "commands"):
            yield from describe(command.commands, f"{program} {name}")


def option(one: Any) -> str:
    """Write an argument or option as an item of a list."""
    names = one.name.upper() if one.opts == [one.name] else ", ".join(one.opts + one.secondary_opts)
    unset = one.default in {None, False, ""} or callable(one.default)
    default = " (required)" if one.required else "" if unset else f" (default `{one.default}`)"
    return f"- `{names}`{default}: {cell(one.help or '')}\n"


# ---- Models


def attribute_texts(model: type[BaseModel]) -> dict[str, str]:
    """Return the text below each field, of the class and of the classes that it extends."""
    texts: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if not issubclass(owner, BaseModel) or owner.__module__.startswith("pydantic"):
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(owner)))
        body = tree.body[0].body  # type: ignore[attr-defined]  # the source of a class is a class
        for field, after in itertools.pairwise([*body, None]):
            if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr):
                texts[ast.unparse(field.target)] = ast.literal_eval(after.value)
            elif isinstance(field, ast.AnnAssign) and "description=" in ast.unparse(field):
                texts.pop(ast.unparse(field.target), None)  # the text of the class above
    for name, field in model.model_fields.items():
        other = field.validation_alias
        if name in texts and other is not None:
            texts[other if isinstance(other, str) else other.choices[0]] = texts[name]
    return texts


def all_models(root: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Return every loaded model of rag_eval, by the names that a JSON Schema gives them.

    Models of other packages may have the same names.
    """
    found = dict[str, type[BaseModel]]()
    for model in root.__subclasses__():
        found |= all_models(model)
        if model.__module__.startswith("rag_eval."):
            full = f"{model.__module__}.{model.__name__}".replace(".", "__")
            found |= {model.__name__: model, full: model}
    return found


def title(name: str) -> str:
    """Return the name of a part; a schema prefixes its module where two parts share a name."""
    return name.rsplit("__", 1)[-1]


def type_of(schema: Schema) -> str:
    """Say in words which values a field takes."""
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        words = (type_of(one) for one in choices if one != {"type": "null"})
        return " or ".join(dict.fromkeys(words))
    if "$ref" in schema:
        name = title(schema["$ref"].rsplit("/", 1)[-1])
        return "anything" if name == "JsonValue" else f"[{name}](#{name.lower()})"
    if values := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return ", ".join(f"`{value}`" for value in values)
    return type_in_words(schema)


def type_in_words(schema: Schema) -> str:
    """Name a plain type, a list or a dictionary."""
    kind = schema.get("type", "anything")
    if kind == "array":
        return f"list of {type_of(schema['items'])}" if schema.get("items") else "list"
    if kind == "object":
        values = schema.get("additionalProperties") or schema.get("patternProperties")
        if isinstance(values, Mapping) and "type" not in values and "$ref" not in values:
            values = next(iter(values.values()), None)
        return f"name: {type_of(values)}" if isinstance(values, Mapping) else "keys and values"
    return PATTERNS.get(schema.get("pattern", ""), NAMES.get(kind, kind)) + limits(schema)


def limits(schema: Schema) -> str:
    """Say the range of a number."""
    low, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    high, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    bounds = {"from": low, "above": above, "to": high, "below": below}
    return "".join(f" {word} {bound:,}" for word, bound in bounds.items() if bound is not None)


def field_rows(name: str, parts: Mapping[str, Schema], texts: Mapping[str, str]) -> list[list[str]]:
    """Write the rows of one model: field, values, default, meaning."""
    schema = parts[name]
    required = set(schema.get("required", ()))
    rows = []
    for field, value in schema.get("properties", {}).items():
        if (name, field) in NOT_GIVEN:
            continue
        default = value.get("default")
        shown = "; required" if field in required else written(default)
        links = re.findall(r'"\$ref": "#/\$defs/(\w+)"', json.dumps(value))
        linked = parts[links[0]] if len(links) == 1 else {}
        chosen = "chooses this part" if "const" in value else ""
        meaning = (
            texts.get(field) or value.get("description") or linked.get("description") or chosen
        )
        rows.append([f"`{field}`", cell(type_of(value)), shown, cell(meaning)])
    return rows


def written(default: object) -> str:
    """Write a default as the configuration would hold it; a part of its own is left out."""
    if isinstance(default, dict) or default in (None, [], ""):
        return ""
    return f"; `{cell(json.dumps(default, ensure_ascii=False))}`"


def models(root: type[BaseModel], *, given: bool = True) -> str:
    """Write a table for a model, and one for each model that it refers to.

    `given` says that a person writes the keys, so that their defaults matter.
    """
    schema = root.model_json_schema()
    loaded = all_models(BaseModel)
    parts = {root.__name__: schema, **schema.get("$defs", {})}
    sections, first = [], dict[tuple[str, ...], str]()
    for name in reachable(root.__name__, parts):
        rows = field_rows(name, parts, attribute_texts(loaded[name]))
        text = cell(parts[name].get("description", ""))
        if given and (tag := tag_of(parts[name])):
            text, rows = without_shared(name, text, tag, rows, first)
        if given:
            keys = [[key, f"{values}{default}", meaning] for key, values, default, meaning in rows]
            body = table("key|values; default|meaning", keys) if rows else ""
        else:
            body = table("field|values|meaning", [[row[0], row[1], row[3]] for row in rows])
        sections.append(f"## {title(name)}\n\n{text}\n\n{body}")
    return rename("\n".join(sections), {root.__name__: "Top level", **chosen_names(parts)})


def tag_of(part: Schema) -> str:
    """Return the key by which a configuration chooses a part; empty for a part without one."""
    fields = part.get("properties", {})
    return next((tag for tag in ("kind", "loader") if "const" in fields.get(tag, {})), "")


def without_shared(
    name: str, text: str, tag: str, rows: list[list[str]], first: dict[tuple[str, ...], str]
) -> tuple[str, list[list[str]]]:
    """Leave out the row of the tag, and rows that stand in the table of an earlier part.

    `first` maps a row to the first part that has it. The text names the rows that are left out.
    """
    left: dict[str, list[str]] = {}
    here = []
    for row in rows:
        if row[0] == f"`{tag}`":
            continue
        owner = first.setdefault((tag, *row), name)
        if owner == name:
            here.append(row)
        else:
            left.setdefault(owner, []).append(row[0])
    also = "".join(
        f" Also {', '.join(keys)} of [{owner}](#{owner.lower()})." for owner, keys in left.items()
    )
    return f"{text}{also}", here


def chosen_names(parts: Mapping[str, Schema]) -> dict[str, str]:
    """Return the word by which `kind` or `loader` chooses a part, by the name of the part."""
    tags = {
        name: [part.get("properties", {}).get(tag, {}).get("const") for tag in ("kind", "loader")]
        for name, part in parts.items()
    }
    return {name: word for name, found in tags.items() for word in found if word}


def rename(text: str, names: Mapping[str, str]) -> str:
    """Use other names in the headings, and in the links to them."""
    for old, new in names.items():
        text = text.replace(f"## {old}\n", f"## {new}\n")
        text = text.replace(f"[{old}](#{old.lower()})", f"[{new}](#{new})")
    return text


def reachable(first: str, parts: Mapping[str, Schema]) -> list[str]:
    """Return the names of the parts in the order in which a reader meets them."""
    names = [first]
    for name in names:
        own = {key: value for key, value in parts[name].items() if key != "$defs"}
        linked = re.findall(r'"\$ref": "#/\$defs/(\w+)"', json.dumps(own.get("properties", {})))
        names += [
            one for one in dict.fromkeys(linked) if "properties" in parts[one] and one not in names
        ]
    return names


def configuration() -> str:
    """Describe every key of `gold_set.yaml`."""
    from rag_eval.core.config import GoldSetConfig

    return models(GoldSetConfig)


def settings() -> str:
    """Describe every setting."""
    from rag_eval.core.settings import Settings

    return models(Settings)


def report() -> str:
    """Describe every figure of `retrieval-metrics.json`."""
    from rag_eval.reporting.report import Report

    return models(Report, given=False)


# ---- Measured figures


def in_bounds(share: list[float], digits: int) -> str:
    """Write a share and its bounds."""
    value, low, high = (f"{one:,.{digits}f}" for one in share)
    return f"{value} [{low}, {high}]"


def guard_figures() -> str:
    """Show what `benchmarks/guard.py --write` recorded: attacks found, and clean texts stopped."""
    attacks, clean = [], []
    for line in GUARD_RECORD.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        name, n = row["set"], f"{row['n']:,}"
        if "found" in row:
            name = name if row["by"] == "set" else f"{row['by']}: {row['value']}"
            found = [in_bounds(row[f"{key}_share"], 2) for key in ("found", "blocked")]
            attacks.append([cell(name), n, *found])
        else:
            stopped = [in_bounds(row[f"{key}_of_1000"], 1) for key in ("blocked", "warned")]
            goals = ["" if goal is None else f"{goal}" for goal in row["goals"]]
            clean.append([cell(name), n, stopped[0], goals[0], stopped[1], goals[1]])
    columns = "clean texts|chunks|blocked of 1,000|at most|warned of 1,000|at most"
    return f"{table('attacks|texts|found|blocked', attacks)}\n{table(columns, clean)}"


# ---- The site


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that only the site holds."""
    files.append(File.generated(config, "report-fields.md", content=REPORT_HEAD + report()))
    for file in notebook.pages(config):
        files.append(file)
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Link to the page of the notebook in place of the notebook."""
    return markdown.replace("(tutorial.ipynb)", "(tutorial.md)")
