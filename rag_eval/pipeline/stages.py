"""The graph of all stages, whole evaluations without Dagster, and the cleaning of a home."""

import dataclasses
import functools
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from rag_eval.core.settings import Settings
from rag_eval.pipeline import (
    answer_stages,
    corpus,
    measure_stages,
    miss_rate_stages,
    report_stages,
    retrieval,
)
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.history import RUNS
from rag_eval.pipeline.report_stages import GateVerdict, MetricsReport, MlflowRecord
from rag_eval.pipeline.runner import Runner, Stage
from rag_eval.reporting.report import Report
from rag_eval.retrieval.embedding.source import EMBEDDINGS, MODEL_FILE
from rag_eval.storage.artifacts import ARTIFACT_FILE, ARTIFACTS
from rag_eval.storage.home import DAMAGED, HOME_FOLDERS, PARTIAL, Home, open_home, sweep
from rag_eval.storage.locks import WriteLock

STAGES: Final[tuple[Stage, ...]] = (
    corpus.read_corpus,
    corpus.cut_chunks,
    corpus.judge_evidence,
    corpus.admit_chunks,
    corpus.resolve_gold_set,
    retrieval.build_index,
    retrieval.retrieve,
    measure_stages.measure_rankings,
    measure_stages.measure_stability,
    measure_stages.measure_trust,
    answer_stages.answer_gold_set,
    answer_stages.check_citations,
    answer_stages.measure_answers,
    measure_stages.measure_with_ragas,
    miss_rate_stages.collect_signals,
    miss_rate_stages.state_miss_rates,
    measure_stages.trace_misses,
    miss_rate_stages.record_outcomes,
    miss_rate_stages.calibrate_miss_rates,
    miss_rate_stages.compare_miss_rates,
    report_stages.write_report,
    report_stages.write_page,
    report_stages.record_in_mlflow,
    report_stages.judge_report,
)


@functools.lru_cache(maxsize=16)
def open_runner(evaluation: Evaluation) -> Runner:
    """Open the runner of all stages. The same evaluation has the same runner, with its results."""
    return Runner(evaluation, STAGES, use_record=evaluation.use_record)


class Outcome(NamedTuple):
    """The result of one evaluation.

    `folder` holds the report's files. `failed` are the ids of the required gates that did not pass.
    `seconds` is the duration without MLflow. `recorded` is the run in MLflow, or what prevented it.
    `trace_error` says why there are no traces; empty when there are.
    """

    gold_set: str
    report: Report
    folder: Path
    failed: list[str]
    seconds: float
    recorded: MlflowRecord
    trace_error: str


def evaluate(evaluation: Evaluation) -> Outcome:
    """Run all stages of one gold set. An InputError leaves the reports as they were."""
    runner = open_runner(evaluation)
    seconds = sum(made.seconds for made in runner.run() if made.node.name != "mlflow_record")
    written, recorded = runner.get(MetricsReport), runner.get(MlflowRecord)
    return Outcome(
        evaluation.config.name,
        written.report,
        evaluation.reports,
        runner.get(GateVerdict).failed,
        seconds,
        recorded,
        written.trace_error,
    )


ANOTHER_HOME_S = 3600.0
"""Age in seconds at which a half-written report is removed. A run may still write a younger one."""


def evaluate_all(evaluations: Sequence[Evaluation], settings: Settings) -> list[Outcome]:
    """Evaluate several gold sets in sequence, each under its lock.

    The primary gold set runs last, so that its report is the newest. The top of the folder of
    reports shows only the complete primary gold set.
    """
    primary = settings.primary_gold_set
    ordered = sorted(evaluations, key=lambda evaluation: evaluation.config.name == primary)
    home = open_home(settings).folder
    outcomes = []
    for evaluation in ordered:
        with evaluation.lock as lock:
            sweep(home, *HOME_FOLDERS, older_than_s=lock.leftover_age_s)
            sweep(settings.reports, "", "*", older_than_s=ANOTHER_HOME_S)
            outcomes.append(evaluate(evaluation))
    return outcomes


# ---- Remove unused files from a home. Roots are the remaining kept runs and the newest results of
# every gold set (`record/`). Every accepted baseline is a run that stays. An artifact stays when a
# root names it, or when an artifact that stays was made from it. Outcomes, calibrators, baselines,
# accepted manifests and chat replies are never touched.

_KEY: Final = re.compile(r"[0-9a-f]{16,64}")
A_DAY_S: Final = 86_400.0
"""Age in seconds at which an object store's files may go: a run may still need younger ones."""


@dataclasses.dataclass(frozen=True)
class Freed:
    """Number of removed files and folders of one kind, and their size in bytes."""

    what: str
    count: int
    size: int


def clean(settings: Settings, keep: int | None = None) -> list[Freed]:
    """Remove old runs, the artifacts that only they need, and leftovers of killed runs.

    `keep` is the number of runs of each gold set that stay; default: all. In an object store,
    artifacts of the last day stay, because other workers may need them. Raises InputError
    (`home_busy`) if runs still write to the home after `wait_s`.
    """
    home = open_home(settings)

    def remove(what: str, names: Iterable[str]) -> Freed:
        sizes = [home.remove(name) for name in list(names)]
        return Freed(what, len(sizes), sum(sizes))

    with WriteLock(settings):
        freed = [remove("half-written or damaged", _leftovers(home))]
        freed.append(remove("files of kept runs", _old_runs(home, keep)))
        texts = [_text(home, name) for name in (*home.names(RUNS), *home.names("record"))]
        artifacts = _artifacts(home)
        made_from = {name: _made_from(home, name) for name in artifacts}
        reached = _reach(made_from, texts)
        # Fitted models and other judgements stay, because they are not results of stages.
        kinds = {stage.name for stage in STAGES}
        kinds |= {name.split("/")[1] for names in made_from.values() for name in names}
        unreached = [
            name
            for name, parts in artifacts.items()
            if name.split("/")[1] in kinds and name not in reached and _is_old(home, parts)
        ]
        freed.append(remove("artifacts", unreached))
        parts = (part for name in reached for part in artifacts[name] if part.endswith(".json"))
        texts += [_text(home, part) for part in parts]
        freed.append(remove("embeddings", _unused_embeddings(home, texts)))
    return freed


def _leftovers(home: Home) -> Iterator[str]:
    """List what killed runs left, and in an object store the uploads that were never published."""
    if home.is_remote:
        for name, parts in _artifacts(home).items():
            if f"{name}/{ARTIFACT_FILE}" not in parts and _is_old(home, parts):
                yield name
        return
    for pattern in (DAMAGED, PARTIAL):
        for folder in HOME_FOLDERS:
            for path in home.folder.glob(f"{folder}/{pattern}*".lstrip("/")):
                yield path.relative_to(home.folder).as_posix()


def _is_old(home: Home, names: Iterable[str]) -> bool:
    return not home.is_remote or all(home.age_s(name) > A_DAY_S for name in names)


def _text(home: Home, name: str) -> str:
    return home.read(name).decode(errors="replace")


def _old_runs(home: Home, keep: int | None) -> Iterator[str]:
    """List the files of all but the newest runs of each gold set, without accepted ones."""
    names, by_gold_set = home.names(RUNS), defaultdict(list)
    histories = " ".join(_text(home, name) for name in home.names("baselines"))
    for name in reversed(names):
        if Path(name).match(f"{RUNS}/*.json"):
            try:
                by_gold_set[json.loads(home.read(name))["gold_set"]].append(Path(name).stem)
            except (ValueError, KeyError, TypeError):
                continue  # the run stays, because its gold set is unknown
    for run_ids in by_gold_set.values():
        for run_id in run_ids[keep:] if keep else ():
            if run_id not in histories:
                yield from (name for name in names if Path(name).name.startswith(f"{run_id}."))


def _artifacts(home: Home) -> dict[str, list[str]]:
    """List the names of the files of each artifact, by the name of its folder."""
    by_folder = defaultdict(list)
    for name in home.names(ARTIFACTS):
        if name.count("/") > len(("artifacts", "stage")):
            by_folder["/".join(name.split("/")[:3])].append(name)
    return by_folder


def _made_from(home: Home, artifact: str) -> list[str]:
    try:
        record = json.loads(home.read(f"{artifact}/{ARTIFACT_FILE}"))
        return [f"{ARTIFACTS}/{kind}/{key}" for kind, key in record["made_from"]]
    except (OSError, ValueError, KeyError, TypeError):  # damaged
        return []


def _reach(made_from: dict[str, list[str]], texts: list[str]) -> set[str]:
    """Find the artifacts that texts name, and all artifacts behind them."""
    keys = {key for text in texts for key in _KEY.findall(text)}
    left = [name for name in made_from if name.rpartition("/")[2] in keys]
    reached: set[str] = set()
    while left:
        name = left.pop()
        if name in made_from and name not in reached:
            reached.add(name)
            left += made_from[name]
    return reached


def _unused_embeddings(home: Home, texts: list[str]) -> Iterator[str]:
    for name in home.names(EMBEDDINGS):
        folder, _, file = name.rpartition("/")
        if file == MODEL_FILE:
            model = json.loads(home.read(name))["model"].removesuffix(" questions")
            if not any(json.dumps(model) in text for text in texts) and _is_old(home, [name]):
                yield folder
