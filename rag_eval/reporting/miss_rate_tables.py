"""The comparison of strategies by their misses as a table on a terminal, as CSV and as LaTeX (booktabs).

Belongs here: how it is shown. Every figure stands with its interval and its denominators; names of strategies are untrusted text.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rag_eval.records.problems import MAX_QUOTED_CHARS, quoted
from rag_eval.reporting.tables import write_csv
from rag_eval.reporting.terminal import cell, new_table
from rag_eval.uncertainty.comparing import Comparison, Difference, Measure, StrategyFigures
from rag_eval.uncertainty.figures import Figure
from rag_eval.uncertainty.prediction_powered import PredictionPowered, powered_figure

if TYPE_CHECKING:
    from rich.table import Table

NAMES: Final[Mapping[Measure, str]] = {
    "observed": "misses, judged",
    "raw": "misses, uncalibrated",
    "calibrated": "misses, calibrated",
    "powered": "misses, powered",
    "brier": "Brier score",
    "skill": "Brier skill",
}
POWERED_FIELDS = (
    "power",
    "extra_labels",
    "labels_value",
    "labels_low",
    "labels_high",
    "n_labelled",
    "n_unlabelled",
    "n_groups_labelled",
    "n_groups_unlabelled",
)
COLUMNS = (
    "a",
    "b",
    "measure",
    "value",
    "low",
    "high",
    "p",
    "p_holm",
    "n_better",
    "n_worse",
    "n_tied",
    "detectable",
    "n",
    "n_groups",
    *POWERED_FIELDS,
    "reason",
)
NOTE = (
    "Misses are rates with 95 % intervals over independent groups of queries: judged from outcomes; uncalibrated and calibrated as predicted; all of these on "
    "the gold questions that every strategy was judged on. Powered is of production traffic only, not of the gold questions: from random audits of claims "
    "and the calibrated predictions of the claims without one. p: sign flips by group, adjusted by Holm over all pairs, each measure by itself. "
    "Detectable: smallest true difference found with 80 % power at two-sided 5 %."
)
MAX_REASON = 600
"""Characters of a sentence that holds names."""
_ESCAPES = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "_": r"\_",
    "%": r"\%",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\symbol{34}",
    "`": r"\textasciigrave{}",
    "'": r"\textquotesingle{}",
    "[": "{[}",  # after \\midrule it would open an option
    "]": "{]}",
    "…": r"\ldots{}",
    "-": "{-}",  # -- and --- would become dashes
}


def figures_of(
    entry: StrategyFigures,
) -> Iterator[tuple[Measure, Figure, PredictionPowered | None]]:
    """Give the figures of a strategy in the order in which they are shown."""
    yield "observed", entry.observed, None
    if entry.raw is not None:
        yield "raw", entry.raw, None
    yield "calibrated", entry.calibrated, None
    yield "powered", powered_figure(entry.powered), entry.powered
    yield "brier", entry.brier, None
    yield "skill", entry.skill, None


def absences(comparison: Comparison) -> list[str]:
    """Why prediction-powered estimates are absent, each reason once, in the order in which they are shown."""
    found = [entry.powered_reason for entry in comparison.strategies] + [
        row.powered_reason for row in comparison.differences
    ]
    return list(dict.fromkeys(reason for reason in found if reason))


def _figure(figure: Figure, *, signed: bool = False) -> str:
    if figure.value is None:
        return "-"
    sign = "+" if signed else ""
    bounds = (
        ""
        if figure.low is None or figure.high is None
        else f" [{figure.low:{sign}.3f}, {figure.high:{sign}.3f}]"
    )
    return f"{figure.value:{sign}.3f}{bounds}"


def _counts(measure: Measure, figure: Figure, powered: PredictionPowered | None) -> str:
    if measure == "powered":
        return (
            "-"
            if powered is None
            else f"{powered.n_labelled:,} audited + {powered.n_unlabelled:,} not"
        )
    return f"{figure.n:,} in {figure.n_groups:,} groups"


def _worth(powered: PredictionPowered | None) -> str:
    return (
        ""
        if powered is None or not powered.n_unlabelled
        else f"as {powered.extra_labels:.0%} more labels"
    )


def _p(value: float | None) -> str:
    return "-" if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"  # noqa: PLR2004 - three decimals are shown


def _versus(row: Difference) -> str:
    return "-" if row.n_better is None else f"{row.n_better:,}/{row.n_worse:,}/{row.n_tied:,}"


def strategies_table(comparison: Comparison) -> "Table":
    """Figures of every strategy, one a row."""
    table = new_table(
        f"Misses by strategy: {comparison.n:,} judged queries in {comparison.n_groups:,} independent groups; powered: of production traffic",
        [
            ("strategy", "left"),
            ("figure", "left"),
            ("value [95 % interval]", "right"),
            ("queries", "right"),
            ("worth", "left"),
        ],
    )
    for entry in comparison.strategies:
        shown = list(figures_of(entry))
        for at, (measure, figure, powered) in enumerate(shown):
            table.add_row(
                cell(entry.name if at == 0 else ""),
                NAMES[measure],
                cell(_figure(figure)),
                _counts(measure, figure, powered),
                _worth(powered),
                end_section=at == len(shown) - 1,
            )
    if absent := absences(comparison):
        from rich.text import Text

        table.caption, table.caption_justify = (
            Text(f"No powered estimate: {'; '.join(absent)}."),
            "left",
        )  # a plain string would be read as markup, and names stand in it
    return table


def differences_table(comparison: Comparison) -> "Table":
    """Differences of every pair, one a row."""
    table = new_table(
        "Differences on the same queries",
        [
            ("a - b", "left"),
            ("figure", "left"),
            ("difference [95 % interval]", "right"),
            ("p (Holm)", "right"),
            ("better/worse/tied", "right"),
            ("detectable", "right"),
        ],
    )
    table.caption, table.caption_justify = NOTE, "left"
    before = None
    for row in comparison.differences:
        pair = (row.a, row.b)
        if before not in {None, pair}:
            table.add_section()
        name = "" if pair == before else f"{row.a} - {row.b}"
        detectable = "-" if row.detectable is None else f"{row.detectable:.3f}"
        table.add_row(
            cell(name),
            NAMES[row.measure],
            cell(_figure(row.delta, signed=True)),
            _p(row.p_holm),
            _versus(row),
            detectable,
        )
        before = pair
    return table


def rows(comparison: Comparison) -> list[dict[str, Any]]:
    """Every figure and difference as a row of COLUMNS; `b` is null for figures of one strategy."""
    found = []
    for entry in comparison.strategies:
        for measure, figure, powered in figures_of(entry):
            found.append(
                {
                    "a": entry.name,
                    "b": None,
                    "measure": measure,
                    **figure._asdict(),
                    **_powered_fields(powered),
                    "reason": entry.powered_reason if measure == "powered" else "",
                }
            )
    for row in comparison.differences:
        tested = {
            name: getattr(row, name)
            for name in ("p", "p_holm", "n_better", "n_worse", "n_tied", "detectable")
        }
        found.append(
            {
                "a": row.a,
                "b": row.b,
                "measure": row.measure,
                **row.delta._asdict(),
                **tested,
                **_powered_fields(row.powered),
                "reason": row.powered_reason,
            }
        )
    return found


def _powered_fields(powered: PredictionPowered | None) -> dict[str, Any]:
    return {} if powered is None else {name: getattr(powered, name) for name in POWERED_FIELDS}


def write_comparison_csv(path: Path, comparison: Comparison) -> None:
    """Write every figure and difference, one a row, atomically."""
    write_csv(path, COLUMNS, rows(comparison))


def latex_text(text: str, limit: int = MAX_QUOTED_CHARS) -> str:
    """Untrusted text as LaTeX that prints it: controls shown as escapes, length bounded, nothing left that TeX would act on."""
    return "".join(_ESCAPES.get(char, char) for char in quoted(text, limit))


def to_latex(comparison: Comparison) -> str:
    """Two booktabs tables, to be read in by a document that loads booktabs and textcomp."""
    lines = [
        r"\begin{tabular}{llrr}",
        r"\toprule",
        r"Strategy & Figure & Value [95\,\% interval] & Queries \\",
    ]
    for entry in comparison.strategies:
        lines.append(r"\midrule")
        for at, (measure, figure, powered) in enumerate(figures_of(entry)):
            lines.append(
                f"{latex_text(entry.name) if at == 0 else ''} & {NAMES[measure]} & {_math(_figure(figure))} & {_latex_counts(measure, figure, powered)} \\\\"
            )
    lines += [r"\bottomrule", r"\end{tabular}", "", r"\begin{tabular}{llrrrr}", r"\toprule"]
    lines.append(
        r"$a - b$ & Figure & Difference [95\,\% interval] & $p$ (Holm) & $a$ better/worse/tied & Detectable \\"
    )
    before = None
    for row in comparison.differences:
        name = f"{latex_text(row.a)} $-$ {latex_text(row.b)}" if before != (row.a, row.b) else ""
        lines += [r"\midrule"] if name else []
        detectable = "--" if row.detectable is None else f"{row.detectable:.3f}"
        p = _p(row.p_holm).replace("<", "$<$").replace("-", "--")
        lines.append(
            f"{name} & {NAMES[row.measure]} & {_math(_figure(row.delta, signed=True))} & {p} & {_versus(row).replace('-', '--')} & {detectable} \\\\"
        )
        before = (row.a, row.b)
    told = [
        f"% No powered estimate: {latex_text(reason, MAX_REASON)}"
        for reason in absences(comparison)
    ]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", f"% {NOTE}", *told, ""])


def _math(text: str) -> str:
    return "--" if text == "-" else "$" + text.replace("[", r"\; [") + "$"


def _latex_counts(measure: Measure, figure: Figure, powered: PredictionPowered | None) -> str:
    worth = _worth(powered).replace("%", r"\,\%")
    return _counts(measure, figure, powered).replace("-", "--") + (f", {worth}" if worth else "")
