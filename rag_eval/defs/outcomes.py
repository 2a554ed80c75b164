"""What each asset leaves behind: its version, whether it was reused, and metadata worth looking at.

Belongs here: one function an asset, each calling one stage. The assets and `lineage` (runs from the command line) share them, so that
both show the same. Stages are imported inside: definitions load without them.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

import dagster as dg

from rag_eval.defs.metadata import (
    MAX_ROWS,
    Metadata,
    histogram,
    measures_table,
    n_undefined,
    native,
    problems_metadata,
    table,
    text,
)
from rag_eval.defs.resources import Session

if TYPE_CHECKING:
    from rag_eval.storage.artifacts import Artifact

HEADLINE = ("R@10", "RR", "nDCG@10", "Success@10", "Judged@10")
BINS, TRUST_BINS = 12, 10
LATENCY = ("n", "p50", "p95", "p99")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Version, reuse and metadata of a materialization."""

    version: str
    reused: bool
    metadata: Metadata

    @property
    def shown(self) -> Metadata:
        """All metadata."""
        return {"reused": self.reused, **self.metadata}

    def result(self, *checks: dg.AssetCheckResult, **more: Any) -> dg.MaterializeResult[Any]:
        """Return what an asset returns, with more metadata where it made more."""
        return dg.MaterializeResult(
            metadata={**self.shown, **more},
            data_version=dg.DataVersion(self.version),
            check_results=list(checks),
        )


def _of(artifact: "Artifact", **metadata: Any) -> Outcome:
    return Outcome(
        artifact.key,
        artifact.reused,
        {**metadata, "artifact": dg.MetadataValue.path(str(artifact.folder.resolve()))},
    )


def corpus_snapshot(session: Session) -> Outcome:
    """Corpus read and masked."""
    from rag_eval.evaluation.corpus_steps import corpus_snapshot as stage

    artifact = stage(session.evaluation)
    about = artifact.json("about")
    counts = about["masked"]  # None where masking is off
    masked = (
        {"masking": text("off")}
        if counts is None
        else {f"masked_{name}": native(count) for name, count in sorted(counts.items())}
    )
    return _of(
        artifact,
        rev=text(about["corpus_rev"]),
        n_documents=about["n_documents"],
        loader=text(about["loader"]),
        **masked,
    )


def corpus_chunks(session: Session) -> Outcome:
    """Corpus cut into chunks."""
    import numpy as np
    import pandas as pd

    from rag_eval.evaluation.corpus_steps import corpus_chunks as stage

    artifact = stage(session.evaluation)
    about = artifact.json("about")
    tokens = pd.read_parquet(artifact.path("chunks.parquet"), columns=["tokens"])[
        "tokens"
    ].to_numpy()
    counts, edges = np.histogram(
        tokens, bins=np.unique(np.linspace(tokens.min(), tokens.max() + 1, BINS + 1).astype(int))
    )
    lengths = [
        (f"{low} to {high - 1}", int(count))
        for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True)
    ]
    return _of(
        artifact,
        n_chunks=about["n_chunks"],
        chunks_hash=text(about["chunks_hash"]),
        tokens_median=float(np.median(tokens)),
        tokens_max=int(tokens.max()),
        chunk_lengths=histogram(lengths, "tokens"),
    )


def evidence_trust(session: Session) -> Outcome:
    """Trust of every chunk, and what the guard quarantined."""
    from collections import Counter

    import numpy as np

    from rag_eval.evaluation.trust_steps import evidence_trust as stage
    from rag_eval.records.problems import quoted

    artifact = stage(session.evaluation)
    about, frame = artifact.json("about"), artifact.frame("trust")
    scores = frame["trust"].dropna().to_numpy()
    counts, edges = np.histogram(scores, bins=TRUST_BINS, range=(0.0, 1.0))
    drawn = [
        (f"{low:.1f} to {high:.1f}", int(count))
        for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True)
    ]
    poor = frame[frame["verdict"] != "clean"].sort_values("verdict", kind="stable")
    rows = [
        {
            "verdict": row["verdict"],
            "chunk_id": row["chunk_id"],
            "doc_id": quoted(row["doc_id"], 200),
            "reasons": ", ".join(row["reasons"]),
            "allowed_by": quoted(row["allowed_by"], 200),
        }
        for row in poor.head(MAX_ROWS).to_dict("records")
    ]
    reasons = Counter(code for codes in poor["reasons"].tolist() for code in codes)
    return _of(
        artifact,
        n_chunks=len(frame),
        n_quarantined=int((frame["verdict"] == "blocked").sum()),
        n_warned=int((frame["verdict"] == "warning").sum()),
        n_allowed=int((frame["allowed_by"] != "").sum()),
        rules_version=text(about["rules_version"]),
        as_of=text(about["as_of"]),
        **(
            {"trust_histogram": histogram(drawn, "trust")}
            if len(scores)
            else {"trust": text("not configured: the gold set names no domains, authors or keys")}
        ),
        **(
            {
                "quarantined_and_warned": table(
                    ("verdict", "chunk_id", "doc_id", "reasons", "allowed_by"), rows
                )
            }
            if rows
            else {}
        ),
        **(
            {
                "reasons": table(
                    ("reason", "n_chunks"),
                    [{"reason": code, "n_chunks": n} for code, n in sorted(reasons.items())],
                )
            }
            if reasons
            else {}
        ),
    )


def trust_measures(session: Session) -> Outcome:
    """Trust of what each strategy retrieved."""
    from rag_eval.evaluation.trust_measure_steps import trust_measures as stage

    artifact = stage(session.runs)
    about = artifact.json("about")
    rows = [
        {
            "strategy": name,
            **entry["avg_trust"],
            **{key: entry[key] for key in ("n_retrieved", "n_blocked", "n_warned")},
        }
        for name, entry in about["strategies"].items()
    ]
    cost = [
        {
            **row,
            "with_filter": row["with_filter"]["value"],
            "without_filter": row["without_filter"]["value"],
        }
        for row in about["filter"].get("rows", ())
    ]
    shown = (
        {
            "trust_filter": table(
                (
                    "strategy",
                    "measure",
                    "with_filter",
                    "without_filter",
                    "delta",
                    "ci_low",
                    "ci_high",
                    "n_groups",
                ),
                cost,
            )
        }
        if cost
        else {}
    )
    return _of(
        artifact,
        retrieved=table(
            (
                "strategy",
                "value",
                "ci_low",
                "ci_high",
                "n_scored",
                "n_retrieved",
                "n_blocked",
                "n_warned",
            ),
            rows,
        ),
        n_undefined=n_undefined(rows, "value"),
        **shown,
    )


def corpus_index(session: Session) -> Outcome:
    """Index of every strategy."""
    from rag_eval.evaluation.corpus_steps import corpus_snapshot as snapshot
    from rag_eval.evaluation.index_steps import corpus_index as stage

    artifact = stage(session.evaluation, session.opened)
    about = artifact.json("about")
    identities = [{"strategy": name, **entry} for name, entry in about["strategies"].items()]
    vectors = [{"model": model, **entry} for model, entry in about["vectors"].items()]
    return _of(
        artifact,
        index_hash=text(
            about["strategies"][session.evaluation.config.primary_strategy]["index_hash"]
        ),
        rev=text(snapshot(session.evaluation).json("about")["corpus_rev"]),
        n_chunks=about["n_chunks"],
        analyzer=text(str(about["analyzer"])),
        index_hashes=table(("strategy", "index_hash", "embed_model"), identities),
        vectors=table(
            ("model", "collection", "dimensions", "embedded", "added", "removed", "kept"), vectors
        ),
        seconds=float(about["seconds"]),
    )


def gold_variants(session: Session) -> Outcome:
    """Gold set linted, resolved and spread into wordings."""
    from rag_eval.evaluation.gold_steps import gold_variants as stage

    artifact = stage(session.evaluation)
    about = artifact.json("about")
    counts = {
        name: about[name]
        for name in (
            "n_queries",
            "n_answerable",
            "n_paraphrases",
            "n_groups",
            "n_groups_answerable",
            "n_spans",
        )
    }
    return _of(
        artifact,
        gold_hash=text(about["hash"]),
        version=text(str(about["version"])),
        **counts,
        n_warnings=len(about["warnings"]),
    )


def retrieval(session: Session, strategy: str) -> Outcome:
    """Run of one strategy."""
    from rag_eval.evaluation.corpus_steps import corpus_snapshot as snapshot
    from rag_eval.evaluation.gold_steps import gold_variants as gold

    artifact = session.runs.artifact(strategy)
    about = artifact.json("about")
    return _of(
        artifact,
        index_hash=text(about["index_hash"]),
        rev=text(snapshot(session.evaluation).json("about")["corpus_rev"]),
        gold_hash=text(gold(session.evaluation).json("about")["hash"]),
        embed_model=text(about["embed_model"] or "none"),
        n_runs=about["n_runs"],
        n_empty=about["n_empty"],
        n_failed=about["n_failed"],
        **(
            {}
            if about["first_failure"] is None
            else {"first_failure": text(about["first_failure"])}
        ),
        seeds_matter=about["seed_matters"],
        latency_ms=table(LATENCY, [about["latency_ms"]]),
        seconds=float(about["seconds"]),
    )


def ranking_measures(session: Session) -> Outcome:
    """Ranking measures of every strategy, and their comparison."""
    from rag_eval.evaluation.measure_steps import ranking_measures as stage

    artifact = stage(session.runs)
    about, level = artifact.json("about"), session.evaluation.config.level
    columns = (
        "a",
        "b",
        "measure",
        "delta",
        "ci_low",
        "ci_high",
        "p_adjusted",
        "n_better",
        "n_worse",
        "n_tied",
        "n_groups",
        "minimum_detectable",
    )
    comparisons = (
        {"comparisons": table(columns, about["comparisons"])} if about["comparisons"] else {}
    )
    return _of(
        artifact,
        level=text(level),
        **measures_table(about["strategies"], level, HEADLINE),
        **comparisons,
    )


def stability_measures(session: Session) -> Outcome:
    """Stability of every strategy."""
    from rag_eval.evaluation.stability_steps import stability_measures as stage

    artifact = stage(session.runs)
    about = artifact.json("about")
    parts = {
        "delta_s": ("delta_s",),
        "convergent and hit": ("convergent_and_hit",),
        "rbo": ("rbo",),
        "hit@10 changes with wording": ("hit_changes_with_wording", "hit_at_10"),
    }
    rows = []
    for name, figures in about["strategies"].items():
        for label, place in parts.items():
            figure = figures
            for part in place:
                figure = figure[part]
            rows.append({"strategy": name, "measure": label, **figure})
    columns = ("strategy", "measure", "value", "ci_low", "ci_high", "n_scored", "n_ineligible")
    states = [
        {"strategy": name, **{state: entry["n"] for state, entry in figures["lambda"].items()}}
        for name, figures in about["strategies"].items()
    ]
    return _of(
        artifact,
        embedding=text(about["embedding"]),
        stability=table(columns, rows),
        n_undefined=n_undefined(rows, "value"),
        lambda_states=table(tuple(dict.fromkeys(key for row in states for key in row)), states),
    )


def _stored(artifact: "Artifact | None") -> "Artifact":
    if artifact is None:
        raise dg.Failure(
            "this gold set configures no answers; leave this asset out of the selection, or add answers to its gold_set.yaml",
            allow_retries=False,
        )
    return artifact


def answers(session: Session) -> Outcome:
    """Answers to every question."""
    from rag_eval.evaluation.answer_steps import answers as stage

    artifact = _stored(stage(session.runs))
    about = artifact.json("about")
    counts = {name.replace(".", "_"): count for name, count in about["counts"].items()}
    return _of(
        artifact,
        strategy=text(about["strategy"]),
        modes=text(", ".join(about["modes"])),
        embedding=text(about["embedding"] or "none"),
        model=text(about["model"] or "none"),
        **counts,
    )


def citations(session: Session) -> Outcome:
    """Citations with their verdicts."""
    from rag_eval.evaluation.citation_steps import citations as stage

    artifact = _stored(stage(session.runs))
    about = artifact.json("about")
    codes = [{"code": code, "n": count} for code, count in about["codes"].items()]
    return _of(
        artifact,
        n_citations=about["n_citations"],
        **({"codes": table(("code", "n"), codes)} if codes else {}),
    )


def answer_measures(session: Session) -> Outcome:
    """Measures of the answers."""
    from rag_eval.evaluation.answer_measure_steps import answer_measures as stage

    artifact = _stored(stage(session.runs))
    about = artifact.json("about")
    columns = (
        "name",
        "value",
        "ci_low",
        "ci_high",
        "n_scored",
        "n_units",
        "n_failed",
        "n_ineligible",
        "n_groups",
        "target",
    )
    return _of(
        artifact,
        measures=table(columns, about["measures"]),
        n_undefined=n_undefined(about["measures"], "value"),
        n_flagged=about["gap"]["n_flagged"],
    )


def metrics_report(session: Session) -> Outcome:
    """The report as it stands on disk."""
    report = session.report
    level = report["evaluation"]["level"]
    gates = [
        {
            **gate,
            "accepted": gate["evidence"].get("accepted"),
            "value": gate["evidence"].get("value"),
        }
        for gate in report["gates"]
    ]
    latency = [{"strategy": entry["name"], **entry["latency_ms"]} for entry in report["strategies"]]
    return Outcome(
        report["content_hash"],
        reused=False,
        metadata={
            "run_id": text(report["run_id"]),
            "content_hash": text(report["content_hash"]),
            "index_hash": text(report["index"]["hash"]),
            "rev": text(report["index"]["rev"]),
            "gold_hash": text(report["gold"]["hash"]),
            "strategy": text(report["strategy"]),
            "recall_at_10": native(report["recallAt10"]),
            "mrr": native(report["mrr"]),
            "cache_hit_rate": native(report["cacheHitRate"]),
            "n_queries": report["gold"]["n_queries"],
            "n_groups_answerable": report["gold"]["n_groups_answerable"],
            **measures_table(report["strategies"], level, HEADLINE),
            "latency_ms": table(("strategy", *LATENCY), latency),
            "gates": table(("id", "required", "status", "reason_code", "value", "accepted"), gates),
            "report": dg.MetadataValue.path(str(session.evaluation.reports.resolve())),
        },
    )


def html_report(session: Session) -> Outcome:
    """The page of the report: where it is on disk, and where the viewer shows it while it runs."""
    from rag_eval.evaluation.report_steps import PAGE, TABLES

    report, folder = session.report, session.evaluation.reports.resolve()
    if not session.evaluation.settings.html_report:
        return Outcome(
            report["content_hash"],
            reused=False,
            metadata={"page": text("not written: html_report is off")},
        )
    address = f"http://127.0.0.1:{session.evaluation.settings.view_port}/runs/{report['run_id']}/"
    pictures = {
        path.stem.replace("-", "_"): dg.MetadataValue.path(str(path))
        for path in sorted(folder.glob("*.png"))
    }
    return Outcome(
        report["content_hash"],
        reused=False,
        metadata={
            "page": dg.MetadataValue.path(str(folder / PAGE)),
            "page_bytes": (folder / PAGE).stat().st_size,
            "tables": dg.MetadataValue.path(str(folder / TABLES)),
            "viewer": dg.MetadataValue.url(address),
            **pictures,
        },
    )


def mlflow_record(session: Session, mlflow_run: str) -> Outcome:
    """MLflow record of the report."""
    return Outcome(
        mlflow_run,
        reused=False,
        metadata={"mlflow_run": text(mlflow_run), "run_id": text(session.report["run_id"])},
    )


def gate_verdict(session: Session) -> Outcome:
    """Verdict over the gates of the report."""
    from rag_eval.gates.verdicts import required_failures

    report = session.report
    failed = required_failures(report["gates"])
    counts = {
        f"n_{status}": sum(gate["status"] == status for gate in report["gates"])
        for status in ("pass", "fail", "insufficient_evidence")
    }
    gates = table(("id", "severity", "required", "status", "reason_code"), report["gates"])
    return Outcome(
        report["content_hash"],
        reused=False,
        metadata={
            "verdict": text("fail" if failed else "pass"),
            "required_failures": text(", ".join(failed) or "none"),
            **counts,
            "gates": gates,
            "run_id": text(report["run_id"]),
        },
    )


def lint_metadata(session: Session) -> Metadata:
    """Every problem of the gold set that keeps it from being used, its files', its questions' and its targets'."""
    from rag_eval.evaluation.linting import lint_gold_set

    return problems_metadata(lint_gold_set(session.evaluation))


def lint_warnings(session: Session) -> Metadata:
    """Warnings of a gold set that can be used."""
    from rag_eval.evaluation.gold_steps import gold_variants as stage
    from rag_eval.records.problems import Problem

    return problems_metadata(
        [Problem(**warning) for warning in stage(session.evaluation).json("about")["warnings"]]
    )
