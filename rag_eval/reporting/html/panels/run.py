"""Panels of the run as a whole: verdict, history, cost and latency, methods."""

import math
import shlex
from collections.abc import Iterator, Sequence
from typing import Final

from markupsafe import Markup

from rag_eval.core.report import count_gates
from rag_eval.reporting.html.drawing import (
    DASHED,
    LINE,
    MUTED,
    Chart,
    Row,
    ends_of,
    forest,
    label,
    plots,
    value_of,
)
from rag_eval.reporting.html.elements import (
    Cell,
    Cursor,
    Table,
    bounds,
    estimate_cell,
    number_cell,
    plain,
    visible,
    words_cell,
)
from rag_eval.reporting.html.panel import Page, Panel, TableRow, panel_words

# ---- Verdict: does the run pass, on which gates, and can it be compared with the run before it.

STATUSES = {"pass": "pass", "fail": "fail", "insufficient_evidence": "not enough evidence"}


def _regression_cell(evidence: Cursor) -> Cell:
    """Make a cell of a regression gate: the judged relative drop, and the difference.

    In CSV the difference, the run of the baseline and other changes have columns of their own.
    """
    difference = estimate_cell(evidence, signed=True)
    html, words = Markup("difference {}").format(difference.html), f"difference {difference.text}"
    columns = {"": ""}
    if "relative_drop" in evidence:
        drop = number_cell(evidence["relative_drop"])
        html = Markup("drop {}<br>{}").format(drop.html, html)
        words, columns = f"drop {drop.text}; {words}", dict(drop.csv)
    different = "; ".join(
        f"{name}: {part['before'].value} before, {part['now'].value} now"
        for name, part in _differing(evidence)
    )
    columns |= {f"difference{end}": value for end, value in difference.csv.items()}
    columns |= {
        "baseline_run": plain(str(evidence["baseline_run"].value)),
        "different": plain(different),
    }
    return Cell(html, words, columns)


def _differing(evidence: Cursor | None) -> list[tuple[str, Cursor]]:
    found = None if evidence is None else evidence.get("different")
    return [] if found is None else found.items()


def _evidence_cell(evidence: Cursor) -> Cell:
    if "baseline_run" in evidence and "value" in evidence:
        return _regression_cell(evidence)
    if "ci_low" in evidence:
        return estimate_cell(evidence)
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
            "status": words_cell(gate["status"], "chip"),
            "required": "required" if gate["required"].value else "advisory",
            "found": _evidence_cell(gate["evidence"]),
            "accepted": gate["evidence"].get("accepted"),
            "groups": gate["evidence"]["n_groups"] if "n_groups" in gate["evidence"] else "",  # noqa: SIM401 - no mapping
        }
        for gate in gates
    ]
    held = [gate["evidence"] for gate in gates if "baseline_run" in gate["evidence"]]
    baseline = next((e for e in held if "value" in e), held[0] if held else None)
    answers, trust = page.report.get("answers", "measures"), page.report["trust"]
    context = {
        "required": any(gate["required"].value for gate in gates),
        "counts": count_gates((gate["required"].value, gate["status"].value) for gate in gates),
        "failed": [g for g in gates if g["required"].value and g["status"].value != "pass"],
        "by_status": {s: [g for g in gates if g["status"].value == s] for s in STATUSES},
        "states": STATUSES,
        "n_gates": len(gates),
        "previous": page.report.get("previous"),
        "baseline": baseline,
        "different": _differing(baseline),
        "grounded": None if answers is None else answers.where(name="groundedness"),
        "refused": None if answers is None else answers.where(name="refused_answerable"),
        "trusted": trust["retrieved"][page.primary]["avg_trust"],
        "guard": trust["poisoning"],
    }
    return Panel("Verdict", "verdict.html", context, {"gates": page.table("gates", rows)})


# ---- History: the runs of this gold set, and the differences from the run before.

MAX_ROWS: Final = 30
FIGURES: Final = (
    ("recall", "R@10", (0.0, 1.0)),
    ("mrr", "MRR", (0.0, 1.0)),
    ("miss_any", "observed miss rate", (0.0, 1.0)),
    ("skill", "Brier skill of the miss rate", None),
)
BREAKING: Final = frozenset({"gold", "chunks", "index", "configuration"})
"""Inputs whose change breaks a line. Newer code and other strategies do not break it."""
MAX_LINES: Final = 8
MAX_DATES: Final = 6
MAX_POINTS: Final = 12
"""Largest number of runs with a point for each run; more runs are only a line."""
MAX_NAMED: Final = 16
"""Largest number of numbered breaks in a picture; the numbers of more breaks would overlap."""


def drawn_strategies(page: Page) -> list[str]:
    """Return the drawn strategies: at most one for each colour, with the primary strategy."""
    names = page.strategies[:MAX_LINES]
    return names if page.primary in names else [*names[:-1], page.primary]


def split(places: Sequence[int], cut: Sequence[int]) -> list[list[int]]:
    """Split run numbers into pieces of unbroken lines, at `cut` and at runs without a figure."""
    pieces: list[list[int]] = []
    for at in places:
        if pieces and at == pieces[-1][-1] + 1 and at not in cut:
            pieces[-1].append(at)
        else:
            pieces.append([at])
    return pieces


def _dates(runs: Sequence[Cursor]) -> list[tuple[float, str]]:
    """Choose at most MAX_DATES runs, and return (run number, "MM-DD") of each."""
    last = len(runs) - 1
    places = list(range(len(runs)))
    if last >= MAX_DATES:
        places = sorted({round(last * step / (MAX_DATES - 1)) for step in range(MAX_DATES)})
    return [(float(at), str(runs[at]["timestamp"].value)[5:10]) for at in places]


def _draw_breaks(chart: Chart, runs: Sequence[Cursor]) -> tuple[list[int], str]:
    """Draw a numbered line before every run with changed inputs.

    Returns the numbers of runs that break the lines, and a caption with the changed inputs.
    """
    found = {
        at: [code.removesuffix("_changed") for code in run.value["reason_codes"]]
        for at, run in enumerate(runs)
        if at and run.value["reason_codes"]
    }
    for number, (at, names) in enumerate(found.items(), start=1):
        breaks = not BREAKING.isdisjoint(names)
        chart.vertical(at - 0.5, MUTED if breaks else LINE, DASHED)
        if len(found) <= MAX_NAMED:
            chart.head(at - 0.5, str(number))
    named = [f"{number} {', '.join(names)}" for number, names in enumerate(found.values(), start=1)]
    caption = f"Changed: {'; '.join(named)}." if 0 < len(named) <= MAX_NAMED else ""
    return [at for at, names in found.items() if not BREAKING.isdisjoint(names)], caption


def _figures_by_strategy(
    page: Page, runs: Sequence[Cursor], key: str
) -> dict[str, dict[int, Cursor]]:
    """Find one figure of every drawn strategy, by run number."""
    found: dict[str, dict[int, Cursor]] = {}
    for name in drawn_strategies(page):
        for at, run in enumerate(runs):
            record = run.get("strategies", name, key)
            if record is not None and value_of(record, "value") is not None:
                found.setdefault(name, {})[at] = record
    return found


def _draw_interval(chart: Chart, figures: dict[int, Cursor], fill: str) -> None:
    """Draw the intervals of several runs as a band, or the interval of one run as a stroke."""
    ends = [(at, found) for at, record in figures.items() if (found := bounds(record)) is not None]
    pairs = [(float(low.value), float(high.value)) for _, (low, high) in ends]
    if len(ends) > 1:
        chart.band([at for at, _ in ends], pairs, fill)
    elif ends:
        chart.line([(ends[0][0], end) for end in pairs[0]], fill, 1.6, opacity=0.6)


def line_picture(
    page: Page, runs: Sequence[Cursor], key: str, title: str, limits: tuple[float, float] | None
) -> Markup:
    """Draw a figure over the runs: a line for each strategy, a band for the primary strategy."""
    by_strategy = _figures_by_strategy(page, runs, key)
    if not by_strategy:
        return Markup()
    if limits is None:
        figures = [record for known in by_strategy.values() for record in known.values()]
        ends = [
            end
            for record in figures
            for end in (record["value"].value, *ends_of(record, record["value"].value))
        ]
        low, high = math.floor(10 * min(ends)) / 10, math.ceil(10 * max(ends)) / 10
        limits = low, max(high, low + 0.1)
    chart = Chart(title, x=(-0.4, len(runs) - 0.6), y=limits, x_ticks=_dates(runs), height=170)
    cut, caption = _draw_breaks(chart, runs)
    words = []
    for name, known in by_strategy.items():
        fill, primary = page.colour(name), name == page.primary
        for piece in split(list(known), cut):
            if primary:
                _draw_interval(chart, {at: known[at] for at in piece}, fill)
            points = [(at, known[at]["value"].value) for at in piece]
            chart.line(points, fill, 2.6 if primary else 1.6)
            if len(piece) == 1 or len(runs) <= MAX_POINTS:
                for x, y in points:
                    chart.point(x, y, fill, size=3)
        first, last = (known[at]["value"].value for at in (min(known), max(known)))
        words.append(f"{label(name)} {first:.3f} at first, {last:.3f} at last")
    slug = f"history-{key.replace('_', '-')}"
    title = f"{title} over the runs of this gold set"
    return chart.figure(slug, title, "; ".join(words), caption)


def delta_picture(page: Page, previous: Cursor) -> Markup:
    """Draw the paired differences in recall from the run before."""
    rows = [
        Row(name, row, page.colour(name), key="delta", strong=name == page.primary)
        for row in previous["deltas"]
        if row["measure"].value == "R@10" and (name := row["strategy"].value) in page.strategies
    ]
    ends = [
        abs(row.record[key].value or 0)
        for row in rows
        if row.record is not None
        for key in ("delta", "ci_low", "ci_high")
    ]
    widest = max([1.1 * end for end in ends] + [0.05])
    title = "R@10: this run minus the one before"
    return forest(
        rows,
        "history-previous",
        title,
        "R@10, this run minus the one before",
        limits=(-widest, widest),
        reference=0.0,
        head="Changes since the previous run",
    )


def _history_row(page: Page, run: Cursor) -> TableRow:
    own = run.get("strategies", page.primary)
    comparable = run.value.get("comparable")
    status = None if own is None else own.get("status")
    return {
        "run": run,
        "own": own,
        "comparable": "first"
        if comparable is None
        else "comparable"
        if comparable
        else "not comparable",
        "reason": run.get("reason") or "",
        "status": words_cell("" if status is None else status, "chip"),
        "rev": run["rev"] if run["rev"].value is not None else "not stated",
    }


def history(page: Page) -> Panel:
    """Make the panel of history."""
    about, previous = page.report.get("history"), page.report.get("previous")
    if about is None or "runs" not in about or not about["runs"].value:
        return Panel("History", "history.html", {"history": None, "previous": None})
    runs = list(about["runs"])
    pictures = list[Markup]()
    if len(runs) > 1:  # A line needs two runs.
        pictures = [line_picture(page, runs, *figure) for figure in FIGURES]
    deltas = None
    if previous is not None and previous.get("deltas") is not None:
        rows = [{"row": row} for row in previous["deltas"]]
        deltas = page.table("previous-differences", rows)
        pictures.append(delta_picture(page, previous))
    newest = [_history_row(page, run) for run in list(reversed(runs))[:MAX_ROWS]]
    context = {
        "history": about,
        "previous": previous,
        "one": len(runs) == 1,
        "pictures": plots(pictures),
        "legend": drawn_strategies(page),
        "more_strategies": len(page.strategies) > MAX_LINES,
        "more_runs": len(runs) > MAX_ROWS,
    }
    tables = {"history": page.table("history", newest), "deltas": deltas}
    return Panel("History", "history.html", context, tables)


# ---- Cost and latency: how long a query takes, what a thousand cost, what the caches saved.

PERCENTILES: Final = {"p50": "o", "p95": "D", "p99": ">"}
_MEASURES: Final = frozenset(
    {"latency_p50_ms", "latency_p95_ms", "latency_p99_ms", "cost_per_1k", "cache_hit_rate"}
)


def _latency_picture(page: Page) -> Markup:
    measured = {
        name: {
            key: value
            for key in PERCENTILES
            if (value := value_of(page.strategy(name), "latency_ms", key)) is not None and value > 0
        }
        for name in page.strategies
    }
    times = [value for found in measured.values() for value in found.values()]
    if not times:
        return Markup()
    low, high = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    high = max(high, low + 1)
    places = [10.0**at for at in range(low, high + 1)]
    ticks = [(v, f"{v:g}" if v >= 0.1 else f"{1000 * v:g} µs") for v in places]  # noqa: PLR2004 - 0.1 ms
    rows = [(float(at), label(name)) for at, name in enumerate(measured)]
    chart = Chart(
        "Latency of one query",
        x=(places[0], places[-1]),
        y=(len(rows) - 0.4, -0.6),
        log=True,
        height=26 * len(rows) + 6,
        x_ticks=ticks,
        y_ticks=rows,
        x_label="milliseconds, log scale",
        grid="x",
        frame=False,
    )
    words = []
    for row, (name, found) in enumerate(measured.items()):
        chart.line([(value, row) for value in found.values()], page.colour(name), 1.8)
        for key, value in found.items():
            chart.point(value, row, page.colour(name), PERCENTILES[key])
        percentiles = ", ".join(f"{key} {value:.3g} ms" for key, value in found.items())
        words.append(f"{label(name)}: {percentiles or 'not measured'}")
    title = "Latency of one query by strategy, log scale"
    return chart.figure(
        "latency", title, "; ".join(words), "Circle p50, diamond p95, triangle p99."
    )


def _approximate(page: Page) -> list[TableRow]:
    """Return (strategy, seed, measure, figure) of every recall of an approximate index."""
    return [
        {"strategy": name, "seed": seed, "measure": measure, "figure": figure}
        for name in page.strategies
        if (by_seed := page.strategy(name).get("ann_recall", "by_seed")) is not None
        for seed, found in by_seed.items()
        for measure, figure in found.items()
    ]


def _cost_gates(page: Page) -> Table | None:
    rows = []
    for gate in page.report["gates"]:
        evidence = gate["evidence"]
        if evidence.value.get("measure") in _MEASURES:
            found = words_cell(evidence.get("reason") or "")
            if "value" in evidence:
                found = number_cell(evidence["value"])
            rows.append({"gate": gate, "value": found, "accepted": evidence.get("accepted")})
    return page.optional_table("cost-gates", rows)


def cost(page: Page) -> Panel:
    """Make the panel of cost and latency."""
    report, found = page.report, _approximate(page)
    rows = []
    for name in page.strategies:
        run = "reused" if report.get("reused", "runs", name) else "new"
        rows.append({"strategy": name, "entry": page.strategy(name), "run": run})
    context = {
        "pictures": plots([_latency_picture(page)]),
        "embeddings": report["embeddings"],
        "answers_cost": report.get("answers", "usage", "cost_per_1k"),
        "primary": page.strategy(page.primary),
    }
    tables = {
        "cost": page.table("latency-cost", rows),
        "approximate": page.optional_table("approximate-search", found),
        "gates": _cost_gates(page),
    }
    return Panel("Cost and latency", "cost.html", context, tables)


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
