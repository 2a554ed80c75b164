"""Evaluate and compare runs: figures with intervals and denominators, as frames."""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from rag_eval.api.inputs import QrelsLike, RunLike, read_run
from rag_eval.api.judged import JudgedQuestions, JudgedRun, Wordings
from rag_eval.core.arrays import FloatArray
from rag_eval.core.errors import InputError, quoted
from rag_eval.measures.intervals import within_query
from rag_eval.measures.overlap import SharedGold, mean_interval
from rag_eval.measures.paired import holm, paired_comparison
from rag_eval.measures.ranking import parse_label

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


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class EvaluatedRuns(Tabular):
    r"""Measures of one run or of several runs.

    Attributes
    ----------
    table
        A row for each measure, with the strategy before it if `evaluate` got a mapping of runs.
        `value` is the mean over questions; `ci_low` and `ci_high` bound its 95 % interval, NaN
        with a single question. `questions` is the denominator of the mean, `effective_questions`
        the number of independent questions that they are worth. Of the questions, `missing` have a
        wording that the run lacks, which scores 0, and `without_relevant` have no relevant document
        and score 0. `unjudged` counts queries of the run that were left out.
    per_query
        A row for each strategy and question: `strategy`, `query_id`, `group_id`, `n_wordings`, and
        a column for each measure.

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

        rows = self._rows()
        worth = _round_range(rows["effective_questions"])
        counts = f"{rows['questions'].max()} questions, worth {worth}"
        return draw_intervals(rows, "value", counts)

    def to_latex(self) -> str:
        """Write a LaTeX table (package booktabs) of values and intervals."""
        rows = self._rows()
        rows["cell"] = _format_interval(rows, "value")
        order = rows["strategy"].unique(), rows["measure"].unique()
        wide = rows.pivot_table("cell", "strategy", "measure", aggfunc="first")
        return _write_latex(wide.loc[order].reset_index())

    def _rows(self) -> pd.DataFrame:
        rows = self.table.reset_index()
        return rows if "strategy" in rows else rows.assign(strategy=self.per_query["strategy"][0])


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ComparedRuns(Tabular):
    """Paired differences between runs on the same questions.

    Attributes
    ----------
    table
        A row for each pair and measure: `strategy`, `against`, `measure`. `difference` is strategy
        minus against, with its 95 % interval. `p` is two-sided, `p_holm` is adjusted over all
        rows of the table.
        `smallest_detectable` is the least true difference that these questions find with 80 %
        power. `better`, `worse` and `tied` count questions.
    per_query
        A row for each pair, measure and question: `query_id`, `group_id`, `strategy`, `against`,
        `measure`, `value` and `value_against` of the two runs, and `difference`.

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

    def plot(self) -> "Chart":
        """Draw each difference with its interval, a panel for each measure."""
        from rag_eval.api.charts import draw_intervals

        rows = self.table.reset_index()
        rows["strategy"] = rows["strategy"] + " − " + rows["against"]
        worth = _round_range(rows["effective_questions"])
        counts = f"{rows['questions'].max()} questions, worth {worth}"
        return draw_intervals(rows, "difference", counts)

    def to_latex(self) -> str:
        """Write a LaTeX table (package booktabs) of differences, intervals and adjusted p."""
        rows = self.table.reset_index()
        cells = rows[["strategy", "against", "measure"]].assign(
            difference=_format_interval(rows, "difference"), p=rows["p_holm"].map("{:.4f}".format)
        )
        return _write_latex(cells.rename(columns={"p": "p (Holm)"}))


def _round_range(numbers: pd.Series) -> str:
    """Write the range of numbers of effective questions."""
    low, high = f"{numbers.min():.0f}", f"{numbers.max():.0f}"
    return low if low == high else f"{low} to {high}"


def _format_interval(rows: pd.DataFrame, column: str) -> list[str]:
    figures = zip(rows[column], rows["ci_low"], rows["ci_high"], strict=True)
    return [
        f"{value:.3f} (no interval)" if np.isnan(low) else f"{value:.3f} [{low:.3f}, {high:.3f}]"
        for value, low, high in figures
    ]


def _write_latex(cells: pd.DataFrame) -> str:
    text = cells.to_latex(index=False, escape=True)
    # LaTeX reads [ or * after a line break as an argument of the line break.
    return re.sub(r"^(?=[\[*])", "{}", text, flags=re.MULTILINE)


def evaluate(
    run: RunLike | Mapping[str, RunLike],
    qrels: QrelsLike,
    measures: Sequence[object] | str = MEASURES,
    *,
    wordings: Wordings | None = None,
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
        Names or measures of ir_measures: R@k, Success@k, P@k, RR, nDCG, AP, Judged.
    wordings
        Query id of the run -> question. The qrels name the questions. A wording that the run lacks
        scores 0.

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
    labels = _read_labels(measures)
    judged = JudgedQuestions.read(qrels, wordings)
    named = _named_runs(run)
    runs = named or {"run": run}
    scored = {name: judged.match(read_run(one, name), name) for name, one in runs.items()}
    values = {
        name: within_query(ranked.score(labels), ranked.question, len(judged))
        for name, ranked in scored.items()
    }
    table = _tabulate(scored, values, judged, labels)
    per_query = pd.concat(
        [_per_query(name, scored[name], values[name], judged, labels) for name in runs],
        ignore_index=True,
    )
    index = ["strategy", "measure"] if named else ["measure"]
    table = table.set_index(index)[[name for name in table.columns if name not in _KEYS]]
    return EvaluatedRuns(table, per_query, judged.gold)


_KEYS: Final = ("strategy", "measure")


def compare(
    runs: Mapping[str, RunLike],
    qrels: QrelsLike,
    measures: Sequence[object] | str = MEASURES,
    *,
    wordings: Wordings | None = None,
) -> ComparedRuns:
    """Compare named runs in pairs on the same questions; each later run against each earlier one.

    Parameters
    ----------
    runs
        At least two runs by name, in forms that `read_run` accepts.
    qrels, measures, wordings
        As in `evaluate`.

    Raises
    ------
    InputError
        As in `evaluate`, or there are fewer than two runs.

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
    result = evaluate(runs, qrels, measures, wordings=wordings)
    by_name = result.per_query.groupby("strategy", sort=False)
    labels = list(result.table.index.unique("measure"))
    pairs = [(b, a) for a, b in itertools.combinations(names, 2)]
    values = {name: by_name.get_group(name)[labels].to_numpy() for name in names}
    left, right = (np.hstack([values[pair[side]] for pair in pairs]) for side in (0, 1))
    first = by_name.get_group(names[0]).reset_index(drop=True)
    found = paired_comparison(left, right, result.gold)
    keys = [(*pair, label) for pair in pairs for label in labels]
    table = pd.DataFrame(
        {
            "difference": found.delta,
            "ci_low": found.ci_low,
            "ci_high": found.ci_high,
            "p": found.p,
            "p_holm": holm(found.p),
            "smallest_detectable": found.minimum_detectable,
            "better": found.n_better,
            "worse": found.n_worse,
            "tied": found.n_tied,
            "questions": len(first),
            "effective_questions": found.n_effective,
        },
        index=pd.MultiIndex.from_tuples(keys, names=["strategy", "against", "measure"]),
    )
    per_query = pd.concat(
        [
            first[["query_id", "group_id"]].assign(
                strategy=b, against=a, measure=label, value=x, value_against=y, difference=x - y
            )
            for (b, a, label), x, y in zip(keys, left.T, right.T, strict=True)
        ],
        ignore_index=True,
    )
    return ComparedRuns(table, per_query)


def _read_labels(measures: Sequence[object] | str) -> list[str]:
    labels = [measures] if isinstance(measures, str) else [str(one) for one in measures]
    if not labels or len(set(labels)) < len(labels):
        found, message = quoted(", ".join(labels)), "the list of measures is empty or has a double"
        raise InputError.of("bad_arguments", message, field="measures", found=found)
    for label in labels:
        parse_label(label)
    return labels


def _named_runs(run: Any) -> dict[str, Any]:
    """Return a mapping of runs by name; empty for the run `{query: {document: score}}`."""
    if not isinstance(run, Mapping):
        return {}
    values = list(run.values())
    inner = (value for one in values if isinstance(one, Mapping) for value in one.values())
    is_run = all(isinstance(one, Mapping) for one in values)
    if is_run and not any(isinstance(value, Mapping) for value in inner):
        return {}
    return {str(name): one for name, one in run.items()}


def _tabulate(
    scored: Mapping[str, JudgedRun],
    values: Mapping[str, FloatArray],
    judged: JudgedQuestions,
    labels: list[str],
) -> pd.DataFrame:
    """Summarise the values of all runs."""
    bounds = mean_interval(np.hstack(list(values.values())), judged.gold)
    parts = [
        {
            "strategy": name,
            "questions": len(judged),
            "missing": len(np.unique(ranked.question[ranked.is_missing])),
            "without_relevant": int(np.count_nonzero(judged.n_relevant == 0)),
            "unjudged": ranked.n_unjudged,
            "wordings": len(ranked.question),
        }
        for name, ranked in scored.items()
    ]
    rows = pd.DataFrame([part | {"measure": label} for part in parts for label in labels])
    rows.insert(1, "value", bounds.value)
    rows.insert(2, "ci_low", bounds.low)
    rows.insert(3, "ci_high", bounds.high)
    rows.insert(
        list(rows.columns).index("questions") + 1, "effective_questions", bounds.n_effective
    )
    return rows


def _per_query(
    name: str,
    ranked: JudgedRun,
    values: FloatArray,
    judged: JudgedQuestions,
    labels: list[str],
) -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "strategy": name,
            "query_id": judged.names,
            "group_id": judged.groups,
            "n_wordings": np.bincount(ranked.question, minlength=len(judged)),
        }
    )
    return frame.join(pd.DataFrame(values, columns=labels))
