"""Methods: definitions, the configuration of everything that decided a figure, and one command that repeats the run."""

import shlex
from collections.abc import Iterator
from typing import Final

from rag_eval.reporting.html.figures import Cursor
from rag_eval.reporting.html.page import Page, Panel
from rag_eval.reporting.html.panels.method_words import PARTS
from rag_eval.reporting.html.tables import Cell, Column, Table, Words
from rag_eval.reporting.html.untrusted import visible

FEATURES: Final = ("FEATURE_HYBRID_RETRIEVAL", "FEATURE_RAGAS_EVAL")
MAX_DEPTH: Final = 6
FOLDERS: Final = {"beir": "--beir", "recorded": "--recorded"}
"""Loaders of plain folders that are run without being a gold set, and the option that names the folder."""


def command(page: Page) -> str:
    """Write the command that repeats the run, fit to be pasted into a shell: features that were on, the day that ages are counted to, the gold set.

    A name with characters that cannot be seen is written with them shown, and so names no gold set: nothing hidden is pasted.
    """
    report = page.report
    name = (
        visible(str(report["gold"]["name"].value))
        .replace("\n", "[U+000A]")
        .replace("\t", "[U+0009]")
    )
    features = report["features"].value if "features" in report else {}
    variables = [f"{feature}=true" for feature in FEATURES if features.get(feature) is True]
    day = report.get("trust", "as_of")
    variables += (
        [] if day is None else [f"RAG_EVAL_TRUST_AS_OF={shlex.quote(visible(str(day.value)))}"]
    )
    evaluation = report["evaluation"].value
    chosen = (
        [f"--strategy {shlex.quote(strategy)}" for strategy in page.strategies]
        if evaluation.get("partial")
        else []
    )
    given = f"{FOLDERS.get(str(report['index']['loader'].value), '--beir')} PATH"
    what = (
        [*chosen, *(["--"] if name.startswith("-") else []), shlex.quote(name)]
        if evaluation.get("known", True)
        else [*chosen, given]
    )
    return " ".join([*variables, "rag-eval run", *what])


def leaves(cursor: Cursor, name: str = "", depth: int = MAX_DEPTH) -> Iterator[tuple[str, Cursor]]:
    """Walk a part of the report down to its values, with dotted names."""
    if isinstance(cursor.value, dict) and depth:
        for key, inside in cursor.items():
            yield from leaves(inside, f"{name}.{key}" if name else key, depth - 1)
    elif isinstance(cursor.value, list) and depth and cursor.value:
        for at, inside in enumerate(cursor):
            yield from leaves(inside, f"{name}[{at}]", depth - 1)
    else:
        yield name, cursor


def _strategies(page: Page) -> Table:
    rows: list[list[Cell]] = []
    for name in page.strategies:
        entry = page.strategy(name)
        for setting, value in leaves(entry["configuration"]):
            if setting != "name":
                rows.append([page.series(entry["name"]), Words(setting, "code"), Words(value)])
    return Table(
        "configuration",
        "Strategies as they were configured",
        [
            Column("strategy", "strategy", figures=False),
            Column("setting", "setting", figures=False),
            Column("value", "value", figures=False),
        ],
        rows,
    )


def _hashes(page: Page) -> Table:
    report = page.report
    rows: list[list[Cell]] = [
        [
            Words("gold hash"),
            Words("every question, wording, target and quote"),
            Words(report["gold"]["hash"], "code"),
        ],
        [
            Words("chunks_hash"),
            Words("every chunk, and the chunker"),
            Words(report["index"]["chunks_hash"], "code"),
        ],
    ]
    for name in page.strategies:
        entry = page.strategy(name)
        rows.append([Words("index_hash"), Words(entry["name"]), Words(entry["index_hash"], "code")])
    rows.append(
        [
            Words("content_hash"),
            Words("every figure that is not of time, place or cache"),
            Words(report["content_hash"], "code"),
        ]
    )
    return Table(
        "hashes",
        "Hashes to compare after a repeated run",
        [
            Column("hash", "hash", figures=False),
            Column("of", "of", figures=False),
            Column("value", "value", figures=False),
        ],
        rows,
    )


def _versions(page: Page) -> Table:
    report = page.report
    rows: list[list[Cell]] = [[Words("rag_eval"), Words(report["version"])]]
    rows += [
        [Words(name, "code"), Words(version)]
        for name, version in report["code"]["libraries"].items()
    ]
    return Table(
        "versions",
        "Versions of the libraries that figures depend on",
        [Column("library", "library", figures=False), Column("version", "version", figures=False)],
        rows,
    )


def panel(page: Page) -> Panel:
    """Make the panel."""
    report = page.report
    configuration, hashes, versions = _strategies(page), _hashes(page), _versions(page)
    models = {str(page.strategy(name)["embed_model"].value) for name in page.strategies} - {""}
    context = {
        "parts": PARTS,
        "command": command(page),
        "option": FOLDERS.get(str(report["index"]["loader"].value)),
        "configuration": configuration,
        "hashes": hashes,
        "versions": versions,
        "chunker": list(leaves(report["index"]["chunker"])),
        "models": sorted(models),
        "features": report["features"].items() if "features" in report else [],
    }
    return Panel("Methods", "methods.html", context, (configuration, hashes, versions))
