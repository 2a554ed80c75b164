"""Checks of single assets, and a check for each gate of the report.

`rag_eval.gates` judges the gates when the report is made. This module shows the verdicts.
"""

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import dagster as dg

from rag_eval.core.errors import InputError, Problem
from rag_eval.defs.metadata import Shown, Table, clear_failures, problems_shown, to_metadata
from rag_eval.defs.resources import Evaluations
from rag_eval.gates.gate import GatePart
from rag_eval.pipeline.runner import Runner
from rag_eval.pipeline.stages import open_runner
from rag_eval.reporting.report import Report

Judgement = tuple[bool, Shown]


@dataclasses.dataclass(frozen=True)
class Check:
    """A check of one asset."""

    name: str
    description: str
    passes: Callable[[Runner, Shown], Judgement]
    """Judges a made asset by its metadata."""
    problems: Callable[[Runner, InputError], list[Problem] | None] = lambda *_: None
    """Lists the problems that fail the check where the asset could not be made; else None."""
    blocking: bool = True
    """Whether a failure stops the assets downstream; otherwise it is a warning."""

    def spec(self, asset: dg.AssetKey) -> dg.AssetCheckSpec:
        """Declare the check."""
        return dg.AssetCheckSpec(
            self.name, asset=asset, blocking=self.blocking, description=self.description
        )

    def judge(self, runner: Runner, shown: Shown, asset: dg.AssetKey) -> dg.AssetCheckResult:
        """Judge a made asset."""
        passed, metadata = self.passes(runner, shown)
        return self._result(asset, metadata, passed=passed)

    def unconfigured(self, asset: dg.AssetKey) -> dg.AssetCheckResult:
        """Pass where the gold set does not configure the asset."""
        return self._result(asset, {"configured": False}, passed=True)

    def on_error(
        self, runner: Runner, error: InputError, asset: dg.AssetKey
    ) -> dg.AssetCheckResult | None:
        """Fail if the check guards against the error; else return None."""
        problems = self.problems(runner, error)
        return None if problems is None else self._result(asset, problems_shown(problems))

    def _result(
        self, asset: dg.AssetKey, shown: Shown, *, passed: bool = False
    ) -> dg.AssetCheckResult:
        severity = dg.AssetCheckSeverity.ERROR if self.blocking else dg.AssetCheckSeverity.WARN
        return dg.AssetCheckResult(
            passed=passed,
            asset_key=asset,
            check_name=self.name,
            metadata=to_metadata(shown),
            severity=severity,
        )


def _empty_index(_: Runner, error: InputError) -> list[Problem] | None:
    is_empty = any(problem.code == "empty_index" for problem in error.problems)
    return list(error.problems) if is_empty else None


def _lint_errors(runner: Runner, _: InputError) -> list[Problem] | None:
    """List every problem by lint, because the error holds only the problems of its stage."""
    from rag_eval.pipeline.needs import lint_gold_set

    problems = lint_gold_set(runner.evaluation)
    return problems if any(problem.severity == "error" for problem in problems) else None


def _lint_warnings(runner: Runner, _: Shown) -> Judgement:
    from rag_eval.pipeline.corpus import GoldVariants

    warnings = runner.get(GoldVariants).about.warnings
    return True, problems_shown([Problem(**warning.dump()) for warning in warnings])


OF_STAGES: Final = {
    "corpus_chunks": Check(
        "index_not_empty",
        "There is something to retrieve.",
        lambda _, shown: (True, {"n_chunks": shown["n_chunks"]}),
        _empty_index,
    ),
    "gold_variants": Check(
        "gold_lint",
        "The gold set has no error, and every target resolves in this corpus revision.",
        _lint_warnings,
        _lint_errors,
    ),
    "answer_measures": Check(
        "FK019_retrieval_to_answer_gap",
        "Every answer cites or uses what was retrieved for it, refers to it, or says that nothing"
        " relevant was found (FK019). A warning: never repaired automatically.",
        lambda _, shown: (
            not shown["n_flagged"],
            {name: shown[name] for name in ("n_checked", "n_flagged", "flagged")},
        ),
        blocking=False,
    ),
}


def gate_check(gate: str) -> str:
    """Name the check of a gate of the report (`acceptance.recall_at_10`, `stability`, ...).

    Examples
    --------
    >>> gate_check("acceptance.recall_at_10")
    'acceptance_recall_at_10'
    """
    return re.sub(r"[^A-Za-z0-9_]", "_", gate)


def gate_results(
    report: Report, gates: Iterable[str], asset: dg.AssetKey
) -> Iterator[dg.AssetCheckResult]:
    """Yield a result for each of `gates` that the report holds."""
    for gate in gates:
        entries = [entry for entry in report.gates if gate in (entry.id, entry.gate)]
        if entries:
            yield _gate_result(gate, entries, asset)


def _gate_result(gate: str, entries: list[GatePart], asset: dg.AssetKey) -> dg.AssetCheckResult:
    """Show one gate as a warning; only `gate_verdict` ends the run if a required gate fails.

    An advisory gate without enough evidence passes, because it found no fault: its description and
    its `status` say that nothing was judged. A required one fails, because it ends the run.
    """
    poor = [entry for entry in entries if not entry.is_fine]
    failed = [entry for entry in poor if entry.required or entry.status == "fail"]
    poor = failed or poor
    shown: dict[str, object] = {}
    if len(entries) == 1:
        evidence = entries[0].evidence.items()
        shown |= {name: value for name, value in evidence if isinstance(value, (str, int, float))}
    else:
        shown["gates"] = Table(("id", "status", "reason_code"), [entry.dump() for entry in entries])
    status = poor[0].status if poor else "pass"
    reasons = (str(entry.evidence.get("reason") or entry.reason_code) for entry in poor)
    shown |= {
        "status": status,
        "required": any(entry.required for entry in entries),
        "reason_codes": ", ".join(dict.fromkeys(entry.reason_code for entry in entries)),
    }
    return dg.AssetCheckResult(
        passed=not failed,
        asset_key=asset,
        check_name=gate_check(gate),
        metadata=to_metadata(shown),
        severity=dg.AssetCheckSeverity.WARN,
        description=f"{status}: {'; '.join(dict.fromkeys(reasons))}" if poor else "pass",
    )


def make_gate_checks(
    gates: list[str], asset: dg.AssetKey, retries: dg.RetryPolicy | None
) -> list[dg.AssetChecksDefinition]:
    """Make a check of the report for each of `gates`, the gates of all gold sets together."""
    if not gates:
        return []
    by_key = {dg.AssetCheckKey(asset, gate_check(gate)): gate for gate in gates}
    specs = [
        dg.AssetCheckSpec(
            key.name,
            asset=asset,
            description=f"Gate {gate} of the report, where the gold set asks for it. Runs from the"
            " command line are recorded without their partition.",
        )
        for key, gate in by_key.items()
    ]

    @dg.multi_asset_check(name="report_gates", specs=specs, can_subset=True, retry_policy=retries)
    def report_gates(
        context: dg.AssetCheckExecutionContext, evaluations: dg.ResourceParam[Evaluations]
    ) -> Iterator[dg.AssetCheckResult]:
        from rag_eval.pipeline.report_parts import MetricsReport

        with clear_failures():
            runner = open_runner(evaluations.open(context.partition_key))
            report = runner.get(MetricsReport).report
        selected = [by_key[key] for key in by_key if key in context.selected_asset_check_keys]
        yield from gate_results(report, selected, asset)

    return [report_gates]
