"""Panels of retrieval: measures, recall by K, denominators, and stability."""

from collections.abc import Iterator, Sequence
from typing import Final

from markupsafe import Markup

from rag_eval.reporting import report_tables as tables
from rag_eval.reporting.html.drawing import Chart, Row, ends_of, forest, label, plots, value_of
from rag_eval.reporting.report_tables import Page, Panel
from rag_eval.reporting.tables import Cursor, Table, column_key

# ---- Measures: forests of the strategies, paired differences, recall by K, and denominators.

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
    ks = sorted(int(name[2:]) for name in known if name.startswith("R@"))
    context = {
        "pictures": plots(pictures),
        "curves": plots(_draw_recall(page, level, ks) for level in LEVELS),
        "missing": list(_list_missing(page, ks)),
        "gold": page.report["gold"],
        "index": page.report["index"],
    }
    shown = {
        "measures": _measures_table(page, labels),
        "paired": _paired_differences_table(page),
        "recall": _recall_table(page, ks),
        "denominators": _denominators_table(page),
    }
    return Panel("Strategies compared", "measures.html", context, shown)


def _list_missing(page: Page, ks: Sequence[int]) -> Iterator[tuple[Markup, str, Cursor | str]]:
    """Yield (strategy, level, reason) of each curve that cannot be drawn."""
    for level in LEVELS:
        for name in page.strategies:
            records = [record for k in ks if (record := page.measure(name, f"R@{k}", level))]
            if all(record["value"].value is None for record in records):
                reason = records[0]["value"].reason_beside if records else NOT_MEASURED
                yield page.swatch(name), level, reason


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


def stability(page: Page) -> Panel:
    """Make the panel of stability."""
    shown = {
        "wordings": _wordings_table(page),
        "by_wording": _by_wording_table(page),
        "states": _states_table(page),
        "flips": _flips_table(page),
        "distance": _distances_table(page),
    }
    context = {"embedding": page.report["stability"]["embedding"]}
    return Panel("Stability", "stability.html", context, shown)


# ---- Slices: recall and misses by tag.


def slices(page: Page) -> Panel:
    """Make the panel of slices."""
    rows = [
        {"tag": part["tag"], "questions": part["n_queries"], "strategy": name, "found": figure}
        for part in page.report["slices"]["by"]
        for name, figure in part["strategies"].items()
        if name == page.primary
    ]
    columns = """tag | questions | R@10 = found | scored = found.n_scored
        | effective = found.n_effective :1 | missed = found.miss"""
    table = page.table("slices", "The primary strategy by tag", columns, rows)
    return Panel("Slices", "slices.html", {"slices": page.report["slices"]}, {"slices": table})


# ---- Recall by K at document, section and span level, and how far strategies find the same.

LEVELS: Final = ("document", "section", "span")
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


# ---- Tables that only these panels show.


def _denominators_table(page: Page) -> Table:
    """Show how many questions each strategy's figures are over."""
    rows = [
        {
            "strategy": name,
            "entry": page.strategy(name),
            "record": page.measure(name, "R@10"),
            "judged": page.measure(name, "Judged@10"),
        }
        for name in page.strategies
    ]
    columns = """strategy | attempted = record.n_attempted | scored = record.n_scored
        | failed = record.n_failed | ineligible = record.n_ineligible
        | effective = record.n_effective :1 | retrievals = entry.n_runs | empty = entry.n_empty
        | failures = entry.n_failed | Judged@10 = judged.value"""
    return page.table("denominators", "Questions of each strategy's figures", columns, rows)


def _measures_table(page: Page, labels: Sequence[str]) -> Table:
    """Show measures of every strategy at the headline level."""
    rows = [
        {
            "strategy": name,
            "entry": page.strategy(name),
            **{label: page.measure(name, label) for label in labels},
        }
        for name in page.strategies
    ]
    figures = " | ".join(f"{label} = {label}" for label in labels)
    columns = f"""strategy | kind = entry.kind | {figures} | scored = {labels[0]}.n_scored
        | effective = {labels[0]}.n_effective :1"""
    caption = "Measures at the headline level, 95 % intervals"
    return page.table("measures", caption, columns, rows)


def _paired_differences_table(page: Page) -> Table:
    """Show paired differences between strategies, those of the primary one first."""
    rows = sorted(
        page.report["comparisons"],
        key=lambda row: page.primary not in {row["a"].value, row["b"].value},
    )
    columns = f"""strategy = a | against = b | measure | {tables.PAIRED} | p (Holm) = p_adjusted :4
        | detectable = minimum_detectable"""
    caption = "Paired differences between strategies, on the same questions"
    return page.table("paired-differences", caption, columns, rows)


def _recall_table(page: Page, ks: Sequence[int]) -> Table:
    """Show recall by K, at every level."""
    rows = []
    for level in LEVELS:
        for name in page.strategies:
            figures = {f"R@{k}": page.measure(name, f"R@{k}", level) for k in ks}
            records = [record for record in figures.values() if record is not None]
            if records:
                rows.append({"strategy": name, "level": level, "first": records[0], **figures})
    figures_at = " | ".join(f"R@{k} = R@{k}" for k in ks)
    columns = f"""strategy | level | {figures_at} | questions = first.n_scored
        | effective = first.n_effective :1"""
    return page.table("recall", "Recall@K by level, 95 % intervals", columns, rows)


def _by_wording_table(page: Page) -> Table:
    """Show recall and misses under each wording."""
    rows = [
        {"strategy": name, "wording": wording, "found": figures}
        for name, entry in page.by_strategy("stability", "strategies")
        for wording, figures in entry["by_wording"].items()
    ]
    columns = """strategy | wording | R@10 = found | miss rate = found.miss
        | questions = found.n_scored | effective = found.n_effective :1"""
    return page.table("by-wording", "Recall and misses under each wording", columns, rows)


def _states_table(page: Page) -> Table:
    """Show the lambda states of the questions with gold."""
    names = ("convergent", "recursive", "divergent", "chaotic", "undefined")
    figures = " | ".join(
        f"{name} = entry.lambda.{name}.share :2 | n {name} = entry.lambda.{name}.n"
        for name in names
    )
    columns = f"strategy | {figures} | questions = entry.n_queries"
    rows = page.rows_by_strategy("stability", "strategies")
    return page.table("lambda-states", "States of the questions with gold", columns, rows)


MAX_PAIRS: Final = 20
"""Largest number of wording pairs that the table of flips shows for a strategy."""


def _flips_table(page: Page) -> Table:
    """Show the wording pairs with the largest share of flips."""
    rows = []
    for name, entry in page.by_strategy("stability", "strategies"):
        matrix = entry["flip_matrix"]
        shares, size = matrix["share"].value, len(matrix["wordings"])
        pairs = [(first, second) for first in range(size) for second in range(first + 1, size)]
        pairs.sort(key=lambda pair: 0.0 if (s := shares[pair[0]][pair[1]]) is None else -1.0 - s)
        rows += [
            {
                "strategy": name,
                "wording": matrix["wordings"][first],
                "other": matrix["wordings"][second],
                "flips": matrix["share"][first][second],
                "questions": matrix["n"][first][second],
            }
            for first, second in pairs[:MAX_PAIRS]
        ]
    columns = "strategy | wording | other wording = other | flips | questions"
    return page.table("flips", "Flips between wordings at ten results", columns, rows)


def _wordings_table(page: Page) -> Table:
    """Show what the wording and the seed decide."""
    rows = page.rows_by_strategy("stability", "strategies")
    for row in rows:
        same = row["entry"]["seeds_change_nothing"]
        words = {True: "same lists", False: "other lists"}
        row["seeds"] = words.get(same.value, same)
    columns = """strategy | R@10 worst = entry.recall_at_10_by_wording.worst :2
        | R@10 mean = entry.recall_at_10_by_wording.mean :2
        | R@10 best = entry.recall_at_10_by_wording.best :2 | another seed = seeds
        | RBO = entry.rbo :2 | convergent and hit = entry.convergent_and_hit :2
        | questions = entry.recall_at_10_by_wording.mean.n_scored
        | effective = entry.recall_at_10_by_wording.mean.n_effective :1"""
    caption = "What the wording and the seed decide, 95 % intervals"
    return page.table("stability-wordings", caption, columns, rows)


def _distances_table(page: Page) -> Table:
    """Show the semantic distance of what was retrieved."""
    zones = " | ".join(
        f"{zone} = entry.delta_s.zones.{zone}.share :2"
        for zone in ("stable", "transitional", "risk", "undefined")
    )
    columns = f"""strategy | delta_s = entry.delta_s :2 | target = entry.delta_s.target
        | to gold = entry.delta_s.to_anchor :2n | to the decoy = entry.delta_s.to_decoy :2n
        | equally close = entry.delta_s.anchor_and_decoy_equally_close :2n | {zones}
        | questions = entry.delta_s.n_scored | effective = entry.delta_s.n_effective :1"""
    rows = page.rows_by_strategy("stability", "strategies")
    return page.table("delta-s", "Semantic distance of what was retrieved", columns, rows)
