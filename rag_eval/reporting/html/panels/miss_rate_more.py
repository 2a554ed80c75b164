"""Tables of the miss-rate panel beyond single figures: comparisons, leakage, other wordings, the watch over time, iterative retrieval, feedback.

Belongs here: which figures stand beside which. A table without rows is None, and the template says why.
"""

from collections.abc import Iterable

from rag_eval.reporting.html.figures import Cursor
from rag_eval.reporting.html.page import Page
from rag_eval.reporting.html.panels.parts import Several, by_strategy, down
from rag_eval.reporting.html.tables import Cell, Column, Estimate, Number, Table, Words

MEASURES = {"observed": "misses, observed", "raw": "misses, uncalibrated", "calibrated": "misses, calibrated", "powered": "misses, prediction-powered", "brier": "Brier score", "skill": "Brier skill"}
STRONGEST = 10
FEEDBACK = {"n_claims": "claims with feedback", "something_missing": "something missing", "evidence_not_relevant": "evidence not relevant", "nothing_missing": "nothing missing", "audits_due": "audits due"}


def _named(page: Page) -> list[tuple[str, Cursor]]:
    return by_strategy(page, page.report["calibration"]["strategies"])


def _series(page: Page, name: str) -> Cell:
    return page.series(page.strategy(name)["name"])


def compared(page: Page, comparison: Cursor) -> Table:
    """Figures of every strategy on the questions that all were judged on."""
    keys = [key for key in MEASURES if any(down(entry, key) is not None and down(entry, key, "value") is not None for entry in comparison["strategies"] if entry[key].value is not None)]
    columns = [Column("strategy", "strategy", figures=False), *(Column(key, MEASURES[key]) for key in keys), Column("questions", "questions"), Column("groups", "groups")]
    rows = [[page.series(entry["name"]), *(Estimate(down(entry, key)) for key in keys), Number(entry["observed"]["n"]), Number(entry["observed"]["n_groups"])] for entry in comparison["strategies"]]
    return Table("miss-rates-compared", "Misses on the questions that every strategy was judged on, 95 % intervals over groups", columns, rows)


def _difference(page: Page, row: Cursor) -> list[Cell]:
    counts = [Number(row[key]) for key in ("n_better", "n_worse", "n_tied")]
    return [page.series(row["a"]), page.series(row["b"]), Words(MEASURES.get(row["measure"].value, row["measure"])), Estimate(row["delta"], signed=True), *counts, Number(row["delta"]["n_groups"]), Number(row["p_holm"], 4), Number(row["detectable"])]


def differences(page: Page, comparison: Cursor, measures: Iterable[str], name: str, caption: str) -> Table | None:
    """Paired differences in some figures, those with the primary strategy first; those that nothing is known of are left out."""
    columns = [
        Column("a", "strategy", figures=False),
        Column("b", "against", figures=False),
        Column("measure", "figure", figures=False),
        Column("delta", "difference", "strategy minus the other; of misses, below zero means that the first misses less"),
        Column("better", "better", "questions on which the first is better"),
        Column("worse", "worse"),
        Column("tied", "tied"),
        Column("groups", "groups"),
        Column("p", "p (Holm)", "sign-flip permutation test over groups, adjusted over all pairs, each figure by itself"),
        Column("detectable", "smallest detectable", "the smallest true difference that these questions tell from none with 80 % power at two-sided 5 %"),
    ]
    wanted = list(measures)
    found = [row for row in comparison["differences"] if row["measure"].value in wanted and row["delta"].value is not None and row["delta"]["value"].value is not None]
    found.sort(key=lambda row: (wanted.index(row["measure"].value), page.primary not in {row["a"].value, row["b"].value}, row.path[-1]))
    return Table(name, caption, columns, [_difference(page, row) for row in found]) if found else None


def leakage(page: Page) -> Table | None:
    """What folds that split groups would have feigned."""
    columns = [Column("strategy", "strategy", figures=False), Column("grouped", "skill, groups kept together"), Column("random", "skill, groups split"), Column("gap", "feigned", "the second minus the first: what questions that share gold on both sides of a fold would have added to the skill")]
    rows = [[_series(page, name), Number(entry["leakage_gap"]["grouped"]), Number(entry["leakage_gap"]["random"]), Number(entry["leakage_gap"]["gap"], signed=True)] for name, entry in _named(page) if entry["leakage_gap"].value is not None]
    return Table("leakage-gap", "Leakage gap: Brier skill with and without groups kept together", columns, rows) if rows else None


def wordings(page: Page) -> Table | None:
    """Whether the branch for questions whose other wordings were judged speaks, and what it is worth."""
    columns = [
        Column("strategy", "strategy", figures=False),
        Column("used", "used", "it speaks only where it was better than the estimator alone by more than chance", figures=False),
        Column("status", "status", "its own", figures=False),
        Column("brier_without", "Brier without it"),
        Column("brier", "Brier with it"),
        Column("gain", "gain", "how much lower the squared error is"),
        Column("gain_se", "standard error"),
        Column("skill", "skill"),
        Column("outcomes", "wordings"),
        Column("groups", "groups"),
    ]
    rows = []
    for name, entry in _named(page):
        branch = entry["other_wordings"]
        if branch.value is None:
            continue
        checked = branch["validation"]
        figures = [Number(branch["brier_without"], 4), Estimate(checked["brier"], digits=4), Number(branch["gain"], 4, signed=True), Number(branch["gain_se"], 4), Estimate(checked["skill"])]
        rows.append([_series(page, name), Words("used" if branch["used"].value else "not used"), Words(branch["status"], "chip"), *figures, Number(checked["n"]), Number(checked["groups"])])
    return Table("other-wordings", "Questions whose other wordings were judged: what that knowledge adds", columns, rows) if rows else None


def drift(page: Page) -> Table:
    """The watch over outcomes that came after the prediction."""
    columns = [
        Column("strategy", "strategy", figures=False),
        Column("alarm", "alarm", figures=False),
        Column("e_high", "evidence for more misses", "e-value; an alarm at the bar"),
        Column("e_low", "evidence for fewer misses"),
        Column("bar", "bar"),
        Column("missed", "missed, mean"),
        Column("predicted", "predicted, mean"),
        Column("tolerance", "tolerance", "a shift of the miss rate of so much counts as none"),
        Column("outcomes", "outcomes"),
        Column("groups", "groups"),
        Column("first", "first alarm after", "groups"),
        Column("direction", "direction", figures=False),
    ]
    rows = []
    for name, entry in _named(page):
        watch = entry["drift"]
        alarm = Words("alarm", "chip") if watch["alarm"].value else Words("none")
        figures = [Number(watch[key], digits) for key, digits in (("e_high", 2), ("e_low", 2), ("bar", 0), ("mean_missed", 3), ("mean_predicted", 3), ("tolerance", 2), ("n", 0), ("n_groups", 0), ("first_alarm_at", 0))]
        rows.append([_series(page, name), alarm, *figures, Words(watch["direction"])])
    return Table("miss-rate-drift", "Drift watch: do outcomes still fit the miss rates stated before them", columns, rows)


def promotions(page: Page) -> Table | None:
    """Changes of status in this run."""
    columns = [Column("strategy", "strategy", figures=False), Column("before", "before", figures=False), Column("now", "now", figures=False), Column("at", "at", figures=False)]
    found = [(name, entry["promotion"]) for name, entry in _named(page) if entry["promotion"].value is not None]
    rows = [[_series(page, name), Words(change["old_status"], "chip"), Words(change["new_status"], "chip"), Words(change["at"])] for name, change in found]
    return Table("miss-rate-promotions", "Changes of status in this run", columns, rows) if rows else None


def coefficients(page: Page) -> Table | None:
    """The signals that speak most in each estimator."""
    columns = [Column("strategy", "strategy", figures=False), Column("signal", "signal", figures=False), Column("log_odds", "log-odds of a miss", "per standard deviation of the signal")]
    rows = [[_series(page, name), Words(part["signal"], "code"), Number(part["value"], 3, signed=True)] for name, entry in _named(page) if entry["estimator"].value is not None for part in list(entry["estimator"]["coefficients"])[:STRONGEST]]
    return Table("miss-rate-coefficients", "Estimators: the signals that weigh most, strongest first", columns, rows) if rows else None


def riskiest(page: Page) -> Table | None:
    """The primary strategy's retrievals with the highest stated miss rates."""
    columns = [Column("strategy", "strategy", figures=False), Column("question", "question", figures=False), Column("wording", "wording", figures=False), Column("seed", "seed"), Column("miss_rate", "stated miss rate")]
    rows = [[_series(page, name), Words(one["query_id"], "code"), Words(one["paraphrase_id"]), Number(one["seed"]), Estimate(one, key="miss_rate")] for name, entry in page.report["uncertainty"]["strategies"].items() if name == page.primary for one in entry["riskiest"]]
    return Table("riskiest", "The primary strategy's retrievals with the highest stated miss rates", columns, rows) if rows else None


def iterative(page: Page) -> Table | None:
    """Accounts of iterative strategies against their bases."""
    accounts = page.report["uncertainty"].get("iterative")
    columns = [
        Column("strategy", "strategy", figures=False),
        Column("base", "over", figures=False),
        Column("expansion", "expansion", figures=False),
        Column("verdict", "verdict", figures=False),
        Column("delta", "recall after − before"),
        Column("p", "p"),
        Column("recovered", "recovered", "misses that became hits"),
        Column("lost", "lost", "hits that became misses"),
        Column("triggered", "expanded", "retrievals that were expanded"),
        Column("questions", "of"),
        Column("extra", "extra queries"),
        Column("groups", "groups"),
    ]
    rows = []
    for name, about in accounts.items() if accounts is not None else []:
        for one in about["accounts"]:
            counts = [Number(one[key]) for key in ("recovered", "lost", "triggered", "questions", "extra_queries", "n_groups")]
            rows.append([_series(page, name), Words(about["base"]), Words(one["strategy"]), Words(one["verdict"]), Estimate(one, key="delta", signed=True), Number(one["p"], 4), *counts])
    return Table("iterative", "Iterative retrieval: what its rounds recovered and lost", columns, rows) if rows else None


def _heard(page: Page) -> list[tuple[str, Cursor]]:
    """Feedback of every strategy that users said anything of."""
    return [(name, entry["feedback"]) for name, entry in _named(page) if entry.get("feedback", "n_claims")]


def feedback(page: Page) -> Table | None:
    """What users said of retrievals; None where they said nothing."""
    columns = [
        Column("strategy", "strategy", figures=False),
        *(Column(key, words) for key, words in FEEDBACK.items()),
        Column("contradicts_gold", "though gold says hit", "claims of which a user says that something is missing and gold says that nothing is"),
        Column("queries", "on the questions", figures=False),
    ]
    rows = []
    for name, about in _heard(page):
        against = about["contradicts_gold"]
        rows.append([_series(page, name), *(Number(about[key]) for key in FEEDBACK), Number(against["n_claims"]), Several(list(against["query_ids"]))])
    return Table("feedback", "Feedback of users: it calls for audits and never fits a calibrator", columns, rows) if rows else None


def feedback_watch(page: Page) -> Table | None:
    """Complaints against the misses that the stated miss rates leave room for; None where none can be held against them."""
    columns = [
        Column("strategy", "strategy", figures=False),
        Column("claims_of", "claims", figures=False),
        Column("complaints", "groups with complaints"),
        Column("expected", "expected misses", "groups with a miss, by the stated miss rates"),
        Column("upper", "at most", "upper bound of these; more complaints than this are an alarm"),
        Column("alarm", "alarm", "it calls for audits and changes no status", figures=False),
        Column("claims", "claims"),
        Column("groups", "groups"),
    ]
    rows = []
    for name, about in _heard(page):
        for key, words in (("every_claim", "all"), ("least_risky_third", "least risky third")):
            watch = down(about, "watch", key)
            if watch is None or watch.value is None:
                continue
            alarm = Words("audit now", "chip") if watch["alarm"].value else Words("none")
            rows.append([_series(page, name), Words(words), Number(watch["complaints"]), Number(watch["expected"], 1), Number(watch["upper"]), alarm, Number(watch["n_claims"]), Number(watch["n_groups"])])
    return Table("feedback-watch", "Complaints beside the misses that the stated miss rates leave room for", columns, rows) if rows else None
