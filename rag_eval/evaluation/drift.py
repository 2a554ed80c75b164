"""Drift: what changed under a gold set since its baseline was accepted: documents, the targets of its questions, indexes, code.

Belongs here: what is compared, and the sentences that say which figures rest on different things. Where baselines are kept is `baselines`.
"""

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import pandas as pd

from rag_eval.evaluation.quarantine_drift import (
    NOT_KEPT,
    Quarantine,
    moved,
    quarantine,
    sides,
    told,
)
from rag_eval.records.problems import quoted
from rag_eval.storage.hashing import text_hash

if TYPE_CHECKING:
    from rag_eval.evaluation.baselines import Baseline

MAX_NAMES = 10_000
"""Names in each list of the report; how many more there are stands beside them."""
NO_BASELINE = "no run was accepted as the baseline yet: rag-eval baseline accept"


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """What a run was made from, in hashes.

    Parameters
    ----------
    documents
        doc_id, content_hash (of the masked text).
    targets
        query_id, doc_id, content_hash of that document, span_hash: of the quoted evidence, empty for a judgement of the whole document.
        Both hashes are empty where the corpus no longer has the document.
    quarantine
        What was held back from the index; None where it is not known.
    """

    documents: pd.DataFrame
    targets: pd.DataFrame
    quarantine: Quarantine | None = None


def snapshot(
    documents: pd.DataFrame,
    qrels_document: pd.DataFrame,
    spans: pd.DataFrame,
    chunks: tuple[pd.DataFrame, pd.DataFrame] | None = None,
) -> Snapshot:
    """Put down what there is.

    Parameters
    ----------
    documents
        doc_id, content_hash and text of the corpus stage.
    qrels_document, spans
        Parts of the gold stage; judgements that something is not relevant are no targets.
    chunks
        CHUNKS of the whole corpus and of the index.
    """
    places = pd.Index(documents["doc_id"])
    judged = (
        qrels_document[qrels_document["gain"] > 0][["query_id", "item_id"]]
        .rename(columns={"item_id": "doc_id"})
        .assign(span_hash="")
    )
    rows = places.get_indexer(pd.Index(spans["doc_id"]))
    texts = documents["text"].to_numpy()
    quotes = [
        text_hash(texts[row][start:end]) if row >= 0 else ""
        for row, start, end in zip(
            rows, spans["start"].tolist(), spans["end"].tolist(), strict=True
        )
    ]
    quoted_spans = spans[["query_id", "doc_id"]].assign(span_hash=quotes)
    targets = pd.concat([judged, quoted_spans], ignore_index=True)
    hashes = documents.set_index("doc_id")["content_hash"]
    targets = (
        targets.assign(content_hash=targets["doc_id"].map(hashes).fillna(""))
        .drop_duplicates()
        .sort_values(["query_id", "doc_id", "span_hash"], ignore_index=True)
    )
    held = None if chunks is None else quarantine(*chunks, judged[["query_id", "doc_id"]], spans)
    return Snapshot(
        documents[["doc_id", "content_hash"]].reset_index(drop=True),
        targets[["query_id", "doc_id", "content_hash", "span_hash"]].astype(str),
        held,
    )


def _named(names: Iterable[str], key: str = "names") -> dict[str, Any]:
    """How many, and which; names come from corpora and gold sets."""
    found = sorted(names)
    left = len(found) - MAX_NAMES
    return {
        "n": len(found),
        key: [quoted(name) for name in found[:MAX_NAMES]],
        **({"n_left": left} if left > 0 else {}),
    }


def _documents(before: pd.DataFrame, now: pd.DataFrame) -> dict[str, Any]:
    left, right = (frame.set_index("doc_id")["content_hash"] for frame in (before, now))
    both = left.index.intersection(right.index)
    changed = both[(left.loc[both].to_numpy(dtype=str) != right.loc[both].to_numpy(dtype=str))]
    return {
        "new": _named(right.index.difference(left.index)),
        "changed": _named(changed),
        "removed": _named(left.index.difference(right.index)),
    }


def _changed_queries(
    before: pd.DataFrame, now: pd.DataFrame, columns: list[str], shared: set[str]
) -> set[str]:
    """Which of the shared questions have another set of targets, seen in these columns."""
    rows = [
        set(frame[["query_id", *columns]].itertuples(index=False, name=None))
        for frame in (before, now)
    ]
    return {row[0] for row in rows[0] ^ rows[1]} & shared


def _targets(before: pd.DataFrame, now: pd.DataFrame) -> dict[str, Any]:
    ids = [set(frame["query_id"]) for frame in (before, now)]
    shared = ids[0] & ids[1]
    was, is_now = (frame[frame["span_hash"] != ""] for frame in (before, now))
    return {
        "targets_changed": _named(
            _changed_queries(before, now, ["doc_id", "content_hash", "span_hash"], shared),
            "query_ids",
        ),
        "evidence_changed": _named(
            _changed_queries(was, is_now, ["doc_id", "span_hash"], shared), "query_ids"
        ),
        "questions_new": _named(ids[1] - ids[0], "query_ids"),
        "questions_removed": _named(ids[0] - ids[1], "query_ids"),
    }


def _quarantine(before: Snapshot, now: Snapshot) -> tuple[dict[str, Any], list[str], bool | None]:
    """What is held back otherwise than in the baseline, the sentences about it, and whether all chunks are the same; None where that cannot be told."""
    if before.quarantine is None or now.quarantine is None:
        return {"value": None, "reason": NOT_KEPT}, [], None
    found = moved(
        before.quarantine,
        now.quarantine,
        set(before.targets["query_id"]) & set(now.targets["query_id"]),
    )
    part: dict[str, Any] = {
        name: _pair(*pair) for name, pair in sides(before.quarantine, now.quarantine).items()
    }
    part |= {name: _named(getattr(found, name), "chunk_ids") for name in ("held_back", "freed")}
    part |= {
        name: _named(getattr(found, name), "query_ids")
        for name in ("targets_held_back", "targets_freed")
    }
    return part, told(found), found.same_cut


def _pair(before: object, now: object) -> dict[str, Any]:
    return {"before": before, "after": now, "same": before == now}


def _texts(before: object, now: object) -> dict[str, Any]:
    return {"before": quoted(str(before)), "after": quoted(str(now)), "same": before == now}


def _notes(
    corpus: dict[str, Any],
    gold: dict[str, Any],
    index: dict[str, Any],
    code: dict[str, Any],
    *,
    same_cut: bool | None,
    quarantined: list[str],
) -> list[str]:
    """Say aloud what the figures of the two runs do not have in common. `same_cut`: all chunks, held back or not; None: not known of the baseline."""
    notes = []
    if not gold["hash"]["same"]:
        notes.append(
            "The gold differs: no figure of this run may be compared with the baseline's; accept a run of this gold."
        )
    if not corpus["rev"]["same"]:
        documents = ", ".join(
            f"{corpus[name]['n']} {name}" for name in ("new", "changed", "removed")
        )
        notes.append(
            f"The corpus differs ({documents} documents): differences from the baseline are those of corpus and retrieval together."
        )
    if not corpus["chunks_hash"]["same"] and not any(
        corpus[name]["n"] for name in ("new", "changed", "removed")
    ):
        if same_cut is None:
            notes.append(
                "Other chunks of the same documents are indexed: they are cut otherwise, or others are quarantined, and the baseline does not say which. Figures come from different chunks_hash."
            )
        elif not same_cut:
            notes.append(
                "The same documents are cut into other chunks: figures come from different chunks_hash."
            )
    notes += quarantined
    notes += [
        f"Figures of {name} come from different index hashes: {entry['before']} in the baseline, {entry['after']} now."
        for name, entry in index.items()
        if entry["same"] is False
    ]
    notes += [
        f"Strategy {name} is {'new since' if entry['before'] is None else 'only in'} the baseline."
        for name, entry in index.items()
        if entry["same"] is None
    ]
    if not code["same"]:
        notes.append(
            "The code differs: figures were computed by different versions of rag_eval or of the libraries underneath."
        )
    changed = gold["targets_changed"]["n"]
    if changed:
        notes.append(
            f"The target of {changed} question{'s' if changed != 1 else ''} changed: it may be easier or harder to find than it was."
        )
    return notes


def drift(baseline: "Baseline | None", now: Snapshot, body: dict[str, Any]) -> dict[str, Any]:
    """Compare what this run was made from with what the baseline was made from.

    Parameters
    ----------
    baseline
        The accepted baseline; None where there is none.
    now
        Documents and targets of this run.
    body
        Its report, or the body before it is finished: index, gold, strategies and code are read.

    Returns
    -------
    dict
        baseline (run_id, accepted_at), corpus, quarantine, gold, index by strategy, comparable, notes; without a baseline `value` null and the
        reason. `comparable` says that both were judged by the same gold, so that figures may be paired; the notes say what else differs.
        `same` of an index is null where one of the runs does not have the strategy. Lists of names hold up to MAX_NAMES, and `n_left` says how many more there are.
    """
    if baseline is None:
        return {"value": None, "reason": NO_BASELINE}
    before = baseline.report
    left, right = before["index"], body["index"]
    corpus = {
        "rev": _texts(left["corpus_rev"], right["corpus_rev"]),
        "chunks_hash": _texts(left["chunks_hash"], right["chunks_hash"]),
        "n_documents": _pair(len(baseline.snapshot.documents), len(now.documents)),
        **_documents(baseline.snapshot.documents, now.documents),
    }
    gold = {
        "hash": _texts(before["gold"]["hash"], body["gold"]["hash"]),
        **_targets(baseline.snapshot.targets, now.targets),
    }
    hashes = [
        {entry["name"]: quoted(entry["index_hash"]) for entry in part["strategies"]}
        for part in (before, body)
    ]
    index = {}
    for name in sorted({*hashes[0], *hashes[1]}):
        was, is_now = (part.get(name) for part in hashes)
        absent = {
            side: "the run has no such strategy"
            for side, value in (
                ("before_reason", was),
                ("after_reason", is_now),
                ("same_reason", was and is_now),
            )
            if value is None
        }
        index[quoted(name)] = {
            "before": was,
            "after": is_now,
            "same": was == is_now if was is not None and is_now is not None else None,
            **absent,
        }
    held, quarantined, same_cut = _quarantine(baseline.snapshot, now)
    code = _texts(before["code"]["version"], body["code"]["version"])
    return {
        "baseline": {
            "run_id": quoted(baseline.record["run_id"]),
            "accepted_at": quoted(baseline.record["accepted_at"]),
        },
        "corpus": corpus,
        "quarantine": held,
        "gold": gold,
        "index": index,
        "comparable": gold["hash"]["same"],
        "notes": _notes(corpus, gold, index, code, same_cut=same_cut, quarantined=quarantined),
    }
