"""Accepted baselines: reference runs for later runs, and the changes in their inputs since."""

import dataclasses
import datetime as dt
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pandas as pd
from pydantic import BaseModel, ValidationError

from rag_eval.core.errors import InputError, quoted
from rag_eval.core.report import (
    Absent,
    AcceptedRun,
    Change,
    CorpusDrift,
    CountChange,
    DriftPart,
    GoldDrift,
    NamedPart,
    Report,
)
from rag_eval.core.settings import Settings
from rag_eval.gates.gate import MeasuredRun
from rag_eval.gates.regression import measured_run, with_delta_s
from rag_eval.gates.verdict import required_failures
from rag_eval.gold.configuration import gold_set_name
from rag_eval.pipeline.history import KeptRun, open_kept_run
from rag_eval.storage.artifacts import home_lock, write_text
from rag_eval.storage.hashing import canonical_json, text_hash

# ---- Inputs of a run as hashes.


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """Documents and targets of a run.

    `documents`: doc_id, content_hash (of the masked text).
    `targets`: query_id, doc_id, content_hash of that document, span_hash of the quoted evidence.
      The span_hash is empty for a judgement of the whole document. Both hashes are empty when
      the corpus lacks the document.
    """

    documents: pd.DataFrame
    targets: pd.DataFrame


def take_snapshot(
    documents: pd.DataFrame, qrels_document: pd.DataFrame, spans: pd.DataFrame
) -> Snapshot:
    """Record documents and targets.

    `documents` has doc_id, content_hash and text; `qrels_document` and `spans` are parts of the
    gold stage. A judgement that a document is not relevant is no target.
    """
    judged = qrels_document[qrels_document["gain"] > 0].rename(columns={"item_id": "doc_id"})
    by_id = documents.set_index("doc_id")
    texts = spans["doc_id"].map(by_id["text"])
    quotes = [
        text_hash(text[start:end]) if isinstance(text, str) else ""
        for text, start, end in zip(texts, spans["start"], spans["end"], strict=True)
    ]
    targets = pd.concat(
        [
            judged[["query_id", "doc_id"]].assign(span_hash=""),
            spans[["query_id", "doc_id"]].assign(span_hash=quotes),
        ],
        ignore_index=True,
    )
    hashes = targets["doc_id"].map(by_id["content_hash"]).fillna("")
    targets = targets.assign(content_hash=hashes).astype(str).drop_duplicates()
    return Snapshot(documents[["doc_id", "content_hash"]], targets)


# ---- Baselines in the home: a record that names a kept run, which `rag-eval clean` then keeps.

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
    """An accepted run. `measured` is the input of the regression gate."""

    record: Acceptance
    report: Report
    measured: MeasuredRun
    snapshot: Snapshot


def accept_baseline(
    settings: Settings,
    name: str,
    who: str,
    why: str,
    *,
    gold_set: str | None = None,
    force: bool = False,
) -> Acceptance:
    """Accept a run as the baseline of its gold set. Earlier acceptances stay in the history.

    Parameters
    ----------
    settings
        Settings with the home and the primary gold set.
    name
        Id of the run, the start of its id, `latest` or `previous`.
    who, why
        Person who accepts it, and the reason. The record holds both.
    gold_set
        The gold set of the run. Default for `latest` and `previous`: the primary one.
    force
        Accept it even if a required gate did not pass. The record names the gates.

    Raises
    ------
    InputError
        There is no such run, its artifacts are gone, or a required gate did not pass.
    """
    who, why = _bound_text("who", who, MAX_WHO), _bound_text("why", why, MAX_WHY)
    if gold_set is None and name in {"latest", "previous"}:
        gold_set = settings.primary_gold_set
    with home_lock(settings.home):
        run = open_kept_run(settings.home, name, gold_set)
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
        _read_run(run, record)
        path = _history(settings.home, run.gold_set)
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


def _read_run(run: KeptRun, record: Acceptance) -> Baseline:
    """Read a run with all results that a baseline needs.

    Raises
    ------
    InputError
        The report was changed, or a result is no longer in the home.
    """
    report, gold = run.report(), run.stored("gold_variants")
    per_run = run.stored("stability_measures").frame("per_run")
    per_query = with_delta_s(run.per_query(), per_run)
    columns = ["doc_id", "content_hash", "text"]
    documents = run.stored("corpus_snapshot").frame("documents", columns)
    taken = take_snapshot(documents, gold.frame("qrels_document"), gold.frame("spans"))
    return Baseline(record, report, measured_run(report.dump(), per_query), taken)


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
    return _read_run(open_kept_run(home, records[-1].run_id, gold_set), records[-1])


def try_baseline(home: Path, gold_set: str) -> tuple[Baseline | None, str]:
    """Read the baseline; None and the reason when it cannot be used.

    A damaged baseline raises no error here, because the report must not fail.
    """
    try:
        return load_baseline(home, gold_set), ""
    except InputError as error:
        return None, quoted(error.problems[0].message, 300)


# ---- The part `drift` of a report: changes under a gold set since the baseline was accepted.

MAX_NAMES: Final = 10_000
"""Largest number of names in each list of the report. The number of further names is given."""
NO_BASELINE: Final = "no run was accepted as the baseline yet: rag-eval baseline accept"


def drift_part(
    baseline: Baseline | None, fault: str, now: Snapshot, body: Mapping[str, Any]
) -> DriftPart | Absent:
    """Compare the inputs of this run with those of the baseline.

    Parameters
    ----------
    baseline, fault
        Results of `try_baseline`.
    now
        Documents and targets of this run.
    body
        Report of this run, finished or not: index, gold, strategies and code are read.
    """
    if fault:
        return Absent(reason=f"the baseline cannot be used: {fault}")
    if baseline is None:
        return Absent(reason=NO_BASELINE)
    before, documents = baseline.report, (baseline.snapshot.documents, now.documents)
    left, right = before.index, body["index"]
    counts = [len(frame) for frame in documents]
    corpus = CorpusDrift(
        rev=_change(left.corpus_rev, right["corpus_rev"]),
        chunks_hash=_change(left.chunks_hash, right["chunks_hash"]),
        n_documents=CountChange(before=counts[0], after=counts[1], same=counts[0] == counts[1]),
        **_documents(*documents),
    )
    gold = GoldDrift(
        hash=_change(before.gold.hash, body["gold"]["hash"]),
        **_targets(baseline.snapshot.targets, now.targets),
    )
    index = _indexes(
        {entry.name: entry.index_hash for entry in before.strategies},
        {entry["name"]: entry["index_hash"] for entry in body["strategies"]},
    )
    same_code = before.code.version == body["code"]["version"]
    return DriftPart(
        baseline=AcceptedRun(
            run_id=quoted(baseline.record.run_id), accepted_at=quoted(baseline.record.accepted_at)
        ),
        corpus=corpus,
        gold=gold,
        index=index,
        comparable=bool(gold.hash.same),
        notes=_notes(corpus, gold, index, same_code=same_code),
    )


def _change(before: str, now: str) -> Change:
    return Change(before=quoted(before), after=quoted(now), same=before == now)


def _list_names(names: Iterable[str], field: str = "names") -> NamedPart:
    """Count names and list them in printable form, because they come from corpora and gold sets."""
    found = sorted(names)
    left = {"n_left": len(found) - MAX_NAMES} if len(found) > MAX_NAMES else {}
    listed = {field: [quoted(name) for name in found[:MAX_NAMES]]}
    return NamedPart.model_validate({"n": len(found), **listed, **left})


def _documents(before: pd.DataFrame, now: pd.DataFrame) -> dict[str, NamedPart]:
    left, right = (frame.set_index("doc_id")["content_hash"] for frame in (before, now))
    both = left.index.intersection(right.index)
    changed = left.loc[both].to_numpy(dtype=str) != right.loc[both].to_numpy(dtype=str)
    return {
        "new": _list_names(right.index.difference(left.index)),
        "changed": _list_names(both[changed]),
        "removed": _list_names(left.index.difference(right.index)),
    }


def _targets(before: pd.DataFrame, now: pd.DataFrame) -> dict[str, NamedPart]:
    old, new = set(before["query_id"]), set(now["query_id"])

    def find_changed(left: pd.DataFrame, right: pd.DataFrame, columns: list[str]) -> set[str]:
        rows = [
            set(frame[["query_id", *columns]].itertuples(index=False, name=None))
            for frame in (left, right)
        ]
        return {row[0] for row in rows[0] ^ rows[1]} & old & new

    targets = find_changed(before, now, ["doc_id", "content_hash", "span_hash"])
    was, is_now = (frame[frame["span_hash"] != ""] for frame in (before, now))
    return {
        "targets_changed": _list_names(targets, "query_ids"),
        "evidence_changed": _list_names(
            find_changed(was, is_now, ["doc_id", "span_hash"]), "query_ids"
        ),
        "questions_new": _list_names(new - old, "query_ids"),
        "questions_removed": _list_names(old - new, "query_ids"),
    }


def _indexes(before: Mapping[str, str], now: Mapping[str, str]) -> dict[str, Change]:
    index = {}
    for name in sorted({*before, *now}):
        was, is_now = before.get(name), now.get(name)
        same = None if was is None or is_now is None else was == is_now
        change = {"before": was, "after": is_now, "same": same}
        nulls = [side for side, value in change.items() if value is None]
        why = dict.fromkeys(nulls, "the run has no such strategy")
        index[quoted(name)] = Change.model_validate({**change, "why": why})
    return index


def _notes(
    corpus: CorpusDrift, gold: GoldDrift, index: Mapping[str, Change], *, same_code: bool
) -> list[str]:
    """Describe the differences between the inputs of two runs."""
    counts = {"new": corpus.new.n, "changed": corpus.changed.n, "removed": corpus.removed.n}
    notes = []
    if not gold.hash.same:
        notes.append(
            "The gold differs: no figure of this run may be compared with the baseline's; "
            "accept a run of this gold."
        )
    if not corpus.rev.same:
        documents = ", ".join(f"{n} {kind}" for kind, n in counts.items())
        notes.append(
            f"The corpus differs ({documents} documents): differences from the baseline are those "
            "of corpus and retrieval together."
        )
    if not corpus.chunks_hash.same and not any(counts.values()):
        notes.append(
            "The index holds other chunks of the same documents, because they are cut or "
            "quarantined differently. The chunks_hash differs."
        )
    for name, entry in index.items():
        if entry.same is None:
            side = "new since" if entry.before is None else "only in"
            notes.append(f"Strategy {name} is {side} the baseline.")
        elif not entry.same:
            notes.append(
                f"Figures of {name} come from different index hashes: {entry.before} in the "
                f"baseline, {entry.after} now."
            )
    if not same_code:
        notes.append(
            "The code differs: figures were computed by different versions of rag_eval or of the "
            "libraries underneath."
        )
    changed = gold.targets_changed.n
    if changed:
        notes.append(
            f"The target of {changed} question{'s' if changed != 1 else ''} changed: "
            "it may be easier or harder to find than it was."
        )
    return notes
