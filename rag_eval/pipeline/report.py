"""Report stage: assemble the stored results, judge the floors, and write every file.

The module also looks up one question of a kept run, and the chunks that the guard blocks.
"""

import dataclasses
import datetime as dt
import difflib
import gzip
import json
import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import pandas as pd
from pydantic_core import to_jsonable_python

from rag_eval import __version__
from rag_eval.core.arrays import BoolArray, FloatArray, IntArray
from rag_eval.core.errors import InputError, Problem, quoted
from rag_eval.core.report import (
    SCHEMA_VERSION,
    Absent,
    AnswersPart,
    CitationsPart,
    Embeddings,
    Estimate,
    Figure,
    Level,
    Poisoning,
    Record,
    Report,
    SliceFigure,
    SlicePart,
    SlicesPart,
    StabilityPart,
    StrategyPart,
    TrustPart,
    TrustScores,
    WordCounts,
)
from rag_eval.core.types import ABSTAINED
from rag_eval.corpus.analyzer import Analyzer
from rag_eval.corpus.masking import mask_shown_address, masked_text
from rag_eval.gates.gate import GateInputs
from rag_eval.gates.regression import measured_run, with_delta_s
from rag_eval.gates.verdict import judge_gates
from rag_eval.gold.blocked import describe
from rag_eval.measures.groundedness import comparable
from rag_eval.measures.intervals import aggregate, within_query
from rag_eval.pipeline.answers import (
    RAGAS_OFF,
    AnswerMeasures,
    AnswerSet,
    CitationSet,
    answer_files,
    find_answered,
    has_answers,
)
from rag_eval.pipeline.baselines import drift_part, take_snapshot, try_baseline
from rag_eval.pipeline.calibration import PICTURES, MissRateCalibration
from rag_eval.pipeline.claims import MissRateClaims, judge_runs
from rag_eval.pipeline.corpus import (
    AdmittedChunks,
    GoldVariants,
    admitted_chunks,
    as_of,
    corpus_chunks,
    corpus_snapshot,
    evidence_trust,
    gold_variants,
)
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.explorer import explorer_bundle, slim
from rag_eval.pipeline.history import (
    NO_PREVIOUS,
    KeptRun,
    configuration_part,
    evaluation_part,
    history_parts,
    keep_run,
    make_record,
    open_kept_run,
    read_run,
)
from rag_eval.pipeline.measures import (
    BOOTSTRAP_SEED,
    LEVELS,
    NOT_CONFIGURED,
    Runs,
    TrustMeasures,
    interval_of,
    number,
    overlap,
    ranking_measures,
    stability_measures,
)
from rag_eval.pipeline.miss_rates import UNCERTAIN_FILE, CalibratedMissRates
from rag_eval.pipeline.retrieval import CorpusIndex, IndexOpener, RestatedPassages
from rag_eval.reporting.exports import per_query_csv, trec_qrels, trec_run, write_measures
from rag_eval.reporting.html.page import Built, build
from rag_eval.reporting.listings import CitationVerdict, Explanation, GoldSpan
from rag_eval.reporting.metrics_report import REPORT_FILE, dumps, finish
from rag_eval.reporting.verdicts import VERDICT_FILES, verdict_rows, write_verdict
from rag_eval.storage.artifacts import Artifact, atomic_path, home_lock, write_bytes, write_text
from rag_eval.storage.hashing import code_version, library_versions
from rag_eval.trust.guard import Decision, read_decisions, record_decision
from rag_eval.trust.sources import explain_factors


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Convert the rows of a frame to plain mappings."""
    return [dict(zip(frame.columns, row, strict=True)) for row in frame.itertuples(index=False)]


# ---- One question of a kept run, assembled from the stored results.


def _stored(run: KeptRun, stage: str) -> Artifact:
    artifact = run.artifact(stage)
    if artifact is None:
        raise InputError(
            Problem(
                "nothing_to_explain",
                "the run made no answers, or they are no longer in the home",
                file=str(run.file),
                found=run.run_id,
                accepted="a run of a gold set with answers",
            )
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
        raise InputError(
            Problem(
                "unknown_query",
                f"{kept.gold_set} has no such question",
                field="QUERY_ID",
                found=query_id,
                accepted=", ".join(near) or f"one of {len(queries)} ids of its queries.jsonl",
            )
        )
    asked = queries.loc[query_id]
    verdicts, qrels, spans = (
        frame[frame["query_id"] == query_id]
        for frame in (cited.citations, gold.frame("qrels_document"), gold.frame("spans"))
    )
    qrels = qrels[qrels["gain"] > 0].sort_values("gain", ascending=False, kind="stable")
    counted = gold.path("blocked.json").is_file()  # runs of earlier versions lack this part
    blocked = GoldVariants.stored(gold).blocked.documents if counted else []
    figures = measured.per_question.set_index("query_id").loc[query_id]
    names = ("coverage", "groundedness", "supported", "gap_reason")
    return Explanation(
        run_id=kept.run_id,
        gold_set=kept.gold_set,
        strategy=made.about.strategy,
        question=str(asked["text"]),
        answerable=bool(asked["answerable"]),
        answer=next(answer for answer in made.read() if answer.query_id == query_id),
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
        blocked=tuple(describe([one for one in blocked if one.doc_id in set(qrels["item_id"])])),
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


# ---- Slices stage: recall and misses by tag, length and answerability.

MEASURE: Final = "R@10"
TARGET: Final = "miss_any"
MAX_TAGS, MAX_TAG_CHARS = 30, 100
NO_ANSWERS: Final = "the gold set configures no answers"
UNSCORED: Final = "none of these questions was scored"
ANSWERABILITY: Final = {
    "answerable": ("questions that the corpus answers, by the gold set", UNSCORED),
    "unanswerable": (
        (
            "questions that the corpus does not answer, by the gold set: a retriever cannot be"
            " right, an answer can, by abstaining"
        ),
        "these questions have no gold: there is nothing to recall and nothing to miss",
    ),
    "unknown": (
        "questions of which the gold set does not say whether the corpus answers them",
        "nobody judged what answers these questions",
    ),
}
"""Description of a slice, and the reason when none of it is scored."""


@dataclasses.dataclass(frozen=True)
class Slice:
    """A part of the questions: `member` is bool [n_queries]."""

    kind: Literal["tag", "length", "answerability"]
    name: str
    about: str
    member: BoolArray
    unscored: str = UNSCORED
    words: WordCounts | None = None


def _slices(runs: Runs) -> SlicesPart:
    evaluation = runs.evaluation
    made = evaluation.runner.get(AnswerMeasures) if has_answers(evaluation.config) else None
    config, gold = evaluation.config, gold_variants(evaluation)
    own = (config.k, config.level, config.uncertainty.k, None if made is None else made.id)
    key = evaluation.key("slices", gold.key, runs.keys, *own)

    def make() -> dict[str, Any]:
        with evaluation.progress.step("Measuring slices"):
            n_tags, tags = tag_slices(runs.gold.queries["tags"].tolist())
            lengths = length_slices(count_words(runs.gold.queries["text"].tolist()))
            values = _values(runs)
            parts = [*_answerability(runs), *lengths, *tags]
            found = SlicesPart(
                measure=MEASURE,
                target=TARGET,
                k=config.uncertainty.k,
                level=config.level,
                n_tags=n_tags,
                n_tags_left_out=n_tags - len(tags),
                by=[_slice_part(runs, part, values) for part in parts],
            )
        reason = "the questions are all of one length"
        return {"about": found.dump() | ({} if lengths else {"lengths_reason": reason})}

    return SlicesPart.model_validate(evaluation.memo("slices", key, make).json("about"))


def tag_slices(tags: Sequence[Sequence[str]], limit: int = MAX_TAGS) -> tuple[int, list[Slice]]:
    """Count the tags, and make slices of the most frequent tags in descending order.

    `tags` lists the tags of each question. A repeated tag counts once.
    """
    counts = Counter(tag for row in tags for tag in set(row))
    found = []
    for tag, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:limit]:
        name = quoted(tag, MAX_TAG_CHARS)
        member = np.array([tag in row for row in tags], dtype=bool)
        found.append(Slice("tag", name, f"questions with the tag {name}", member))
    return len(counts), found


def count_words(texts: Sequence[str]) -> IntArray:
    """Count the indexed terms of each text, int64 [n]."""
    rows = Analyzer().index([comparable(text) for text in texts])
    return np.array([len(row) for row in rows], dtype=np.int64)


def length_slices(words: IntArray) -> list[Slice]:
    """Slice the questions into thirds by content words; no slices for questions of one length.

    Questions of one length stay together, so thirds may be unequal.
    """
    if not len(words) or words.min() == words.max():
        return []
    ends = np.quantile(words, (1 / 3, 2 / 3), method="inverted_cdf")
    third = np.searchsorted(ends, words)
    found = []
    for at, name in enumerate(("short", "medium", "long")):
        member = third == at
        if member.any():
            low, high = int(words[member].min()), int(words[member].max())
            bounds = f"{low}" if low == high else f"{low} to {high}"
            about = f"questions of {bounds} content words as they were first put"
            counts = WordCounts(low=low, high=high)
            found.append(Slice("length", name, about, member, words=counts))
    return found


def _answerability(runs: Runs) -> list[Slice]:
    """Slice by whether the gold set says that the corpus has the answer."""
    gold = runs.gold
    answerable = gold.queries["answerable"].to_numpy(dtype=bool)
    # Nobody may have judged the questions of recorded outputs.
    known = runs.gold_variants.answerable_known | (gold.qrels_document.n_relevant > 0)
    unknown = answerable & ~known
    members = {"answerable": answerable & ~unknown, "unanswerable": ~answerable, "unknown": unknown}
    return [
        Slice("answerability", name, ANSWERABILITY[name][0], member, ANSWERABILITY[name][1])
        for name, member in members.items()
        if member.any()
    ]


def _abstention(runs: Runs, member: BoolArray) -> Figure | Absent:
    """Compute the share of the questions with an abstention."""
    if not has_answers(runs.evaluation.config):
        return Absent(reason=NO_ANSWERS)
    made = runs.evaluation.runner.get(AnswerMeasures)
    abstained = made.per_question["outcome"].isin(ABSTAINED).to_numpy(dtype=np.float64)
    groups = runs.gold.groups[member]
    records = aggregate(["abstention"], abstained[member][:, None], groups, BOOTSTRAP_SEED)
    return Figure(**interval_of(records[0]))


def _values(runs: Runs) -> FloatArray:
    """Collect recall and misses of each strategy.

    The array is [n_queries, 2 x n_strategies]. Questions without gold are NaN.
    """
    gold, config = runs.gold, runs.evaluation.config
    n, columns = len(gold.queries), []
    for name in runs.names:
        scores, judgements = runs.scores(name), judge_runs(runs, name)
        recall = scores.labels[config.level].index(MEASURE)
        columns.append(scores.per_query(config.level, n, gold)[:, recall])
        missed = judgements.missed(TARGET, config.uncertainty.k)
        columns.append(within_query(missed, gold.query_of[judgements.variant], n)[:, 0])
    return np.stack(columns, axis=1)


def _slice_part(runs: Runs, part: Slice, values: FloatArray) -> SlicePart:
    labels = [f"{label} of {name}" for name in runs.names for label in (MEASURE, TARGET)]
    groups = runs.gold.groups[part.member]
    records = aggregate(labels, values[part.member], groups, BOOTSTRAP_SEED)
    strategies = {}
    for at, name in enumerate(runs.names):
        reason = runs.unmeasured(name).get(runs.evaluation.config.level, part.unscored)
        recall, missed = (
            interval_of(record) | {"why": {} if record.n_scored else {"value": reason}}
            for record in records[2 * at : 2 * at + 2]
        )
        strategies[name] = SliceFigure(**recall, miss=Figure(**missed))
    more: dict[str, Any] = {} if part.words is None else {"words": part.words}
    if part.kind == "answerability":
        more["abstention"] = _abstention(runs, part.member)
    return SlicePart(
        kind=part.kind,
        name=part.name,
        about=part.about,
        n_queries=int(part.member.sum()),
        n_groups=len(np.unique(groups)),
        strategies=strategies,
        **more,
    )


# ---- Trust and poisoning in the report, and evidence-trust.jsonl with one line per chunk.

EVIDENCE_FILE = "evidence-trust.jsonl"
BINS, MAX_QUARANTINED, MAX_ID = 10, 50, 200
STATES = ("domain_state", "signature_state", "author_state", "freshness_state")


def evidence_lines(trust: Artifact, as_of: str) -> bytes:
    """Write one JSON line per chunk (`evidence-trust-line.schema.json`), in order of the chunks."""
    day = dt.date.fromisoformat(as_of)
    lines = [
        {
            "schema_version": SCHEMA_VERSION,
            "chunkId": row["chunk_id"],
            "trustScore": number(row["trust"]),
            "domain": row["domain"] or None,
            "signature": row["signature_state"],
            "timestamp": row["date"] or None,
            "factors": explain_factors(row, day),
            "blocked": row["verdict"] == "blocked",
            "reasons": list(row["reasons"]),
        }
        for row in _rows(trust.frame("trust"))
    ]
    return "".join(f"{json.dumps(line, sort_keys=True)}\n" for line in lines).encode()


def _trust_scores(frame: pd.DataFrame) -> TrustScores | Absent:
    """Describe the distribution of trust over all chunks, including quarantined ones."""
    values = frame["trust"].dropna().to_numpy()
    if not len(values):
        return Absent(reason=NOT_CONFIGURED)
    counts = np.histogram(values, bins=BINS, range=(0.0, 1.0))[0]
    histogram = [
        {"from": at / BINS, "to": (at + 1) / BINS, "n": int(count)}
        for at, count in enumerate(counts)
    ]
    summary = {name: number(getattr(values, name)()) for name in ("mean", "min", "max")}
    return TrustScores.model_validate({"n_chunks": len(values), **summary, "histogram": histogram})


def _poisoning(runs: Runs, about: Mapping[str, Any], frame: pd.DataFrame) -> Poisoning:
    """Describe the findings of the guard, with at most fifty relevant documents and chunks."""
    evaluation = runs.evaluation
    gold = evaluation.runner.get(GoldVariants).blocked
    restated = evaluation.runner.get(RestatedPassages).about
    documents = corpus_snapshot(evaluation).frame("documents")
    urls = dict(zip(documents["doc_id"].tolist(), documents["source_url"].tolist(), strict=True))
    poor = frame[frame["verdict"] == "blocked"]
    reasons = Counter(code for codes in frame["reasons"].tolist() for code in codes)
    return Poisoning.model_validate(
        {
            "rules_version": about["rules_version"],
            "quarantine": evaluation.config.trust.quarantine,
            "n_chunks": len(frame),
            "n_documents": int(frame["doc_id"].nunique()),
            "n_blocked": len(poor),
            "n_blocked_documents": int(poor["doc_id"].nunique()),
            "n_warned": int((frame["verdict"] == "warning").sum()),
            "n_allowed": int((frame["allowed_by"] != "").sum()),
            "reasons": dict(sorted(reasons.items())),
            "manifest": about["manifest"],
            "quarantined": [
                {
                    "chunk_id": row["chunk_id"],
                    "doc_id": quoted(row["doc_id"], MAX_ID),
                    "source_url": quoted(mask_shown_address(urls[row["doc_id"]]), MAX_ID),
                    "reasons": list(row["reasons"]),
                }
                for row in _rows(poor.head(MAX_QUARANTINED))
            ],
            "gold": gold._asdict()
            | {
                "documents": [
                    {**document._asdict(), "doc_id": quoted(document.doc_id, MAX_ID)}
                    for document in gold.documents[:MAX_QUARANTINED]
                ]
            },
            "at_retrieval": {
                **dataclasses.asdict(restated),
                "dropped": {name: runs.about(name).n_dropped for name in runs.names},
            },
        }
    )


def _trust_part(runs: Runs) -> TrustPart:
    evaluation = runs.evaluation
    stored, measured = evidence_trust(evaluation), evaluation.runner.get(TrustMeasures)
    about, frame, configured = stored.json("about"), stored.frame("trust"), evaluation.config.trust
    return TrustPart.model_validate(
        {
            "as_of": about["as_of"],
            "notes": about["notes"],
            "configured": {
                "domains": len(configured.domains),
                "authors": len(configured.authors),
                "keys": len(configured.keys),
                "manifest": configured.manifest is not None,
                "unlisted": configured.unlisted,
            },
            "scores": _trust_scores(frame),
            "states": {name: dict(sorted(Counter(frame[name]).items())) for name in STATES},
            "retrieved": measured.strategies,
            "filter": measured.filter,
            "poisoning": _poisoning(runs, about, frame),
        }
    )


# ---- Report stage: assemble the stored results, judge the floors, and write every file.

EXPORTED = {".csv", ".parquet", ".trec", ".jsonl", ".log"}
PAGE, TABLES = "index.html", "tables"
ANSWER_FILES: Final = (
    *(f"{name}.jsonl" for name in ("answers", "citations", "preflights", "rejected")),
    *("events.log", "traces.log"),
)
CITATION_MEASURES: Final = (
    "coverage",
    *(f"citation_{name}" for name in ("precision", "recall", "match_rate", "validity_rate")),
)
NOT_SEEN: Final = {
    "ann_recall": "the index of an external retriever is not seen from here",
    "cost_per_1k": "what an external retriever costs is not known here",
}


def _embeddings(runs: Runs, opened: IndexOpener) -> Embeddings:
    """Count the texts that needed a vector, and the texts without a cached vector."""
    chunks = admitted_chunks(runs.evaluation).json("about")["n_chunks"]
    models = {stability_measures(runs).json("about")["embedding"]}
    expanded = 0
    for run in runs.runs.values():
        models.add(run.about.rerank_model)
        if not run.has_own_units:
            models.add(run.about.embed_model)
        if run.expansions is not None and run.about.embed_model:
            expanded += len(run.expansions)
    models.discard("")
    needed = len(models) * (chunks + int(runs.gold.variants["text"].nunique())) + expanded
    return Embeddings(models=sorted(models), needed=needed, embedded=opened.embedded)


def _strategy(runs: Runs, entry: Mapping[str, Any]) -> StrategyPart:
    name, evaluation = entry["name"], runs.evaluation
    run, spec = runs.runs[name], runs.spec(name)
    about, more = run.about, dict[str, Any]()
    price = spec.question_price(evaluation.settings.price_per_1k_embedding_tokens)
    cost: float | None = round(price * about.query_tokens, 6)
    if spec.own_units:
        cost = None
        levels = {
            level: {"measured": False, "reason": about.unmeasured[level]}
            if level in about.unmeasured
            else {"measured": True}
            for level in LEVELS
        }
        more = {"source": about.source, "failures": about.failures, "levels": levels}
        more |= {"notes": about.notes, "why": NOT_SEEN}
    return StrategyPart.model_validate(
        {
            "name": name,
            "kind": about.kind,
            "index_hash": about.index_hash,
            "embed_model": about.embed_model,
            "configuration": configuration_part(spec),
            "rerank": spec.rerank.kind if spec.rerank else None,
            "seeds": {"configured": evaluation.config.seeds, "matter": about.seed_matters},
            "n_runs": about.n_runs,
            "n_empty": about.n_empty,
            "n_failed": about.n_failed,
            "first_failure": about.first_failure,
            "measures": entry["measures"],
            "ann_recall": entry["ann_recall"],
            "latency_ms": run.timing.latency_ms,
            "cost_per_1k": cost,
            **more,
        }
    )


def _answer_parts(runs: Runs) -> dict[str, Any]:
    """Make the report fields of answers and citations."""
    answered = find_answered(runs.evaluation)
    if answered is None:
        absent = Absent(reason=NO_ANSWERS)
        why = {"groundedness_reason": NO_ANSWERS, "faithfulness_reason": RAGAS_OFF}
        return {"groundedness": None, "faithfulness": None, "answers": absent} | {
            "citations": absent,
            **why,
        }
    about, found = answered.answers.about, answered.measures.about
    codes, usage = answered.citations.about, answered.answers.usage
    attempts = ("attempts", "schema_retries", "adaptive_reruns")
    part = AnswersPart.model_validate(
        {
            "strategy": about.strategy,
            "modes": about.modes,
            "embedding": about.embedding or None,
            "model": about.model or None,
            "hash": about.hash,
            "n_questions": about.counts["questions"],
            "attempts": {name: about.counts.get(name, 0) for name in attempts},
            "outcomes": found.outcomes,
            "codes": found.codes,
            "measures": [one for one in found.measures if one["name"] not in CITATION_MEASURES],
            "gap": dataclasses.asdict(found.gap),
            "faithfulness": found.faithfulness,
            "usage": {} if usage is None else dataclasses.asdict(usage),
        }
    )
    of_citations = [one for one in found.measures if one["name"] in CITATION_MEASURES]
    return {
        "answers": part,
        "citations": CitationsPart.model_validate(
            {"n_citations": codes.n_citations, "codes": codes.codes, "measures": of_citations}
        ),
        **_headline("faithfulness", part.faithfulness),
        **_headline("groundedness", next(m for m in part.measures if m.name == "groundedness")),
    }


def _headline(name: str, figure: Estimate) -> dict[str, Any]:
    """Repeat a figure at the top of the report."""
    reason = {} if figure.value is not None else {f"{name}_reason": figure.why["value"]}
    return {name: figure.value, **reason}


def figures_for_gates(report: Mapping[str, Any], level: Level) -> dict[str, dict[str, Any]]:
    """Name every figure for floors, from the JSON values of the report's parts.

    `report` has the fields that are known before the gates, by name.
    """
    name = report["strategy"]
    primary = next(entry for entry in report["strategies"] if entry.name == name)
    stability = report["stability"].strategies[name]
    found: dict[str, Record] = {
        record.name: record for record in primary.measures if record.level == level
    }
    found |= {
        "delta_s": stability.delta_s,
        "avg_trust_score": report["trust"].retrieved[name].avg_trust,
        "convergent_hit_share": stability.convergent_and_hit,
    }
    cost = {"value": primary.cost_per_1k, "reason": primary.why.get("cost_per_1k", "")}
    for part in (report["answers"], report["citations"]):
        if not isinstance(part, Absent):
            found |= {record.name: record for record in part.measures}
    if isinstance(report["answers"], AnswersPart):
        found["faithfulness"] = report["answers"].faithfulness
        if cost["value"] is not None:
            cost["value"] += report["answers"].usage.get("cost_per_1k", 0.0)
    return {name: record.dump() for name, record in found.items()} | {
        **{
            f"latency_{at}_ms": {"value": getattr(primary.latency_ms, at)}
            for at in ("p50", "p95", "p99")
        },
        "cost_per_1k": cost,
        "cache_hit_rate": {"value": report["cacheHitRate"]},
    }


def report_parts(opened: IndexOpener, runs: Runs) -> dict[str, Any]:
    """Make the report fields without hash, id, time and history."""
    evaluation, config = runs.evaluation, runs.evaluation.config
    corpus = corpus_snapshot(evaluation).json("about")
    chunks = admitted_chunks(evaluation).json("about")
    stored, gold = evaluation.runner.get(CorpusIndex), gold_variants(evaluation).json("about")
    ranking = ranking_measures(runs).json("about")
    strategies = [_strategy(runs, entry) for entry in ranking["strategies"]]
    primary = next(entry for entry in strategies if entry.name == config.primary_strategy)
    use, trust = _embeddings(runs, opened), _trust_part(runs)
    guard = trust.poisoning
    body: dict[str, Any] = {
        "strategy": primary.name,
        "recallAt10": primary.measure("recall_at_10", config.level).value,
        "mrr": primary.measure("mrr", config.level).value,
        "cacheHitRate": max(0.0, 1 - use.embedded / use.needed),
        "version": __version__,
        "code": {"version": code_version(), "libraries": library_versions()},
        "features": {
            "FEATURE_HYBRID_RETRIEVAL": evaluation.settings.feature_hybrid_retrieval,
            "FEATURE_RAGAS_EVAL": evaluation.settings.feature_ragas_eval,
        },
        "evaluation": evaluation_part(evaluation),
        "gold": {**gold, "seeds": list(config.seeds)},
        "index": {
            "hash": primary.index_hash,
            "rev": corpus["corpus_rev"],
            "corpus_rev": corpus["corpus_rev"],
            "chunks_hash": chunks["chunks_hash"],
            "analyzer": stored.about.analyzer,
            "chunker": stored.about.chunker,
            "embed_model": primary.embed_model,
            "n_documents": corpus["n_documents"],
            "n_chunks": chunks["n_chunks"],
            "loader": corpus["loader"],
            "masked": corpus["masked"],
            "strategies": {
                name: {
                    "index_hash": run.about.index_hash,
                    "embed_model": "" if run.has_own_units else run.about.embed_model,
                }
                for name, run in runs.runs.items()
            },
        },
        "strategies": strategies,
        "comparisons": ranking["comparisons"],
        "stability": StabilityPart.model_validate(stability_measures(runs).json("about")),
        "embeddings": use,
        "vector_store": {
            "collections": {
                model: dataclasses.asdict(entry) for model, entry in stored.changes.vectors.items()
            },
            "dropped": stored.changes.dropped,
        },
        "reused": {
            "index": stored.artifact.reused,
            "runs": {name: runs.artifact(name).reused for name in runs.names},
        },
        "trust": trust,
        "poisonedBlocked": guard.n_blocked + guard.at_retrieval.n_blocked_chunks
        if guard.quarantine
        else 0,
        **_headline("avgTrustScore", trust.retrieved[primary.name].avg_trust),
        **_answer_parts(runs),
        "slices": _slices(runs),
        "overlap": overlap(runs),
    }
    baseline, fault = try_baseline(evaluation.settings.home, config.name)
    gold_set = gold_variants(evaluation)
    taken = take_snapshot(
        corpus_snapshot(evaluation).frame("documents"),
        gold_set.frame("qrels_document"),
        gold_set.frame("spans"),
    )
    body["drift"] = drift_part(baseline, fault, taken, to_jsonable_python(body))
    found = evaluation.runner.get(CalibratedMissRates)
    body |= {"uncertainty": found.uncertainty, "calibration": found.calibration}
    plain = to_jsonable_python(body)
    per_query = with_delta_s(
        ranking_measures(runs).frame("per_query"), stability_measures(runs).frame("per_run")
    )
    results = judge_gates(
        GateInputs(
            config=config,
            figures=figures_for_gates(body, config.level),
            answers=plain["answers"],
            trust=plain["trust"]["retrieved"],
            now=measured_run(plain, per_query),
            before=None if baseline is None else baseline.measured,
            baseline_fault=fault,
        )
    )
    return body | {"gates": [result.as_json() for result in results]}


def retrieval_metrics_report(evaluation: Evaluation, opened: IndexOpener, runs: Runs) -> Report:
    """Write every file of the gold set's folder of reports. The report comes last.

    The home also stores the run, so that later runs can be compared with it.
    """
    folder = evaluation.reports
    plain = finish(report_parts(opened, runs), dt.datetime.now(dt.UTC)).dump()
    kept = make_record(evaluation.config.name, artifact_keys(runs), plain)
    per_query = ranking_measures(runs).frame("per_query")
    history, previous = history_parts(evaluation, kept, runs.gold, per_query)
    plain |= {"history": history, "previous": previous}
    if previous is None:
        plain["previous_reason"] = NO_PREVIOUS
    report = Report.model_validate(plain)
    plain = report.dump()
    _remove_stale(runs, folder)
    exported = (path for path in exports(runs).folder.glob("*.*") if path.suffix in EXPORTED)
    for source in (
        *sorted(exported),
        evaluation.runner.get(CalibratedMissRates).artifact.path(UNCERTAIN_FILE),
        *evaluation.runner.get(MissRateCalibration).pictures,
    ):
        with atomic_path(folder / source.name) as partial:
            shutil.copyfile(source, partial)
    lines = evidence_lines(evidence_trust(evaluation), report.trust.as_of)
    write_bytes(folder / EVIDENCE_FILE, lines)
    write_measures(folder / "measures.csv", report.strategies)
    keep_run(evaluation.settings.home, kept, plain)
    # This run may end before it writes a verdict and a page of its own.
    _remove(folder, *VERDICT_FILES, PAGE, f"{TABLES}/*.csv", f"{TABLES}/*.tex")
    write_text(folder / REPORT_FILE, dumps(plain))
    write_verdict(verdict_rows(report, evaluation.config.name), folder)
    return report


def _remove(folder: Path, *patterns: str) -> None:
    for pattern in patterns:
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)


def _remove_stale(runs: Runs, folder: Path) -> None:
    """Remove files of an earlier run that this run does not replace.

    These are rankings, answers and pictures.
    """
    current = {f"run-{name}.trec" for name in runs.names}
    gone = [path.name for path in folder.glob("run-*.trec") if path.name not in current]
    without = ANSWER_FILES if runs.evaluation.config.answers is None else ()
    for name in (*gone, *PICTURES, *without):
        (folder / name).unlink(missing_ok=True)


def artifact_keys(runs: Runs) -> dict[str, str]:
    """Collect the artifact keys that give access to the details of a kept run."""
    evaluation = runs.evaluation
    kept = {
        "trust": evidence_trust(evaluation),
        "stability": stability_measures(runs),
        "cut": corpus_chunks(evaluation),
        "ranking": ranking_measures(runs),
        "corpus": corpus_snapshot(evaluation),
        "chunks": admitted_chunks(evaluation),
        "gold": gold_variants(evaluation),
        "explorer": explorer_bundle(runs),
        **{f"run {name}": runs.artifact(name) for name in runs.names},
        "miss_rate_claims": evaluation.runner.get(MissRateClaims).artifact,
    }
    if answered := find_answered(evaluation):
        kept["answers"] = answered.answers.artifact
        kept["citations"] = answered.citations.artifact
        kept["answer_measures"] = answered.measures.artifact
    return {stage: artifact.key for stage, artifact in kept.items()}


def exports(runs: Runs) -> Artifact:
    """Make the standard files once: per-query Parquet and CSV, TREC runs and qrels."""
    evaluation, ranking = runs.evaluation, ranking_measures(runs)
    gold, answered = gold_variants(evaluation), find_answered(evaluation)

    def make() -> dict[str, Any]:
        frame = ranking.frame("per_query")
        parts: dict[str, Any] = {
            "per-query": frame,
            "per-query.csv": per_query_csv(frame),
            "qrels.trec": trec_qrels(gold.frame("qrels_document")).encode(),
        }
        for name, run in runs.runs.items():
            documents, seed = runs.units(name)["doc_id"].to_numpy(), runs.first_seed(name)
            lines = trec_run(run.run, runs.gold.variants, documents, name, seed)
            parts[f"run-{name}.trec"] = lines.encode()
        return parts | (answer_files(answered) if answered else {})

    keys = [answered.answers.id, answered.citations.id] if answered else []
    return evaluation.memo("exports", evaluation.key("exports", ranking.key, runs.keys, keys), make)


# ---- HTML stage: write the page of a finished report, and the tables of its panels.

SUMMARY = "summary.json.gz"
MAX_QUESTIONS = 5000
"""Limit of the table for MLflow, because its page reads the whole table."""
BYTES_PER_1000 = 3_000_000
"""Byte limit of a page per 1,000 questions, and the limit for smaller gold sets."""


def built_page(report: Mapping[str, Any], bundle: Artifact | None) -> Built:
    """Build the page of a report with the questions of a stored bundle."""
    limit = BYTES_PER_1000 * max(1000, report["gold"]["n_queries"]) // 1000
    # The report file is sorted. Sorting makes the page independent of the source of the report.
    report = json.loads(dumps(report))
    return build(report, None if bundle is None else lambda left: slim(bundle, left), limit)


def bundle_of(runs: Runs, report: Report) -> Artifact | None:
    """Find the questions that the run of this report stored; None when they were removed.

    They are not made again, because a later computation would compare this run with itself or with
    a newer run.
    """
    kept = read_run(runs.evaluation.settings.home, report.run_id)
    return kept.artifact("explorer") if isinstance(kept, KeptRun) else explorer_bundle(runs)


def questions_table(runs: Runs, report: Report) -> dict[str, list[Any]]:
    """Make the table for MLflow: id, wording, recall and claimed miss rate.

    It holds the first MAX_QUESTIONS questions.
    """
    bundle = bundle_of(runs, report)
    if bundle is None:
        return {}
    summary = json.loads(gzip.decompress(bundle.path(SUMMARY).read_bytes()))
    questions, measure = summary["questions"], summary["measure"]
    found: dict[str, list[Any]] = {"query_id": questions["id"], "text": questions["text"]}
    for at, name in enumerate(summary["strategies"]):
        found[f"{name}: {measure}"] = questions["value"][at]
        found[f"{name}: miss rate"] = questions["miss"][at]
    return {name: values[:MAX_QUESTIONS] for name, values in found.items()}


def html_report(runs: Runs, report: Report) -> Path | None:
    """Write index.html, tables/*.csv and tables/*.tex; None when the settings want no page."""
    evaluation = runs.evaluation
    if not evaluation.settings.html_report:
        return None
    with evaluation.progress.step("Writing the HTML report"):
        built = built_page(report.dump(), bundle_of(runs, report))
        folder = evaluation.reports / TABLES
        folder.mkdir(parents=True, exist_ok=True)
        _remove(folder, "*.csv", "*.tex")  # an earlier run may have had other tables
        for name, text in built.files.items():
            write_text(folder / name, text)
        write_text(evaluation.reports / PAGE, built.html)
    return evaluation.reports / PAGE


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
        documents = corpus_snapshot(evaluation).frame("documents")
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
    """Return the trust of all chunks with marks for chunks withheld at retrieval, and a note.

    The note gives a reason when chunks that restate a question are not marked.
    """
    frame = evidence_trust(evaluation).frame("trust")
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
    ids = evidence_trust(evaluation).frame("trust")["chunk_id"].tolist()
    found = [place for place, name in enumerate(ids) if name == chunk_id]
    if not found and chunk_id:
        found = [place for place, name in enumerate(ids) if name.startswith(chunk_id)]
    if len(found) != 1:
        raise InputError(
            Problem(
                "unknown_chunk",
                f"{len(found)} chunks of {evaluation.config.name} go by this id",
                field="CHUNK_ID",
                found=chunk_id,
                accepted="a chunk_id as rag-eval trust list shows it, or the start of one",
            )
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
        stored, snapshot = evidence_trust(evaluation), corpus_snapshot(evaluation)
        row = _row_of(evaluation, chunk_id)
        chunk = corpus_chunks(evaluation).frame("chunks").iloc[row]
        facts = _rows(_with_restated(evaluation)[0].iloc[[row]])[0]
    owner, source = (
        snapshot.frame(part).set_index("doc_id").loc[facts["doc_id"]]
        for part in ("documents", "sources")
    )
    findings = stored.frame("findings")
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
            raise InputError(
                Problem(
                    "bad_decision",
                    "a decision needs who made it and why",
                    field=field,
                    found=f"{len(value)} characters",
                    accepted=f"1 to {most} characters of text in UTF-8",
                )
            )
    facts = inspect(evaluation, chunk_id)
    found, allowed = facts["chunk_id"], bool(facts["allowed_by"])
    if revoke and not allowed:
        message = "nobody allows this chunk, so there is nothing to take back"
        raise InputError(Problem("not_allowed", message, field="CHUNK_ID", found=found))
    if not revoke and facts["verdict"] not in {"blocked", AT_RETRIEVAL}:
        state = f"allowed by {facts['allowed_by']}" if allowed else facts["verdict"]
        raise InputError(
            Problem(
                "not_blocked",
                "only a blocked chunk can be allowed",
                field="CHUNK_ID",
                found=f"{found}: {state}",
                accepted="a chunk that rag-eval trust list shows as blocked",
            )
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
