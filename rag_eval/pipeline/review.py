"""Look up stored results: one question of a kept run, and the chunks that the guard blocks."""

import dataclasses
import datetime as dt
import difflib
import re
from pathlib import Path
from typing import Any

import pandas as pd

from rag_eval.core.errors import InputError
from rag_eval.corpus.masking import mask_shown_address, masked_text
from rag_eval.gold.lint import describe_blocked
from rag_eval.pipeline.answers import AnswerMeasures, AnswerSet, CitationSet
from rag_eval.pipeline.corpus import (
    AdmittedChunks,
    CorpusChunks,
    CorpusSnapshot,
    EvidenceTrust,
    GoldVariants,
    as_of,
)
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.history import KeptRun, open_kept_run
from rag_eval.pipeline.retrieval import RestatedPassages
from rag_eval.reporting.listings import CitationVerdict, Explanation, GoldSpan
from rag_eval.storage.artifacts import Artifact, home_lock
from rag_eval.trust.guard import Decision, read_decisions, record_decision
from rag_eval.trust.sources import explain_factors


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Convert the rows of a frame to plain mappings."""
    return [dict(zip(frame.columns, row, strict=True)) for row in frame.itertuples(index=False)]


# ---- One question of a kept run, assembled from the stored results.


def _stored(run: KeptRun, stage: str) -> Artifact:
    artifact = run.artifact(stage)
    if artifact is None:
        raise InputError.of(
            "nothing_to_explain",
            "the run made no answers, or the home no longer has answers that this version can read",
            file=run.file,
            found=run.run_id,
            accepted="a run of a gold set with answers",
        )
    return artifact


def explanation(
    home: Path, query_id: str, *, run: str = "latest", gold_set: str | None = None
) -> Explanation:
    """Look a question up in a kept run.

    Raises
    ------
    InputError
        There is no such run, the run has no answers, or there is no such question.
    """
    kept = open_kept_run(home, run, gold_set)
    made = AnswerSet.stored(_stored(kept, "answers"))
    cited = CitationSet.stored(_stored(kept, "citations"))
    measured = AnswerMeasures.stored(_stored(kept, "answer_measures"))
    gold, corpus = _stored(kept, "gold_variants"), _stored(kept, "corpus_snapshot")
    queries = gold.frame("queries").set_index("query_id")
    if query_id not in queries.index:
        near = difflib.get_close_matches(query_id, queries.index.tolist(), 3, 0.3)
        raise InputError.of(
            "unknown_query",
            f"{kept.gold_set} has no such question",
            field="QUERY_ID",
            found=query_id,
            accepted=", ".join(near) or f"one of {len(queries)} ids of its queries.jsonl",
        )
    asked = queries.loc[query_id]
    verdicts, qrels, spans = (
        frame[frame["query_id"] == query_id]
        for frame in (cited.citations, gold.frame("qrels_document"), gold.frame("spans"))
    )
    qrels = qrels[qrels["gain"] > 0].sort_values("gain", ascending=False, kind="stable")
    relevant = set(qrels["item_id"])
    blocked = [one for one in GoldVariants.stored(gold).blocked.documents if one.doc_id in relevant]
    figures = measured.per_question.set_index("query_id").loc[query_id]
    names = ("coverage", "groundedness", "supported", "gap_reason")
    return Explanation(
        run_id=kept.run_id,
        gold_set=kept.gold_set,
        strategy=made.about.strategy,
        question=str(asked["text"]),
        answerable=bool(asked["answerable"]),
        answer=next(answer for answer in made.answers if answer.query_id == query_id),
        verdicts=tuple(
            CitationVerdict(row["code"], row["field"], bool(row["correct"]))
            for row in _rows(verdicts)
        ),
        targets=tuple(qrels["item_id"]),
        spans=tuple(_gold_spans(corpus.frame("documents"), spans, verdicts[verdicts["correct"]])),
        measures={name: None if pd.isna(figures[name]) else figures[name] for name in names},
        rejected=tuple(
            dataclasses.asdict(row) for row in made.rejected if row.query_id == query_id
        ),
        blocked=tuple(describe_blocked(blocked)),
    )


def _gold_spans(
    documents: pd.DataFrame, spans: pd.DataFrame, right: pd.DataFrame
) -> list[GoldSpan]:
    """Collect the gold evidence of a question, and whether a correct citation overlaps it."""
    owners = {row["doc_id"]: row for row in _rows(documents)}
    found = []
    for span in _rows(spans):
        doc_id, start, end = span["doc_id"], int(span["start"]), int(span["end"])
        hit = (right["doc_id"] == doc_id) & (right["start"] < end) & (right["end"] > start)
        owner = owners.get(doc_id, {"text": "", "source_url": ""})
        # Mask the whole document, because the words before a span may mark a secret.
        quote = masked_text(owner["text"])[start:end]
        found.append(GoldSpan(doc_id, start, end, quote, bool(hit.any()), owner["source_url"]))
    return found


# ---- Chunks that the guard blocks, for a person to review.

MAX_WHO, MAX_WHY, MAX_REASONS = 200, 2000, 100
AT_RETRIEVAL = "at retrieval"
_SURROGATE = re.compile(r"[\ud800-\udfff]")
"""Code points that stand for bytes outside UTF-8 on the command line."""


@dataclasses.dataclass(frozen=True)
class HeldBack:
    """Chunks that are blocked, warned about or allowed, blocked ones first, with counts.

    Each row has verdict, chunk_id, doc_id, source_url, trust, reasons and allowed_by. A chunk that
    is withheld only from the questions that it restates has the verdict `at retrieval`.
    """

    gold_set: str
    n_chunks: int
    n_blocked: int
    n_warned: int
    rows: list[dict[str, Any]]
    note: str = ""


def held_back(evaluation: Evaluation, *, warnings: bool = False) -> HeldBack:
    """Collect the chunks that the guard blocks or warns about, or that a person allowed."""
    with home_lock(evaluation.settings.home):
        frame, note = _with_restated(evaluation)
        documents = evaluation.runner.get(CorpusSnapshot).documents
    urls = dict(zip(documents["doc_id"], documents["source_url"], strict=True))
    blocked = frame["verdict"].isin(["blocked", AT_RETRIEVAL])
    warned = frame["verdict"] == "warning"
    wanted = blocked | (frame["allowed_by"] != "") | (warned & warnings)
    listed = frame[wanted].sort_values(["verdict", "doc_id", "chunk_id"], kind="stable")
    rows = [
        {name: row[name] for name in ("verdict", "chunk_id", "doc_id", "trust", "allowed_by")}
        | {
            "source_url": mask_shown_address(urls[row["doc_id"]]),
            "reasons": list(row["reasons"]),
        }
        for row in _rows(listed)
    ]
    counts = len(frame), int(blocked.sum()), int(warned.sum())
    return HeldBack(evaluation.config.name, *counts, rows, note)


def _with_restated(evaluation: Evaluation) -> tuple[pd.DataFrame, str]:
    """Return the trust of all chunks, and a note.

    Chunks that restate a question have the verdict `at retrieval`. The note gives a reason when
    these chunks are not marked, else it is empty.
    """
    frame = evaluation.runner.get(EvidenceTrust).trust
    try:
        pairs = evaluation.runner.get(RestatedPassages).blocked
    except InputError as error:  # a draft gold set has no questions yet
        name = evaluation.config.name
        return frame, (
            f"what restates a question is not listed: the gold set has {len(error.problems)} "
            f"problems (rag-eval lint {name})"
        )
    admitted = evaluation.runner.get(AdmittedChunks).rows
    reasons, verdicts = frame["reasons"].tolist(), frame["verdict"].tolist()
    for chunk in pairs["chunk"].unique().tolist():
        row, rules = int(admitted[chunk]), pairs.loc[pairs["chunk"] == chunk, "rule"]
        codes = sorted({f"restates_query.{rule}" for rule in rules})
        reasons[row], verdicts[row] = [*codes, *reasons[row]], AT_RETRIEVAL
    return frame.assign(verdict=verdicts, reasons=pd.Series(reasons, dtype=object)), ""


def _row_of(evaluation: Evaluation, chunk_id: str) -> int:
    ids = evaluation.runner.get(EvidenceTrust).trust["chunk_id"].tolist()
    found = [place for place, name in enumerate(ids) if name == chunk_id]
    if not found and chunk_id:
        found = [place for place, name in enumerate(ids) if name.startswith(chunk_id)]
    if len(found) != 1:
        raise InputError.of(
            "unknown_chunk",
            f"{len(found)} chunks of {evaluation.config.name} go by this id",
            field="CHUNK_ID",
            found=chunk_id,
            accepted="a chunk_id as rag-eval trust list shows it, or the start of one",
        )
    return found[0]


def inspect(evaluation: Evaluation, chunk_id: str) -> dict[str, Any]:
    """Collect all facts on one chunk, with masked text and link.

    Raises
    ------
    InputError
        No chunk or several chunks have this id.
    """
    with home_lock(evaluation.settings.home):
        runner = evaluation.runner
        stored, snapshot = runner.get(EvidenceTrust), runner.get(CorpusSnapshot)
        row = _row_of(evaluation, chunk_id)
        chunk = runner.get(CorpusChunks).chunks.iloc[row]
        facts = _rows(_with_restated(evaluation)[0].iloc[[row]])[0]
    owner, source = (
        frame.set_index("doc_id").loc[facts["doc_id"]]
        for frame in (snapshot.documents, snapshot.sources)
    )
    findings = stored.findings
    start, end = int(chunk["start"]), int(chunk["end"])
    text = masked_text(owner["text"])[start:end]
    return {
        **facts,
        "reasons": list(facts["reasons"]),
        "factors": explain_factors(facts, as_of(evaluation.settings)),
        "source_url": mask_shown_address(owner["source_url"]),
        "rev": owner["rev"],
        "source_hash": str(source["source_hash"]),
        "start": start,
        "end": end,
        "text": text if len(text) == len(chunk["text"]) else masked_text(chunk["text"]),
        "findings": _rows(findings[findings["row"] == row].drop(columns="row")),
        "decisions": [
            decision
            for decision in read_decisions(evaluation.base)
            if decision.chunk_id == facts["chunk_id"]
        ],
    }


def decide(
    evaluation: Evaluation, chunk_id: str, *, who: str, why: str, revoke: bool
) -> tuple[Decision, Path]:
    """Record or revoke the permission of a person for a blocked chunk.

    Raises
    ------
    InputError
        The chunk does not exist, is not blocked (or, to revoke, not allowed), or the person or
        reason is missing.
    """
    for field, value, most in (("--who", who, MAX_WHO), ("--why", why, MAX_WHY)):
        if not value.strip() or len(value) > most or _SURROGATE.search(value):
            raise InputError.of(
                "bad_decision",
                "a decision needs who made it and why",
                field=field,
                found=f"{len(value)} characters",
                accepted=f"1 to {most} characters of text in UTF-8",
            )
    facts = inspect(evaluation, chunk_id)
    found, allowed = facts["chunk_id"], bool(facts["allowed_by"])
    if revoke and not allowed:
        message = "nobody allows this chunk, so there is nothing to take back"
        raise InputError.of("not_allowed", message, field="CHUNK_ID", found=found)
    if not revoke and facts["verdict"] not in {"blocked", AT_RETRIEVAL}:
        state = f"allowed by {facts['allowed_by']}" if allowed else facts["verdict"]
        raise InputError.of(
            "not_blocked",
            "only a blocked chunk can be allowed",
            field="CHUNK_ID",
            found=f"{found}: {state}",
            accepted="a chunk that rag-eval trust list shows as blocked",
        )
    decision = Decision(
        chunk_id=found,
        doc_id=facts["doc_id"],
        source_hash=facts["source_hash"],
        action="revoke" if revoke else "allow",
        who=who.strip(),
        why=why.strip(),
        reasons=tuple(facts["reasons"][:MAX_REASONS]),
        at=dt.datetime.now(dt.UTC),
    )
    return decision, record_decision(evaluation.base, decision)
