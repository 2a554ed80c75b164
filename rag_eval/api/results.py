"""Evaluate and compare runs: figures with intervals and denominators, as frames."""

import dataclasses
import html
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from rag_eval.api.inputs import QrelsLike, Run, RunLike
from rag_eval.api.judged import JudgedQuestions, Wordings
from rag_eval.core.errors import InputError, quoted
from rag_eval.measures.intervals import holm, paired_comparison, within_query
from rag_eval.measures.overlap import SharedGold, mean_interval
from rag_eval.measures.ranking import parse_label
from rag_eval.reporting.tables import latex_text

if TYPE_CHECKING:
    from rag_eval.api.charts import Chart

MEASURES: Final = ("nDCG@10", "R@10")
"""Measures of a call that names none."""
_FORMATS: Final = {"p": "{:.4f}".format, "p_holm": "{:.4f}".format}


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Tabular:
    """A result whose main part is `table`; shown as the table in a terminal and in a notebook."""

    table: pd.DataFrame

    def __repr__(self) -> str:
        return self.table.to_string(float_format="{:.3f}".format, formatters=_FORMATS)

    def _repr_html_(self) -> str:
        return self.table.to_html(float_format="{:.3f}".format, formatters=_FORMATS)


class _ScoredRuns:
    """Runs matched with judged questions, and their `values` by question, [n, n_labels] each."""

    def __init__(
        self,
        runs: Mapping[str, RunLike],
        qrels: QrelsLike,
        measures: Sequence[object] | str,
        wordings: Wordings | None,
    ) -> None:
        names = [measures] if isinstance(measures, str) else [str(measure) for measure in measures]
        self.labels = labels = [_standard_label(name) for name in names]
        if not labels or len(set(labels)) < len(labels):
            message = "the list of measures is empty or has a double"
            shown = quoted(", ".join(labels))
            raise InputError.of("bad_arguments", message, field="measures", found=shown)
        self.judged = JudgedQuestions.read(qrels, wordings)
        self.runs = {
            name: self.judged.match(Run.read(run, name), name) for name, run in runs.items()
        }
        self.values = {
            name: within_query(run.score(labels), run.question, len(self.judged))
            for name, run in self.runs.items()
        }
        self.questions = pd.DataFrame(
            {"query_id": self.judged.names, "group_id": self.judged.groups}
        )

    def per_query(self) -> pd.DataFrame:
        """Return the values of each run and question."""
        parts = []
        for name, run in self.runs.items():
            n_wordings = np.bincount(run.question, minlength=len(self.judged))
            part = self.questions.assign(strategy=name, n_wordings=n_wordings)
            part[self.labels] = self.values[name]
            parts.append(part[["strategy", "query_id", "group_id", "n_wordings", *self.labels]])
        return pd.concat(parts, ignore_index=True)

    def table(self, *, intervals: bool) -> pd.DataFrame:
        """Summarise the values of all runs: a row for each run and measure."""
        values = np.hstack(list(self.values.values()))
        keys = pd.MultiIndex.from_product(
            [list(self.runs), self.labels], names=["strategy", "measure"]
        )
        table = pd.DataFrame({"value": values.mean(axis=0)}, index=keys)
        bounds = mean_interval(values, self.judged.gold) if intervals else None
        if bounds is not None:
            table = table.assign(ci_low=bounds.low, ci_high=bounds.high)
        table["questions"] = len(self.judged)
        if bounds is not None:
            table["effective_questions"] = bounds.n_effective
        counts = {
            "missing": [len(np.unique(r.question[r.is_missing])) for r in self.runs.values()],
            "without_relevant": int(np.count_nonzero(self.judged.n_relevant == 0)),
            "unjudged": [run.n_unjudged for run in self.runs.values()],
            "wordings": [len(run.question) for run in self.runs.values()],
        }
        by_run = pd.DataFrame(counts, index=pd.Index(list(self.runs), name="strategy"))
        return table.join(by_run)


def _standard_label(label: str) -> str:
    """Return the label of a measure for any of its names: `recall_10` is `R@10`."""
    name, cutoff = parse_label(label)
    return name if cutoff is None else f"{name}@{cutoff}"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class EvaluatedRuns(Tabular):
    r"""Measures of one run or of several runs.

    Attributes
    ----------
    table
        A row for each measure, with the strategy before it if `evaluate` got a mapping of runs.
        `value` is the mean over questions; `ci_low` and `ci_high` bound its 95 % interval, NaN
        with a single question. `questions` is the denominator of the mean, `effective_questions`
        the number of independent questions that they are worth; `wordings` counts the retrievals,
        which are averaged inside their question. Of the questions, `missing` have a
        wording that the run lacks, which scores 0, and `without_relevant` have no relevant document
        and score 0. `unjudged` counts queries of the run that were left out. Without `intervals`,
        the columns of the interval are absent.
    per_query
        A row for each strategy and question: `strategy`, `query_id`, `group_id`, `n_wordings`, and
        a column for each measure.
    gold
        The gold that the questions share, in the order of `per_query` of one run.

    Examples
    --------
    >>> qrels = {f"q{i}": {f"d{i}": 1} for i in range(20)}
    >>> run = {query: {"d0": 1.0, "d1": 0.5} for query in qrels}
    >>> print(evaluate({"my_run": run}, qrels, ["R@10"]).to_latex())
    \begin{tabular}{ll}
    \toprule
    strategy & R@10 \\
    \midrule
    my\_run & 0.100 [0.027, 0.307] \\
    \bottomrule
    \end{tabular}
    <BLANKLINE>
    """

    per_query: pd.DataFrame
    gold: SharedGold

    def plot(self) -> "Chart":
        """Draw each value with its interval, a panel for each measure."""
        from rag_eval.api.charts import draw_intervals

        return draw_intervals(self._rows(), "value")

    def to_latex(self) -> str:
        """Write a LaTeX table (package booktabs) of values and intervals."""
        rows = self._rows()
        labels = list(rows["measure"].unique())
        cells = np.reshape(_format_interval(rows, "value"), (-1, len(labels))).tolist()
        named = zip(rows["strategy"].unique(), cells, strict=True)
        return latex_text(["strategy", *labels], [[name, *row] for name, row in named])

    def _rows(self) -> pd.DataFrame:
        rows = self.table.reset_index()
        return rows if "strategy" in rows else rows.assign(strategy="run")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ComparedRuns(Tabular):
    """Paired differences between runs on the same questions.

    Attributes
    ----------
    table
        A row for each pair and measure: `strategy`, `against`, `measure`. `difference` is strategy
        minus against, with its 95 % interval. `p` is two-sided. `p_holm` is adjusted by Holm over
        the pairs of the table, each measure by itself, as PyTerrier's experiments do.
        `smallest_detectable` is the least true difference that these questions find with 80 %
        power. `better`, `worse` and `tied` count questions.
    per_query
        A row for each pair, measure and question: `query_id`, `group_id`, `strategy`, `against`,
        `measure`, `value` and `value_against` of the two runs, and `difference`.
    family
        The comparisons that each `p_holm` covers, as a sentence; shown below the table.

    Examples
    --------
    List the questions on which a run became worse:

    >>> qrels = {"q1": {"d1": 1}, "q2": {"d2": 1}}
    >>> old, new = {"q1": {"d1": 1.0}, "q2": {"d2": 1.0}}, {"q1": {"d1": 1.0}}
    >>> found = compare({"old": old, "new": new}, qrels, ["R@10"])
    >>> found.per_query.query("difference < 0")["query_id"].tolist()
    ['q2']
    """

    per_query: pd.DataFrame
    family: str

    def __repr__(self) -> str:
        return f"{super().__repr__()}\n{self.family}"

    def _repr_html_(self) -> str:
        return f"{super()._repr_html_()}<p>{html.escape(self.family)}</p>"

    def plot(self) -> "Chart":
        """Draw each difference with its interval, a panel for each measure."""
        from rag_eval.api.charts import draw_intervals

        rows = self.table.reset_index()
        rows["strategy"] = rows["strategy"] + " − " + rows["against"]
        return draw_intervals(rows, "difference")

    def to_latex(self) -> str:
        """Write a LaTeX table (package booktabs) of differences, intervals and adjusted p."""
        rows = self.table.reset_index()
        keys = ["strategy", "against", "measure"]
        p = rows["p_holm"].map("{:.4f}".format)
        intervals = _format_interval(rows, "difference")
        cells = zip(*(rows[key] for key in keys), intervals, p, strict=True)
        return latex_text([*keys, "difference", "p (Holm)"], list(cells))


def _format_interval(rows: pd.DataFrame, column: str) -> list[str]:
    rows = rows.reindex(columns=[column, "ci_low", "ci_high"])
    return [
        f"{value:.3f} (no interval)" if np.isnan(low) else f"{value:.3f} [{low:.3f}, {high:.3f}]"
        for value, low, high in rows.itertuples(index=False)
    ]


def evaluate(
    run: "RunLike | Mapping[str, RunLike]",
    qrels: QrelsLike,
    measures: Sequence[object] | str = MEASURES,
    *,
    wordings: Wordings | None = None,
    intervals: bool = True,
) -> EvaluatedRuns:
    """Measure one run, or several named runs, with 95 % intervals.

    Values equal those of ir_measures, ties included. Wordings are averaged within their question
    first. Questions that share relevant documents succeed and fail together, so the questions are
    worth fewer independent ones: `effective_questions`, which the intervals are made from.

    Parameters
    ----------
    run
        A run in a form that `read_run` accepts, or `{name: run}`.
    qrels
        Judgements in a form that `read_qrels` accepts.
    measures
        Names or measures of ir_measures: R@k, Success@k, P@k, RR, nDCG, AP, Judged. Names of
        other tools (`recall@10`, `ndcg_cut_10`, `MRR`, `hit_rate@5`) are read as these.
    wordings
        Query id of the run -> question. The qrels name the questions. A wording that the run lacks
        scores 0.
    intervals
        Whether to compute intervals and `effective_questions`, which take most of the time.

    Raises
    ------
    InputError
        An input cannot be used, a measure is not known, or no query of a run has judgements.

    Examples
    --------
    >>> run = {"q1": {"d1": 2.0, "d2": 1.0}, "q2": {"d1": 3.0}}
    >>> qrels = {"q1": {"d2": 1}, "q2": {"d3": 1}, "q3": {"d4": 1}}
    >>> result = evaluate(run, qrels, ["RR", "R@10"])
    >>> result.table.reset_index()[["measure", "value", "questions", "missing"]].round(3)
      measure  value  questions  missing
    0      RR  0.167          3        1
    1    R@10  0.333          3        1

    Wordings of a question:

    >>> run = {"q1-a": {"d1": 2.0}, "q1-b": {"d2": 2.0}}
    >>> result = evaluate(run, {"q1": {"d1": 1}}, ["R@10"], wordings={"q1-a": "q1", "q1-b": "q1"})
    >>> float(result.table.loc["R@10", "value"])
    0.5
    """
    runs = _named_runs(run)
    scored = _ScoredRuns(runs or {"run": run}, qrels, measures, wordings)
    table = scored.table(intervals=intervals)
    if not runs:
        table = table.droplevel("strategy")
    return EvaluatedRuns(table, scored.per_query(), scored.judged.gold)


def compare(
    runs: Mapping[str, RunLike],
    qrels: QrelsLike,
    measures: Sequence[object] | str = MEASURES,
    *,
    against: str | None = None,
    wordings: Wordings | None = None,
) -> ComparedRuns:
    """Compare named runs in pairs on the same questions; each later run against each earlier one.

    Parameters
    ----------
    runs
        At least two runs by name, in forms that `read_run` accepts.
    qrels, measures, wordings
        As in `evaluate`.
    against
        Name of the baseline. Then only the other runs are compared with this run, and Holm's
        adjustment covers only these comparisons.

    Raises
    ------
    InputError
        As in `evaluate`, or there are fewer than two runs, or no run `against`.

    Examples
    --------
    >>> qrels = {f"q{i}": {f"d{i}": 1} for i in range(40)}
    >>> good = {query: {next(iter(documents)): 1.0} for query, documents in qrels.items()}
    >>> poor = {query: (good[query] if i % 2 else {"x": 1.0}) for i, query in enumerate(good)}
    >>> found = compare({"poor": poor, "good": good}, qrels, ["R@10"]).table
    >>> found.reset_index()[["strategy", "against", "difference", "better", "tied"]]
      strategy against  difference  better  tied
    0     good    poor         0.5      20    20
    >>> bool(found["p_holm"].iloc[0] < 0.001)
    True
    """
    names = list(_named_runs(runs))
    if len(names) < 2:  # noqa: PLR2004 - a pair
        message, accepted = "a comparison needs at least two named runs", '{"bm25": run, ...}'
        raise InputError.of("bad_arguments", message, field="runs", accepted=accepted)
    if against is not None and against not in names:
        message, accepted = "no run has this name", quoted(", ".join(names))
        raise InputError.of(
            "bad_arguments", message, field="against", found=quoted(against), accepted=accepted
        )
    scored = _ScoredRuns(_named_runs(runs), qrels, measures, wordings)
    pairs = [(b, a) for a, b in itertools.combinations(names, 2)]
    if against is not None:
        pairs = [(name, against) for name in names if name != against]
    left, right = (np.hstack([scored.values[pair[side]] for pair in pairs]) for side in (0, 1))
    comparison = paired_comparison(left, right, scored.judged.gold)
    keys = [(*pair, label) for pair in pairs for label in scored.labels]
    # A column of p for each measure: the family of Holm's adjustment.
    p_holm = np.apply_along_axis(holm, 0, comparison.p.reshape(len(pairs), -1))
    table = pd.DataFrame(
        {
            "difference": comparison.delta,
            "ci_low": comparison.ci_low,
            "ci_high": comparison.ci_high,
            "p": comparison.p,
            "p_holm": p_holm.ravel(),
            "smallest_detectable": comparison.minimum_detectable,
            "better": comparison.n_better,
            "worse": comparison.n_worse,
            "tied": comparison.n_tied,
            "questions": len(scored.judged),
            "effective_questions": comparison.n_effective,
        },
        index=pd.MultiIndex.from_tuples(keys, names=["strategy", "against", "measure"]),
    )
    questions = scored.questions
    per_query = pd.concat(
        [
            questions.assign(
                strategy=b, against=a, measure=label, value=x, value_against=y, difference=x - y
            )
            for (b, a, label), x, y in zip(keys, left.T, right.T, strict=True)
        ],
        ignore_index=True,
    )
    baseline = "" if against is None else f" with {against}"
    count = f"{len(pairs)} comparison{'s' * (len(pairs) > 1)}{baseline}"
    family = f"p_holm: Holm over {count}, each measure by itself"
    return ComparedRuns(table, per_query, family)


def _named_runs(run: Any) -> dict[str, Any]:
    """Return a mapping of runs by name; empty for the run `{query: {document: score}}`."""
    if not isinstance(run, Mapping):
        return {}
    values = list(run.values())
    inner = (value for entry in values if isinstance(entry, Mapping) for value in entry.values())
    is_run = all(isinstance(entry, Mapping) for entry in values)
    if is_run and not any(isinstance(value, Mapping) for value in inner):
        return {}
    return {str(name): entry for name, entry in run.items()}
