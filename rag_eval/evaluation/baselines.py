"""Accepted baselines: a run that later ones are held against, kept whole in the home whatever happens to its artifacts.

`<home>/baselines/<gold set>/<baseline>/` holds the report, the per-query figures, the documents and the targets of the gold, and what the quarantine held back;
`accepted.jsonl` beside them says who accepted which run, when and why, the newest last. A line is written after its folder is whole and
names the hash of every file in it, so a baseline that is half-written or changed is never read. Lines are only ever added.
"""

import dataclasses
import datetime as dt
import json
import re
from pathlib import Path
from typing import Any, Final

import pandas as pd

from rag_eval.evaluation.drift import Snapshot, snapshot
from rag_eval.evaluation.kept_runs import choose_run, kept_run
from rag_eval.evaluation.quarantine_drift import Quarantine
from rag_eval.gates.compared_runs import MeasuredRun, measured_run, with_delta_s
from rag_eval.gates.verdicts import required_failures
from rag_eval.gold.set_names import gold_set_name
from rag_eval.records.problems import InputError, Problem
from rag_eval.settings import Settings
from rag_eval.storage.artifacts import Artifact, ArtifactStore
from rag_eval.storage.atomic import sweep, write_text
from rag_eval.storage.hashing import canonical_json, file_hash
from rag_eval.storage.locking import home_lock

HISTORY: Final = "accepted.jsonl"
MAX_WHO, MAX_WHY = 200, 2000
MENDED_BY_ACCEPTING = frozenset({"no_baseline", "gold_differs", "strategy_missing"})
"""Reasons of the regression gate that accepting a run does away with: they do not stand in its way."""

_FILES = {
    "report": "report.json",
    "per_query": "per-query.parquet",
    "documents": "documents.parquet",
    "targets": "targets.parquet",
}
_OF_QUARANTINE = {
    "chunks": "chunks.parquet",
    "held_targets": "held-targets.parquet",
}  # baselines that earlier versions wrote are without
_WHOLE = (set(_FILES.values()), {*_FILES.values(), *_OF_QUARANTINE.values()})
_STAGES = {
    "cut": "chunks"
}  # all chunks are kept by the stage whose name those that are indexed have
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


@dataclasses.dataclass(frozen=True)
class Baseline:
    """An accepted run, as it was.

    Parameters
    ----------
    record
        Its line of the history: run_id, accepted_at, who, why, forced, failed_gates.
    report
        Its report.
    per_query
        Its per-query figures, every strategy and level; with `delta_s` where the run measured it.
    snapshot
        Its documents, the targets of its gold, and what was held back where the baseline says so.
    """

    record: dict[str, Any]
    report: dict[str, Any]
    per_query: pd.DataFrame
    snapshot: Snapshot

    @property
    def measured(self) -> MeasuredRun:
        """What the regression gate reads of it."""
        return measured_run(self.report, self.per_query)


def _artifact(home: Path, kept: dict[str, Any], stage: str) -> Artifact | None:
    key = kept["artifacts"].get(stage)
    return ArtifactStore(home / "artifacts").get(_STAGES.get(stage, stage), key) if key else None


def _parts(home: Path, kept: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a run: copies, nothing that points into the artifact store."""
    found = {
        stage: _artifact(home, kept, stage) for stage in ("ranking", "corpus", "gold", "stability")
    }
    ranking, corpus, gold, stability = found.values()
    if ranking is None or corpus is None or gold is None:
        missing = ", ".join(
            stage for stage in ("ranking", "corpus", "gold") if found[stage] is None
        )
        raise InputError(
            Problem(
                "run_incomplete",
                "what the run made is no longer in the home; run it again",
                file=str(home / "artifacts"),
                field="RUN",
                found=f"without {missing}",
            )
        )
    documents = pd.read_parquet(
        corpus.path("documents.parquet"), columns=["doc_id", "content_hash", "text"]
    )
    cut, admitted = (_artifact(home, kept, stage) for stage in ("cut", "chunks"))
    chunks = (
        None if cut is None or admitted is None else (cut.frame("chunks"), admitted.frame("chunks"))
    )
    taken = snapshot(documents, gold.frame("qrels_document"), gold.frame("spans"), chunks)
    held = (
        {}
        if taken.quarantine is None
        else {"chunks": taken.quarantine.chunks, "held-targets": taken.quarantine.held_targets}
    )
    per_query = with_delta_s(
        ranking.frame("per_query"), stability.frame("per_run") if stability else None
    )
    return {
        "report": kept["report"],
        "per-query": per_query,
        "documents": taken.documents,
        "targets": taken.targets,
        **held,
    }


def _bounded(name: str, text: str, limit: int) -> str:
    shown = text.strip()
    if not shown or len(shown) > limit or _CONTROL.search(shown):
        raise InputError(
            Problem(
                "bad_arguments",
                f"say {name} accepts the run",
                field=f"--{name}",
                found=f"{len(shown)} characters",
                accepted=f"1 to {limit} characters on one line",
            )
        )
    return shown


def accept(
    run: str,
    settings: Settings,
    who: str,
    why: str,
    *,
    gold_set: str | None = None,
    force: bool = False,
) -> Path:
    """Keep a run as the baseline of its gold set; the one before stays in the history.

    Parameters
    ----------
    run
        Its id, the start of its id, `latest` or `previous`: of `gold_set`, else of the primary gold set.
    settings
        Names the home.
    who, why
        Who accepts it, and the reason; both go into the record.
    gold_set
        The gold set that it must be a run of.
    force
        Accept it although a required gate did not pass; the record says so and names the gates.

    Returns
    -------
    path
        The baseline's folder.

    Raises
    ------
    InputError
        No such run, its artifacts are gone, a required gate did not pass, or who and why are missing.
    """
    who, why = _bounded("who", who, MAX_WHO), _bounded("why", why, MAX_WHY)
    home = settings.home
    if gold_set is None and run in {"latest", "previous"}:
        gold_set = settings.primary_gold_set
    run_id = choose_run(home, run, gold_set)
    with home_lock(home):
        kept = kept_run(home, run_id)
        failed = required_failures(
            [
                gate
                for gate in kept["report"]["gates"]
                if gate["gate"] != "regression" or gate["reason_code"] not in MENDED_BY_ACCEPTING
            ]
        )
        if failed and not force:
            raise InputError(
                Problem(
                    "gates_failed",
                    "required gates of this run did not pass",
                    field="RUN",
                    found=", ".join(failed),
                    accepted="a run that passed, or --force, which the record will say",
                )
            )
        sweep(home / "baselines", "*")
        now = dt.datetime.now(dt.UTC)
        folder = _folder(home, kept["gold_set"])
        made = ArtifactStore(home / "baselines").memo(
            kept["gold_set"],
            f"{now.strftime('%Y%m%dT%H%M%S%f')}Z-{run_id[-8:]}",
            lambda: _parts(home, kept),
        )
        record = {
            "baseline": made.key,
            "run_id": run_id,
            "accepted_at": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "who": who,
            "why": why,
            "forced": bool(failed),
            "failed_gates": failed,
            "files": {name: file_hash(made.path(name)) for name in _written(made)},
        }
        path = folder / HISTORY
        before = path.read_text(encoding="utf-8") if path.is_file() else ""
        write_text(path, f"{before}{canonical_json(record)}\n")
    return made.folder


def _written(made: Artifact) -> list[str]:
    return [
        *_FILES.values(),
        *(name for name in _OF_QUARANTINE.values() if made.path(name).is_file()),
    ]


def _folder(home: Path, gold_set: str) -> Path:
    return home / "baselines" / gold_set_name(gold_set)


def history(home: Path, gold_set: str) -> list[dict[str, Any]]:
    """Every acceptance of a gold set, oldest first; empty where there was none.

    Raises
    ------
    InputError
        The history was changed by another hand.
    """
    path = _folder(home, gold_set) / HISTORY
    if not path.is_file():
        return []
    records = []
    for number, line in enumerate(
        path.read_text(encoding="utf-8").removesuffix("\n").split("\n"), start=1
    ):
        try:
            record = json.loads(line)
            whole = (
                isinstance(record["baseline"], str)
                and set(record["files"]) in _WHOLE
                and all(
                    isinstance(record[name], str)
                    for name in ("run_id", "accepted_at", "who", "why")
                )
            )
        except (ValueError, KeyError, TypeError) as error:
            raise _damaged(path, number, str(error)) from error
        if not whole or not re.fullmatch(r"\d{8}T\d{12}Z-[0-9a-f]{8}", record["baseline"]):
            raise _damaged(path, number, "a record without its parts")
        records.append(record)
    return records


def _damaged(path: Path, line: int | None, found: str) -> InputError:
    return InputError(
        Problem(
            "baseline_damaged",
            "not as it was accepted; accept a run anew after removing what was changed",
            file=str(path),
            line=line,
            found=found,
            accepted="what rag-eval baseline accept wrote",
        )
    )


def load_baseline(home: Path, gold_set: str) -> Baseline | None:
    """Read the baseline of a gold set: the run that was accepted last.

    Returns
    -------
    Baseline or None
        None where no run was ever accepted.

    Raises
    ------
    InputError
        It is not as it was accepted: a file is missing or changed.
    """
    records = history(home, gold_set)
    if not records:
        return None
    record = records[-1]
    folder = _folder(home, gold_set) / record["baseline"]
    for name, expected in record["files"].items():
        path = folder / name
        found = file_hash(path) if path.is_file() else "no such file"
        if found != expected:
            raise _damaged(path, None, found)
    report = json.loads((folder / _FILES["report"]).read_text(encoding="utf-8"))
    documents, targets, per_query = (
        pd.read_parquet(folder / _FILES[name]) for name in ("documents", "targets", "per_query")
    )
    held = None
    if set(_OF_QUARANTINE.values()) <= set(record["files"]):
        chunks, held_targets = (
            pd.read_parquet(folder / _OF_QUARANTINE[name]) for name in ("chunks", "held_targets")
        )
        held = Quarantine(chunks, held_targets)
    return Baseline(record, report, per_query, Snapshot(documents, targets, held))
