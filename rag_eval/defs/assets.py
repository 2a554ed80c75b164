"""Assets and their checks, made from the rows of the graph, and the gold sets that they open.

A check guards one stage. `rag_eval.gates` judges the gates of the report when the report is made;
the checks of the report show the verdicts.
"""

import contextlib
import dataclasses
import datetime as dt
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import dagster as dg

from rag_eval.core.errors import InputError, Problem
from rag_eval.core.settings import Settings
from rag_eval.corpus.masking import mask_snippet, masked_text
from rag_eval.gates.gate import GatePart
from rag_eval.pipeline.corpus import CorpusSnapshot, GoldVariants
from rag_eval.pipeline.runner import Made, Node, Runner, Stage, nodes_behind
from rag_eval.pipeline.stages import STAGES, open_runner
from rag_eval.reporting.report import Report
from rag_eval.reporting.tables import interval
from rag_eval.storage.hashing import code_version
from rag_eval.storage.locks import is_shared

if TYPE_CHECKING:
    from rag_eval.pipeline.evaluation import Evaluation

# ---- Results in Dagster's metadata: native types and short flat tables.

MAX_ROWS: Final = 50
"""Largest number of rows in a table, because large metadata slows the whole instance."""
PROBLEM_COLUMNS: Final = (
    *("severity", "code", "file", "line", "field", "message", "found", "accepted"),
)


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of a result for people."""

    columns: Sequence[str]
    rows: Sequence[Mapping[str, Any]]


Shown = Mapping[str, object]
"""Values of a result for people by name, also a `Table`."""
Metadata = Mapping[str, dg.MetadataValue[Any] | str | float | None]
"""Metadata as Dagster accepts it."""


def summarize(result: Mapping[str, Any]) -> dict[str, object]:
    """Show what people see of a result: plain values by name, lists and objects as tables.

    A figure with an interval is one text. Texts are masked and shortened.
    """
    shown: dict[str, object] = {}
    for name, value in result.items():
        if _is_plain(value):
            shown[name] = _plain(value)
        elif isinstance(value, list):
            shown[name] = _tabulate(_row(entry) for entry in value if isinstance(entry, dict))
        elif "value" in value:
            shown |= _row({name: value})
        elif all(isinstance(entry, dict) for entry in value.values()):
            shown[name] = _tabulate({"name": key} | _row(each) for key, each in value.items())
        else:
            shown |= summarize(value)
    return shown


def _row(entry: Mapping[str, Any]) -> dict[str, object]:
    """Make a flat row of an object: figures as texts, other objects by dotted names."""
    row: dict[str, object] = {}
    for name, value in entry.items():
        if isinstance(value, dict) and "value" in value:
            low, high = (value.get(f"ci_{end}", value.get(end)) for end in ("low", "high"))
            row[name] = interval(value["value"], low, high)
        elif isinstance(value, dict):
            row |= {f"{name}.{key}": _plain(each) for key, each in value.items() if _is_plain(each)}
        elif _is_plain(value):
            row[name] = _plain(value)
    return row


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(entry, str) for entry in value)
    return not isinstance(value, dict)


def _plain(value: object) -> object:
    """Return a plain value; a text with a space may be of a stranger, so it is masked."""
    text = ", ".join(value) if isinstance(value, list) else value
    return mask_snippet(text) if isinstance(text, str) and " " in text else text


def _tabulate(rows: Iterable[Mapping[str, object]]) -> Table:
    """Make a table of the columns that have a value in any row."""
    flat = list(rows)
    filled = {name: None for row in flat for name, value in row.items() if value is not None}
    return Table(list(filled), flat)


def to_metadata(values: Shown) -> Metadata:
    """Turn the shown values of a result into metadata, without empty tables."""
    return {
        name: _native(value)
        for name, value in values.items()
        if not (isinstance(value, Table) and not value.rows)
    }


def _native(value: Any) -> Any:
    """Turn a value into one of Dagster's types, and NaN and infinity into None."""
    if isinstance(value, Table):
        rows = [{name: _cell(row.get(name)) for name in value.columns} for row in value.rows]
        return dg.MetadataValue.table([dg.TableRecord(row) for row in rows[:MAX_ROWS]])
    if isinstance(value, str):  # Dagster would guess that some texts are paths
        is_address = value.startswith(("http://", "https://"))
        return dg.MetadataValue.url(value) if is_address else dg.MetadataValue.text(value)
    return _cell(value)


def _cell(value: Any) -> str | float | None:
    """Turn a NumPy scalar into a Python scalar; show what is no scalar as text."""
    scalar = value.item() if hasattr(value, "item") else value
    if isinstance(scalar, float) and not math.isfinite(scalar):
        return None
    return scalar if isinstance(scalar, str | int | float | None) else str(scalar)


def problems_shown(problems: Sequence[Problem]) -> Shown:
    """Count problems and show them masked and shortened, errors first."""
    ordered = sorted(problems, key=lambda problem: problem.severity)
    rows = [
        {
            name: mask_snippet(value) if isinstance(value := getattr(problem, name), str) else value
            for name in PROBLEM_COLUMNS
        }
        for problem in ordered
    ]
    errors = sum(problem.severity == "error" for problem in problems)
    return {
        "n_errors": errors,
        "n_warnings": len(problems) - errors,
        "problems": Table(PROBLEM_COLUMNS, rows),
    }


@contextlib.contextmanager
def clear_failures() -> Iterator[None]:
    """Turn input errors into a failure. Only an outage is tried again: other input stays the same.

    An outage is tried again only where the step has a retry policy.
    """
    try:
        yield
    except InputError as error:
        metadata = to_metadata(problems_shown(error.problems))
        # from None: Dagster stores the text of every cause, and that text is not masked
        raise dg.Failure(
            masked_text(str(error)), metadata=metadata, allow_retries=error.is_outage
        ) from None


# ---- Assets and checks.

OWNER: Final = "team:retrieval"
REPORT: Final = "retrieval_metrics_report"
NOT_MATERIALIZED: Final = {"__source_asset_observation__": True}
"""Metadata of an output for which Dagster records no materialization.

A step without any output would skip the steps after it, which do not need a strategy that the gold
set lacks. Dagster 1.13 has no public way to say so."""
FORMATS: Final = {".parquet": "parquet", ".npy": "numpy", ".json": "json"}
SERVICES: Final = ("chat", "sources", "mlflow", "vectors", "embeddings")
"""Stores that may be servers. A stage belongs to the pool of the first of its services."""
RETRIES: Final = dg.RetryPolicy(
    max_retries=2, delay=15, backoff=dg.Backoff.EXPONENTIAL, jitter=dg.Jitter.PLUS_MINUS
)
"""Retries of a stage that talks to a service, after the retries of each request. Every stage does
where workers share the home."""
WAIT_S: Final = 7200.0
"""Longest wait of a night's run, which no person looks at, unless the settings say another."""


# ---- The only resource: gold sets that are open for evaluation until the run ends.


class Evaluations:
    """Opens a gold set and holds its lock until `close`, or until another one is opened."""

    def __init__(self, settings: Settings, tags: Mapping[str, str] | None = None) -> None:
        self.settings, self._tags = settings, tags or {}
        self._opened: dict[str, Evaluation] = {}
        self._locks = contextlib.ExitStack()

    def open(self, gold_set: str) -> Runner:
        """Open a gold set, unless an earlier call did, and return a runner of its stages.

        Raises InputError if the configuration cannot be used, or if another run still writes here
        after the wait.
        """
        if gold_set not in self._opened:
            from rag_eval.pipeline.evaluation import Lines
            from rag_eval.pipeline.opening import open_gold_set
            from rag_eval.storage.home import HOME_FOLDERS, sweep

            folder = self.settings.gold_sets / gold_set
            progress = Lines(dg.get_dagster_logger().info)
            evaluation = open_gold_set(folder, self.settings, progress=progress)
            self.close()
            evaluation = dataclasses.replace(evaluation, use_record=True, tags=self._tags)
            lock = self._locks.enter_context(evaluation.lock)
            sweep(evaluation.home.folder, *HOME_FOLDERS, older_than_s=lock.leftover_age_s)
            self._opened[gold_set] = evaluation
        return open_runner(self._opened[gold_set])

    def close(self) -> None:
        """Drop the opened evaluations and release the home."""
        self._opened.clear()
        self._locks.close()


def settings_of_nights(settings: Settings) -> Settings:
    """Let a night's run wait for WAIT_S, unless the settings say another time."""
    is_set = "wait_s" in settings.model_fields_set
    return settings if is_set else settings.model_copy(update={"wait_s": WAIT_S})


def make_evaluations(settings: Settings) -> dg.ResourceDefinition:
    """Make the resource, which closes the run's evaluations at its end, also after a failure."""

    @dg.resource(description="Gold sets opened for evaluation")
    def evaluations(context: dg.InitResourceContext) -> Iterator[Evaluations]:
        tags = {} if context.run is None else {"dagster.run_id": context.run.run_id}
        with contextlib.closing(Evaluations(settings_of_nights(settings), tags)) as opened:
            yield opened

    return evaluations


# ---- Checks of stages.


@dataclasses.dataclass(frozen=True)
class Check:
    """A check of one stage. A check that does not block is a warning."""

    name: str
    description: str
    judge: Callable[[Runner, Shown], tuple[bool, Shown]]
    """Judges a made asset by its metadata: whether it passes, and what is shown."""
    problems: Callable[[Runner, InputError], list[Problem]] = lambda *_: []
    """Lists the problems that fail the check where the asset could not be made."""
    blocking: bool = True
    """Whether a failure stops the assets downstream."""

    def result(self, asset: dg.AssetKey, shown: Shown, *, passed: bool) -> dg.AssetCheckResult:
        """Show a verdict."""
        severity = dg.AssetCheckSeverity.ERROR if self.blocking else dg.AssetCheckSeverity.WARN
        return dg.AssetCheckResult(
            passed=passed,
            asset_key=asset,
            check_name=self.name,
            metadata=to_metadata(shown),
            severity=severity,
        )


def _empty_index(_: Runner, error: InputError) -> list[Problem]:
    is_empty = any(problem.code == "empty_index" for problem in error.problems)
    return list(error.problems) if is_empty else []


def _lint_errors(runner: Runner, _: InputError) -> list[Problem]:
    """List every problem by lint, because the error holds only the problems of its stage."""
    from rag_eval.pipeline.opening import lint_gold_set

    problems = lint_gold_set(runner.evaluation)
    return problems if any(problem.severity == "error" for problem in problems) else []


def _lint_warnings(runner: Runner, _: Shown) -> tuple[bool, Shown]:
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


# ---- Assets.


def asset_key(node: Node, prefix: str = "") -> dg.AssetKey:
    """Return the asset key of a stage, or of a stage of one strategy.

    The key of a stage `run` is `retrieval` and the name of the strategy. `prefix` is the setting
    `asset_key_prefix`.
    """
    name = node.name if node.name != "run" else ""
    return dg.AssetKey([part for part in (prefix, _stage(node).group, name, node.strategy) if part])


def _stage(node: Node) -> Stage:
    return next(stage for stage in STAGES if stage.name == node.name)


def _service_of(stage: Stage) -> str | None:
    return next((name for name in SERVICES if name in stage.stores), None)


def _freshness(settings: Settings) -> dg.FreshnessPolicy:
    """Return the policy of every asset: half a day may pass beyond the time between two nights.

    The time is that after a Friday, so that a schedule of weekdays is not late on Mondays.
    """
    nights = dg.TimeWindowPartitionsDefinition(
        start=dt.datetime(2024, 1, 5, tzinfo=dt.UTC),  # a Friday
        fmt="%Y-%m-%dT%H:%M",
        cron_schedule=settings.schedule,
    ).get_first_partition_window()
    between = dt.timedelta(days=1) if nights is None else nights.end - nights.start
    return dg.FreshnessPolicy.time_window(fail_window=between + dt.timedelta(hours=12))


def make_assets(
    strategies: Sequence[str], partitions: dg.PartitionsDefinition[str], settings: Settings
) -> list[dg.AssetsDefinition]:
    """Make an asset for each stage of the graph, or for each strategy if the stage needs one."""
    policy, shares, prefix = _freshness(settings), is_shared(settings), settings.asset_key_prefix
    assets, names = list[dg.AssetsDefinition](), set[str]()
    for place, stage in enumerate(STAGES):
        made_of = {FORMATS[part.ending] for part in stage.result.parts.values() if part.ending}
        stores: Metadata = {"stores": ", ".join(stage.stores)} if stage.stores else {}
        for node in stage.nodes(strategies):
            key = asset_key(node, prefix)
            inputs = [
                behind
                for name in (*stage.inputs, *stage.after)
                for behind in nodes_behind(name, node.strategy, STAGES, strategies)
            ]
            spec = dg.AssetSpec(
                key=key,
                deps=[asset_key(behind, prefix) for behind in inputs],
                group_name=stage.group,
                kinds=made_of & {"parquet"} or made_of,
                owners=[OWNER],
                description=stage.title,
                code_version=code_version(),
                partitions_def=partitions,
                metadata=stores,
                skippable=True,
                freshness_policy=policy,
            )
            name = re.sub(r"[^A-Za-z0-9_]", "_", "__".join(key.path))
            while name in names:  # strategies `a-b` and `a_b` would give equal step names
                name += "_"
            names.add(name)
            retries = RETRIES if shares or _service_of(stage) else None
            assets.append(_make_asset(node, spec, name, -place, retries))
    return assets


def _make_asset(
    node: Node, spec: dg.AssetSpec, name: str, priority: int, retries: dg.RetryPolicy | None
) -> dg.AssetsDefinition:
    check, service = OF_STAGES.get(node.name), _service_of(_stage(node))
    check_specs = [
        dg.AssetCheckSpec(
            each.name, asset=spec.key, blocking=each.blocking, description=each.description
        )
        for each in filter(None, [check])
    ]

    # The priority follows the graph, so that lint finds errors before the costly embedding.
    @dg.multi_asset(
        name=name,
        specs=[spec],
        check_specs=check_specs,
        op_tags={"dagster/priority": str(priority)},
        retry_policy=retries,
        pool=f"rag_eval_{service}" if service else None,
    )
    def step(
        context: dg.AssetExecutionContext, evaluations: dg.ResourceParam[Evaluations]
    ) -> Iterator[dg.MaterializeResult[Any] | dg.AssetCheckResult]:
        with clear_failures():
            runner, results = evaluations.open(context.partition_key), []
            if node not in runner.nodes():
                part = f"strategy {node.strategy}" if node.strategy else node.name
                context.log.info("%s has no %s", context.partition_key, part)
                if check is not None:
                    results.append(check.result(spec.key, {"configured": False}, passed=True))
                yield dg.MaterializeResult(metadata=NOT_MATERIALIZED, check_results=results)
                return
            try:
                outcome = runner.one(node)
            except InputError as error:
                problems = check.problems(runner, error) if check else []
                if check is None or not problems:
                    raise
                yield check.result(spec.key, problems_shown(problems), passed=False)
                return
            shown = describe(runner, outcome)
            message = outcome.stage.failure(outcome.result)
            if message:
                del runner.made[node]  # a retry must not find the failed result
                raise dg.Failure(
                    message, metadata=to_metadata(shown), allow_retries=service is not None
                )
            if check is not None:
                passed, judged_by = check.judge(runner, shown)
                results.append(check.result(spec.key, judged_by, passed=passed))
            yield dg.MaterializeResult(
                metadata=to_metadata(shown),
                data_version=dg.DataVersion(outcome.result.id),
                check_results=results,
            )

    return step


def describe(runner: Runner, outcome: Made) -> Shown:
    """Describe a stored result for people, with its corpus and gold set."""
    shown = {
        "reused": outcome.reused,
        **summarize(outcome.result.describe()),
        "artifact": outcome.result.artifact.address,
    }
    below = runner.ancestors(outcome.node)
    if Node("corpus_snapshot") in below:
        shown["rev"] = runner.get(CorpusSnapshot).about.corpus_rev
    if Node("gold_variants") in below:
        shown["gold_hash"] = runner.get(GoldVariants).about.hash
    return shown


# ---- A check for each gate of the report.


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
    status = poor[0].status if poor else "pass"
    reasons = (str(entry.evidence.get("reason") or entry.reason_code) for entry in poor)
    shown: dict[str, object] = {
        "gates": Table(("id", "status", "reason_code"), [entry.dump() for entry in entries])
    }
    if len(entries) == 1:
        evidence = entries[0].evidence.items()
        shown = {name: value for name, value in evidence if isinstance(value, (str, int, float))}
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
        from rag_eval.pipeline.report_stages import MetricsReport

        with clear_failures():
            report = evaluations.open(context.partition_key).get(MetricsReport).report
        selected = [by_key[key] for key in by_key if key in context.selected_asset_check_keys]
        yield from gate_results(report, selected, asset)

    return [report_gates]
