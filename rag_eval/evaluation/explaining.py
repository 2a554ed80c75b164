"""One question of a kept run, put together from what the run stored: nothing is computed again.

Belongs here: which facts explain a question. How they are shown is `rag_eval.reporting.explain`.
"""

import difflib
import json
from pathlib import Path
from typing import Any

from rag_eval.corpus.outgoing import masked_text
from rag_eval.evaluation.answer_frames import from_artifact
from rag_eval.evaluation.comparing import find_run, run_ids
from rag_eval.records.problems import InputError, Problem
from rag_eval.reporting.explain import CitationVerdict, Explanation, GoldSpan
from rag_eval.storage.artifacts import Artifact, ArtifactStore


def _kept(home: Path, run: str, gold_set: str | None) -> dict[str, Any]:
    if gold_set is not None:
        ids = run_ids(home, gold_set)
        if not ids:
            raise InputError(
                Problem(
                    "run_not_found",
                    "no run of this gold set is kept here",
                    file=str(home / "runs"),
                    field="--gold-set",
                    found=gold_set,
                )
            )
        run = ids[-1]
    report = find_run(run, home).report
    loaded: dict[str, Any] = json.loads(
        (home / "runs" / f"{report['run_id']}.json").read_text(encoding="utf-8")
    )
    return loaded


def _artifact(home: Path, kept: dict[str, Any], stage: str) -> Artifact:
    key = kept["artifacts"].get(stage)
    found = ArtifactStore(home / "artifacts").get(stage, key) if key else None
    if found is None:
        raise InputError(
            Problem(
                "nothing_to_explain",
                "the run made no answers, or they are no longer in the home",
                file=str(home / "runs"),
                found=kept["report"]["run_id"],
                accepted="a run of a gold set with answers",
            )
        )
    return found


def explanation(
    home: Path, query_id: str, *, run: str = "latest", gold_set: str | None = None
) -> Explanation:
    """Look a question up in a kept run.

    Raises
    ------
    InputError
        No such run, a run without answers, or no such question.
    """
    kept = _kept(home, run, gold_set)
    made, cited, measured, gold = (
        _artifact(home, kept, stage)
        for stage in ("answers", "citations", "answer_measures", "gold")
    )
    queries = gold.frame("queries")
    if query_id not in set(queries["query_id"]):
        near = difflib.get_close_matches(query_id, queries["query_id"].tolist(), 3, 0.3)
        raise InputError(
            Problem(
                "unknown_query",
                f"{kept['gold_set']} has no such question",
                field="QUERY_ID",
                found=query_id,
                accepted=", ".join(near) or f"one of {len(queries)} ids of its queries.jsonl",
            )
        )
    asked = queries[queries["query_id"] == query_id].iloc[0]
    answer = next(answer for answer in from_artifact(made) if answer.query_id == query_id)
    rows = cited.frame("citations")
    rows = rows[rows["query_id"] == query_id]
    documents = _artifact(home, kept, "corpus").frame("documents")
    texts, addresses = (
        dict(zip(documents["doc_id"].tolist(), documents[name].tolist(), strict=True))
        for name in ("text", "source_url")
    )
    qrels, spans = gold.frame("qrels_document"), gold.frame("spans")
    qrels, spans = (
        qrels[(qrels["query_id"] == query_id) & (qrels["gain"] > 0)],
        spans[spans["query_id"] == query_id],
    )
    right = rows[rows["correct"]]
    found = []
    for doc_id, start, end in zip(
        spans["doc_id"], spans["start"].tolist(), spans["end"].tolist(), strict=True
    ):
        hit = right[(right["doc_id"] == doc_id) & (right["start"] < end) & (right["end"] > start)]
        quote = masked_text(texts.get(doc_id, ""))[
            start:end
        ]  # masked as a part of its document: what says that it is a secret may stand before it
        found.append(GoldSpan(doc_id, start, end, quote, not hit.empty, addresses.get(doc_id, "")))
    figures = measured.frame("per_question")
    about = figures[figures["query_id"] == query_id].iloc[0]
    return Explanation(
        run_id=kept["report"]["run_id"],
        gold_set=kept["gold_set"],
        strategy=made.json("about")["strategy"],
        question=str(asked["text"]),
        answerable=bool(asked["answerable"]),
        answer=answer,
        verdicts=tuple(
            CitationVerdict(code, field, bool(correct))
            for code, field, correct in zip(
                rows["code"], rows["field"], rows["correct"], strict=True
            )
        ),
        targets=tuple(qrels.sort_values("gain", ascending=False, kind="stable")["item_id"]),
        spans=tuple(found),
        measures={
            name: None if about[name] != about[name] else about[name]
            for name in ("coverage", "groundedness", "supported", "gap_reason")
        },
        rejected=tuple(row for row in made.json("rejected") if row["query_id"] == query_id),
    )
