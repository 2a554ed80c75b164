"""Panels of retrieval: measures by strategy, stability, slices, and calibrated miss rates.

Columns are declared as `heading = place in the row :decimals`; `words.toml` has their meanings.
Pictures draw figures of the report and compute nothing.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from markupsafe import Markup

from rag_eval.reporting.elements import (
    N_SERIES,
    Chart,
    Page,
    Panel,
    Row,
    ends_of,
    forest,
    interval,
    label,
    number,
    plots,
    text,
    value_of,
)
from rag_eval.reporting.tables import Cursor, Table, column_key, panel_words

PAIRED: Final = """difference = . | better = n_better | worse = n_worse | tied = n_tied
    | effective = n_effective :1"""
"""Columns of a paired difference."""


def _colour(page: Page, name: str) -> str:
    """Name the colour of a strategy in every picture of the page; the first eight are distinct."""
    return f"s{page.strategies.index(name) % N_SERIES + 1}"


# ---- Measures of the strategies: forests, paired differences, recall by K, and denominators.

HEADLINES: Final = ("R@10", "RR", "nDCG@10", "Success@10", "P@10")
N_DRAWN: Final = 3
LEVELS: Final = ("document", "section", "span")


def _measures(page: Page) -> Panel:
    """Make the panel of measures by strategy."""
    report, names = page.report, page.strategies
    records = [record for entry in report["strategies"] for record in entry["measures"]]
    present = sorted({str(record["label"].value) for record in records})
    labels = [name for name in HEADLINES if name in present] or present[:N_DRAWN]
    ks = sorted(int(name[2:]) for name in present if name.startswith("R@"))
    forests = [
        forest(
            [Row(name, page.measure(name, measure), _colour(page, name)) for name in names],
            f"forest-{column_key(measure)}",
            f"{measure} by strategy with 95 % intervals",
            measure,
        )
        for measure in labels[:N_DRAWN]
    ]
    differences = [_draw_differences(page, measure) for measure in labels[:2]]
    by_level = [
        {"strategy": name, "level": level, "first": figures[f"R@{ks[0]}"], **figures}
        for level in LEVELS
        for name in names
        for figures in [{f"R@{k}": page.measure(name, f"R@{k}", level) for k in ks}]
        if any(figures.values())
    ]
    at_level = [
        {
            "strategy": name,
            "entry": page.strategy(name),
            "recall": page.measure(name, "R@10"),
            "judged": page.measure(name, "Judged@10"),
            **{measure: page.measure(name, measure) for measure in labels},
        }
        for name in names
    ]
    pairs = sorted(
        report["comparisons"],
        key=lambda row: page.primary not in {row["a"].value, row["b"].value},
    )
    tables = {
        "measures": Table.of(
            "measures",
            "Measures at the headline level, 95 % intervals",
            f"""strategy | kind = entry.kind | {" | ".join(f"{m} = {m}" for m in labels)}
                | scored = {labels[0]}.n_scored | effective = {labels[0]}.n_effective :1""",
            at_level,
        ),
        "paired": Table.of(
            "paired-differences",
            "Paired differences between strategies, on the same questions",
            f"""strategy = a | against = b | measure | {PAIRED} | p (Holm) = p_adjusted :4
                | detectable = minimum_detectable""",
            pairs,
        ),
        "recall": Table.of(
            "recall",
            "Recall@K by level, 95 % intervals",
            f"""strategy | level | {" | ".join(f"R@{k} = R@{k}" for k in ks)}
                | questions = first.n_scored | effective = first.n_effective :1""",
            by_level,
        ),
        "denominators": Table.of(
            "denominators",
            "Questions of each strategy's figures",
            """strategy | attempted = recall.n_attempted | scored = recall.n_scored
                | failed = recall.n_failed | ineligible = recall.n_ineligible
                | effective = recall.n_effective :1 | retrievals = entry.n_runs
                | empty = entry.n_empty | failures = entry.n_failed | Judged@10 = judged.value""",
            at_level,
        ),
    }
    context = {
        "pictures": plots([*forests, *differences]),
        "curves": plots(_draw_recall(page, level, ks) for level in LEVELS),
        "gold": report["gold"],
        "index": report["index"],
    }
    return Panel("Strategies compared", "measures.html", context, tables)


def _draw_differences(page: Page, measure: str) -> Markup:
    """Draw the paired differences of one measure between the primary strategy and the others."""
    rows = []
    for pair in page.report["comparisons"]:
        names = [str(pair["a"].value), str(pair["b"].value)]
        if pair["measure"].value == measure and page.primary in names:
            other = names[names[0] == page.primary]
            rows.append(Row(" − ".join(names), pair, _colour(page, other)))
    return forest(
        rows,
        f"paired-{column_key(measure)}",
        f"Paired differences of {measure} with 95 % intervals",
        f"{measure}, paired differences",
    )


def _draw_recall(page: Page, level: str, ks: Sequence[int]) -> Markup:
    """Draw recall@K of every strategy at one level, the primary one with its band."""
    places = list(enumerate(ks))
    x = (-0.2, max(len(ks) - 0.8, 0.2))
    ticks = [(at, str(k)) for at, k in places]
    chart, is_empty = Chart(f"recall@K, {level}", x=x, x_ticks=ticks, x_label="K"), True
    for name in sorted(page.strategies, key=lambda name: name == page.primary):  # last: on top
        points = [
            (at, record, value)
            for at, k in places
            if (record := page.measure(name, f"R@{k}", level)) is not None
            and (value := value_of(record)) is not None
        ]
        if not points:
            continue
        colour, is_empty = _colour(page, name), False
        if name == page.primary:
            ends = [ends_of(record, value) for _, record, value in points]
            chart.band([at for at, _, _ in points], ends, colour)
        chart.line([(at, value) for at, _, value in points], colour)
        for at, _, value in points:
            chart.point(at, value, colour)
        chart.key(name, colour)
    if is_empty:
        return Markup()
    return chart.figure(
        f"recall-{level}",
        f"Recall@K at {level} level",
        f"Share of each question's gold at {level} level that is among the first K, mean over "
        "questions; a line a strategy, with the 95 % band of the primary one.",
    )


# ---- Stability: whether a question finds the same evidence however it is put.

STATES: Final = ("convergent", "recursive", "divergent", "chaotic", "undefined")
ZONES: Final = ("stable", "transitional", "risk", "undefined")


def _stability(page: Page) -> Panel:
    """Make the panel of stability."""
    rows = page.rows("stability", "strategies")
    by_wording = [
        {"strategy": row["strategy"], "wording": wording, "found": figures}
        for row in rows
        for wording, figures in row["entry"]["by_wording"].items()
    ]
    states = " | ".join(
        f"{name} = entry.lambda.{name}.share :2 | n {name} = entry.lambda.{name}.n"
        for name in STATES
    )
    zones = " | ".join(f"{zone} = entry.delta_s.zones.{zone}.share :2" for zone in ZONES)
    wordings = "entry.recall_at_10_by_wording"
    tables = {
        "wordings": Table.of(
            "stability-wordings",
            "What the wording and the seed decide, 95 % intervals",
            f"""strategy | R@10 worst = {wordings}.worst :2 | R@10 mean = {wordings}.mean :2
                | R@10 best = {wordings}.best :2 | seeds alike = entry.seeds_change_nothing
                | RBO = entry.rbo :2 | convergent and hit = entry.convergent_and_hit :2
                | questions = {wordings}.mean.n_scored
                | effective = {wordings}.mean.n_effective :1""",
            rows,
        ),
        "by_wording": Table.of(
            "by-wording",
            "Recall and misses under each wording",
            """strategy | wording | R@10 = found | miss rate = found.miss
                | questions = found.n_scored | effective = found.n_effective :1""",
            by_wording,
        ),
        "states": Table.of(
            "lambda-states",
            "States of the questions with gold",
            f"strategy | {states} | questions = entry.n_queries",
            rows,
        ),
        "distance": Table.of(
            "delta-s",
            "Semantic distance of what was retrieved",
            f"""strategy | delta_s = entry.delta_s :2 | target = entry.delta_s.target
                | to gold = entry.delta_s.to_anchor :2n | to the decoy = entry.delta_s.to_decoy :2n
                | equally close = entry.delta_s.anchor_and_decoy_equally_close :2n | {zones}
                | questions = entry.delta_s.n_scored | effective = entry.delta_s.n_effective :1""",
            rows,
        ),
    }
    context = {"embedding": page.report["stability"]["embedding"]}
    return Panel("Stability", "stability.html", context, tables)


def _slices(page: Page) -> Panel:
    """Make the panel of slices: recall and misses by tag."""
    part = page.report["slices"]
    rows = [
        {"tag": entry["tag"], "questions": entry["n_queries"], "found": figure}
        for entry in part["by"]
        if (figure := entry.get("strategies", page.primary)) is not None
    ]
    table = Table.of(
        "slices",
        "The primary strategy by tag",
        """tag | questions | R@10 = found | scored = found.n_scored
            | effective = found.n_effective :1 | missed = found.miss""",
        rows,
    )
    return Panel("Slices", "slices.html", {"slices": part}, {"slices": table})


# ---- Miss rates: observed and stated, their status, and how well misses are predicted.


def _miss_rates(page: Page) -> Panel:
    """Make the panel of calibrated miss rates."""
    part, calibration = page.report["uncertainty"], page.report["calibration"]
    entries, stated = page.by_strategy("calibration", "strategies"), part["strategies"]
    reliability = {name: _draw_reliability(page, name, entry) for name, entry in entries}
    reasons = [(name, entry["refused"]) for name, entry in entries if entry["refused"].value]
    reasons += [
        (name, entry["reason"])
        for name, entry in page.by_strategy("uncertainty", "strategies")
        if name == page.primary and "reason" in entry
    ]
    context = {
        "primary": reliability.pop(page.primary, None),
        "further": plots(reliability.values()),
        "part": part,
        "reasons": reasons,
        "comparison": calibration["comparison"],
    }
    target, k = part["target"].value, part["k"].value
    rates = [
        {"strategy": name, "entry": stated[name], "calibration": entry} for name, entry in entries
    ]
    quality = [
        {"strategy": name, "predictor": predictor, "fit": entry[key]}
        for name, entry in entries
        for key, predictor in (("validation", "calibrated"), ("heuristic_v0", "heuristic_v0"))
    ]
    conformal = [
        {"strategy": name, "rule": rule} for name, entry in entries for rule in entry["conformal"]
    ]
    compared = list(calibration.get("comparison", "strategies") or ())
    figures = [
        f"{words} = {key}"
        for key, words in panel_words()["miss_measures"].items()
        if any(value_of(entry.get(key)) is not None for entry in compared)
    ]
    rounds = [
        {"strategy": name, "part": entry, "account": account}
        for name, entry in part["iterative"].items()
        for account in entry["accounts"]
    ]
    observed = f"entry.observed.{target}"
    tables = {
        "rates": Table.of(
            "miss-rates",
            "Miss rates: observed beside stated, over every wording and seed, 95 % intervals",
            f"""strategy | status = entry.status | observed {target}@{k} = {observed}
                | stated = entry.stated | miss_frac@{k} = entry.observed.miss_frac
                | questions = {observed}.n_scored | effective = {observed}.n_effective :1
                | judged = entry.outcomes.n_judged | missed = entry.outcomes.n_missed
                | unstated = entry.n_absent | skill = calibration.validation.skill :2
                | earned = calibration.status""",
            rates,
        ),
        "status": Table.of(
            "miss-rate-status",
            "What the next status needs",
            """strategy | needed for = condition.status | condition = what
                | needed = condition.needed | found = condition.found""",
            [need for name, entry in entries for need in _unmet_conditions(name, entry)],
        ),
        "quality": Table.of(
            "miss-rate-quality",
            "Quality of the predicted miss rates, out of fold",
            """strategy | predicted by = predictor | Brier = fit.brier | skill = fit.skill :2
                | AUROC = fit.auroc :2 | slope = fit.slope :2 | ECE = fit.ece.value
                | ECE by chance = fit.ece.null_limit | outcomes = fit.n | groups = fit.groups
                | misses = fit.misses""",
            quality,
        ),
        "conformal": Table.of(
            "conformal-k",
            "Conformal K: how many results to read so that gold is expected among them",
            """strategy | level = rule.level :2% | K = rule.k | coverage = rule.coverage :2
                | any gold in the list = rule.within_depth :3% | depth = rule.depth
                | questions = rule.coverage.n | groups = rule.n_groups""",
            conformal,
        ),
        "compared": Table.of(
            "miss-rates-compared",
            "Misses on the questions that every strategy was judged on, original wordings",
            f"""strategy = name | {" | ".join(figures or ["observed"])}
                | questions = observed.n | effective = observed.n_effective :1""",
            compared,
        ),
        "iterative": Table.of(
            "iterative",
            "Iterative retrieval: misses recovered and hits lost",
            """strategy | over = part.base | steered by = part.basis
                | expansion = account.strategy | verdict = account.verdict
                | recall after - before = account | p = account.p :4
                | recovered = account.recovered | lost = account.lost
                | expanded = account.triggered | of = account.questions
                | extra queries = account.extra_queries
                | extra seconds = account.extra_seconds :1 | effective = account.n_effective :1""",
            rounds,
        ),
    }
    return Panel("Miss rates", "miss_rates.html", context, tables)


def _unmet_conditions(name: str, entry: Cursor) -> list[dict[str, Any]]:
    """List the conditions that the next higher status lacks, and those of stale."""
    unmet = [each for each in entry["standing"]["conditions"] if not each["met"].value]
    wanted = {unmet[0]["status"].value, "stale"} if unmet else set()
    meanings = panel_words()["conditions"]
    return [
        {
            "strategy": name,
            "condition": each,
            "what": meanings.get(each["name"].value, each["name"]),
        }
        for each in unmet
        if each["status"].value in wanted
    ]


def _draw_reliability(page: Page, name: str, entry: Cursor) -> Markup:
    """Draw the reliability diagram of one strategy, with a histogram of its predictions below."""
    validation = entry.get("validation")
    if validation is None:
        return Markup()
    colour = _colour(page, name)
    chart = Chart(
        f"{label(name)}, reliability",
        y=(-0.3, 1.02),
        height=270,
        y_ticks=[(at / 5, f"{at / 5:.1f}") for at in range(6)],
        x_label="predicted probability of a miss",
        y_label="observed share of misses",
    )
    curve, counts = validation["reliability"].value, validation["histogram"].value
    ends = list(zip(curve["band_low"], curve["band_high"], strict=True))
    chart.band(curve["predicted"], ends, "muted")
    chart.line([(0, 0), (1, 1)], "muted", 1.2, dashed=True)
    if (heuristic := entry.get("heuristic_v0", "reliability")) is not None:
        points = zip(heuristic.value["predicted"], heuristic.value["observed"], strict=True)
        chart.line(points, "bad", 1.4, dashed=True)
        chart.key("heuristic_v0", "bad")
    observed = list(zip(curve["predicted"], curve["observed"], strict=True))
    chart.line(observed, colour)
    for x, y in observed:
        chart.point(x, y, colour)
    most = max(*counts, 1)
    for at, count in enumerate(counts):
        width = ((at + 0.04) / len(counts), (at + 0.96) / len(counts))
        chart.box(width, (-0.3, -0.3 + 0.24 * count / most), colour)
    chart.key("observed; bars: outcomes by prediction", colour)
    chart.key("calibrated predictions, 95 %", "muted")
    caption = Markup("{} skill {}; {} outcomes in {} groups, {} misses").format(
        text(name),
        interval(validation["skill"], 2),
        *(number(validation[key]) for key in ("n", "groups", "misses")),
    )
    return chart.figure(
        f"reliability-{page.strategies.index(name)}",
        f"Reliability of predicted miss rates, {name}",
        f"Observed over predicted miss rates of {name}, in bins of equal mass. No prediction saw "
        "the outcome's own group. On the diagonal, predictions are calibrated. Inside the band, "
        "they differ from it by no more than chance.",
        caption,
    )


PANELS: Final[Mapping[str, Callable[[Page], Panel]]] = {
    "measures": _measures,
    "miss-rates": _miss_rates,
    "stability": _stability,
    "slices": _slices,
}
"""Functions that make the panels of this module, by section id."""
