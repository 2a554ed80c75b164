"""Allow chunks that the guard holds back, or withdraw that, as a person decides.

The decisions are about the chunks of the last recorded results, which are read here without the
stages: a run and `rag-eval trust list` record what they show.
"""

import datetime as dt
import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from rag_eval.core.errors import InputError, quoted
from rag_eval.corpus.masking import mask_shown_address
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.storage.artifacts import Artifact
from rag_eval.trust.allowances import ALLOWED, Decision, allowed_chunks, record_decisions

MAX_WHO, MAX_WHY, MAX_REASONS, MAX_NAMED = 200, 2000, 100, 20
_SURROGATE = re.compile(r"[\ud800-\udfff]")
"""Code points that stand for bytes outside UTF-8 on the command line."""


def find_chunk(chunk_ids: Sequence[str], wanted: str, gold_set: str) -> int:
    """Return the place of a chunk by its id or the start of it; raise InputError unless it is one.

    A whole id wins over other ids that begin with it.
    """
    found = [place for place, name in enumerate(chunk_ids) if name == wanted]
    if not found and wanted:
        found = [place for place, name in enumerate(chunk_ids) if name.startswith(wanted)]
    if len(found) != 1:
        raise InputError.of(
            "unknown_chunk",
            f"{len(found)} chunks of {gold_set} go by this id",
            field="CHUNK_ID",
            found=wanted,
            accepted="a chunk_id as rag-eval trust list shows it, or the start of one",
        )
    return found[0]


def _recorded_chunks(evaluation: Evaluation) -> tuple[pd.DataFrame, Artifact]:
    """Return verdict and reasons of all chunks before any allowance, and the corpus."""
    evidence = evaluation.find_recorded("evidence_trust")
    if evidence is None:
        message = "nothing was judged here yet, so no chunk can be allowed"
        accepted = f"rag-eval trust list {evaluation.config.name} or a run, and then this command"
        raise InputError.of("not_judged", message, field="CHUNK_ID", accepted=accepted)
    columns = ["chunk_id", "doc_id", "verdict", "reasons", "allowed_by"]
    frame = evidence.frame("trust", columns)
    # What was allowed when it was judged is only a warning now.
    was_allowed = frame["allowed_by"] != ""
    reasons = [[code for code in codes if code != ALLOWED] for codes in frame["reasons"]]
    verdict = frame["verdict"].mask(was_allowed, "blocked")
    frame = frame.assign(verdict=verdict, reasons=pd.Series(reasons, dtype=object))
    return frame, evidence.input("corpus_snapshot")


def _share_page(corpus: Artifact, wanted: str) -> set[str]:
    """List the documents of a page: all whose link is `wanted`, or the link of this document."""
    documents = corpus.frame("documents", ["doc_id", "source_url"])
    links = documents["source_url"].str.partition("#")[0]
    link = dict(zip(documents["doc_id"], links, strict=True)).get(wanted) or wanted
    shared = (links == link) | (links.map(mask_shown_address) == link)
    return {wanted, *documents.loc[shared, "doc_id"]}


def _choose(
    frame: pd.DataFrame, corpus: Artifact, option: str, value: str, name: str
) -> pd.DataFrame:
    """Select the chunks that a person names. Raises InputError if there is none."""
    if option == "CHUNK_ID":
        return frame.iloc[[find_chunk(frame["chunk_id"].tolist(), value, name)]]
    if option == "--reason":
        chosen = frame[[value in codes for codes in frame["reasons"]]]
    else:
        documents = {value} if option == "--document" else _share_page(corpus, value)
        chosen = frame[frame["doc_id"].isin(documents)]
    if chosen.empty:
        poor = frame[frame["verdict"] != "clean"]
        codes = sorted({code for codes in poor["reasons"] for code in codes})
        names = codes if option == "--reason" else sorted(set(poor["doc_id"]))
        known = ", ".join(quoted(one, 100) for one in names[:MAX_NAMED])
        more = f" and {len(names) - MAX_NAMED:,} more" if len(names) > MAX_NAMED else ""
        raise InputError.of(
            f"unknown_{option.removeprefix('--')}",
            f"no chunk of {name} goes by this",
            field=option,
            found=value,
            accepted=f"{known}{more}" if known else "nothing: no chunk is held back",
        )
    return chosen


def decide(
    evaluation: Evaluation, option: str, value: str, *, who: str, why: str, revoke: bool
) -> tuple[list[Decision], Path]:
    """Record that a person allows blocked chunks, or withdraws that.

    `option` says how `value` names the chunks: CHUNK_ID (an id, or the start of one), --document,
    --page (every document with this link) or --reason. Of the named chunks, those count that are
    held back; to revoke, those that are allowed now.

    Raises
    ------
    InputError
        There is no such chunk, or the person or reason is missing.
    """
    for field, text, most in (("--who", who, MAX_WHO), ("--why", why, MAX_WHY)):
        if not text.strip() or len(text) > most or _SURROGATE.search(text):
            raise InputError.of(
                "bad_decision",
                "a decision needs who made it and why",
                field=field,
                found=f"{len(text)} characters",
                accepted=f"1 to {most} characters of text in UTF-8",
            )
    frame, corpus = _recorded_chunks(evaluation)
    sources = corpus.frame("sources", ["doc_id", "source_hash"])
    hashes = dict(zip(sources["doc_id"], sources["source_hash"], strict=True))
    allowed = allowed_chunks(evaluation.base, hashes)[0]
    chosen = _choose(frame, corpus, option, value, evaluation.config.name)
    is_allowed = chosen["chunk_id"].isin(allowed.keys())
    blocked = {"blocked", *evaluation.config.trust.withheld}
    usable = chosen[is_allowed if revoke else chosen["verdict"].isin(blocked) & ~is_allowed]
    if usable.empty:
        states = chosen["verdict"].mask(
            is_allowed, chosen["chunk_id"].map(allowed).map("allowed by {}".format)
        )
        raise _refuse(option, states, revoke=revoke)
    now = dt.datetime.now(dt.UTC)
    decisions = [
        Decision(
            chunk_id=row["chunk_id"],
            doc_id=row["doc_id"],
            source_hash=hashes[row["doc_id"]],
            action="revoke" if revoke else "allow",
            who=who.strip(),
            why=why.strip(),
            reasons=tuple(row["reasons"][:MAX_REASONS]),
            at=now,
        )
        for row in usable.to_dict("records")
    ]
    return decisions, record_decisions(evaluation.base, decisions)


def _refuse(option: str, states: "pd.Series[str]", *, revoke: bool) -> InputError:
    counts = states.value_counts().items()
    found = ", ".join(f"{n:,} {quoted(str(state), 100)}" for state, n in counts)
    if revoke:
        message = "no such chunk is allowed, so no permission can be withdrawn"
        return InputError.of("not_allowed", message, field=option, found=found)
    return InputError.of(
        "not_blocked",
        "only a blocked chunk can be allowed",
        field=option,
        found=found,
        accepted="chunks that rag-eval trust list shows as blocked",
    )
