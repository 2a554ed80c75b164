"""Panels of retrieval: denominators, measures, stability, recall by K, and slices."""

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from rag_eval.reporting import report_tables as tables
from rag_eval.reporting.html.drawing import Chart, Row, ends_of, forest, label, plots, value_of
from rag_eval.reporting.report_tables import Page, Panel
from rag_eval.reporting.tables import Cursor, column_key

# ---- Denominators: what the figures of every other panel are shares of.


def denominators(page: Page) -> Panel:
    """Make the panel of denominators."""
    context = {"gold": page.report["gold"], "index": page.report["index"]}
    shown = {"denominators": tables.denominators(page)}
    return Panel("Denominators", "denominators.html", context, shown)


# ---- Measures: a forest of the strategies, the figures behind it, and paired differences.

HEADLINES: Final = ("R@10", "RR", "nDCG@10", "Success@10", "P@10")
DRAWN: Final = 3


def _labels(page: Page) -> list[str]:
    """Return the labels of all measures in the report, sorted."""
    records = [record for entry in page.report["strategies"] for record in entry["measures"]]
    return sorted({str(record["label"].value) for record in records})


def measures(page: Page) -> Panel:
    """Make the panel of measures by strategy."""
    known = _labels(page)
    labels = [name for name in HEADLINES if name in known] or known[:DRAWN]
    pictures = [
        forest(
            [
                Row(each, page.measure(each, name), page.colour(each), each == page.primary)
                for each in page.strategies
            ],
            f"forest-{column_key(name)}",
            f"{name} by strategy with 95 % intervals",
            head=name,
        )
        for name in labels[:DRAWN]
    ]
    pairs = list(page.report["comparisons"])
    pictures += [_draw_differences(page, pairs, name) for name in labels[:2]]
    shown = {"measures": tables.measures(page, labels), "paired": tables.paired_differences(page)}
    return Panel("Strategies compared", "measures.html", {"pictures": plots(pictures)}, shown)


def _draw_differences(page: Page, pairs: Sequence[Cursor], measure: str) -> Markup:
    """Draw the paired differences of one measure between the primary strategy and the others."""
    rows = [
        Row(f"{row['a'].value} − {row['b'].value}", row, page.colour(other), key="delta")
        for row in pairs
        if row["measure"].value == measure
        and page.primary in (both := (str(row["a"].value), str(row["b"].value)))
        and (other := both[both[0] == page.primary])
    ]
    return forest(
        rows,
        f"paired-{measure.lower().replace('@', '-')}",
        f"Paired differences of {measure} with 95 % intervals",
        head=f"{measure}, paired differences",
    )


# ---- Stability: whether a question finds the same evidence however it is put.

MAX_WORDINGS: Final = 12
"""Largest number of wordings of a flip matrix that is drawn."""


def _draw_flips(page: Page, name: str, matrix: Cursor) -> Markup:
    """Draw the flip matrix of one strategy; nothing for one wording or more than MAX_WORDINGS."""
    last, shares = len(matrix["wordings"]) - 1, matrix["share"].value
    if not 0 < last < MAX_WORDINGS:
        return Markup()
    wordings = [label(wording, 14) for wording in matrix["wordings"].value]
    chart = Chart(
        label(name, 40),
        x=(0.0, last),
        y=(last + 1.0, 1.0),
        height=max(30.0 * last, 40),
        x_ticks=[(at + 0.5, label(wordings[at], 30 // last)) for at in range(last)],
        y_ticks=[(at + 0.5, wordings[at]) for at in range(1, last + 1)],
        grid="",
    )
    for row in range(1, last + 1):
        for column in range(row):  # the matrix is symmetric
            share = shares[row][column]
            opacity = 0.06 + 0.6 * (share or 0.0)
            chart.box((column, column + 1), (row, row + 1), page.colour(name), opacity)
            chart.words(column + 0.5, row + 0.5, "–" if share is None else f"{share:.2f}", 9.0)
    return chart.figure(
        f"flips-{page.strategies.index(name)}",
        f"Flips between wordings, {name}",
        f"Share of questions that {name} finds under one of two wordings and misses under the "
        "other, at ten results; darker is more. The table holds the figures.",
    )


def stability(page: Page) -> Panel:
    """Make the panel of stability."""
    entries = page.by_strategy("stability", "strategies")
    shown = {
        "wordings": tables.wordings(page),
        "by_wording": tables.by_wording(page),
        "changes": tables.hit_changes(page),
        "states": tables.states(page),
        "reasons": tables.state_reasons(page),
        "flips": tables.flips(page),
        "distance": tables.distances(page),
    }
    context = {
        "matrices": plots(_draw_flips(page, name, entry["flip_matrix"]) for name, entry in entries),
        "embedding": page.report["stability"]["embedding"],
    }
    return Panel("Stability", "stability.html", context, shown)


# ---- Recall by K at document, section and span level, and how far strategies find the same.

NOT_MEASURED: Final = "not measured at this level"
BANDS: Final = 2
"""Largest number of strategies with bands; beyond it only the primary strategy has a band."""


def _draw_recall(page: Page, level: str, ks: Sequence[int]) -> Markup:
    """Draw recall@K of every strategy with its band at one level."""
    chart = Chart(
        f"recall@K, {level}",
        x=(ks[0] * 0.9, ks[-1] * 1.1) if ks else (1.0, 10.0),
        log=True,
        x_ticks=[(float(k), str(k)) for k in ks],
        x_label="K",
        height=220,
    )
    drawn = False
    for name in sorted(page.strategies, key=lambda name: name == page.primary):  # last: on top
        known = [
            (k, record, value)
            for k in ks
            if (record := page.measure(name, f"R@{k}", level)) is not None
            and (value := value_of(record, "value")) is not None
        ]
        if not known:
            continue
        drawn, fill = True, page.colour(name)
        if len(page.strategies) <= BANDS or name == page.primary:
            ends = [ends_of(record, value) for _, record, value in known]
            chart.band([k for k, _, _ in known], ends, fill)
        chart.line([(k, value) for k, _, value in known], fill, 3 if name == page.primary else 1.8)
        for k, _, value in known:
            chart.point(k, value, fill, size=3)
        chart.key(label(name), fill)
    if not drawn:
        return Markup()
    return chart.figure(
        f"recall-{level}",
        f"Recall@K at {level} level",
        f"Share of each question's gold at {level} level that is among the first K, mean over "
        "questions, with 95 % bands, a line a strategy; thick: the primary one.",
    )


def recall(page: Page) -> Panel:
    """Make the panel of recall by K."""
    ks = sorted(int(name[2:]) for name in _labels(page) if name.startswith("R@"))
    missing = list[tuple[Markup, str, Cursor | str]]()
    for level in tables.LEVELS:
        for name in page.strategies:
            records = [record for k in ks if (record := page.measure(name, f"R@{k}", level))]
            if all(record["value"].value is None for record in records):
                reason = records[0]["value"].reason_beside if records else NOT_MEASURED
                missing.append((page.swatch(name), level, reason))
    context = {
        "pictures": plots(_draw_recall(page, level, ks) for level in tables.LEVELS),
        "missing": missing,
    }
    return Panel("Recall by K", "recall.html", context, {"recall": tables.recall(page, ks)})


# ---- Slices: recall and misses by tag, length and answerability.

MAX_ROWS: Final = 80
"""Largest number of rows of the table of all strategies."""


def slices(page: Page) -> Panel:
    """Make the panel of slices."""
    part = page.report["slices"]
    room = max(1, MAX_ROWS // len(page.strategies))
    shown = {
        "slices": tables.slices(page),
        "strategies": tables.slices_of_strategies(page, room),
    }
    context = {"slices": part, "some": room < len(part["by"])}
    return Panel("Slices", "slices.html", context, shown)
