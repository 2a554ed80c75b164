"""Stability: whether a question finds the same evidence however it is put, and what decides when it does not."""

from markupsafe import Markup

from rag_eval.reporting.html.figures import Cursor
from rag_eval.reporting.html.page import Page, Panel
from rag_eval.reporting.html.panels import stability_pictures as pictures
from rag_eval.reporting.html.panels.parts import by_strategy, down, reason_of, rows_in_words
from rag_eval.reporting.html.tables import Cell, Column, Estimate, Number, Table, Words
from rag_eval.reporting.plots import MAX_WORDINGS

WORST_PAIRS = 20
"""Pairs of wordings a strategy in the table of flips, the worst ones."""
ZONES, STATES = (
    ("stable", "transitional", "risk", "undefined"),
    ("convergent", "recursive", "divergent", "chaotic", "undefined"),
)


def _series(page: Page, name: str) -> Cell:
    return page.series(page.strategy(name)["name"])


def _wordings(page: Page, entries: list[tuple[str, Cursor]]) -> Table:
    shares = (("query", "question"), ("paraphrase", "wording"), ("seed", "seed"))
    columns = [
        Column("strategy", "strategy", figures=False),
        *(
            Column(
                f"variance_{key}",
                f"σ² {words}",
                f"share of the variance of R@10 that comes from the {words}",
            )
            for key, words in shares
        ),
        *(
            Column(
                f"r_at_10_{key}",
                f"R@10, {key}",
                f"{key} wording of each question"
                if key != "mean"
                else "mean over the wordings of each question",
            )
            for key in ("worst", "mean", "best")
        ),
        Column(
            "rbo",
            "RBO",
            "rank-biased overlap of the lists of a question's wordings and seeds, mean over pairs",
        ),
        Column(
            "convergent_and_hit",
            "convergent and hit",
            "share of questions whose wordings and seeds agree and all find gold",
        ),
        Column("questions", "questions"),
        Column("groups", "groups"),
    ]
    rows = []
    for name, entry in entries:
        recall = [
            Estimate(entry["recall_at_10_by_wording"][key], digits=2)
            for key in ("worst", "mean", "best")
        ]
        rows.append(
            [
                _series(page, name),
                *(Number(entry["variance_shares"][key], 2) for key, _ in shares),
                *recall,
                Estimate(entry["rbo"], digits=2),
                Estimate(entry["convergent_and_hit"], digits=2),
                Number(entry["recall_at_10_by_wording"]["mean"]["n_scored"]),
                Number(entry["recall_at_10_by_wording"]["mean"]["n_groups"]),
            ]
        )
    return Table(
        "stability-wordings",
        "What the wording and the seed decide, 95 % intervals over groups",
        columns,
        rows,
    )


def _states(page: Page, entries: list[tuple[str, Cursor]]) -> Table:
    columns = [
        Column("strategy", "strategy", figures=False),
        *(
            Column(
                f"{state}{end}", "n" if end else state, f"questions that are {state}" if end else ""
            )
            for state in STATES
            for end in ("", "_n")
        ),
        Column("questions", "questions"),
    ]
    rows = [
        [
            _series(page, name),
            *(Number(entry["lambda"][state][key], 2) for state in STATES for key in ("share", "n")),
            Number(entry["n_queries"]),
        ]
        for name, entry in entries
    ]
    return Table("lambda-states", "Lambda states of the questions with gold", columns, rows)


def _distance(page: Page, entries: list[tuple[str, Cursor]]) -> Table:
    columns = [
        Column("strategy", "strategy", figures=False),
        Column(
            "delta_s",
            "ΔS to the question",
            "1 − cosine of the question with the mean vector of its first ten results",
        ),
        Column("target", "target", figures=False),
        Column("to_anchor", "to gold", "over the questions that have gold"),
        Column(
            "to_decoy",
            "to the decoy",
            "over the questions that have a decoy: unanswerable ones mostly, so other questions than those with gold",
        ),
        Column(
            "equally_close",
            "equally close",
            "share of the questions with gold and a decoy whose results lie as close to the one as to the other",
        ),
        *(Column(f"zone_{zone}", zone, "share of questions in this zone of ΔS") for zone in ZONES),
        Column("questions", "questions", "of the distance to the question and of the zones"),
        Column("groups", "groups", "of these"),
    ]
    rows = []
    for name, entry in entries:
        about = entry["delta_s"]
        shown = [
            Estimate(about, digits=2),
            Words(about["target"]),
            *(
                Estimate(about[key], digits=2, n=True)
                for key in ("to_anchor", "to_decoy", "anchor_and_decoy_equally_close")
            ),
        ]
        rows.append(
            [
                _series(page, name),
                *shown,
                *(Number(about["zones"][zone]["share"], 2) for zone in ZONES),
                Number(about["n_scored"]),
                Number(about["n_groups"]),
            ]
        )
    return Table("delta-s", "Semantic distance ΔS of what was retrieved", columns, rows)


def _changes(page: Page, entries: list[tuple[str, Cursor]]) -> Table:
    keys = sorted(
        {key for _, entry in entries for key in entry["hit_changes_with_wording"].value},
        key=lambda key: int(key.removeprefix("hit_at_")),
    )
    columns = [
        Column("strategy", "strategy", figures=False),
        *(Column(key, key.replace("hit_at_", "hit@")) for key in keys),
        Column("questions", "questions", "with several wordings or seeds"),
        Column("groups", "groups"),
    ]
    rows = []
    for name, entry in entries:
        found = [down(entry, "hit_changes_with_wording", key) for key in keys]
        rows.append(
            [
                _series(page, name),
                *(Estimate(one, digits=2) for one in found),
                Number(down(found[0], "n_scored")),
                Number(down(found[0], "n_groups")),
            ]
        )
    return Table(
        "hit-changes",
        "Share of questions whose hit changes with the wording or the seed",
        columns,
        rows,
    )


def _flips(page: Page, entries: list[tuple[str, Cursor]]) -> Table | None:
    columns = [
        Column("strategy", "strategy", figures=False),
        Column("one", "wording", figures=False),
        Column("other", "other wording", figures=False),
        Column(
            "share",
            "flips",
            "share of questions found under one of the two and missed under the other",
        ),
        Column("questions", "questions"),
    ]
    rows: list[list[Cell]] = []
    for name, entry in entries:
        matrix = entry["flip_matrix"]
        size = len(matrix["wordings"])
        pairs = [(one, other) for one in range(size) for other in range(one + 1, size)]
        worst = sorted(
            pairs,
            key=lambda pair: (
                -1.0 if (found := matrix["share"].value[pair[0]][pair[1]]) is None else float(found)
            ),
            reverse=True,
        )[:WORST_PAIRS]
        rows += [
            [
                _series(page, name),
                Words(matrix["wordings"][one]),
                Words(matrix["wordings"][other]),
                Number(matrix["share"][one][other]),
                Number(matrix["n"][one][other]),
            ]
            for one, other in worst
        ]
    return (
        Table(
            "flips", "Flips between wordings at ten results, the worst pairs first", columns, rows
        )
        if rows
        else None
    )


def _reasons(page: Page, entries: list[tuple[str, Cursor]]) -> Table | None:
    columns = [
        Column("strategy", "strategy", figures=False),
        Column("reason", "found", figures=False),
        Column("n", "questions"),
        Column("cause", "likely cause, and what to look at", figures=False),
    ]
    rows = [
        [
            _series(page, name),
            Words(key.replace("_", " ")),
            Number(about["n"]),
            Words(about["cause"]),
        ]
        for name, entry in entries
        for key, about in entry["reasons"].items()
    ]
    return (
        Table("lambda-reasons", "Why questions are in their state", columns, rows) if rows else None
    )


def panel(page: Page) -> Panel:
    """Make the panel."""
    title = "Stability"
    if page.report.get("stability", "strategies") is None:
        return Panel(
            title,
            "stability.html",
            {
                "there": False,
                "why": reason_of(page.report["stability"])
                if "stability" in page.report
                else "this report holds none",
            },
        )
    strategies = page.report["stability"]["strategies"]
    entries = by_strategy(page, strategies)
    drawn = [
        draw(page, strategies)
        for draw in (
            pictures.variance,
            pictures.states,
            pictures.distance,
            pictures.by_wording,
            pictures.changes,
        )
    ]
    matrices = [pictures.flips(page, name, entry["flip_matrix"]) for name, entry in entries]
    shown: dict[str, Table | None] = {
        "wordings": _wordings(page, entries),
        "states": _states(page, entries),
        "distance": _distance(page, entries),
        "changes": _changes(page, entries),
        "flips": _flips(page, entries),
        "reasons": _reasons(page, entries),
    }
    context = {
        "there": True,
        "tables": shown,
        "counts": {
            name: rows_in_words(len(table.rows))
            for name, table in shown.items()
            if table is not None
        },
        "pictures": Markup().join(picture for picture in drawn if picture is not None),
        "matrices": Markup().join(picture for picture in matrices if picture is not None),
        "too_many": any(
            len(entry["flip_matrix"]["wordings"]) > MAX_WORDINGS for _, entry in entries
        ),
        "embedding": page.report["stability"]["embedding"],
        "disjoint": [name for name, entry in entries if pictures.disjoint(entry["delta_s"])],
        "seedless": [
            name for name, entry in entries if entry["seeds_change_nothing"].value is True
        ],
        "seeded": [name for name, entry in entries if entry["seeds_change_nothing"].value is False],
        "one_seed": [
            reason_of(entry["seeds_change_nothing"])
            for _, entry in entries
            if entry["seeds_change_nothing"].value is None
        ],
    }
    return Panel(
        title,
        "stability.html",
        context,
        tuple(table for table in shown.values() if table is not None),
    )
