"""Accepted baselines: the name of a kept run, with the person, the reason and the time.

Later runs are compared with the newest baseline: by the regression gate, and by the changes of
corpus and gold since.
"""

import dataclasses
import datetime as dt
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pandas as pd
from pydantic import BaseModel, ValidationError

from rag_eval.core.errors import InputError, quoted
from rag_eval.core.report import Absent, DriftPart, NamedPart, RunInputs
from rag_eval.gates.verdict import required_failures
from rag_eval.gold.configuration import gold_set_name
from rag_eval.pipeline.history import KeptRun, are_comparable, changes, open_run
from rag_eval.storage.artifacts import home_lock, write_text
from rag_eval.storage.hashing import canonical_json

# ---- Baselines in the home: records that name kept runs, which `rag-eval clean` then keeps.

HISTORY: Final = "accepted.jsonl"
MAX_WHO, MAX_WHY = 200, 2000
MENDED_BY_ACCEPTING: Final = frozenset({"no_baseline", "gold_differs", "strategy_missing"})
"""Reasons of the regression gate that disappear when a person accepts a run."""


class Acceptance(BaseModel):
    """One acceptance of a run: the run, the person and the reason."""

    run_id: str
    accepted_at: str
    who: str
    why: str
    forced: bool
    failed_gates: list[str]


@dataclasses.dataclass(frozen=True)
class Baseline:
    """An accepted run with its figures by question, and its documents and targets."""

    record: Acceptance
    run: KeptRun
    per_query: pd.DataFrame
    documents: pd.DataFrame
    targets: pd.DataFrame


def accept_baseline(
    home: Path, name: str, who: str, why: str, *, gold_set: str, force: bool = False
) -> Acceptance:
    """Accept a run as the baseline of its gold set. Earlier acceptances stay in the history.

    `name` is a name as in `open_run`. With `force`, a run is accepted even if a required gate did
    not pass; the record names the gates.

    Raises
    ------
    InputError
        There is no such run, its artifacts are gone, or a required gate did not pass.
    """
    who, why = _bound_text("who", who, MAX_WHO), _bound_text("why", why, MAX_WHY)
    with home_lock(home):
        run = open_run(home, name, gold_set)
        failed = required_failures(
            gate
            for gate in run.report().gates
            if gate.gate != "regression" or gate.reason_code not in MENDED_BY_ACCEPTING
        )
        if failed and not force:
            raise InputError.of(
                "gates_failed",
                "required gates of this run did not pass",
                field="RUN",
                found=", ".join(failed),
                accepted="a run that passed, or --force, which the record will say",
            )
        record = Acceptance(
            run_id=run.run_id,
            accepted_at=f"{dt.datetime.now(dt.UTC):%Y-%m-%dT%H:%M:%SZ}",
            who=who,
            why=why,
            forced=bool(failed),
            failed_gates=failed,
        )
        _open_baseline(run, record)
        path = _history(home, run.gold_set)
        before = path.read_text(encoding="utf-8") if path.is_file() else ""
        write_text(path, f"{before}{canonical_json(record.model_dump())}\n")
    return record


def _bound_text(option: str, text: str, limit: int) -> str:
    text = text.strip()
    # Bytes outside UTF-8 on the command line become surrogates, which are not printable.
    if not text or len(text) > limit or not text.isprintable():
        raise InputError.of(
            "bad_arguments",
            f"--{option} needs text: the record of the acceptance holds it",
            field=f"--{option}",
            found=f"{len(text)} characters",
            accepted=f"1 to {limit} characters on one line",
        )
    return text


def _history(home: Path, gold_set: str) -> Path:
    return home / "baselines" / gold_set_name(gold_set) / HISTORY


def _open_baseline(run: KeptRun, record: Acceptance) -> Baseline:
    """Read everything that later runs are compared with; raise InputError if a part is gone."""
    run.report()  # refuses a changed report
    gold = run.stored("gold_variants")
    documents = run.stored("corpus_snapshot").frame("documents", ["doc_id", "content_hash"])
    targets = find_targets(documents, gold.frame("qrels_document"), gold.frame("spans"))
    return Baseline(record, run, run.per_query(), documents, targets)


def acceptances(home: Path, gold_set: str) -> list[Acceptance]:
    """Read every acceptance of a gold set, oldest first.

    Raises
    ------
    InputError
        Another program changed the history.
    """
    path = _history(home, gold_set)
    if not path.is_file():
        return []
    records = []
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    for number, line in enumerate(lines, start=1):
        try:
            records.append(Acceptance.model_validate_json(line))
        except ValidationError as error:
            raise InputError.of(
                "baseline_damaged",
                "changed after its acceptance; remove the file and accept a run again",
                file=path,
                line=number,
                found=error.errors()[0]["msg"],
                accepted="what rag-eval baseline accept wrote",
            ) from error
    return records


def load_baseline(home: Path, gold_set: str) -> Baseline | None:
    """Read the last accepted run; None without one.

    Raises
    ------
    InputError
        The run, its report or one of its results is gone or changed.
    """
    records = acceptances(home, gold_set)
    if not records:
        return None
    return _open_baseline(open_run(home, records[-1].run_id, gold_set), records[-1])


# ---- The part `drift` of a report: changes under a gold set since the baseline was accepted.

MAX_NAMES: Final = 1000
NO_BASELINE: Final = "no run was accepted as the baseline yet: rag-eval baseline accept"


def find_targets(
    documents: pd.DataFrame, qrels_document: pd.DataFrame, spans: pd.DataFrame
) -> pd.DataFrame:
    """List the targets of every question: query_id, doc_id, content_hash of the document.

    A judgement that a document is not relevant is no target. The hash is empty when the corpus
    lacks the document.
    """
    judged = qrels_document[qrels_document["gain"] > 0].rename(columns={"item_id": "doc_id"})
    targets = pd.concat([frame[["query_id", "doc_id"]] for frame in (judged, spans)])
    hashes = targets["doc_id"].map(documents.set_index("doc_id")["content_hash"]).fillna("")
    return targets.assign(content_hash=hashes).astype(str).drop_duplicates()


def drift_part(
    baseline: Baseline | None,
    fault: str,
    now: RunInputs,
    documents: pd.DataFrame,
    targets: pd.DataFrame,
) -> DriftPart | Absent:
    """Describe what changed since the baseline; `fault` says why it cannot be used."""
    if fault:
        return Absent(reason=f"the baseline cannot be used: {fault}")
    if baseline is None:
        return Absent(reason=NO_BASELINE)
    left, right = (
        frame.set_index("doc_id")["content_hash"] for frame in (baseline.documents, documents)
    )
    both = left.index.intersection(right.index)
    found = changes(baseline.run, now)
    return DriftPart(
        run_id=quoted(baseline.record.run_id),
        accepted_at=quoted(baseline.record.accepted_at),
        comparable=are_comparable(found),
        changes=found,
        chunks_hash=baseline.run.chunks_hash,
        n_documents=len(left),
        documents={
            "new": _list_names(right.index.difference(left.index)),
            "changed": _list_names(both[(left.loc[both] != right.loc[both]).to_numpy()]),
            "removed": _list_names(left.index.difference(right.index)),
        },
        targets_changed=_list_names(_changed_targets(baseline.targets, targets)),
    )


def _changed_targets(before: pd.DataFrame, now: pd.DataFrame) -> set[str]:
    left, right = (set(frame.itertuples(index=False, name=None)) for frame in (before, now))
    return {row[0] for row in left ^ right} & set(before["query_id"]) & set(now["query_id"])


def _list_names(names: Iterable[str]) -> NamedPart:
    """Count names and list them in printable form, because they come from corpora and gold sets."""
    found = sorted(names)
    return NamedPart(n=len(found), names=[quoted(name) for name in found[:MAX_NAMES]])
