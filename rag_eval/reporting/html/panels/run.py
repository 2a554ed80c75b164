"""Panels of the run as a whole: verdict, history, cost and latency, methods."""

import shlex
from collections.abc import Iterable, Iterator
from typing import Final

from markupsafe import Markup

from rag_eval.gates.gate_report import count_gates
from rag_eval.gold.files import ORIGINAL
from rag_eval.reporting.html.drawing import (
    Row,
    forest,
    plots,
)
from rag_eval.reporting.html.elements import (
    Cell,
    Cursor,
    estimate_cell,
    number_cell,
    visible,
    words_cell,
)
from rag_eval.reporting.html.panel import Page, Panel, TableRow, lost_steps, panel_words

# ---- Verdict: does the run pass, on which gates, and can it be compared with the run before it.

STATUSES = {
    "pass": "pass",
    "fail": "fail",
    "insufficient_evidence": "not enough evidence",
    "not_applicable": "not applicable",
}


UNMET: Final = ("fail", "insufficient_evidence")


def _evidence_cell(evidence: Cursor) -> Cell:
    """Make a cell of what a gate found: an estimate with its interval, or one figure."""
    if "ci_low" in evidence:
        return estimate_cell(evidence, signed="baseline_run" in evidence)
    for key in ("value", "delta"):
        if key in evidence and not isinstance(evidence[key].value, str):
            return number_cell(evidence[key])
    return words_cell("")


def verdict(page: Page) -> Panel:
    """Make the panel of the verdict."""
    gates = list(page.report["gates"])
    rows = [
        {
            "gate": gate,
            "required": "required" if gate["required"].value else "advisory",
            "found": _evidence_cell(gate["evidence"]),
            "drop": gate["evidence"].get("relative_drop") or "",
            "accepted": gate["evidence"].get("accepted"),
            "effective": gate["evidence"].get("n_effective") or "",
            "catches": gate["evidence"].get("catches_drop") or "",
        }
        for gate in gates
    ]
    held = [gate["evidence"] for gate in gates if "baseline_run" in gate["evidence"]]
    baseline = next((each for each in held if "value" in each), held[0] if held else None)
    different = None if baseline is None else baseline.get("different")
    answers, trust = page.report.get("answers", "measures"), page.report["trust"]
    citations = page.report.get("citations", "measures")
    deltas = page.report.get("previous", "deltas")
    missed = page.report.get("uncertainty", "strategies", page.primary)
    misses = page.report.get("misses", page.primary)
    context = {
        "required": any(gate["required"].value for gate in gates),
        "counts": count_gates((gate["required"].value, gate["status"].value) for gate in gates),
        "failed": [g for g in gates if g["required"].value and g["status"].value in UNMET],
        "by_status": {s: [g for g in gates if g["status"].value == s] for s in STATUSES},
        "states": STATUSES,
        "n_gates": sum(g["status"].value != "not_applicable" for g in gates),
        "previous": page.report.get("previous"),
        "baseline": baseline,
        "different": [] if different is None else list(different),
        "changed": deltas and deltas.where(strategy=page.primary, measure="R@10"),
        "k": str(page.report["uncertainty"]["k"].value),
        "observed": missed and missed.get("observed", "miss_any"),
        "stated": missed and missed.get("stated"),
        "status": missed and missed.get("status"),
        "misses": misses,
        "original": page.report.get(
            "stability", "strategies", page.primary, "by_wording", ORIGINAL, "miss", "value"
        ),
        "lost": [] if misses is None else lost_steps(misses),
        "worst": list(page.report.get("look_first") or ()),
        "grounded": None if answers is None else answers.where(name="groundedness"),
        "refused": None if answers is None else answers.where(name="refused_answerable"),
        "right": citations and citations.where(name="citation_precision"),
        "trusted": trust["retrieved"][page.primary]["avg_trust"],
        "guard": trust["poisoning"],
        "latency": page.strategy(page.primary)["latency_ms"],
    }
    return Panel("Verdict", "verdict.html", context, {"gates": page.table("gates", rows)})


# ---- History: the differences from the run before.


def _draw_changes(page: Page, deltas: Iterable[Cursor]) -> Markup:
    """Draw the differences of R@10 from the run before."""
    found = {str(row["strategy"].value): row for row in deltas if row["measure"].value == "R@10"}
    rows = [
        Row(name, row, page.colour(name), name == page.primary, "delta")
        for name, row in found.items()
        if name in page.strategies
    ]
    head = "R@10, this run minus the last"
    return forest(rows, "changes", f"{head}, with 95 % intervals", head=head)


def history(page: Page) -> Panel:
    """Make the panel of the differences from the run before."""
    previous = page.report.get("previous")
    deltas = None if previous is None else previous.get("deltas")
    context = {"previous": previous, "pictures": plots([_draw_changes(page, deltas or ())])}
    return Panel(
        "History",
        "history.html",
        context,
        {"deltas": page.optional_table("previous-differences", deltas or ())},
    )


# ---- Cost and latency: how long a query takes, what a thousand cost, what the caches saved.


def cost(page: Page) -> Panel:
    """Make the panel of cost and latency."""
    report = page.report
    rows = [
        {
            "strategy": name,
            "entry": page.strategy(name),
            "run": "reused" if report.get("reused", "runs", name) else "new",
        }
        for name in page.strategies
    ]
    approximate = [
        {"strategy": name, "seed": seed, "measure": measure, "figure": figure}
        for name in page.strategies
        if (by_seed := page.strategy(name).get("ann_recall", "by_seed")) is not None
        for seed, found in by_seed.items()
        for measure, figure in found.items()
    ]
    context = {
        "embeddings": report["embeddings"],
        "answers_cost": report.get("answers", "usage", "cost_per_1k"),
        "primary": page.strategy(page.primary),
    }
    tables = {
        "cost": page.table("latency-cost", rows),
        "approximate": page.optional_table("approximate-search", approximate),
    }
    return Panel("Cost", "cost.html", context, tables)


# ---- Methods: definitions, the configuration, and one command that repeats the run.

FEATURES: Final = ("FEATURE_HYBRID_RETRIEVAL", "FEATURE_RAGAS_EVAL")
MAX_DEPTH: Final = 6
FOLDERS: Final = {"beir": "--beir", "recorded": "--recorded"}
"""Option of `rag-eval run` for the folder of each loader that needs no gold set."""


def command(page: Page) -> str:
    """Write the shell command that repeats the run.

    Hidden characters of a name are written out, so that a reader sees all of the pasted text.
    """
    report = page.report
    name = visible(str(report["gold"]["name"].value))
    name = name.replace("\n", "[U+000A]").replace("\t", "[U+0009]")
    features = report["features"].value
    words = [f"{feature}=true" for feature in FEATURES if features.get(feature) is True]
    day = visible(str(report["trust"]["as_of"].value))
    words += [f"RAG_EVAL_TRUST_AS_OF={shlex.quote(day)}", "rag-eval run"]
    evaluation = report["evaluation"].value
    if evaluation.get("partial"):
        words += [f"--strategy {shlex.quote(strategy)}" for strategy in page.strategies]
    if evaluation.get("known", True):
        words += [*(["--"] if name.startswith("-") else []), shlex.quote(name)]
    else:
        words.append(f"{FOLDERS.get(str(report['index']['loader'].value), '--beir')} PATH")
    return " ".join(words)


def leaves(cursor: Cursor, name: str = "", depth: int = MAX_DEPTH) -> Iterator[tuple[str, Cursor]]:
    """Yield (dotted name, place) of each value in a part of the report."""
    if isinstance(cursor.value, dict) and depth:
        for key, inside in cursor.items():
            yield from leaves(inside, f"{name}.{key}" if name else key, depth - 1)
    elif isinstance(cursor.value, list) and depth and cursor.value:
        for at, inside in enumerate(cursor):
            yield from leaves(inside, f"{name}[{at}]", depth - 1)
    else:
        yield name, cursor


def methods(page: Page) -> Panel:
    """Make the panel of methods."""
    report = page.report
    configuration = [
        {"strategy": name, "setting": setting, "value": words_cell(value)}
        for name in page.strategies
        for setting, value in leaves(page.strategy(name)["configuration"])
        if setting != "name"
    ]
    gold, chunks = report["gold"]["hash"], report["index"]["chunks_hash"]
    content = "every figure that is not of time, place or cache"
    hashes: list[TableRow] = [
        {"hash": "gold hash", "of": "every question, wording, target and quote", "value": gold},
        {"hash": "chunks_hash", "of": "every chunk, and the chunker", "value": chunks},
        *(
            {"hash": "index_hash", "of": entry["name"], "value": entry["index_hash"]}
            for entry in report["strategies"]
        ),
        {"hash": "content_hash", "of": content, "value": report["content_hash"]},
    ]
    versions: list[TableRow] = [{"library": "rag_eval", "version": report["version"]}]
    versions += [
        {"library": name, "version": version}
        for name, version in report["code"]["libraries"].items()
    ]
    models = {str(page.strategy(name)["embed_model"].value) for name in page.strategies} - {""}
    context = {
        "parts": panel_words()["methods"],
        "command": command(page),
        "option": FOLDERS.get(str(report["index"]["loader"].value)),
        "chunker": list(leaves(report["index"]["chunker"])),
        "models": sorted(models),
        "features": report["features"].items(),
    }
    tables = {
        "configuration": page.table("configuration", configuration),
        "hashes": page.table("hashes", hashes),
        "versions": page.table("versions", versions),
    }
    return Panel("Methods", "methods.html", context, tables)
