"""Panels of retrieval: denominators, measures, stability, recall by K with overlap, and slices."""

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

from rag_eval.measures.stability import DELTA_S_TARGET, STABLE_BELOW, TRANSITIONAL_BELOW
from rag_eval.reporting.html.drawing import (
    BAD,
    DASHED,
    FOREGROUND,
    GOOD,
    LINE,
    MUTED,
    PANEL,
    SMALL,
    WARN,
    Chart,
    Row,
    ends_of,
    forest,
    label,
    plots,
    stacked,
    value_of,
)
from rag_eval.reporting.html.elements import Cell, Cursor, Table, words_cell
from rag_eval.reporting.html.panel import Page, Panel

# ---- Denominators: what the figures of every other panel are shares of.


def denominators(page: Page) -> Panel:
    """Make the panel of denominators."""
    rows = [
        {
            "strategy": name,
            "entry": page.strategy(name),
            "record": page.measure(name, "R@10"),
            "judged": page.measure(name, "Judged@10"),
        }
        for name in page.strategies
    ]
    table = page.table("denominators", rows)
    context = {"gold": page.report["gold"], "index": page.report["index"]}
    return Panel("Denominators", "denominators.html", context, {"denominators": table})


# ---- Measures: a forest of the strategies, the figures behind it, and paired differences.

HEADLINES: Final = ("R@10", "RR", "nDCG@10", "Success@10", "P@10")
DRAWN: Final = HEADLINES[:4]


def headline_labels(page: Page) -> list[str]:
    """Return the labels of the headline measures; without these, the first four labels."""
    known = {
        str(record["label"].value)
        for entry in page.report["strategies"]
        for record in entry["measures"]
        if record["level"].value == page.level
    }
    return [name for name in HEADLINES if name in known] or sorted(known)[:4]


def _key_of(name: str) -> str:
    return name.lower().replace("@", "_at_")


def measures(page: Page) -> Panel:
    """Make the panel of measures by strategy."""
    labels = headline_labels(page)
    pictures = []
    for name in labels:
        if name in DRAWN:
            rows = [
                Row(
                    strategy,
                    page.measure(strategy, name),
                    page.colour(strategy),
                    strong=strategy == page.primary,
                )
                for strategy in page.strategies
            ]
            title = f"{name} by strategy with 95 % intervals"
            slug = f"forest-{name.lower().replace('@', '-')}"
            pictures.append(forest(rows, slug, title, head=name))
    records = [
        {
            "strategy": strategy,
            "entry": page.strategy(strategy),
            "first": page.measure(strategy, labels[0]),
            **{_key_of(name): page.measure(strategy, name) for name in labels},
        }
        for strategy in page.strategies
    ]
    columns = [{"key": _key_of(name), "heading": name, "as": "estimate"} for name in labels]
    pairs = sorted(
        page.report["comparisons"],
        key=lambda row: page.primary not in {row["a"].value, row["b"].value},
    )
    tables = {
        "measures": page.table("measures", records, inserts={"measures": columns}),
        "paired": page.table("paired-differences", [{"row": row} for row in pairs]),
    }
    context = {"pictures": plots(pictures)}
    return Panel("Measures by strategy", "measures.html", context, tables)


# ---- Stability: whether a question finds the same evidence however it is put.

WORST_PAIRS: Final = 20
"""Largest number of wording pairs that the flip table shows for a strategy."""
MAX_WORDINGS: Final = 12
"""Largest number of wordings of a flip matrix that is drawn."""
FULL_CELLS: Final = 6
"""From this number of wordings, the flip matrix leaves sample sizes to the table."""
SOURCES: Final = {
    "query": ("question", MUTED, 0.35),
    "paraphrase": ("wording", WARN, 0.5),
    "seed": ("seed", BAD, 0.6),
}
STATES: Final = {
    "convergent": (GOOD, 0.55),
    "recursive": (WARN, 0.25),
    "divergent": (WARN, 0.55),
    "chaotic": (BAD, 0.5),
    "undefined": (MUTED, 0.25),
}
Entries = Sequence[tuple[str, Cursor]]


def _shares(
    entries: Entries,
    slug: str,
    title: str,
    parts: Sequence[tuple[tuple[str, ...], tuple[str, str, float]]],
    description: str,
) -> Markup:
    """Draw shares of strategies as stacked bars.

    A part is (place of the share in an entry, (words of the key, colour, opacity)).
    """
    known = [
        (name, entry)
        for name, entry in entries
        if any(value_of(entry, *place) is not None for place, _ in parts)
    ]
    if not known:
        return Markup()
    drawn = [
        (*look, shares)
        for place, look in parts
        if any(shares := [value_of(entry, *place) or 0.0 for _, entry in known])
    ]
    return stacked(title, [name for name, _ in known], drawn).figure(slug, title, description)


def _variance(entries: Entries) -> Markup:
    """Draw how the variance of recall@10 divides into question, wording and seed."""
    return _shares(
        entries,
        "stability-variance",
        "variance of R@10",
        [(("variance_shares", key), look) for key, look in SOURCES.items()],
        "Shares of the variance of recall@10 between questions, between wordings of a question, "
        "and between seeds of a wording. Where the share of wordings is large, the choice of words "
        "decides whether a question is answered.",
    )


def _states(entries: Entries) -> Markup:
    """Draw the shares of questions by lambda state."""
    return _shares(
        entries,
        "stability-states",
        "lambda states of questions",
        [(("lambda", state, "share"), (state, *look)) for state, look in STATES.items()],
        "Shares of questions by the results of their wordings and seeds: convergent, the same "
        "evidence; recursive, the seed decides the hit; divergent, the wording decides it or the "
        "order drifts; chaotic, the lists have almost nothing in common.",
    )


def is_disjoint(about: Cursor) -> bool:
    """Return whether both distances have values, but no question has both distances."""
    return (
        value_of(about, "to_anchor", "value") is not None
        and value_of(about, "to_decoy", "value") is not None
        and not value_of(about, "anchor_and_decoy_equally_close", "n_scored")
    )


def _distance(page: Page, entries: Entries) -> Markup:
    """Draw delta_s to the question, to gold and to the decoy over its zones."""
    known = [
        (n, entry["delta_s"])
        for n, entry in entries
        if value_of(entry, "delta_s", "value") is not None
    ]
    if not known:
        return Markup()
    title = "ΔS, distance of the first ten to …"
    chart = Chart.of_rows(title, [label(name) for name, _ in known], row=38, grid=False)
    zones = ((0.0, STABLE_BELOW, GOOD), (STABLE_BELOW, TRANSITIONAL_BELOW, WARN))
    for low, high, fill in (*zones, (TRANSITIONAL_BELOW, 1.0, BAD)):
        chart.box((low, high), (-0.6, len(known) - 0.4), fill, 0.13)
    chart.vertical(DELTA_S_TARGET, FOREGROUND, DASHED)
    for row, (name, about) in enumerate(known):
        fill = page.colour(name)
        chart.estimate(about, row - 0.2, fill, size=4.2)
        chart.estimate(about["to_anchor"], row + 0.05, fill, marker="D", hollow=True)
        chart.estimate(about["to_decoy"], row + 0.28, MUTED, marker="x")
    chart.key("question", FOREGROUND)
    chart.key("gold evidence", FOREGROUND, "D", hollow=True)
    chart.key("decoy", MUTED, "x")
    compared = "Results that lie as close to the decoy as to the gold do not tell them apart."
    if any(is_disjoint(about) for _, about in known):
        compared = "Gold and decoy: means over different questions, not to be compared."
    return chart.figure(
        "stability-distance",
        "Semantic distance with its zones",
        "Semantic distance of the first ten results to the question, to the gold evidence and to "
        "the decoy, with 95 % intervals. Tinted: the stable, the transitional and the risk zone; "
        f"dashed: the target. {compared}",
        compared,
    )


def _by_wording(page: Page, entries: Entries) -> Markup:
    """Draw recall@10 of each question's worst wording, of the mean and of the best."""
    key = "recall_at_10_by_wording"
    known = [
        (name, entry[key])
        for name, entry in entries
        if value_of(entry, key, "mean", "value") is not None
    ]
    if not known:
        return Markup()
    title = "R@10 by wording of a question"
    chart = Chart.of_rows(title, [label(name) for name, _ in known], row=38)
    kinds = ((-0.2, "best", "^"), (0.0, "mean", "o"), (0.2, "worst", "v"))
    for row, (name, about) in enumerate(known):
        for shift, kind, marker in kinds:
            fill, hollow = page.colour(name), kind != "mean"
            chart.estimate(about[kind], row + shift, fill, marker=marker, hollow=hollow)
    for _, kind, marker in kinds:
        chart.key(kind, FOREGROUND, marker, hollow=kind != "mean")
    return chart.figure(
        "stability-wordings",
        "Recall of the worst, mean and best wording",
        "Mean over questions of recall@10 of the best wording, of all wordings and of the worst "
        "wording, with 95 % intervals. A user gains or loses the distance between worst and best "
        "by the choice of words.",
    )


def _flips(page: Page, name: str, matrix: Cursor) -> Markup:
    """Draw the flip matrix of one strategy; nothing for one wording or more than MAX_WORDINGS."""
    wordings = [label(wording, 14) for wording in matrix["wordings"].value]
    if not 1 < len(wordings) <= MAX_WORDINGS:
        return Markup()
    last, small = len(wordings) - 1, len(wordings) < FULL_CELLS
    side = 54.0 if small else 30.0
    short = wordings if small else [label(wording, 4) for wording in wordings]
    chart = Chart(
        label(name, 40),
        x=(0.0, last),
        y=(last + 1.0, 1.0),
        height=max(side * last, 40),
        x_ticks=[(at + 0.5, short[at]) for at in range(last)],
        y_ticks=[(at + 0.5, wordings[at]) for at in range(1, last + 1)],
        grid="",
        frame=False,
    )
    for row in range(1, last + 1):
        for column in range(row):  # the matrix is symmetric
            share, n = matrix["share"].value[row][column], matrix["n"].value[row][column]
            cell = ((column, column + 1), (row, row + 1))
            chart.box(*cell, page.colour(name), 0.06 + 0.6 * (share or 0.0))
            words = "–" if share is None else f"{share:.2f}" + (f"\nn={n}" if small else "")
            size = SMALL if small else 9.0
            chart.words(column + 0.5, row + 0.5, words, FOREGROUND, size)
    return chart.figure(
        f"flips-{page.strategies.index(name)}",
        f"Flips between wordings, {name}",
        f"Share of questions that {name} finds under one of two wordings and misses under the "
        "other, at ten results; darker is more. The table holds the figures.",
    )


def _worst_flips(matrix: Cursor) -> list[dict[str, Cursor]]:
    """Return a row for each of the wording pairs with the largest share of flips."""
    shares, size = matrix["share"].value, len(matrix["wordings"])
    pairs = [(one, other) for one in range(size) for other in range(one + 1, size)]
    pairs.sort(key=lambda pair: 0.0 if (s := shares[pair[0]][pair[1]]) is None else -1.0 - s)
    return [
        {
            "one": matrix["wordings"][one],
            "other": matrix["wordings"][other],
            "share": matrix["share"][one][other],
            "questions": matrix["n"][one][other],
        }
        for one, other in pairs[:WORST_PAIRS]
    ]


def _hit_change_table(page: Page, entries: Entries) -> Table:
    keys = sorted(
        {key for _, entry in entries for key in entry["hit_changes_with_wording"].value},
        key=lambda key: int(key.removeprefix("hit_at_")),
    )
    rows = []
    for name, entry in entries:
        found = {key: entry.down("hit_changes_with_wording", key) for key in keys}
        rows.append({"strategy": name, "first": found[keys[0]], **found})
    columns = [
        {"key": key, "heading": key.replace("hit_at_", "hit@"), "as": "estimate", "digits": 2}
        for key in keys
    ]
    return page.table("hit-changes", rows, inserts={"cutoffs": columns})


def stability(page: Page) -> Panel:
    """Make the panel of stability."""
    entries = page.by_strategy("stability", "strategies")
    rows = [{"strategy": name, "entry": entry} for name, entry in entries]
    flips = [
        {"strategy": name, **row}
        for name, entry in entries
        for row in _worst_flips(entry["flip_matrix"])
    ]
    reasons = [
        {"strategy": name, "reason": code.replace("_", " "), "about": about}
        for name, entry in entries
        for code, about in entry["reasons"].items()
    ]
    tables = {
        "wordings": page.table("stability-wordings", rows),
        "states": page.table("lambda-states", rows),
        "distance": page.table("delta-s", rows),
        "changes": _hit_change_table(page, entries),
        "flips": page.optional_table("flips", flips),
        "reasons": page.optional_table("lambda-reasons", reasons),
    }
    seeds = {name: entry["seeds_change_nothing"] for name, entry in entries}
    context = {
        "pictures": plots(
            [
                _variance(entries),
                _states(entries),
                _distance(page, entries),
                _by_wording(page, entries),
            ]
        ),
        "matrices": plots(_flips(page, name, entry["flip_matrix"]) for name, entry in entries),
        "too_many": any(len(e["flip_matrix"]["wordings"]) > MAX_WORDINGS for _, e in entries),
        "embedding": page.report["stability"]["embedding"],
        "disjoint": [name for name, entry in entries if is_disjoint(entry["delta_s"])],
        "seedless": [name for name, found in seeds.items() if found.value is True],
        "seeded": [name for name, found in seeds.items() if found.value is False],
        "one_seed": [found.reason_beside for found in seeds.values() if found.value is None],
    }
    return Panel("Stability", "stability.html", context, tables)


# ---- Recall by K at document, section and span level, and how far strategies find the same.

LEVELS: Final = ("document", "section", "span")
BANDS: Final = 6
"""Largest number of strategies with bands; beyond it only the primary strategy has a band."""
PAIRS: Final = 12
"""Largest number of pairs to draw; beyond it only pairs with the primary strategy are drawn."""


def cutoffs(page: Page) -> list[int]:
    """Return every k of R@k in the report, in rising order."""
    found = {
        str(record["label"].value)
        for entry in page.report["strategies"]
        for record in entry["measures"]
    }
    return sorted(int(name[2:]) for name in found if name.startswith("R@") and name[2:].isdecimal())


def _curves(page: Page, level: str, ks: Sequence[int]) -> Markup:
    """Draw recall@K of every strategy with its band at one level."""
    ticks = [(float(k), str(k)) for k in ks]
    limits = (ks[0] * 0.9, ks[-1] * 1.1) if ks else (1.0, 10.0)
    title = f"recall@K, {level}"
    chart = Chart(title, x=limits, log=True, x_ticks=ticks, x_label="K", height=220)
    drawn = False
    for name in sorted(page.strategies, key=lambda name: name == page.primary):  # last: on top
        found = {k: page.measure(name, f"R@{k}", level) for k in ks}
        known = [
            (k, record, value)
            for k, record in found.items()
            if record is not None and (value := value_of(record, "value")) is not None
        ]
        if not known:
            continue
        drawn, fill = True, page.colour(name)
        ends = [ends_of(record, value) for _, record, value in known]
        if len(known) == 1:
            chart.line([(known[0][0], end) for end in ends[0]], fill, 1.6)
        elif len(page.strategies) <= BANDS or name == page.primary:
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


def _unmeasured(page: Page, ks: Sequence[int]) -> list[tuple[Markup, str, Cursor | str]]:
    """Return (strategy, level, reason) for each strategy and level without any recall."""
    found: list[tuple[Markup, str, Cursor | str]] = []
    for name in page.strategies:
        for level in LEVELS:
            records = [page.measure(name, f"R@{k}", level) for k in ks]
            known = [record for record in records if record is not None]
            reason: Cursor | str = "this strategy was not measured at this level"
            if any(record["value"].value is not None for record in known):
                continue
            if known:
                reason = known[0]["value"].reason_beside
            found.append((page.swatch(name), level, reason))
    return found


def _found_by(page: Page, overlap: Cursor) -> Markup:
    """Draw for each pair the questions that both strategies, one, or neither finds."""
    pairs = [pair for pair in overlap["pairs"] if pair["n"].value]
    if len(pairs) > PAIRS:
        pairs = [pair for pair in pairs if page.primary in {pair["a"].value, pair["b"].value}]
    if not pairs:
        return Markup()
    names = [f"{label(pair['a'].value, 14)} / {label(pair['b'].value, 14)}" for pair in pairs]
    widest = max(pair["n"].value for pair in pairs)
    title = "what both, one or neither find"
    chart = Chart.of_rows(title, names, x=(0, widest), x_label="questions", row=30, grid=False)
    for row, pair in enumerate(pairs):
        left = 0
        for key, fill in (
            ("both", MUTED),
            ("only_a", page.colour(pair["a"].value)),
            ("only_b", page.colour(pair["b"].value)),
            ("neither", LINE),
        ):
            count = pair[key].value or 0
            chart.box((left, left + count), (row - 0.33, row + 0.33), fill)
            if count > 0.05 * widest:
                ink = FOREGROUND if key == "neither" else PANEL
                chart.words(left + count / 2, row, f"{count:,}", ink)
            left += count
    return chart.figure(
        "overlap",
        "What two strategies find",
        "For each pair of strategies: how many answerable questions have gold in the first ten of "
        "both lists, of the first only, of the second only, and of neither. Where each finds what "
        "the other does not, fusing them can help.",
        "Grey: both find gold; in its colour: only that strategy; light: neither.",
    )


def recall(page: Page) -> Panel:
    """Make the panel of recall by K and overlap."""
    ks, overlap = cutoffs(page), page.report.get("overlap")
    rows = []
    for level in LEVELS:
        for name in page.strategies:
            found = {f"r_at_{k}": page.measure(name, f"R@{k}", level) for k in ks}
            first = next((record for record in found.values() if record is not None), None)
            if first is not None:
                rows.append({"strategy": name, "level": level, "first": first, **found})
    columns = [{"key": f"r_at_{k}", "heading": f"R@{k}", "as": "estimate"} for k in ks]
    pairs = None
    if overlap is not None and overlap["pairs"]:
        k = str(overlap["k"].value)
        pairs = page.table("overlap", [{"pair": pair} for pair in overlap["pairs"]], k=k)
    why: Cursor | str = "one strategy has no other to be compared with"
    if overlap is None and "overlap" in page.report:
        why = page.report["overlap"].reason_beside
    context = {
        "pictures": plots(_curves(page, level, ks) for level in LEVELS),
        "missing": _unmeasured(page, ks),
        "found_by": Markup() if overlap is None else plots([_found_by(page, overlap)]),
        "no_pairs": "overlap" in page.report and pairs is None,
        "why": why,
    }
    tables = {"recall": page.table("recall", rows, inserts={"cutoffs": columns}), "pairs": pairs}
    return Panel("Recall by K, and overlap", "recall.html", context, tables)


# ---- Slices: recall and misses by tag, length and answerability.

MAX_ROWS: Final = 80
"""Largest number of rows of the table of all strategies."""
LONG: Final = 12
KINDS: Final = {"answerability": "answerability", "length": "length of the question", "tag": "tag"}
_ABSTAINED: Final = {
    "key": "abstained",
    "as": "estimate",
    "means": "share whose answer was that nothing was found, or that the evidence does not do",
}


def _slice_pictures(page: Page, kind: str, parts: Sequence[Cursor]) -> Markup:
    about, by = page.report["slices"], KINDS.get(kind, kind)
    measure, primary = str(about["measure"].value), page.primary
    target = str(about["target"].value) if "target" in about else "miss_any"
    observed = ("uncertainty", "strategies", primary, "observed", target, "value")
    found = [(str(part["name"].value), part["strategies"].get(primary)) for part in parts]
    axis = "95 % interval; dotted: all questions"
    return plots(
        [
            forest(
                [Row(name, entry, page.colour(primary)) for name, entry in found],
                f"slices-{kind}",
                f"{measure} by {by}, primary strategy",
                axis,
                reference=value_of(page.measure(primary, measure), "value"),
                head=f"{measure} by {by}",
            ),
            forest(
                [Row(name, entry and entry.get("miss"), BAD) for name, entry in found],
                f"slices-{kind}-missed",
                f"Observed miss rate by {by}, primary strategy",
                axis,
                reference=value_of(page.report, *observed),
                head=f"missed, by {by}",
            ),
        ]
    )


def _slice_table(page: Page, kind: str, parts: Sequence[Cursor]) -> Table:
    """Make the table of the primary strategy by one kind of slice."""
    rows = []
    for part in parts:
        found, abstained = part["strategies"].get(page.primary), part.get("abstention")
        cell: Cell | Cursor = words_cell("") if abstained is None else abstained
        rows.append({"part": part, "found": found, "abstained": cell})
    return page.table(
        "slices",
        rows,
        name=f"slices-{kind}",
        inserts={"abstention": [_ABSTAINED] if kind == "answerability" else []},
        by=KINDS.get(kind, kind),
        measure=str(page.report["slices"]["measure"].value),
    )


def slices(page: Page) -> Panel:
    """Make the panel of slices."""
    about = page.report.get("slices")
    if about is None or "by" not in about or not about["by"].value:
        reason = None if about is None else about.get("reason")
        return Panel("Slices", "slices.html", {"slices": None, "reason": reason})
    parts_by_kind: dict[str, list[Cursor]] = {}
    for part in about["by"]:
        parts_by_kind.setdefault(str(part["kind"].value), []).append(part)
    tables: dict[str, Table | None] = {}
    shown = []
    for kind, parts in parts_by_kind.items():
        tables[kind] = _slice_table(page, kind, parts)
        shown.append(
            {
                "kind": kind,
                "title": f"By {KINDS.get(kind, kind)}",
                "pictures": _slice_pictures(page, kind, parts),
                "long": len(parts) > LONG,
            }
        )
    room = max(1, MAX_ROWS // len(page.strategies))
    tables["strategies"] = None
    if len(page.strategies) > 1:
        rows = [
            {"part": part, "strategy": name, "found": part["strategies"][name]}
            for part in list(about["by"])[:room]
            for name in page.strategies
            if part["strategies"].get(name) is not None
        ]
        measure = str(about["measure"].value)
        tables["strategies"] = page.table("slices-strategies", rows, measure=measure)
    context = {"slices": about, "shown": shown, "some": room < len(about["by"])}
    return Panel("Slices", "slices.html", context, tables)
