"""Stages of the report: the report with every file beside it, its page, MLflow and the verdict."""

import dataclasses
import datetime as dt
import json
import shutil
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np
import pandas as pd
from pydantic_core import to_jsonable_python

from rag_eval import __version__
from rag_eval.core.arrays import BoolArray, FloatArray, IntArray
from rag_eval.core.config import FRESH, STALE, GoldSetConfig, Level
from rag_eval.core.errors import InputError, quoted
from rag_eval.core.report import (
    Absent,
    AnswersPart,
    CitationsPart,
    Embeddings,
    Estimate,
    Figure,
    GatePart,
    GateStatus,
    LintWarning,
    Poisoning,
    Record,
    Report,
    RunInputs,
    SliceFigure,
    SlicePart,
    SlicesPart,
    StrategyPart,
    TrustFactor,
    TrustPart,
    TrustScores,
    count_gates,
    number,
)
from rag_eval.core.types import ABSTAINED
from rag_eval.corpus.analyzer import Analyzer
from rag_eval.corpus.masking import mask_shown_address
from rag_eval.gates.gate import AcceptedRun, GateInputs
from rag_eval.gates.regression import with_delta_s
from rag_eval.gates.success import judge_success
from rag_eval.gates.verdict import judge_gates, required_failures
from rag_eval.measures.groundedness import comparable
from rag_eval.measures.intervals import aggregate, within_query
from rag_eval.measures.overlap import NamedGold
from rag_eval.pipeline.answers import (
    ABORT_LOG,
    RAGAS_OFF,
    Answered,
    AnswerMeasures,
    AnswerSet,
    CitationSet,
    answer_files,
    write_run_traces,
)
from rag_eval.pipeline.baselines import drift_part, find_targets, load_baseline
from rag_eval.pipeline.calibration import PICTURE, MissRateCalibration
from rag_eval.pipeline.claims import MissRateClaims
from rag_eval.pipeline.corpus import (
    AdmittedChunks,
    CorpusChunks,
    CorpusSnapshot,
    EvidenceTrust,
    GoldVariants,
)
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.explorer import (
    MEASURE,
    SUMMARY_FILE,
    Explored,
    missed_sentences,
    rank_missed,
    slim,
    unpacked,
    values_of,
    write_explorer,
)
from rag_eval.pipeline.guard import RestatedPassages
from rag_eval.pipeline.history import (
    NO_PREVIOUS,
    changes,
    configuration_part,
    find_previous,
    history_part,
    keep_run,
    make_record,
    past_runs,
    previous_part,
    run_inputs,
)
from rag_eval.pipeline.index import CorpusIndex, n_embedded
from rag_eval.pipeline.measures import HEADLINE, RankingMeasures, StrategyMeasures, list_measures
from rag_eval.pipeline.miss_rates import UNCERTAIN_FILE, CalibratedMissRates
from rag_eval.pipeline.misses import MissedQuestions
from rag_eval.pipeline.ragas import RagasMeasures
from rag_eval.pipeline.retrieval import StrategyRun
from rag_eval.pipeline.runner import Result, Stage, Table, Work, json_part
from rag_eval.pipeline.scores import LEVELS, ScoredRuns, figure_of, judge_runs, score_runs
from rag_eval.pipeline.stability import StabilityMeasures
from rag_eval.pipeline.trust import NOT_CONFIGURED, TrustMeasures
from rag_eval.reporting.exchange import StrategyRankings, exchange_files
from rag_eval.reporting.html.page import Built, build
from rag_eval.reporting.metrics_report import (
    REPORT_FILE,
    dumps,
    finish,
    write_measures,
)
from rag_eval.reporting.miss_rates import MISS_RATES_PAGE, MissRateTables
from rag_eval.reporting.mlflow import record
from rag_eval.reporting.terminal import interval
from rag_eval.reporting.verdicts import VERDICT_FILES, verdict_rows, write_verdict
from rag_eval.storage.artifacts import Artifact, Parts, atomic_path, write_bytes, write_text
from rag_eval.storage.hashing import code_version, library_versions
from rag_eval.storage.secrets import without_secrets
from rag_eval.trust.sources import FORMULA, POINTS, explain_factors

# ---- Inputs of the report.


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The results that a report shows, by the names of their rows."""

    runs: dict[str, StrategyRun]
    corpus_snapshot: CorpusSnapshot
    corpus_chunks: CorpusChunks
    evidence_trust: EvidenceTrust
    admitted_chunks: AdmittedChunks
    gold_variants: GoldVariants
    restated_passages: RestatedPassages
    corpus_index: CorpusIndex
    ranking_measures: RankingMeasures
    stability_measures: StabilityMeasures
    trust_measures: TrustMeasures
    missed_questions: MissedQuestions
    answers: AnswerSet | None
    citations: CitationSet | None
    answer_measures: AnswerMeasures | None
    ragas_measures: RagasMeasures | None
    miss_rate_claims: MissRateClaims
    miss_rate_calibration: MissRateCalibration
    calibrated_miss_rates: CalibratedMissRates

    @property
    def answered(self) -> Answered | None:
        """The results of the answer stages; None without configured answers."""
        if self.answers is None or self.citations is None or self.answer_measures is None:
            return None
        return Answered(self.answers, self.citations, self.answer_measures)

    @property
    def artifact_keys(self) -> dict[str, str]:
        """Keys of all results, which give access to the details of a kept run."""
        results = vars(self) | {f"run {name}": run for name, run in self.runs.items()}
        return {
            name: result.artifact.key
            for name, result in results.items()
            if isinstance(result, Result)
        }


# ---- Slices: recall and misses by tag, length and answerability.

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
        "the gold of these questions is not judged",
    ),
}
"""Slice -> its description, and the reason when no question of the slice is scored."""


@dataclasses.dataclass(frozen=True)
class Slice:
    """A part of the questions: `member` is bool [n_queries]."""

    kind: Literal["tag", "length", "answerability"]
    name: str
    about: str
    member: BoolArray
    unscored: str = UNSCORED


def _slices(work: Work, runs: ScoredRuns, measures: AnswerMeasures | None) -> SlicesPart:
    config = work.config

    def make() -> Parts:
        with work.progress.step("Measuring slices"):
            n_tags, tags = _tag_slices(runs.gold.queries["tags"].tolist())
            lengths = _length_slices(_count_words(runs.gold.queries["text"].tolist()))
            values = _values(runs)
            parts = [*_answerability(runs), *lengths, *tags]
            found = SlicesPart(
                measure=MEASURE,
                target=TARGET,
                k=config.uncertainty.k,
                level=config.level,
                n_tags=n_tags,
                by=[_slice_part(runs, part, values, measures) for part in parts],
            )
        return {"about": found.dump()}

    identity = [
        *(one.id for one in (runs.gold_variants, runs.admitted_chunks, *runs.runs.values())),
        [config.k, config.level, config.uncertainty.k, measures and measures.id],
    ]
    return SlicesPart.model_validate(work.keep("slices", identity, make).json("about"))


def _tag_slices(tags: Sequence[Sequence[str]], limit: int = MAX_TAGS) -> tuple[int, list[Slice]]:
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


def _count_words(texts: Sequence[str]) -> IntArray:
    """Count the indexed terms of each text, int64 [n]."""
    rows = Analyzer().index([comparable(text) for text in texts])
    return np.array([len(row) for row in rows], dtype=np.int64)


def _length_slices(words: IntArray) -> list[Slice]:
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
            found.append(Slice("length", name, about, member))
    return found


def _answerability(runs: ScoredRuns) -> list[Slice]:
    """Slice by whether the gold set says that the corpus has the answer."""
    gold = runs.gold
    answerable = gold.queries["answerable"].to_numpy(dtype=bool)
    # Without a flag or a judgement, nobody knows whether the corpus answers a recorded question.
    known = runs.gold_variants.answerable_known | (gold.qrels_document.n_relevant > 0)
    unknown = answerable & ~known
    members = {"answerable": answerable & ~unknown, "unanswerable": ~answerable, "unknown": unknown}
    return [
        Slice("answerability", name, ANSWERABILITY[name][0], member, ANSWERABILITY[name][1])
        for name, member in members.items()
        if member.any()
    ]


def _values(runs: ScoredRuns) -> FloatArray:
    """Collect recall and misses of each strategy.

    The array is [n_queries, 2 x n_strategies]. Questions without gold are NaN.
    """
    gold, columns = runs.gold, []
    for name, recall in zip(runs.names, values_of(runs), strict=True):
        judged = judge_runs(runs, name)
        missed = judged.missed(TARGET, runs.config.uncertainty.k)
        miss_rate = within_query(missed, gold.query_of[judged.variant], len(gold.queries))[:, 0]
        columns += [recall, miss_rate]
    return np.stack(columns, axis=1)


def _slice_part(
    runs: ScoredRuns, part: Slice, values: FloatArray, measures: AnswerMeasures | None
) -> SlicePart:
    labels = [f"{label} of {name}" for name in runs.names for label in (MEASURE, TARGET)]
    groups = runs.gold.groups[part.member]
    gold = runs.gold.shared.take(part.member)
    records = aggregate(labels, values[part.member], gold)
    strategies = {}
    for at, name in enumerate(runs.names):
        reason = runs.unmeasured(name).get(runs.config.level, part.unscored)
        recall, missed = (
            figure_of(record, None if record.n_scored else reason)
            for record in records[2 * at : 2 * at + 2]
        )
        strategies[name] = SliceFigure(**dict(recall), miss=missed)
    abstention: Figure | Absent = Absent(reason=NO_ANSWERS)
    if measures is not None:
        abstained = measures.per_question["outcome"].isin(ABSTAINED).to_numpy(dtype=np.float64)
        column = abstained[part.member][:, None]
        abstention = figure_of(aggregate(["abstention"], column, gold)[0])
    return SlicePart.model_validate(
        {
            **{name: getattr(part, name) for name in ("kind", "name", "about")},
            "n_queries": int(part.member.sum()),
            "n_groups": len(np.unique(groups)),
            "strategies": strategies,
            **({"abstention": abstention} if part.kind == "answerability" else {}),
        }
    )


# ---- Trust and poisoning in the report, and evidence-trust.jsonl with one line per chunk.

EVIDENCE_FILE = "evidence-trust.jsonl"
BINS, MAX_QUARANTINED, MAX_ID = 10, 50, 200
LINE_VERSION = 1
"""Schema version of the lines of evidence-trust.jsonl."""
STATES = ("domain_state", "signature_state", "author_state", "freshness_state")


def _evidence_lines(trust: pd.DataFrame, as_of: str) -> bytes:
    """Write one JSON line per chunk (`evidence-trust-line.schema.json`), in order of the chunks.

    A label has the chunk's number in its document. It changes with the document, unlike the id.
    """
    day = dt.date.fromisoformat(as_of)
    numbers = trust.groupby("doc_id").cumcount() + 1
    lines = [
        {
            "schema_version": LINE_VERSION,
            "chunkId": row["chunk_id"],
            "doc_id": row["doc_id"],
            "label": f"{row['doc_id']}-chunk{place}",
            "trustScore": number(row["trust"]),
            "domain": row["domain"] or None,
            "signature": row["signature_state"],
            "timestamp": row["date"] or None,
            "factors": explain_factors(row, day),
            "blocked": row["verdict"] == "blocked",
            "reasons": list(row["reasons"]),
        }
        for row, place in zip(trust.to_dict("records"), numbers.tolist(), strict=True)
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


def _poisoning(config: GoldSetConfig, made: Inputs, frame: pd.DataFrame) -> Poisoning:
    """Describe the findings of the guard, with at most fifty relevant documents and chunks."""
    about, gold = made.evidence_trust.about, made.gold_variants.blocked
    documents = made.corpus_snapshot.documents
    urls = dict(zip(documents["doc_id"].tolist(), documents["source_url"].tolist(), strict=True))
    poor = frame[frame["verdict"] == "blocked"]
    reasons = Counter(code for codes in frame["reasons"].tolist() for code in codes)
    return Poisoning.model_validate(
        {
            "rules_version": about.rules_version,
            "quarantine": config.trust.quarantine,
            "n_chunks": len(frame),
            "n_documents": int(frame["doc_id"].nunique()),
            "n_blocked": len(poor),
            "n_blocked_documents": int(poor["doc_id"].nunique()),
            "n_warned": int((frame["verdict"] == "warning").sum()),
            "n_allowed": int((frame["allowed_by"] != "").sum()),
            "reasons": dict(sorted(reasons.items())),
            "manifest": about.manifest,
            "quarantined": [
                {
                    "chunk_id": row["chunk_id"],
                    "doc_id": quoted(row["doc_id"], MAX_ID),
                    "source_url": quoted(mask_shown_address(urls[row["doc_id"]]), MAX_ID),
                    "reasons": list(row["reasons"]),
                }
                for row in poor.head(MAX_QUARANTINED).to_dict("records")
            ],
            "gold": gold.model_copy(
                update={
                    "documents": [
                        document.model_copy(update={"doc_id": quoted(document.doc_id, MAX_ID)})
                        for document in gold.documents[:MAX_QUARANTINED]
                    ]
                }
            ),
            "at_retrieval": {
                **dataclasses.asdict(made.restated_passages.about),
                "dropped": {name: run.about.n_dropped for name, run in made.runs.items()},
            },
        }
    )


UNCONFIGURED: Final = {
    "domain": "the gold set lists no domains",
    "signature": "the gold set names no keys, and no source records hashes",
    "author": "the gold set names no authors",
}
UNDATED: Final = "no document has a date that can be read"


def _trust_factors(states: Mapping[str, Mapping[str, int]]) -> list[TrustFactor]:
    """Count the chunks that earn each factor; `states` counts chunks by column and state."""
    found = list[TrustFactor]()
    parts = {name: (state, f"{weight:g} for {state}") for name, (state, weight) in POINTS.items()}
    fallen = f"times {FRESH:g}, falling to {STALE:g} after a year or without a date"
    for factor, (state, points) in {**parts, "freshness": ("dated", fallen)}.items():
        counts = states[f"{factor}_state"]
        reason = UNCONFIGURED.get(factor) if set(counts) <= {"not_configured"} else None
        if factor == "freshness" and not counts.get(state):
            reason = UNDATED
        about = {"factor": factor, "points": points, "status": "measured"}
        if reason is not None:
            about |= {"status": "insufficient_evidence", "reason": reason}
        numbers = {"n": counts.get(state, 0), "of": sum(counts.values())}
        found.append(TrustFactor.model_validate(about | numbers))
    return found


def _trust_part(config: GoldSetConfig, made: Inputs) -> TrustPart:
    about, frame, configured = made.evidence_trust.about, made.evidence_trust.trust, config.trust
    states = {name: dict(sorted(Counter(frame[name]).items())) for name in STATES}
    return TrustPart.model_validate(
        {
            "as_of": about.as_of,
            "notes": about.notes,
            "configured": {
                "domains": len(configured.domains),
                "authors": len(configured.authors),
                "keys": len(configured.keys),
                "manifest": configured.manifest is not None,
                "unlisted": configured.unlisted,
            },
            "scores": _trust_scores(frame),
            "states": states,
            "formula": FORMULA,
            "factors": _trust_factors(states),
            "retrieved": made.trust_measures.strategies,
            "filter": made.trust_measures.filter,
            "poisoning": _poisoning(config, made, frame),
        }
    )


# ---- Report stage: assemble the stored results, judge the floors, and write every file.

EXPORTED = {".csv", ".parquet", ".trec", ".jsonl", ".log", ".md"}
PAGE, TABLES = "index.html", "tables"
PAGES: Final = (PAGE, MISS_RATES_PAGE)
ANSWER_FILES: Final = (
    *(f"{name}.jsonl" for name in ("answers", "citations", "preflights", "rejected")),
    *("auditable-answers.jsonl", "events.log", "traces.log"),
)
REPLACED: Final = (
    *("run-*.trec", PICTURE, *PAGES, f"{TABLES}/*.csv", f"{TABLES}/*.tex"),
    *(*ANSWER_FILES, *VERDICT_FILES, ABORT_LOG),
)
"""Files that every run writes anew, or removes."""
CITATION_MEASURES: Final = (
    "coverage",
    *(
        f"citation_{name}"
        for name in ("precision", "recall", "match_rate", "validity_rate", "support")
    ),
)
NOT_SEEN: Final = {
    "ann_recall": "the index of an external retriever is not visible to rag_eval",
    "cost_per_1k": "the cost of an external retriever is not known",
}


def _embeddings(made: Inputs) -> Embeddings:
    """Count the texts that needed a vector, and the texts without a cached vector."""
    models, expanded = {made.stability_measures.about.embedding}, 0
    for run in made.runs.values():
        models.add(run.about.rerank_model)
        if not run.has_own_units:
            models.add(run.about.embed_model)
        if run.expansions is not None and run.about.embed_model:
            expanded += len(run.expansions)
    models.discard("")
    texts = made.admitted_chunks.about.n_chunks + len(set(made.gold_variants.texts))
    return Embeddings(
        models=sorted(models),
        needed=len(models) * texts + expanded,
        embedded=n_embedded(made.admitted_chunks),
    )


def _strategy(work: Work, runs: ScoredRuns, entry: StrategyMeasures) -> StrategyPart:
    run, spec = runs.runs[entry.name], runs.spec(entry.name)
    about, more = run.about, dict[str, object]()
    price = spec.question_price(work.settings.price_per_1k_embedding_tokens)
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
    same = ("kind", "index_hash", "embed_model", "n_runs", "n_empty", "n_failed", "first_failure")
    return StrategyPart.model_validate(
        {
            "name": spec.name,
            **{name: getattr(about, name) for name in same},
            "configuration": configuration_part(spec),
            "rerank": spec.rerank.kind if spec.rerank else None,
            "seeds": {"configured": work.config.seeds, "matter": about.seed_matters},
            "measures": entry.measures,
            "ann_recall": entry.ann_recall,
            "latency_ms": run.timing.latency_ms,
            "cost_per_1k": cost,
            **more,
        }
    )


def _warnings(made: Inputs) -> list[LintWarning]:
    """List the warnings about the gold set and all recorded outputs, without repetitions.

    Questions, a strategy and answers can have the same file of recorded outputs.
    """
    warnings = [*made.gold_variants.about.warnings]
    warnings += [warning for run in made.runs.values() for warning in run.about.warnings]
    warnings += [] if made.answered is None else made.answered.answers.about.warnings
    return [one for at, one in enumerate(warnings) if one not in warnings[:at]]


def _answer_parts(answered: Answered | None) -> dict[str, object]:
    """Make the report fields of answers and citations."""
    if answered is None:
        absent = Absent(reason=NO_ANSWERS)
        return {
            "answers": absent,
            "citations": absent,
            "groundedness": None,
            "groundedness_reason": NO_ANSWERS,
            "faithfulness": None,
            "faithfulness_reason": RAGAS_OFF,
        }
    about, found = answered.answers.about, answered.measures.about
    codes, usage = answered.citations.about, answered.answers.usage
    judged = answered.measures.verifier_usage
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
            "abstention": about.abstention and dataclasses.asdict(about.abstention),
            "measures": [one for one in found.measures if one.name not in CITATION_MEASURES],
            "gap": found.gap,
            "faithfulness": found.faithfulness,
            "usage": {} if usage is None else dataclasses.asdict(usage),
            **_count_findings(about.counts),
            **({} if found.verifier is None else {"verifier": found.verifier}),
            **({} if judged is None else {"verifier_usage": dataclasses.asdict(judged)}),
        }
    )
    of_citations = [one for one in found.measures if one.name in CITATION_MEASURES]
    return {
        "answers": part,
        "citations": CitationsPart.model_validate(
            {
                "n_citations": codes.n_citations,
                "codes": codes.codes,
                "measures": of_citations,
                "n_unsupported": found.n_unsupported,
                "unsupported": found.unsupported,
            }
        ),
        **_headline("faithfulness", part.faithfulness),
        **_headline("groundedness", next(m for m in part.measures if m.name == "groundedness")),
    }


def _count_findings(counts: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Make the report field of what postprocessors found; empty if they found nothing."""
    prefix = "finding."
    found = {name.removeprefix(prefix): n for name, n in counts.items() if name.startswith(prefix)}
    return {"findings": found} if found else {}


def _headline(name: str, figure: Estimate) -> dict[str, object]:
    """Return a figure for the top of the report, with the reason when the value is missing."""
    reason = {} if figure.value is not None else {f"{name}_reason": figure.why["value"]}
    return {name: figure.value, **reason}


def _figures_for_gates(report: Mapping[str, Any], level: Level) -> dict[str, Mapping[str, object]]:
    """Collect all figures that gates compare with floors, as name -> JSON values.

    `report` has the fields that are known before the gates, by name.
    """
    name = report["strategy"]
    primary = next(entry for entry in report["strategies"] if entry.name == name)
    stability = report["stability"].strategies[name]
    records: dict[str, Record] = {
        record.name: record for record in primary.measures if record.level == level
    }
    records |= {
        "delta_s": stability.delta_s,
        "avg_trust_score": report["trust"].retrieved[name].avg_trust,
        "convergent_hit_share": stability.convergent_and_hit,
    }
    cost = primary.cost_per_1k
    for part in (report["answers"], report["citations"]):
        if not isinstance(part, Absent):
            records |= {record.name: record for record in part.measures}
    if isinstance(report["answers"], AnswersPart):
        records["faithfulness"] = report["answers"].faithfulness
        if cost is not None:
            cost += report["answers"].usage.get("cost_per_1k", 0.0)
    figures: dict[str, Mapping[str, object]] = {
        **{name: record.dump() for name, record in records.items()},
        "cost_per_1k": {"value": cost, "reason": primary.why.get("cost_per_1k", "")},
        "cache_hit_rate": {"value": report["cacheHitRate"]},
    }
    for at in ("p50", "p95", "p99"):
        figures[f"latency_{at}_ms"] = {"value": getattr(primary.latency_ms, at)}
    return figures


def _report_parts(work: Work, made: Inputs, runs: ScoredRuns) -> dict[str, object]:
    """Make the report fields without hash, id, time and history."""
    config, settings = work.config, work.settings
    corpus, chunks = made.corpus_snapshot.about, made.admitted_chunks.about
    index = made.corpus_index.about
    ranking = made.ranking_measures.about
    strategies = [_strategy(work, runs, entry) for entry in ranking.strategies]
    primary = next(entry for entry in strategies if entry.name == config.primary_strategy)
    use, trust = _embeddings(made), _trust_part(config, made)
    guard = trust.poisoning
    body: dict[str, object] = {
        "strategy": primary.name,
        "recallAt10": primary.measure("recall_at_10", config.level).value,
        "mrr": primary.measure("mrr", config.level).value,
        "cacheHitRate": max(0.0, 1 - use.embedded / use.needed),
        "version": __version__,
        "code": {"version": code_version(), "libraries": library_versions()},
        "features": {
            "FEATURE_HYBRID_RETRIEVAL": settings.feature_hybrid_retrieval,
            "FEATURE_RAGAS_EVAL": settings.feature_ragas_eval,
        },
        "evaluation": {
            **{name: getattr(config, name) for name in ("k", "depth", "level")},
            "primary": config.primary_strategy,
            "partial": work.evaluation.partial,
            "known": work.evaluation.known,
        },
        "gold": {
            **made.gold_variants.about.model_dump(),
            "seeds": list(config.seeds),
            "warnings": _warnings(made),
        },
        "index": {
            "hash": primary.index_hash,
            "rev": corpus.corpus_rev,
            "corpus_rev": corpus.corpus_rev,
            "chunks_hash": chunks.chunks_hash,
            "analyzer": index.analyzer,
            "chunker": index.chunker,
            "embed_model": primary.embed_model,
            "n_documents": corpus.n_documents,
            "n_chunks": chunks.n_chunks,
            "loader": corpus.loader,
            "masked": corpus.masked,
            "strategies": {
                name: {
                    "index_hash": run.about.index_hash,
                    "embed_model": "" if run.has_own_units else run.about.embed_model,
                }
                for name, run in made.runs.items()
            },
        },
        "strategies": strategies,
        "comparisons": ranking.comparisons,
        "stability": made.stability_measures.about,
        "embeddings": use,
        "reused": {
            "index": made.corpus_index.artifact.reused,
            "runs": {name: run.artifact.reused for name, run in made.runs.items()},
        },
        "trust": trust,
        "poisonedBlocked": guard.n_blocked + guard.at_retrieval.n_blocked_chunks
        if guard.quarantine
        else 0,
        **_headline("avgTrustScore", trust.retrieved[primary.name].avg_trust),
        **_answer_parts(made.answered),
        **({} if made.ragas_measures is None else {"ragas": made.ragas_measures.figures}),
        "slices": _slices(work, runs, made.answer_measures),
        "overlap": made.ranking_measures.overlap,
        "misses": made.missed_questions.about,
        "uncertainty": made.calibrated_miss_rates.uncertainty,
        "calibration": made.calibrated_miss_rates.calibration,
    }
    plain = to_jsonable_python(body)
    return body | _compare_with_baseline(work, made, body, plain, runs.gold.named_gold)


def _compare_with_baseline(
    work: Work,
    made: Inputs,
    body: Mapping[str, Any],
    plain: Mapping[str, Any],
    shared: NamedGold,
) -> dict[str, object]:
    """Make the report fields `drift` and `gates`; `plain` are the JSON values of `body`.

    A damaged baseline raises no error here, because the report must not fail.
    """
    config, gold, documents = work.config, made.gold_variants, made.corpus_snapshot.documents
    baseline, fault = None, ""
    try:
        baseline = load_baseline(work.settings.home, config.name)
    except InputError as error:
        fault = quoted(error.problems[0].message, 300)
    now, accepted = RunInputs.model_validate(run_inputs(plain)), None
    if baseline is not None:
        found = changes(baseline.run, now)
        accepted = AcceptedRun(baseline.run.run_id, baseline.per_query, found)
    inputs = GateInputs(
        config=config,
        figures=_figures_for_gates(body, config.level),
        answers=plain["answers"],
        trust=plain["trust"]["retrieved"],
        trust_factors=body["trust"].factors or (),
        gold=shared,
        per_query=with_delta_s(made.ranking_measures.per_query, made.stability_measures.per_run),
        baseline=accepted,
        baseline_fault=fault,
        is_first=not past_runs(work.settings.home, config.name)[0],
    )
    targets = find_targets(documents, gold.qrels_document, gold.spans)
    return {
        "drift": drift_part(baseline, fault, now, documents, targets),
        "gates": [gate.dump() for gate in judge_gates(inputs)],
    }


GATE_COLUMNS: Final = ("id", "required", "status", "reason_code", "found", "accepted")


def _show_gate(gate: GatePart) -> dict[str, object]:
    """Make the row of a gate in the summary for people."""
    bounds = (gate.evidence.get(name) for name in ("value", "ci_low", "ci_high"))
    found: list[Any] = [bound if isinstance(bound, int | float) else None for bound in bounds]
    return gate.dump() | {"found": interval(*found), "accepted": gate.evidence.get("accepted")}


class MetricsReport(Result):
    """The report of a run. Only `content_hash` is part of the identity: equal inputs repeat it.

    Attributes
    ----------
    explorer
        Key of the explorer's parts.
    trace_error
        Reason why the traces were not written; empty when they were.
    folder
        Folder of the report and its files.
    """

    content_hash: str = json_part()
    report: Report = json_part(volatile=True)
    explorer: str = json_part(volatile=True)
    trace_error: str = json_part(volatile=True)
    folder: str = json_part(volatile=True)

    def describe(self) -> dict[str, object]:
        """Show the headline figures with their denominators, latency and gates."""
        report = self.report
        entries = [entry.dump() for entry in report.strategies]
        latency = [{"strategy": entry["name"], **entry["latency_ms"]} for entry in entries]
        gates = [_show_gate(gate) for gate in report.gates]
        return {
            "run_id": report.run_id,
            "content_hash": report.content_hash,
            "index_hash": report.index.hash,
            "strategy": report.strategy,
            "recall_at_10": report.recallAt10,
            "mrr": report.mrr,
            "cache_hit_rate": report.cacheHitRate,
            "n_queries": report.gold.n_queries,
            "n_groups_answerable": report.gold.n_groups_answerable,
            **list_measures(entries, report.evaluation.level, HEADLINE),
            "latency_ms": Table(("strategy", "n", "p50", "p95", "p99"), latency),
            "verdict": count_gates((gate.required, gate.status) for gate in report.gates),
            "gates": Table(GATE_COLUMNS, gates),
            "look_first": Table(
                ("query_id", "text", "n_found", "n_runs", "miss_rate", "status"),
                [one.dump() | one.primary.dump() for one in report.look_first or ()],
            ),
            "report": self.folder,
            "trace_error": self.trace_error or "none",
        }


@Stage(
    "retrieval_metrics_report",
    "reporting",
    given=tuple(field.name for field in dataclasses.fields(Inputs)),
    stores=("baselines", "kept_runs", "traces", "reports"),
    live=True,
)
def write_report(work: Work, **results: Any) -> MetricsReport:
    """Write retrieval-metrics.json and its tables. Every figure carries its index_hash and rev.

    `results` are the `Inputs`. The report comes last. The home also stores the run, so that later
    runs can be compared with it.
    """
    made, folder, settings = Inputs(**results), work.evaluation.reports, work.settings
    runs = score_runs(work.config, made.gold_variants, made.admitted_chunks, made.runs)
    plain = finish(_report_parts(work, made, runs), dt.datetime.now(dt.UTC)).dump()
    now = make_record(work.config.name, {}, plain)
    # Runs with a later date come from a wrong clock and are left out.
    past, unreadable = past_runs(settings.home, now.gold_set, before=now.run_id)
    previous = find_previous(past, now, runs.gold)
    explored = Explored(
        runs,
        made.corpus_snapshot,
        made.corpus_chunks,
        made.evidence_trust,
        made.stability_measures,
        made.miss_rate_claims,
        made.missed_questions,
        made.answered,
    )
    explorer = write_explorer(work, explored, previous)
    summary = unpacked(explorer.path(SUMMARY_FILE).read_bytes())
    sentences = missed_sentences(made.missed_questions.missed)
    plain |= {
        "history": history_part(past, unreadable, now),
        "previous": None,
        "look_first": rank_missed(
            summary,
            runs.gold.groups,
            {
                query_id: sentence
                for (name, query_id), sentence in sentences.items()
                if name == work.config.primary_strategy
            },
        ),
    }
    if previous is None:
        plain["previous_reason"] = NO_PREVIOUS
    else:
        per_query = made.ranking_measures.per_query
        plain["previous"] = previous_part(previous, now, runs.gold, per_query)
    report = Report.model_validate(plain)
    success = judge_success(report, made.ranking_measures.per_query, runs.gold.named_gold)
    report = report.model_copy(update={"success": success})
    plain = report.dump()
    exports = _exports(work, made, runs)
    sources = [
        *(path for path in exports.folder.glob("*.*") if path.suffix in EXPORTED),
        made.calibrated_miss_rates.artifact.path(UNCERTAIN_FILE),
        *filter(None, [made.miss_rate_calibration.picture]),
    ]
    for source in sources:
        with atomic_path(folder / source.name) as partial:
            shutil.copyfile(source, partial)
    lines = _evidence_lines(made.evidence_trust.trust, report.trust.as_of)
    write_bytes(folder / EVIDENCE_FILE, lines)
    write_measures(folder / "measures.csv", report.strategies)
    keys = made.artifact_keys | {"explorer": explorer.key, "exports": exports.key}
    keep_run(settings.home, now, keys, plain)
    # This run may end before it writes its verdict and page, so none of an earlier run may stay.
    _remove(folder, {source.name for source in sources}, *REPLACED)
    write_text(folder / REPORT_FILE, dumps(plain))
    write_verdict(verdict_rows(report, work.config.name), folder)
    _publish(work.evaluation)
    return MetricsReport(
        content_hash=report.content_hash,
        report=report,
        explorer=explorer.key,
        folder=str(folder.resolve()),
        trace_error=write_run_traces(work, made.answers, runs, made.stability_measures, report),
    )


def _publish(evaluation: Evaluation) -> None:
    """Copy the primary gold set's report, page and trust to the top of the folder of reports."""
    if not evaluation.is_primary:
        return
    top = evaluation.settings.reports
    # Neither may stand beside the report of another run.
    for name in (*PAGES, EVIDENCE_FILE):
        (top / name).unlink(missing_ok=True)
    for name in (REPORT_FILE, *PAGES, EVIDENCE_FILE):
        if (evaluation.reports / name).is_file():
            with atomic_path(top / name) as partial:
                shutil.copyfile(evaluation.reports / name, partial)


def _remove(folder: Path, kept: Container[str], *patterns: str) -> None:
    for pattern in patterns:
        for path in folder.glob(pattern):
            if path.name not in kept:
                path.unlink(missing_ok=True)


def _exports(work: Work, made: Inputs, runs: ScoredRuns) -> Artifact:
    """Make the files that other tools read, once."""
    answered, gold = made.answered, made.gold_variants

    def make() -> Parts:
        rankings = {
            name: StrategyRankings(run.run, runs.units(name), runs.first_seed(name))
            for name, run in made.runs.items()
        }
        frame = made.ranking_measures.per_query
        files = exchange_files(frame, gold.qrels_document, gold.variants, rankings)
        if answered is None:
            return files
        return files | answer_files(answered, made.stability_measures, runs)

    identity = [made.ranking_measures.id, gold.id, made.admitted_chunks.id]
    identity += [made.stability_measures.id]
    identity += [run.id for run in made.runs.values()]
    return work.keep("exports", [*identity, answered and answered.ids], make)


# ---- The page of a finished report, and the tables of its panels.

MAX_QUESTIONS = 5000
"""Largest number of rows in the table for MLflow, because MLflow's page reads the whole table."""
BYTES_PER_1000 = 3_000_000
"""Largest size of a page in bytes per 1,000 questions. Smaller gold sets have the same limit."""


def built_page(report: Mapping[str, Any], bundle: Artifact | None) -> Built:
    """Build the page of a report with the questions of a stored bundle."""
    limit = BYTES_PER_1000 * max(1000, report["gold"]["n_queries"]) // 1000
    # `dumps` sorts the keys, so a report from memory gives the same page as a report from a file.
    report = json.loads(dumps(report))
    return build(report, None if bundle is None else lambda left: slim(bundle, left), limit)


def _questions_of(work: Work, made: MetricsReport) -> Artifact | None:
    """Open the explorer of a report; None when it was removed."""
    return work.evaluation.store.get("explorer", made.explorer)


class HtmlReport(Result):
    """Places of the page, its tables and its pictures; empty when the settings want no page."""

    content_hash: str = json_part()
    about: dict[str, str | int] = json_part(volatile=True)

    def describe(self) -> Mapping[str, object]:
        """Show the places of the page, its size, and its address in the viewer."""
        return self.about or {"page": "not written: html_report is off"}


@Stage("html_report", "reporting", stores=("reports",), live=True, kinds=("html",))
def write_page(work: Work, retrieval_metrics_report: MetricsReport) -> HtmlReport:
    """Write index.html and miss-rates.html, which open from disk, and tables as CSV and LaTeX."""
    report, place = retrieval_metrics_report.report, work.evaluation.reports
    if not work.settings.html_report:
        return HtmlReport(content_hash=report.content_hash, about={})
    with work.progress.step("Writing the HTML report"):
        built = built_page(report.dump(), _questions_of(work, retrieval_metrics_report))
        tables = MissRateTables([report]).files()
        pages = {PAGE: built.html, MISS_RATES_PAGE: tables.pop(MISS_RATES_PAGE)}
        (place / TABLES).mkdir(parents=True, exist_ok=True)
        for name, text in (dict(built.files) | tables).items():
            write_text(place / TABLES / name, text)
        for name, text in pages.items():
            write_text(place / name, text)
    _publish(work.evaluation)
    folder = place.resolve()
    about: dict[str, str | int] = {
        "page": str(folder / PAGE),
        "miss_rates": str(folder / MISS_RATES_PAGE),
        "page_bytes": (folder / PAGE).stat().st_size,
        "tables": str(folder / TABLES),
        "viewer": f"http://127.0.0.1:{work.settings.view_port}/runs/{report.run_id}/",
        **{path.stem.replace("-", "_"): str(path) for path in sorted(folder.glob("*.svg"))},
    }
    return HtmlReport(content_hash=report.content_hash, about=about)


# ---- The record in MLflow.

RECORDED: Final = (
    REPORT_FILE,
    *PAGES,
    *("measures.csv", "per-query.parquet", EVIDENCE_FILE),
    *("answers.jsonl", "auditable-answers.jsonl", "citations.jsonl"),
)
"""Files that MLflow stores for every run, beside the charts."""


class MlflowRecord(Result):
    """The run in MLflow, or the reason why MLflow did not record the run.

    Attributes
    ----------
    runs_page
        Address of the runs of this gold set in the MLflow UI; empty after an error.
    """

    mlflow_run: str = json_part()
    runs_page: str = json_part(volatile=True)
    run_id: str = json_part(volatile=True)
    error: str = json_part()

    def describe(self) -> dict[str, object]:
        """Show the ids of the run in MLflow and in the home, and where its runs are."""
        if self.error:
            return {}
        return {"mlflow_run": self.mlflow_run, "run_id": self.run_id, "runs": self.runs_page}


@Stage(
    "mlflow_record",
    "reporting",
    stores=("reports", "mlflow"),
    after=("html_report",),
    live=True,
    kinds=("mlflow",),
    failure=lambda result: result.error,
)
def record_in_mlflow(work: Work, retrieval_metrics_report: MetricsReport) -> MlflowRecord:
    """Record the report in MLflow. A failure of the tracking store does not affect the report."""
    report, folder = retrieval_metrics_report.report, work.evaluation.reports
    settings, uri, run, page, error = work.settings, work.settings.mlflow_uri, "", "", ""
    files = [folder / name for name in RECORDED if (folder / name).is_file()]
    try:
        run, page = record(
            report,
            work.config.name,
            uri,
            [*files, *sorted(folder.glob("*.svg"))],
            settings.home / "mlartifacts",
            tags=dict(work.evaluation.tags),
            questions=_questions_table(_questions_of(work, retrieval_metrics_report)),
        )
    except Exception as failure:  # noqa: BLE001 - a tracking store may raise any exception
        reason = quoted(without_secrets(f"{type(failure).__name__}: {failure}", uri), 400)
        error = f"MLflow did not record this run ({reason}); the report is complete"
    return MlflowRecord(mlflow_run=run, runs_page=page, run_id=report.run_id, error=error)


def _questions_table(bundle: Artifact | None) -> dict[str, list[Any]]:
    """Make the table for MLflow: id, wording, recall and claimed miss rate.

    It holds the first MAX_QUESTIONS questions.
    """
    if bundle is None:
        return {}
    summary = unpacked(bundle.path(SUMMARY_FILE).read_bytes())
    questions, measure = summary["questions"], summary["measure"]
    found: dict[str, list[Any]] = {"query_id": questions["id"], "text": questions["text"]}
    for at, name in enumerate(summary["strategies"]):
        found[f"{name}: {measure}"] = questions["value"][at]
        found[f"{name}: miss rate"] = questions["miss"][at]
    return {name: values[:MAX_QUESTIONS] for name, values in found.items()}


# ---- The verdict of the gates.


class GateVerdict(Result):
    """The gates of a report, and the ids of the required gates that did not pass."""

    content_hash: str = json_part()
    failed: list[str] = json_part()
    run_id: str = json_part(volatile=True)
    gates: list[GatePart] = json_part(volatile=True)

    def describe(self) -> dict[str, object]:
        """Show the verdict and every gate."""
        gates = [_show_gate(gate) for gate in self.gates]
        statuses = get_args(GateStatus)
        return {
            "verdict": "fail" if self.failed else "pass",
            "required_failures": ", ".join(self.failed) or "none",
            **{
                f"n_{status}": sum(gate["status"] == status for gate in gates)
                for status in statuses
            },
            "counts": count_gates((gate.required, gate.status) for gate in self.gates)
            or "no gates",
            "gates": Table((*GATE_COLUMNS, "severity"), gates),
            "run_id": self.run_id,
        }


def _explain_failure(result: GateVerdict) -> str:
    """Say which required gates did not pass; empty when all did."""
    named = ", ".join(result.failed)
    return f"required gates did not pass: {named}" if named else ""


@Stage(
    "gate_verdict",
    "reporting",
    after=("html_report", "mlflow_record"),
    live=True,
    kinds=("python",),
    failure=_explain_failure,
)
def judge_report(_: Work, retrieval_metrics_report: MetricsReport) -> GateVerdict:
    """Fail the run when a required gate did not pass. Everything else is written by then."""
    report = retrieval_metrics_report.report
    return GateVerdict(
        content_hash=report.content_hash,
        failed=required_failures(report.gates),
        run_id=report.run_id,
        gates=report.gates,
    )
