"""Report stage: puts the stored results together, judges the floors, writes every file."""

import datetime as dt
import json
import shutil
from pathlib import Path
from typing import Any

from rag_eval import __version__
from rag_eval.evaluation.answer_files import answer_files
from rag_eval.evaluation.answer_measure_steps import answer_measures
from rag_eval.evaluation.answer_steps import answers
from rag_eval.evaluation.baseline_steps import drift_part, regression_results
from rag_eval.evaluation.citation_steps import citations
from rag_eval.evaluation.claim_steps import miss_rate_claims
from rag_eval.evaluation.corpus_steps import corpus_chunks, corpus_snapshot
from rag_eval.evaluation.explorer_steps import explorer_bundle
from rag_eval.evaluation.faithfulness_steps import RAGAS_OFF
from rag_eval.evaluation.gold_steps import gold_variants
from rag_eval.evaluation.index_steps import IndexOpener, corpus_index
from rag_eval.evaluation.inputs import Evaluation
from rag_eval.evaluation.measure_steps import Runs, ranking_measures
from rag_eval.evaluation.overlap_steps import overlap
from rag_eval.evaluation.past_runs import keep_summary
from rag_eval.evaluation.previous_steps import history_parts
from rag_eval.evaluation.run_basis import configuration_part, evaluation_part
from rag_eval.evaluation.scoring import LEVELS
from rag_eval.evaluation.slices_steps import slices
from rag_eval.evaluation.stability_steps import stability_measures
from rag_eval.evaluation.trust_report import FILE_NAME as EVIDENCE_FILE
from rag_eval.evaluation.trust_report import evidence_lines, trust_body, trust_gates
from rag_eval.evaluation.trust_steps import admitted_chunks, evidence_trust
from rag_eval.evaluation.uncertain_files import FILE_NAME as UNCERTAIN_FILE
from rag_eval.evaluation.uncertain_files import uncertain_retrievals
from rag_eval.evaluation.uncertain_pictures import PICTURES, drawn
from rag_eval.evaluation.uncertainty_steps import calibrated_miss_rates
from rag_eval.gates.contract import contract_gate
from rag_eval.gates.floors import floor_gates, unmeasured_gates
from rag_eval.records.gold_set import Bm25, External, Iterative
from rag_eval.reporting.metrics_report import FILE_NAME, dumps, finish, write_report
from rag_eval.reporting.null_reasons import with_reasons
from rag_eval.reporting.tables import per_query_csv, trec_qrels, trec_run, write_measures
from rag_eval.reporting.verdict_files import VERDICT_FILES, write_verdict
from rag_eval.reporting.verdict_rows import verdict_rows
from rag_eval.storage.artifacts import Artifact
from rag_eval.storage.atomic import atomic_path, write_bytes, write_text
from rag_eval.storage.code import code_version, library_versions

EXPORTED = {".csv", ".parquet", ".trec", ".jsonl", ".log"}
PAGE = "index.html"
TABLES = "tables"
"""Folder of the page's tables."""
ANSWER_FILES = (
    "answers.jsonl",
    "citations.jsonl",
    "preflights.jsonl",
    "rejected.jsonl",
    "events.log",
    "traces.log",
)

NO_ANSWERS = "the gold set configures no answers"
CITATION_MEASURES = (
    "coverage",
    "citation_precision",
    "citation_recall",
    "citation_match_rate",
    "citation_validity_rate",
)


def _record(measures: list[dict[str, Any]], name: str, level: str) -> dict[str, Any]:
    return next(
        record for record in measures if record["name"] == name and record["level"] == level
    )


def _embedding_use(evaluation: Evaluation, opened: IndexOpener, runs: Runs) -> dict[str, Any]:
    """How many texts the evaluation needed vectors of (for retrieval, expansion, rerank and delta_s), and how many had to be embedded now."""
    chunks = admitted_chunks(evaluation).json("about")["n_chunks"]
    wordings = int(runs.gold.variants["text"].nunique())
    strategies = corpus_index(evaluation, opened).json("about")["strategies"]
    models = {entry["embed_model"] for entry in strategies.values() if entry["embed_model"]}
    models |= {
        stability_measures(runs).json("about")["embedding"],
        *(runs.artifact(name).json("about")["rerank_model"] for name in runs.names),
    } - {""}
    expanded = sum(
        len(runs.artifact(name).frame("expansions"))
        for name in runs.names
        if isinstance(runs.spec(name), Iterative) and strategies[name]["embed_model"]
    )
    return {
        "models": sorted(models),
        "needed": len(models) * (chunks + wordings) + expanded,
        "embedded": opened.embedded,
    }


def _strategy(evaluation: Evaluation, runs: Runs, entry: dict[str, Any]) -> dict[str, Any]:
    about = runs.artifact(entry["name"]).json("about")
    spec = runs.spec(entry["name"])
    external = isinstance(spec, External)
    price = 0.0 if isinstance(spec, Bm25) else evaluation.settings.price_per_1k_embedding_tokens
    return {
        "name": entry["name"],
        "kind": about["kind"],
        "index_hash": about["index_hash"],
        "embed_model": about["embed_model"],
        "configuration": configuration_part(spec),
        "rerank": spec.rerank.kind if spec.rerank else None,
        "seeds": {"configured": list(evaluation.config.seeds), "matter": about["seed_matters"]},
        "n_runs": about["n_runs"],
        "n_empty": about["n_empty"],
        "n_failed": about["n_failed"],
        "first_failure": about["first_failure"],
        **({} if about["first_failure"] else {"first_failure_reason": "no retrieval failed"}),
        "measures": entry["measures"],
        "ann_recall": entry["ann_recall"],
        **(
            {}
            if entry["ann_recall"]
            else {
                "ann_recall_reason": "the index of an external retriever is not seen from here"
                if external
                else "this strategy searches exactly"
            }
        ),
        "latency_ms": about["latency_ms"],
        "cost_per_1k": None if external else round(price * about["query_tokens"], 6),
        **(
            {
                "cost_per_1k_reason": "what an external retriever costs is not known here",
                **_external(about),
            }
            if external
            else {}
        ),
    }


def _external(about: dict[str, Any]) -> dict[str, Any]:
    """What stands in the entry of an external strategy only."""
    levels = {
        level: {"measured": False, "reason": about["unmeasured"][level]}
        if level in about["unmeasured"]
        else {"measured": True}
        for level in LEVELS
    }
    return {
        "source": about["source"],
        "failures": about["failures"],
        "levels": levels,
        "notes": about["notes"],
    }


def answers_body(runs: Runs) -> dict[str, Any]:
    """What the report says of answers and citations; null with the reason where the gold set configures none."""
    made, cited, measured = answers(runs), citations(runs), answer_measures(runs)
    if made is None or cited is None or measured is None:
        absent = {"value": None, "reason": NO_ANSWERS}
        return {
            "groundedness": None,
            "groundedness_reason": NO_ANSWERS,
            **faithfulness_figure({"value": None, "value_reason": RAGAS_OFF}),
            "answers": absent,
            "citations": absent,
        }
    about, found, codes = made.json("about"), measured.json("about"), cited.json("about")
    grounded = next(record for record in found["measures"] if record["name"] == "groundedness")
    return {
        "groundedness": grounded["value"],
        **(
            {}
            if grounded["value"] is not None
            else {"groundedness_reason": grounded["value_reason"]}
        ),
        **faithfulness_figure(found["faithfulness"]),
        "answers": {
            "strategy": about["strategy"],
            "modes": about["modes"],
            "embedding": about["embedding"] or None,
            **(
                {}
                if about["embedding"]
                else {"embedding_reason": "no question is answered in the deterministic mode"}
            ),
            "model": about["model"] or None,
            **({} if about["model"] else {"model_reason": "no question is answered by a model"}),
            "hash": about["hash"],
            "n_questions": about["counts"]["questions"],
            "attempts": {
                name: about["counts"].get(name, 0)
                for name in ("attempts", "schema_retries", "adaptive_reruns")
            },
            "outcomes": found["outcomes"],
            "codes": found["codes"],
            "measures": [
                record for record in found["measures"] if record["name"] not in CITATION_MEASURES
            ],
            "gap": found["gap"],
            "faithfulness": found["faithfulness"],
            "usage": runs.answer_usage,
        },
        "citations": {
            "n_citations": codes["n_citations"],
            "codes": codes["codes"],
            "measures": [
                record for record in found["measures"] if record["name"] in CITATION_MEASURES
            ],
        },
    }


def faithfulness_figure(found: dict[str, Any]) -> dict[str, Any]:
    """The report's top-level figure, with its reason where it is null."""
    return {
        "faithfulness": found["value"],
        **({} if found["value"] is not None else {"faithfulness_reason": found["value_reason"]}),
    }


def cost_figure(primary: dict[str, Any], answers_part: dict[str, Any]) -> dict[str, Any]:
    """Cost of 1,000 questions: retrieval of the primary strategy and what a model was paid to answer; null where retrieval's is not known."""
    retrieval = primary["cost_per_1k"]
    if retrieval is None:
        return {
            "value": None,
            "reason": primary.get("cost_per_1k_reason", "what retrieval costs is not known here"),
        }
    return {"value": retrieval + answers_part.get("usage", {}).get("cost_per_1k", 0.0)}


def figures_for_gates(report: dict[str, Any], level: str) -> dict[str, dict[str, Any]]:
    """Name every figure that a floor may ask for: the primary strategy's measures at the headline level, delta_s, latency, cost, cache."""
    primary = next(entry for entry in report["strategies"] if entry["name"] == report["strategy"])
    figures: dict[str, dict[str, Any]] = {
        record["name"]: record for record in primary["measures"] if record["level"] == level
    }
    figures["delta_s"] = report["stability"]["strategies"][report["strategy"]]["delta_s"]
    for name in ("p50", "p95", "p99"):
        figures[f"latency_{name}_ms"] = {"value": primary["latency_ms"][name]}
    figures["cost_per_1k"] = cost_figure(primary, report["answers"])
    figures["avg_trust_score"] = report["trust"]["retrieved"][report["strategy"]]["avg_trust"]
    figures["convergent_hit_share"] = report["stability"]["strategies"][report["strategy"]][
        "convergent_and_hit"
    ]
    for part in ("answers", "citations"):
        figures |= {
            record["name"]: {
                **record,
                **({"reason": record["value_reason"]} if record["value"] is None else {}),
            }
            for record in report[part].get("measures", ())
        }
    if report["faithfulness"] is not None:
        figures["faithfulness"] = report["answers"]["faithfulness"]
    figures["cache_hit_rate"] = {
        "value": report["cacheHitRate"],
        "reason": report.get("cacheHitRate_reason", ""),
    }
    named: dict[str, dict[str, Any]] = with_reasons(
        figures
    )  # gates are judged before the report is finished, and say why a figure is null
    return named


def report_body(evaluation: Evaluation, opened: IndexOpener, runs: Runs) -> dict[str, Any]:
    """Build the report but for its hash, id and time."""
    config = evaluation.config
    corpus, chunks = (
        corpus_snapshot(evaluation).json("about"),
        admitted_chunks(evaluation).json("about"),
    )
    index, gold = (
        corpus_index(evaluation, opened).json("about"),
        gold_variants(evaluation).json("about"),
    )
    ranking, stability = (
        ranking_measures(runs).json("about"),
        stability_measures(runs).json("about"),
    )
    strategies = [_strategy(evaluation, runs, entry) for entry in ranking["strategies"]]
    primary = next(entry for entry in strategies if entry["name"] == config.primary_strategy)
    use = _embedding_use(evaluation, opened, runs)
    body: dict[str, Any] = {
        "strategy": primary["name"],
        "recallAt10": _record(primary["measures"], "recall_at_10", config.level)["value"],
        "mrr": _record(primary["measures"], "mrr", config.level)["value"],
        "cacheHitRate": max(0.0, 1 - use["embedded"] / use["needed"]),
        "version": __version__,
        "code": {"version": code_version(), "libraries": library_versions()},
        "features": {
            "FEATURE_HYBRID_RETRIEVAL": evaluation.settings.feature_hybrid_retrieval,
            "FEATURE_RAGAS_EVAL": evaluation.settings.feature_ragas_eval,
        },
        "evaluation": evaluation_part(evaluation),
        "gold": {**gold, "seeds": list(config.seeds)},
        "index": {
            "hash": primary["index_hash"],
            "rev": corpus["corpus_rev"],
            "corpus_rev": corpus["corpus_rev"],
            "chunks_hash": chunks["chunks_hash"],
            "analyzer": index["analyzer"],
            "chunker": index["chunker"],
            "embed_model": primary["embed_model"],
            "n_documents": corpus["n_documents"],
            "n_chunks": chunks["n_chunks"],
            "loader": corpus["loader"],
            "masked": corpus["masked"],
            **(
                {}
                if corpus["masked"] is not None
                else {"masked_reason": "masking is off for this corpus"}
            ),
            "strategies": index["strategies"],
        },
        "strategies": strategies,
        "comparisons": ranking["comparisons"],
        "stability": stability,
        "embeddings": use,
        "vector_store": {"collections": index["vectors"], "dropped": index["dropped"]},
        "reused": {
            "index": corpus_index(evaluation, opened).reused,
            "runs": {name: runs.artifact(name).reused for name in runs.names},
        },
    }
    body |= trust_body(runs, corpus_snapshot(evaluation).frame("documents"))
    body |= answers_body(runs)
    body |= {"slices": slices(runs), "overlap": overlap(runs)}
    body["drift"] = drift_part(runs, body)
    body |= calibrated_miss_rates(runs)
    results = floor_gates(config, figures_for_gates(body, config.level))
    results += contract_gate(config, body["answers"])
    results += trust_gates(runs, body["trust"])
    results += regression_results(runs, body)
    results += unmeasured_gates(
        config,
        {"acceptance", "stability", "answer_contract", "trust", "poisoning", "regression"},
        {},
    )
    body["gates"] = [result.as_json() for result in results]
    return body


def retrieval_metrics_report(
    evaluation: Evaluation, opened: IndexOpener, runs: Runs
) -> dict[str, Any]:
    """Write every file of the gold set's folder of reports; the report itself last. Returns the report.

    The run is also kept in the home, so that later runs can be compared with it.
    """
    report = finish(report_body(evaluation, opened, runs), dt.datetime.now(dt.UTC))
    artifacts = artifact_keys(runs)
    report |= history_parts(runs, report, artifacts)
    folder = evaluation.reports
    _remove_stale(runs, folder)
    for source in sorted(exports(runs).folder.glob("*.*")):
        if source.suffix in EXPORTED:
            with atomic_path(folder / source.name) as partial:
                shutil.copyfile(source, partial)
    for source in (uncertain_retrievals(runs).path(UNCERTAIN_FILE), *drawn(runs)):
        with atomic_path(folder / source.name) as partial:
            shutil.copyfile(source, partial)
    write_bytes(
        folder / EVIDENCE_FILE, evidence_lines(evidence_trust(evaluation), report["trust"]["as_of"])
    )
    write_measures(folder / "measures.csv", report["strategies"])
    keep_run(evaluation, report, artifacts)
    keep_summary(
        evaluation.settings.home, report["run_id"]
    )  # the next night reads this instead of the whole
    _remove_verdict(folder)
    write_report(report, folder / FILE_NAME)
    write_verdict(verdict_rows(report, evaluation.config.name), folder)
    return report


def _remove_stale(runs: Runs, folder: Path) -> None:
    """Remove what must not stand beside this report: rankings of strategies that it does not have, answers where it has none, pictures of an earlier run."""
    current = {f"run-{name}.trec" for name in runs.names}
    gone = [path for path in folder.glob("run-*.trec") if path.name not in current]
    gone += [
        folder / name
        for name in (*PICTURES, *(ANSWER_FILES if runs.evaluation.config.answers is None else ()))
    ]
    for path in gone:
        path.unlink(missing_ok=True)


def _remove_verdict(folder: Path) -> None:
    """Remove the verdict, the page and the tables of an earlier run, right before the report is replaced: this run may end before it writes its own."""
    for path in (
        *(folder / name for name in (*VERDICT_FILES, PAGE)),
        *(folder / TABLES).glob("*.csv"),
        *(folder / TABLES).glob("*.tex"),
    ):
        path.unlink(missing_ok=True)


def artifact_keys(runs: Runs) -> dict[str, str]:
    """Keys of the artifacts that a kept run can be looked into with."""
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
    }
    kept |= {f"run {name}": runs.artifact(name) for name in runs.names}
    kept["claims"] = miss_rate_claims(runs)
    of_answers = {
        "answers": answers(runs),
        "citations": citations(runs),
        "answer_measures": answer_measures(runs),
    }
    return {
        stage: artifact.key
        for stage, artifact in (kept | of_answers).items()
        if artifact is not None
    }


def exports(runs: Runs) -> Artifact:
    """Make the files of the field once: per-query Parquet and CSV, TREC runs and qrels."""
    evaluation, ranking = runs.evaluation, ranking_measures(runs)
    gold = gold_variants(evaluation)

    def make() -> dict[str, Any]:
        frame = ranking.frame("per_query")
        parts: dict[str, Any] = {
            "per-query": frame,
            "per-query.csv": per_query_csv(frame),
            "qrels.trec": trec_qrels(gold.frame("qrels_document")).encode(),
        }
        for name in runs.names:
            run = runs.artifact(name)
            documents = runs.units(name)["doc_id"].to_numpy()
            parts[f"run-{name}.trec"] = trec_run(
                run.frame("run"), runs.gold.variants, documents, name, run.json("about")["seeds"][0]
            ).encode()
        return parts | answer_files(made, cited)

    made, cited = answers(runs), citations(runs)
    keys = [artifact.key for artifact in (made, cited) if artifact is not None]
    return evaluation.memo("exports", evaluation.key("exports", ranking.key, runs.keys, keys), make)


def keep_run(evaluation: Evaluation, report: dict[str, Any], artifacts: dict[str, str]) -> Path:
    """Keep the report and the keys of its artifacts in the home, under its run id."""
    path = evaluation.settings.home / "runs" / f"{report['run_id']}.json"
    write_text(
        path, dumps({"gold_set": evaluation.config.name, "artifacts": artifacts, "report": report})
    )
    return path


def load_run(home: Path, run_id: str) -> dict[str, Any] | None:
    """Read a kept run."""
    path = home / "runs" / f"{run_id}.json"
    if not path.is_file():
        return None
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded
