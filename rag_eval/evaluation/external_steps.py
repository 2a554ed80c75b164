"""Retrieval stage of external strategies: asked or read, placed in the corpus, stored as a run like any other.

A run is kept and reused only where equal inputs are known to give equal answers: files by their hash, services and ports by the version
that they state. All others are asked again by every run, and so is every run in which a query failed.
"""

import collections
import contextlib
import dataclasses
import datetime as dt
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from rag_eval.corpus.analyzer import count_tokens
from rag_eval.evaluation.corpus_steps import corpus_snapshot
from rag_eval.evaluation.external_levels import unmeasured_levels
from rag_eval.evaluation.external_sources import kind_of, list_of, source_of
from rag_eval.evaluation.gold_steps import gold_variants
from rag_eval.evaluation.inputs import Evaluation
from rag_eval.evaluation.progress import Advance
from rag_eval.evaluation.run_frames import failed_frame, run_frame
from rag_eval.evaluation.trust_steps import admitted_chunks
from rag_eval.records.gold_set import External
from rag_eval.records.problems import quoted
from rag_eval.retrieval.external import Failure, Outcome, QueryError, Retrieved, failed_note
from rag_eval.retrieval.external_http import HttpSource
from rag_eval.retrieval.external_lists import Listed, match_lists
from rag_eval.retrieval.external_port import PortSource
from rag_eval.retrieval.external_recorded import read_recorded
from rag_eval.retrieval.external_run_file import read_run
from rag_eval.retrieval.external_source import SourceKind
from rag_eval.retrieval.external_units import Placed, Placer, place_all
from rag_eval.storage.artifacts import Artifact

LATENCY_TOP_K = 10
PERCENTILES = (50, 95, 99)
GIVE_UP_AFTER = 3
"""Timed queries that fail in a row before the timing ends: a service that went away is not waited for."""


@dataclasses.dataclass(frozen=True)
class _Job:
    """One external strategy to be run: on which wordings (VARIANTS), how deep, and under which identity."""

    evaluation: Evaluation
    spec: External
    identity: dict[str, str]
    kind: SourceKind
    variants: pd.DataFrame

    @property
    def top_k(self) -> int:
        depth = self.evaluation.config.depth
        return min(self.spec.top_k or depth, depth)

    @property
    def texts(self) -> list[str]:
        texts: list[str] = self.variants["text"].tolist()
        return texts


def external_run(evaluation: Evaluation, spec: External, identity: dict[str, str]) -> Artifact:
    """Run an external strategy over every wording.

    Parts: run (RUN frame; `chunk` is a row of units), units (UNITS frame), failed, not_run (wordings that the source was never run on),
    about (as of other strategies, and source, failures by code, unmeasured levels with their reasons, notes).
    """
    config, gold = evaluation.config, gold_variants(evaluation)
    key = evaluation.key(
        "run",
        spec.model_dump(mode="json"),
        identity,
        gold.key,
        config.depth,
        config.seeds,
        evaluation.settings.latency_queries,
    )
    job = _Job(evaluation, spec, identity, kind_of(evaluation, spec), gold.frame("variants"))
    if job.kind in {"run_file", "recorded"}:
        return evaluation.memo("run", key, lambda: _read(job))
    with contextlib.closing(source_of(evaluation, spec)) as source:
        version = stated_version(source, job.texts[0])
        key = evaluation.key("run", key, version)
        if version and evaluation.store.get("run", key) is not None:
            return evaluation.memo("run", key, dict)
        parts = _ask(job, source, version)
    lasting = (
        version
        and not parts["about"]["n_failed"]
        and parts["about"]["source"]["version"] == version
    )
    return evaluation.memo(
        "run", key if lasting else evaluation.key("run", key, time.time_ns()), lambda: parts
    )


def stated_version(source: HttpSource | PortSource, query: str) -> str:
    """Version that a source states: a port in its stats, an endpoint in its replies, which takes one query. Empty where it states none."""
    if isinstance(source, PortSource):
        return source.version
    try:
        return source.ask_one(query, LATENCY_TOP_K).version
    except QueryError:
        return ""


def _read(job: _Job) -> dict[str, Any]:
    path, started = list_of(job.evaluation, job.spec), time.perf_counter()
    with job.evaluation.progress.step(f"Reading {path.name} for {job.spec.name}"):
        listed = read_listed(job.spec, job.kind, path, job.variants, job.top_k)
        placed = _placed(job.evaluation, listed.outcomes)
    about = _about(job, placed, listed.outcomes)
    about |= {
        "source": {
            "kind": job.kind,
            "version": None,
            "version_reason": "a file is known by its hash",
            "wordings": listed.wordings,
            **_sizes(placed),
        },
        "notes": [*listed.notes, *about["notes"]],
    }
    about |= {
        "latency_ms": no_latency("a file has no latency"),
        "seconds": time.perf_counter() - started,
        "query_tokens": _mean_tokens(job.texts),
    }
    return _parts(job.evaluation, placed, about)


def read_listed(
    spec: External, kind: SourceKind, path: Any, variants: pd.DataFrame, top_k: int
) -> Listed:
    """Read the rankings of a file and match them to the wordings.

    Raises
    ------
    InputError
        The file cannot be used.
    """
    if kind == "run_file":
        return match_lists(read_run(path, variants), variants, top_k, missing="empty")
    return match_lists(read_recorded(path, spec.recorded or ""), variants, top_k, missing="failed")


def _ask(job: _Job, source: HttpSource | PortSource, version: str) -> dict[str, Any]:
    evaluation, texts, started = job.evaluation, job.texts, time.perf_counter()
    with evaluation.progress.step(
        f"Retrieving with {job.spec.name}", len(texts), "wordings"
    ) as advance:
        outcomes = _ask_each_once(source, texts, job.top_k, advance)
    seconds = time.perf_counter() - started
    placed = _placed(evaluation, outcomes)
    about = _about(job, placed, outcomes)
    stated = {outcome.version for outcome in outcomes if isinstance(outcome, Retrieved)}
    if isinstance(source, HttpSource) and version and stated - {version}:
        about["notes"].append(
            f"the replies state different versions: {', '.join(sorted(quoted(name or 'none', 40) for name in stated | {version})[:5])}"
        )
        version = ""
    reason = (
        {}
        if version
        else {"version_reason": "the source states no version, so it is asked again by every run"}
    )
    about["source"] = {
        "kind": job.kind,
        "version": quoted(version, 200) or None,
        **reason,
        "wordings": "all",
        **_sizes(placed),
    }
    about["embed_model"] = source.embed_model if isinstance(source, PortSource) else ""
    answered = [
        text
        for text, outcome in zip(texts, outcomes, strict=True)
        if isinstance(outcome, Retrieved)
    ]
    about |= {
        "latency_ms": _latency(source, answered, evaluation.settings.latency_queries),
        "seconds": seconds,
        "query_tokens": _mean_tokens(texts),
    }
    return _parts(evaluation, placed, about)


def _ask_each_once(
    source: HttpSource | PortSource, texts: Sequence[str], top_k: int, advance: Advance
) -> list[Outcome]:
    """Ask for every wording; the same text twice is asked once."""
    distinct = list(dict.fromkeys(texts))
    found = dict(zip(distinct, source.ask_all(distinct, top_k, advance), strict=True))
    outcomes: list[Outcome] = [found[text] for text in texts]
    advance(
        len(texts) - len(distinct),
        failed_note(sum(isinstance(outcome, Failure) for outcome in outcomes)),
    )
    return outcomes


def _placed(evaluation: Evaluation, outcomes: Sequence[Outcome]) -> Placed:
    corpus = corpus_snapshot(evaluation)
    placer = Placer(
        corpus.frame("documents"),
        corpus.frame("sections"),
        admitted_chunks(evaluation).frame("chunks"),
    )
    return place_all(outcomes, placer, evaluation.config.depth)


def _about(job: _Job, placed: Placed, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    failures = collections.Counter(
        outcome.code for outcome in outcomes if isinstance(outcome, Failure)
    )
    unknown = sorted(placed.units.loc[~placed.units["known"], "doc_id"].unique())
    notes = (
        [
            f"{len(unknown)} retrieved documents are not in the corpus and count as not relevant, for example {quoted(unknown[0], 60)}"
        ]
        if unknown
        else []
    )
    return {
        **job.identity,
        "name": job.spec.name,
        "kind": job.spec.kind,
        "seeds": [job.evaluation.config.seeds[0]],
        "seed_matters": False,
        "n_runs": int(placed.ran.sum()),
        "n_empty": int(
            sum(isinstance(outcome, Retrieved) and not outcome.items for outcome in outcomes)
        ),
        "n_failed": failures.total(),
        "first_failure": placed.ranking.failure,
        "failures": dict(sorted(failures.items())),
        "unmeasured": unmeasured_levels(placed),
        "notes": notes,
        "rerank_model": "",
        "embedded_queries": 0,
    }


def _parts(evaluation: Evaluation, placed: Placed, about: dict[str, Any]) -> dict[str, Any]:
    rankings = {evaluation.config.seeds[0]: placed.ranking}
    not_run = pd.DataFrame({"variant": np.flatnonzero(~placed.ran).astype(np.int64)})
    return {
        "run": run_frame(rankings),
        "units": placed.units,
        "failed": failed_frame(rankings),
        "not_run": not_run,
        "about": about,
    }


def _sizes(placed: Placed) -> dict[str, int]:
    units = placed.units
    return {
        "n_units": len(units),
        "n_own_chunks": int((units["chunk"] >= 0).sum()),
        "n_placed": int((units["start"] >= 0).sum()),
        "n_unknown": int((~units["known"]).sum()),
    }


def _mean_tokens(texts: Sequence[str]) -> float:
    return float(np.mean([count_tokens(text) for text in texts]))


def no_latency(reason: str) -> dict[str, Any]:
    """Latency that was not measured, with the reason beside each figure."""
    names = ["measured_at", *(f"p{p}" for p in PERCENTILES)]
    return {"n": 0, **dict.fromkeys(names), **{f"{name}_reason": reason for name in names}}


def _latency(
    source: HttpSource | PortSource, texts: Sequence[str], n_queries: int
) -> dict[str, Any]:
    """Time single queries, spread evenly over those that were answered; one that fails now is left out."""
    if not texts:
        return no_latency("no query was answered")
    places = np.unique(
        np.linspace(0, len(texts) - 1, min(n_queries, len(texts))).astype(int)
    ).tolist()
    times: list[float] = []
    missed = 0
    for text in [
        texts[0],
        *(texts[place] for place in places),
    ]:  # the first call pays for lazy loading
        started = time.perf_counter()
        try:
            source.ask_one(text, LATENCY_TOP_K)
        except QueryError:
            missed += 1
            if missed >= GIVE_UP_AFTER:
                break
            continue
        missed = 0
        times.append(1000 * (time.perf_counter() - started))
    if len(times) < 2:  # noqa: PLR2004 - the warm-up and one that counts
        return no_latency("no timed query was answered")
    figures = {f"p{p}": float(np.percentile(times[1:], p)) for p in PERCENTILES}
    return {
        "n": len(times) - 1,
        **figures,
        "measured_at": dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
