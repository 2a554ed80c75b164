"""Stage `retrieval_metrics_report`: the report, assembled from the results of all stages."""

import dataclasses
import datetime as dt
import shutil
from collections import Counter
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from pydantic_core import to_jsonable_python

from rag_eval import __version__
from rag_eval.core.config import FRESH, STALE, GoldSetConfig
from rag_eval.core.errors import InputError, quoted
from rag_eval.core.records import Absent, Estimate, Open, Record, number
from rag_eval.core.strategy import Strategy
from rag_eval.core.types import Level
from rag_eval.corpus.masking import mask_shown_address
from rag_eval.gates.gate import AcceptedRun, GateInputs
from rag_eval.gates.gate_report import RunInputs
from rag_eval.gates.regression import with_delta_s
from rag_eval.gates.verdict import judge_gates
from rag_eval.gold.gold_report import LintWarning
from rag_eval.measures.answer_report import AnswersPart, CitationsPart
from rag_eval.measures.overlap import NamedGold
from rag_eval.measures.strategy_report import StrategyPart
from rag_eval.pipeline.answers import (
    ABORT_LOG,
    RAGAS_OFF,
    Answered,
    AnswerMeasures,
    AnswerSet,
    CitationSet,
)
from rag_eval.pipeline.calibration import PICTURE, MissRateCalibration
from rag_eval.pipeline.claims import MissRateClaims
from rag_eval.pipeline.comparisons import load_baseline
from rag_eval.pipeline.corpus import (
    AdmittedChunks,
    CorpusChunks,
    CorpusSnapshot,
    EvidenceTrust,
    GoldVariants,
)
from rag_eval.pipeline.explorer import (
    SUMMARY_FILE,
    Explored,
    missed_sentences,
    rank_missed,
    unpacked,
    write_explorer,
)
from rag_eval.pipeline.exports import answer_files, evidence_lines, write_run_traces
from rag_eval.pipeline.history import (
    NO_PREVIOUS,
    changes,
    find_previous,
    keep_run,
    make_record,
    previous_part,
    readable_runs,
    run_inputs,
)
from rag_eval.pipeline.index import CorpusIndex, n_embedded
from rag_eval.pipeline.measures import RankingMeasures, StrategyMeasures
from rag_eval.pipeline.miss_rates import CalibratedMissRates
from rag_eval.pipeline.misses import MissedQuestions
from rag_eval.pipeline.ragas import RagasMeasures
from rag_eval.pipeline.report import EVIDENCE_FILE, PAGES, TABLES, MetricsReport, publish
from rag_eval.pipeline.retrieval import StrategyRun
from rag_eval.pipeline.runner import Result, Stage, Work
from rag_eval.pipeline.scores import LEVELS, ScoredRuns, score_runs
from rag_eval.pipeline.slices import measure_slices
from rag_eval.pipeline.stability import StabilityMeasures
from rag_eval.pipeline.trust import NOT_CONFIGURED, TrustMeasures
from rag_eval.pipeline.uncertain import NO_ANSWERS, UNCERTAIN_FILE
from rag_eval.reporting.exchange import StrategyRankings, exchange_files
from rag_eval.reporting.metrics_report import MEASURE_COLUMNS, REPORT_FILE, dumps, finish, write_csv
from rag_eval.reporting.report import Embeddings, Report
from rag_eval.reporting.verdicts import VERDICT_FILES, verdict_rows, write_verdict
from rag_eval.storage.artifacts import Artifact, Parts, atomic_path, write_bytes, write_text
from rag_eval.storage.hashing import code_version, digest, library_versions
from rag_eval.trust.sources import FORMULA, POINTS
from rag_eval.trust.trust_report import Poisoning, TrustFactor, TrustPart, TrustScores


@dataclasses.dataclass(frozen=True)
class Inputs:
    """The results that a report shows, by the names of their rows."""

    runs: dict[str, StrategyRun]
    corpus_snapshot: CorpusSnapshot
    corpus_chunks: CorpusChunks
    evidence_trust: EvidenceTrust
    admitted_chunks: AdmittedChunks
    gold_variants: GoldVariants
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
        "poisonedBlocked": guard.n_quarantined,
        **_headline("avgTrustScore", trust.retrieved[primary.name].avg_trust),
        **_answer_parts(made.answered),
        **({} if made.ragas_measures is None else {"ragas": made.ragas_measures.figures}),
        "slices": measure_slices(work, runs, made.answer_measures),
        "misses": made.missed_questions.about,
        "uncertainty": made.calibrated_miss_rates.uncertainty,
        "calibration": made.calibrated_miss_rates.calibration,
    }
    plain = to_jsonable_python(body)
    return body | _compare_with_baseline(work, made, body, plain, runs.gold.named_gold)


# ---- Strategies, embeddings and warnings.

NOT_SEEN: Final = {
    "ann_recall": "the index of an external retriever is not visible to rag_eval",
    "cost_per_1k": "the cost of an external retriever is not known",
}


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
            "configuration": _describe_configuration(spec),
            "rerank": spec.rerank.kind if spec.rerank else None,
            "seeds": {"configured": work.config.seeds, "matter": about.seed_matters},
            "measures": entry.measures,
            "ann_recall": entry.ann_recall,
            "latency_ms": run.timing.latency_ms,
            "cost_per_1k": cost,
            **more,
        }
    )


def _describe_configuration(spec: Strategy) -> Open:
    """Describe the configuration of a strategy, without local paths and settings."""
    shown = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    for part in (shown, shown.get("rerank", {})):
        embedding = part.get("embedding", {})
        if "vectors" in embedding:
            embedding["vectors"] = "(file)"
        if embedding.get("config"):  # part of the settings, which may hold an address
            embedding["config"] = f"(settings {digest(embedding['config'], 16)})"
    return shown | {key: "(file)" for key in ("run_file", "recorded") if key in shown}


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


def _warnings(made: Inputs) -> list[LintWarning]:
    """List the warnings about the gold set and all recorded outputs, without repetitions.

    Questions, a strategy and answers can have the same file of recorded outputs.
    """
    warnings = [*made.gold_variants.about.warnings]
    warnings += [warning for run in made.runs.values() for warning in run.about.warnings]
    warnings += [] if made.answered is None else made.answered.answers.about.warnings
    return [one for at, one in enumerate(warnings) if one not in warnings[:at]]


# ---- Answers and citations.

CITATION_MEASURES: Final = (
    "coverage",
    *(
        f"citation_{name}"
        for name in ("precision", "recall", "match_rate", "validity_rate", "support")
    ),
)


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
    verifier: dict[str, object] = {} if found.verifier is None else {"verifier": found.verifier}
    # validators ask the verifier too, when the answers are made
    asked = (answered.answers.verifier_usage, answered.measures.verifier_usage)
    usages = [one for one in asked if one is not None]
    if usages:
        verifier["verifier_usage"] = dataclasses.asdict(sum(usages[1:], start=usages[0]))
    attempts = ("attempts", "schema_retries", "adaptive_reruns")
    part = AnswersPart.model_validate(
        {
            "strategy": about.strategy,
            "modes": about.modes,
            "model": about.model or None,
            "hash": about.hash,
            "n_questions": about.counts["questions"],
            "attempts": {name: about.counts.get(name, 0) for name in attempts},
            "outcomes": found.outcomes,
            "codes": found.codes,
            "abstain_below": about.abstain_below,
            "measures": [one for one in found.measures if one.name not in CITATION_MEASURES],
            "gap": found.gap,
            "faithfulness": found.faithfulness,
            "usage": {} if usage is None else dataclasses.asdict(usage),
            **_count_findings(about.counts),
            **verifier,
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


# ---- The baseline and the gates.


def _compare_with_baseline(
    work: Work,
    made: Inputs,
    body: Mapping[str, Any],
    plain: Mapping[str, Any],
    shared: NamedGold,
) -> dict[str, object]:
    """Make the report field `gates`; `plain` are the JSON values of `body`.

    A damaged baseline raises no error here, because the report must not fail.
    """
    config = work.config
    baseline, fault = None, ""
    try:
        baseline = load_baseline(work.evaluation.home, config.name)
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
        n_chunks=body["trust"].poisoning.n_chunks,
        n_quarantined=body["trust"].poisoning.n_quarantined,
        gold=shared,
        per_query=with_delta_s(made.ranking_measures.per_query, made.stability_measures.per_run),
        baseline=accepted,
        baseline_fault=fault,
        is_first=next(readable_runs(work.evaluation.home, config.name), None) is None,
    )
    return {
        "gates": [gate.dump() for gate in judge_gates(inputs)],
    }


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


# ---- Trust and poisoning.

BINS, MAX_QUARANTINED, MAX_ID = 10, 50, 200
STATES = ("domain_state", "signature_state", "author_state", "freshness_state")


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
                "unsigned": configured.unsigned,
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


UNCONFIGURED: Final = {
    "domain": "the gold set lists no domains",
    "signature": "the gold set names no keys",
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
        reason = (
            UNCONFIGURED.get(factor) if set(counts) <= {"not_configured", "installed"} else None
        )
        if factor == "freshness" and not counts.get(state):
            reason = UNDATED
        about = {"factor": factor, "points": points, "status": "measured"}
        if reason is not None:
            about |= {"status": "insufficient_evidence", "reason": reason}
        numbers = {"n": counts.get(state, 0), "of": sum(counts.values())}
        found.append(TrustFactor.model_validate(about | numbers))
    return found


def _poisoning(config: GoldSetConfig, made: Inputs, frame: pd.DataFrame) -> Poisoning:
    """Describe the findings of the guard, with at most fifty relevant documents and chunks."""
    about, gold = made.evidence_trust.about, made.gold_variants.blocked
    documents = made.corpus_snapshot.documents
    urls = dict(zip(documents["doc_id"].tolist(), documents["source_url"].tolist(), strict=True))
    blocked, admitted = frame[frame["verdict"] == "blocked"], made.admitted_chunks.rows
    left_out = (
        frame[~np.isin(np.arange(len(frame)), admitted)] if config.trust.withheld else blocked
    )
    reasons = Counter(code for codes in frame["reasons"].tolist() for code in codes)
    return Poisoning.model_validate(
        {
            "rules_version": about.rules_version,
            "quarantine": config.trust.quarantine,
            "about_injection": config.trust.about_injection,
            "n_chunks": len(frame),
            "n_documents": int(frame["doc_id"].nunique()),
            "n_quarantined": len(frame) - len(admitted),
            "n_blocked": len(blocked),
            "n_blocked_documents": int(blocked["doc_id"].nunique()),
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
                for row in left_out.head(MAX_QUARANTINED).to_dict("records")
            ],
            "gold": gold.model_copy(
                update={
                    "documents": [
                        document.model_copy(update={"doc_id": quoted(document.doc_id, MAX_ID)})
                        for document in gold.documents[:MAX_QUARANTINED]
                    ]
                }
            ),
            "retrieved": {
                name: sum(getattr(one, name) for one in made.trust_measures.strategies.values())
                for name in ("n_retrieved", "n_blocked", "n_warned")
            },
        }
    )


# ---- The stage: the report and every file beside it.

EXPORTED = {".parquet", ".trec", ".jsonl", ".log"}
ANSWER_FILES: Final = (
    *(f"{name}.jsonl" for name in ("answers", "citations", "preflights", "rejected")),
    *("auditable-answers.jsonl", "events.log", "traces.log"),
)
REPLACED: Final = (
    *("run-*.trec", PICTURE, *PAGES, f"{TABLES}/*.csv", f"{TABLES}/*.tex"),
    *(*ANSWER_FILES, *VERDICT_FILES, ABORT_LOG),
)
"""Files that every run writes anew, or removes."""


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
    made, folder, home = Inputs(**results), work.evaluation.reports, work.evaluation.home
    runs = score_runs(work.config, made.gold_variants, made.admitted_chunks, made.runs)
    plain = finish(_report_parts(work, made, runs), dt.datetime.now(dt.UTC)).dump()
    now = make_record(work.config.name, {}, plain)
    previous = find_previous(home, now, runs.gold)
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
    plain = report.dump()
    exports = _exports(work, made, runs)
    sources = [
        *(exports.path(name) for name in exports.files if Path(name).suffix in EXPORTED),
        made.calibrated_miss_rates.artifact.path(UNCERTAIN_FILE),
        *filter(None, [made.miss_rate_calibration.picture]),
    ]
    work.evaluation.lock.check()
    for source in sources:
        with atomic_path(folder / source.name) as partial:
            shutil.copyfile(source, partial)
    lines = evidence_lines(made.evidence_trust.trust, report.trust.as_of)
    write_bytes(folder / EVIDENCE_FILE, lines)
    measures = [
        {"strategy": part.name, **one.dump()} for part in report.strategies for one in part.measures
    ]
    write_csv(folder / "measures.csv", MEASURE_COLUMNS, measures)
    keys = made.artifact_keys | {"explorer": explorer.key, "exports": exports.key}
    keep_run(home, now, keys, plain)
    # This run may end before it writes its verdict and page, so none of an earlier run may stay.
    _remove(folder, {source.name for source in sources}, *REPLACED)
    write_text(folder / REPORT_FILE, dumps(plain))
    write_verdict(verdict_rows(report, work.config.name), folder)
    trace_error = write_run_traces(work, made.answers, runs, made.stability_measures, report)
    files = [path for path in folder.rglob("[!.]*") if path.is_file()]
    files.sort(key=lambda path: (path.name == REPORT_FILE, path))
    publish(work.evaluation, files, alone=True)
    return MetricsReport(
        content_hash=report.content_hash,
        report=report,
        explorer=explorer.key,
        folder=str(folder.resolve()),
        trace_error=trace_error,
    )


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
