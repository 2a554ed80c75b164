"""Panel of calibrated miss rates: observed and predicted rates, and their status."""

from markupsafe import Markup

from rag_eval.reporting import report_tables as tables
from rag_eval.reporting.html.drawing import (
    BAD,
    DASHED,
    DOTTED,
    MARKERS,
    MUTED,
    Chart,
    ends_of,
    label,
    plots,
    value_of,
)
from rag_eval.reporting.html.elements import interval, number
from rag_eval.reporting.report_tables import Page, Panel
from rag_eval.reporting.tables import Cursor, Table, panel_words

# ---- Pictures: they draw figures of the report and compute nothing


def reliability_chart(name: str, about: Cursor, fill: str, crude: Cursor | None = None) -> Chart:
    """Draw the reliability diagram of one strategy, with a histogram of its predictions below.

    `about` is the validation of the strategy in the report; `crude` validates the heuristic.
    """
    curve, counts = about["reliability"].value, about["histogram"].value
    ticks = [(at / 5, f"{at / 5:.1f}") for at in range(6)]
    chart = Chart(
        f"{label(name)}, reliability",
        y=(-0.3, 1.02),
        height=270,
        y_ticks=ticks,
        x_label="predicted probability of a miss",
        y_label="observed share of misses",
        grid="xy",
    )
    ends = list(zip(curve["band_low"], curve["band_high"], strict=True))
    chart.band(curve["predicted"], ends, MUTED)
    chart.line([(0, 0), (1, 1)], MUTED, 1.2, dash=DASHED)
    if crude is not None and crude.value is not None:
        points = crude["reliability"].value
        pairs = zip(points["predicted"], points["observed"], strict=True)
        chart.line(pairs, BAD, 1.4, dash=DOTTED)
        chart.key("heuristic_v0", BAD, "-", dash=DOTTED)
    observed = list(zip(curve["predicted"], curve["observed"], strict=True))
    chart.line(observed, fill)
    for x, y in observed:
        chart.point(x, y, fill, size=3)
    most = max(*counts, 1)
    for at, count in enumerate(counts):
        ends_x = ((at + 0.04) / len(counts), (at + 0.96) / len(counts))
        chart.box(ends_x, (-0.3, -0.3 + 0.24 * count / most), fill, 0.75)
    chart.key("observed", fill)
    chart.key(f"outcomes, at most {most:,}", fill, "#")
    chart.key("calibrated predictions, 95 %", MUTED, "#")
    return chart


def _reliability(page: Page, name: str, entry: Cursor) -> Markup:
    validation = entry.get("validation")
    if validation is None:
        return Markup()
    caption = Markup("{} skill {}; {} outcomes in {} groups, {} misses").format(
        page.swatch(name),
        interval(validation["skill"], 2),
        *(number(validation[key]) for key in ("n", "groups", "misses")),
    )
    return reliability_chart(name, validation, page.colour(name), entry.get("heuristic_v0")).figure(
        f"reliability-{page.strategies.index(name)}",
        f"Reliability of predicted miss rates, {name}",
        f"Observed over predicted miss rates of {name}, in bins of equal mass. No prediction saw "
        "the outcome's own group. On the diagonal, predictions are calibrated. Inside the band, "
        "they differ from it by no more than chance. The bars below count the outcomes by "
        "prediction.",
        caption,
    )


def _against(page: Page) -> Markup:
    """Draw observed against stated miss rates, with a point for each strategy."""
    target = str(page.report["uncertainty"]["target"].value)
    axes = ("stated, mean over questions", "observed")
    title = "observed against stated, this run"
    chart = Chart(title, height=240, x_label=axes[0], y_label=axes[1], grid="xy")
    chart.line([(0, 0), (1, 1)], MUTED, 1.2, dash=DASHED)
    drawn = 0
    for name, entry in page.by_strategy("uncertainty", "strategies"):
        mean_rate, observed = entry["stated"], entry["observed"][target]
        x, y = value_of(mean_rate, "value"), value_of(observed, "value")
        if x is None or y is None:
            continue
        fill, marker = page.colour(name), MARKERS[drawn % len(MARKERS)]
        chart.line([(end, y) for end in ends_of(mean_rate, x)], fill, 1.8, opacity=0.75)
        chart.line([(x, end) for end in ends_of(observed, y)], fill, 1.8, opacity=0.75)
        chart.point(x, y, fill, marker, size=4)
        chart.key(label(name), fill, marker)
        drawn += 1
    if not drawn:
        return Markup()
    return chart.figure(
        "miss-against",
        "Observed against stated miss rates",
        "Each strategy's observed miss rate over the mean of the miss rates that this run stated "
        "for the same questions, both with 95 % intervals. Above the diagonal a strategy misses "
        "more than it says.",
    )


def panel(page: Page) -> Panel:
    """Make the panel of calibrated miss rates."""
    uncertainty, calibration = page.report["uncertainty"], page.report["calibration"]
    entries = page.by_strategy("calibration", "strategies")
    comparison = calibration.get("comparison")
    diagrams = {name: _reliability(page, name, entry) for name, entry in entries}
    rates = page.by_strategy("uncertainty", "strategies")

    def reasons_of(key: str) -> list[tuple[Markup, Cursor | str]]:
        """Group the strategies with a null under this key by the reason of the null."""
        nulls = [(name, entry[key]) for name, entry in entries if entry[key].value is None]
        return page.group_alike((name, null.reason_beside) for name, null in nulls)

    refused = [(name, entry["refused"]) for name, entry in entries if entry["refused"].value]
    context = {
        "pictures": plots([_against(page), diagrams.pop(page.primary, None)]),
        "further": plots([*diagrams.values()]),
        "about": uncertainty,
        "calibration": calibration,
        "unfitted": reasons_of("validation"),
        "refused": page.group_alike(refused),
        "unstated": page.group_alike(
            (n, entry["reason"]) for n, entry in rates if "reason" in entry
        ),
        "uncompared": calibration["comparison"].reason_beside if comparison is None else "",
        "accounts": uncertainty["iterative"].items(),
    }
    shown = {
        "rates": _miss_rates_table(page),
        "cutoffs": _misses_at_cutoffs_table(page),
        "pairs": _paired_misses_table(page),
        "status": _unmet_conditions_table(page),
        "quality": _miss_rate_quality_table(page),
        "conformal": _conformal_table(page),
        "compared": _compared_misses_table(page),
        "iterative": _iterative_table(page),
    }
    return Panel("Miss rates", "miss_rates.html", context, shown)


# ---- Tables that only this panel shows.


def _misses_at_cutoffs_table(page: Page) -> Table:
    """Show the observed misses of both targets at every K."""
    columns = """strategy | target | K = k | observed = . | questions = n_scored
        | effective = n_effective :1"""
    rows = sorted(page.report["uncertainty"]["cutoffs"], key=lambda row: row["k"].value)
    rows.sort(key=lambda row: row["target"].value != page.report["uncertainty"]["target"].value)
    return page.table("miss-rates-by-k", "Observed misses by target and K", columns, rows)


def _paired_misses_table(page: Page) -> Table:
    """Show the paired differences of observed misses."""
    columns = f"""strategy = a | against = b | target | K = k | {tables.PAIRED} | p
        | detectable = minimum_detectable"""
    caption = "Paired differences of observed misses, on the same questions"
    return page.table("paired-misses", caption, columns, page.report["uncertainty"]["pairs"])


def _miss_rate_quality_table(page: Page) -> Table:
    """Show the quality of the predicted miss rates, out of fold."""
    rows = [
        {"strategy": name, "predictor": words, "fit": entry[key]}
        for name, entry in page.by_strategy("calibration", "strategies")
        for key, words in (("validation", "calibrated"), ("heuristic_v0", "heuristic_v0"))
        if entry[key].value is not None
    ]
    columns = """strategy | predicted by = predictor | Brier = fit.brier | skill = fit.skill :2
        | AUROC = fit.auroc :2 | slope = fit.slope :2 | ECE = fit.ece | outcomes = fit.n
        | groups = fit.groups | misses = fit.misses"""
    caption = "Quality of the predicted miss rates, out of fold"
    return page.table("miss-rate-quality", caption, columns, rows)


def _conformal_table(page: Page) -> Table:
    """Show how many results to read so that gold is expected among them."""
    rows = [
        {"strategy": name, "rule": rule}
        for name, entry in page.by_strategy("calibration", "strategies")
        for rule in entry["conformal"]
    ]
    columns = """strategy | level = rule.level :2% | K = rule.k | coverage = rule.coverage :2
        | any gold in the list = rule.within_depth :3% | depth = rule.depth
        | questions = rule.coverage.n | groups = rule.n_groups"""
    caption = "Conformal K: how many results to read so that gold is expected among them"
    return page.table("conformal-k", caption, columns, rows)


def _compared_misses_table(page: Page) -> Table:
    """Show the misses on the questions that every strategy was judged on."""
    entries = list(page.report.get("calibration", "comparison", "strategies") or ())
    figures = " | ".join(
        f"{words} = {key}"
        for key, words in panel_words()["miss_measures"].items()
        if any(value_of(entry, key, "value") is not None for entry in entries)
    )
    columns = f"""strategy = name | {figures or "observed"} | questions = observed.n
        | effective = observed.n_effective :1"""
    caption = "Misses on the questions that every strategy was judged on, original wordings"
    return page.table("miss-rates-compared", caption, columns, entries)


def _miss_rates_table(page: Page) -> Table:
    """Show observed beside stated miss rates, with their status."""
    part = page.report["uncertainty"]
    k, target = part["k"].value, part["target"].value
    rows = page.rows_by_strategy("uncertainty", "strategies")
    calibrations = page.report["calibration"]["strategies"]
    rows = [row | {"calibration": calibrations[row["strategy"]]} for row in rows]
    observed = f"entry.observed.{target}"
    columns = f"""strategy | status = entry.status | observed {target}@{k} = {observed}
        | stated = entry.stated | miss_frac@{k} = entry.observed.miss_frac
        | questions = {observed}.n_scored | effective = {observed}.n_effective :1
        | judged = entry.outcomes.n_judged | missed = entry.outcomes.n_missed
        | unstated = entry.n_absent | skill = calibration.validation.skill :2
        | earned = calibration.status"""
    caption = "Miss rates: observed beside stated, over every wording and seed, 95 % intervals"
    return page.table("miss-rates", caption, columns, rows)


def _unmet_conditions_table(page: Page) -> Table:
    """Show the conditions that the next higher status lacks, and those of stale."""
    rows = []
    for name, entry in page.by_strategy("calibration", "strategies"):
        conditions = [each for each in entry["standing"]["conditions"] if not each["met"].value]
        wanted = {conditions[0]["status"].value, "stale"} if conditions else set()
        rows += [
            {
                "strategy": name,
                "condition": each,
                "what": panel_words()["conditions"].get(each["name"].value, each["name"]),
            }
            for each in conditions
            if each["status"].value in wanted
        ]
    columns = """strategy | needed for = condition.status | condition = what
        | needed = condition.needed | found = condition.found"""
    return page.table("miss-rate-status", "What the next status needs", columns, rows)


def _iterative_table(page: Page) -> Table:
    """Show what the rounds of iterative strategies recovered, lost and cost."""
    rows = [
        {"strategy": name, "base": part["base"], "account": account}
        for name, part in page.report["uncertainty"]["iterative"].items()
        for account in part["accounts"]
    ]
    columns = """strategy | over = base | expansion = account.strategy | verdict = account.verdict
        | recall after - before = account | p = account.p :4 | recovered = account.recovered
        | lost = account.lost | expanded = account.triggered | of = account.questions
        | extra queries = account.extra_queries | extra seconds = account.extra_seconds :1
        | effective = account.n_effective :1"""
    caption = "Iterative retrieval: misses recovered and hits lost"
    return page.table("iterative", caption, columns, rows)
