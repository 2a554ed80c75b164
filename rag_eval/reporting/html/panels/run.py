"""Panels of the run as a whole: verdict with the differences from the last run, cost, methods."""

import shlex
from collections.abc import Iterator
from typing import Final

from rag_eval.gates.gate import count_gates
from rag_eval.gold.files import ORIGINAL
from rag_eval.reporting import report_tables as tables
from rag_eval.reporting.report_tables import Page, Panel, lost_steps
from rag_eval.reporting.tables import Cursor, Table, panel_words, visible

# ---- Verdict: does the run pass, on which gates, and can it be compared with the run before it.

STATUSES = {
    "pass": "pass",
    "fail": "fail",
    "insufficient_evidence": "not enough evidence",
    "not_applicable": "not applicable",
}


UNMET: Final = ("fail", "insufficient_evidence")


def verdict(page: Page) -> Panel:
    """Make the panel of the verdict."""
    gates = list(page.report["gates"])
    regressions = [gate["evidence"] for gate in gates if "baseline_run" in gate["evidence"]]
    measured = [each for each in regressions if "value" in each]
    baseline = next(iter(measured or regressions), None)
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
    shown = {"gates": tables.gates(page), "deltas": _previous_differences_table(page)}
    return Panel("Verdict", "verdict.html", context, shown)


# ---- Cost and latency: how long a query takes, what a thousand cost, what the caches saved.


def cost(page: Page) -> Panel:
    """Make the panel of cost and latency."""
    context = {
        "embeddings": page.report["embeddings"],
        "answers_cost": page.report.get("answers", "usage", "cost_per_1k"),
    }
    shown = {"cost": _cost_table(page), "approximate": _approximate_search_table(page)}
    return Panel("Cost", "cost.html", context, shown)


# ---- Methods: definitions, the configuration, and one command that repeats the run.

FEATURES: Final = ("FEATURE_HYBRID_RETRIEVAL", "FEATURE_RAGAS_EVAL")
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


def methods(page: Page) -> Panel:
    """Make the panel of methods."""
    report = page.report
    models = {str(page.strategy(name)["embed_model"].value) for name in page.strategies} - {""}
    context = {
        "parts": panel_words()["methods"],
        "command": command(page),
        "option": FOLDERS.get(str(report["index"]["loader"].value)),
        "chunker": list(_leaves(report["index"]["chunker"])),
        "models": sorted(models),
        "features": report["features"].items(),
    }
    shown = {
        "configuration": _configuration_table(page),
        "hashes": _hashes_table(page),
        "versions": _versions_table(page),
    }
    return Panel("Methods", "methods.html", context, shown)


# ---- Tables that only these panels show.


def _previous_differences_table(page: Page) -> Table:
    """Show the differences from the previous run."""
    caption = "Differences from the previous run, on the same questions"
    columns = f"strategy | measure | before | after | {tables.PAIRED}"
    rows = page.report.get("previous", "deltas") or ()
    return page.table("previous-differences", caption, columns, rows)


def _cost_table(page: Page) -> Table:
    """Show latency and cost of retrieval."""
    rows = [
        {
            "strategy": name,
            "entry": page.strategy(name),
            "run": "reused" if page.report.get("reused", "runs", name) else "new",
        }
        for name in page.strategies
    ]
    columns = """strategy | p50 ms = entry.latency_ms.p50 :2 | p95 ms = entry.latency_ms.p95 :2
        | p99 ms = entry.latency_ms.p99 :2 | calls = entry.latency_ms.n
        | measured at = entry.latency_ms.measured_at
        | cost of a thousand = entry.cost_per_1k :4 | retrieved = run"""
    return page.table("latency-cost", "Latency and cost of retrieval", columns, rows)


def _approximate_search_table(page: Page) -> Table:
    """Show how much of exact search approximate search finds."""
    rows = [
        {"strategy": name, "seed": seed, "measure": measure, "figure": figure}
        for name in page.strategies
        if (by_seed := page.strategy(name).get("ann_recall", "by_seed")) is not None
        for seed, figures in by_seed.items()
        for measure, figure in figures.items()
    ]
    columns = """strategy | measure | seed | value = figure | scored = figure.n_scored
        | effective = figure.n_effective :1"""
    caption = "Recall of exact search by approximate search"
    return page.table("approximate-search", caption, columns, rows)


def _configuration_table(page: Page) -> Table:
    """Show the configured settings of the strategies."""
    rows = [
        {"strategy": name, "setting": setting, "value": value}
        for name in page.strategies
        for setting, value in _leaves(page.strategy(name)["configuration"])
        if setting != "name"
    ]
    caption = "Configured settings of the strategies"
    return page.table("configuration", caption, "strategy | setting | value :5", rows)


def _hashes_table(page: Page) -> Table:
    """Show the hashes to compare after a repeated run."""
    report = page.report
    rows = [
        {"hash": "gold hash", "of": "every question and target", "value": report["gold"]["hash"]},
        {"hash": "chunks_hash", "of": "every chunk", "value": report["index"]["chunks_hash"]},
        *(
            {"hash": "index_hash", "of": entry["name"], "value": entry["index_hash"]}
            for entry in report["strategies"]
        ),
        {"hash": "content_hash", "of": "every figure", "value": report["content_hash"]},
    ]
    caption = "Hashes to compare after a repeated run"
    return page.table("hashes", caption, "hash | of | code = value", rows)


def _versions_table(page: Page) -> Table:
    """Show the versions of the libraries that figures depend on."""
    libraries = [("rag_eval", page.report["version"]), *page.report["code"]["libraries"].items()]
    rows = [{"library": name, "version": version} for name, version in libraries]
    caption = "Versions of the libraries that figures depend on"
    return page.table("versions", caption, "library | version", rows)


def _leaves(cursor: Cursor, name: str = "", depth: int = 6) -> Iterator[tuple[str, Cursor]]:
    """Yield (dotted name, place) of each value in a part of the report."""
    if isinstance(cursor.value, dict) and depth:
        for key, inside in cursor.items():
            yield from _leaves(inside, f"{name}.{key}" if name else key, depth - 1)
    elif isinstance(cursor.value, list) and depth and cursor.value:
        for at, inside in enumerate(cursor):
            yield from _leaves(inside, f"{name}[{at}]", depth - 1)
    else:
        yield name, cursor
