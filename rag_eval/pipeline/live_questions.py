"""Retrieve outside of an evaluation: the retrieval port, and one question with its uncertainty."""

import datetime as dt
from collections.abc import Mapping

import numpy as np
import pandas as pd
from pydantic import TypeAdapter, ValidationError

from rag_eval.core.arrays import FloatArray
from rag_eval.core.errors import InputError, quoted
from rag_eval.core.strategy import Strategy
from rag_eval.core.types import RetrievalOptions
from rag_eval.pipeline.corpus import (
    AdmittedChunks,
    CorpusChunks,
    CorpusSnapshot,
    EvidenceTrust,
    GoldVariants,
)
from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.miss_rate_stages import MAX_GAPS, MissRateClaims, RetrievalSignals
from rag_eval.pipeline.retrieval import CorpusIndex, open_index
from rag_eval.pipeline.runner import Node, Runner
from rag_eval.pipeline.stages import open_runner
from rag_eval.retrieval.outside import QueryError
from rag_eval.retrieval.service import RetrievalService
from rag_eval.retrieval.strategies import ReadyStrategy
from rag_eval.trust.sources import explain_trust
from rag_eval.uncertainty.calibrators import Outcomes, find_accepted, strategy_fingerprint
from rag_eval.uncertainty.claims import choose_source, state_rates
from rag_eval.uncertainty.confidence import (
    COVERAGE_SIGNAL,
    CorpusCoverage,
    UncertainRetrieval,
    describe_document,
)
from rag_eval.uncertainty.expansion import ExpansionContext
from rag_eval.uncertainty.heuristic import signal_frame
from rag_eval.uncertainty.iterative import list_expansions, semantic_gaps
from rag_eval.uncertainty.opened_index import IterativeStrategy, groups_of_wordings
from rag_eval.uncertainty.outcomes import MAX_QUERY, Query
from rag_eval.uncertainty.signals import SIGNALS

# ---- The retrieval port over a gold set's corpus.


def open_port(evaluation: Evaluation) -> RetrievalService:
    """Open RetrievalPort v1 over the current corpus, and index new chunks.

    The port serves the first strategy of each kind, without external strategies. It leaves out
    quarantined chunks. With `trust.filter` on, it also leaves out chunks under the threshold, but a
    call may name another threshold. The default strategy is bm25, or hybrid with
    FEATURE_HYBRID_RETRIEVAL on, else the kind of the primary strategy.

    Raises
    ------
    InputError
        The corpus cannot be used, or no strategy runs here.
    """
    runner, config = open_runner(evaluation), evaluation.config
    runner.get(CorpusIndex)
    opened = open_index(evaluation, runner.get(AdmittedChunks))
    kinds, kind_of = dict[str, ReadyStrategy](), dict[str, str]()
    for spec in config.strategies:
        if not spec.own_units:
            # A calibrator that saw the gold set may steer the rounds of a strategy.
            variants = None if spec.base_name is None else runner.get(GoldVariants).variants
            ready = opened.ready(spec, variants)
            kind_of[spec.name] = ready.spec.kind
            kinds.setdefault(ready.spec.kind, ready)
    if not kinds:
        raise InputError.of(
            "nothing_to_serve",
            "every strategy of this gold set is external",
            field="strategies",
            accepted="bm25, vector or hybrid",
        )
    default = "hybrid" if evaluation.settings.feature_hybrid_retrieval else "bm25"
    if default not in kinds:
        default = kind_of.get(config.primary_strategy, next(iter(kinds)))
    return _serve(runner, kinds, default)


def _serve(runner: Runner, kinds: Mapping[str, ReadyStrategy], default: str) -> RetrievalService:
    """Serve ready strategies by kind behind the guard and the trust filter of a gold set."""
    config, corpus, evidence = (
        runner.evaluation.config,
        runner.get(CorpusSnapshot),
        runner.get(EvidenceTrust),
    )
    trust_rows = runner.get(AdmittedChunks).trust_of(evidence)
    day, trust = dt.date.fromisoformat(evidence.about.as_of), config.trust
    columns = {str(name): column.to_numpy(dtype=object) for name, column in trust_rows.items()}
    return RetrievalService(
        kinds,
        corpus.documents,
        corpus_rev=corpus.about.corpus_rev,
        default=default,
        trust=trust_rows["trust"].to_numpy() if trust.configured else None,
        explain=lambda row: explain_trust(
            {name: column[row] for name, column in columns.items()}, day
        ),
        default_threshold=trust.threshold if trust.filter else None,
        seed=config.seeds[0],
    )


# ---- One question that the gold set need not know, with its uncertainty.

QUESTION = TypeAdapter(Query)


class LiveStrategy:
    """One strategy of a gold set, opened for live questions; made by `open_strategy`.

    The corpus is indexed as a run indexes it. The miss rate comes from the calibrator that the last
    run left for this index and configuration, else from the prior, else from `heuristic_v0`.
    """

    def __init__(self, evaluation: Evaluation, spec: Strategy) -> None:
        runner, self._config = open_runner(evaluation), evaluation.config
        self.name, self._spec = spec.name, spec
        index, admitted = runner.get(CorpusIndex), runner.get(AdmittedChunks)
        gold, self._opened = runner.get(GoldVariants), open_index(evaluation, admitted)
        self._ready = self._opened.ready(spec, gold.variants)
        self._service = _serve(runner, {self._ready.spec.kind: self._ready}, self._ready.spec.kind)
        documents = runner.get(CorpusSnapshot).documents
        n_chunks, n_vectors = runner.get(CorpusChunks).about.n_chunks, index.n_vectors
        self._coverage = CorpusCoverage.of(documents, admitted.names, n_chunks, n_vectors)
        fingerprint = strategy_fingerprint(self._config, spec, self._ready.index_hash)
        accepted = find_accepted(evaluation.home, evaluation.config, self.name, fingerprint)
        unlabelled = _read_unlabelled(runner, self.name, fingerprint)
        self._source, self._model = choose_source(
            self._config, self.name, accepted, fingerprint, unlabelled
        )
        body = accepted.usable
        group_of = {} if body is None else body.group_of_query
        self._groups = groups_of_wordings(gold.variants, group_of)
        self._judged = Outcomes(evaluation.settings).judged_texts(
            self._config, fingerprint, gold.queries
        )
        self._rates = _read_stated(runner, self.name, fingerprint, self._source.calibrator)

    def retrieve(self, query: str) -> UncertainRetrieval:
        """Retrieve for one question.

        Raises
        ------
        InputError
            The question is blank, too long or cannot be stored, the file of vectors has none for
            it, or the reranker failed.
        """
        _check(query)
        config, k = self._config, self._config.uncertainty.k
        if not self._opened.can_be_asked(self._spec, query):
            message = "the file of vectors has none for this question"
            accepted = "a question of the gold set, or a strategy whose embedding names a model"
            raise InputError.of("no_vector", message, field=self.name, accepted=accepted)
        try:
            ranking, (result,) = self._service.rank([query], RetrievalOptions(top_k=config.depth))
        except QueryError as error:
            message, why = "the retrieval failed", quoted(str(error), 400)
            raise InputError.of("retrieval_failed", message, field=self.name, found=why) from error
        batch = self._opened.batch(self._spec, [query], ranking)
        frame = signal_frame(batch, k, self.name, 0, np.zeros(1, dtype=bool))
        wording = {"query_id": "", "paraphrase_id": "", "text": query}
        wording["group_id"] = self._groups.get(query, "")
        claim = state_rates(
            config.uncertainty,
            self._source,
            self._model,
            frame,
            pd.DataFrame([wording]),
            judged=self._judged,
            group_at_fit={},
        ).to_dict("records")[0]
        context, chunks = ExpansionContext(batch, [query], self._opened.words), result.chunks[:k]
        harder = self._rates <= claim["miss_rate"]
        # Only an iterative strategy has rounds.
        last = self._ready.last if isinstance(self._ready, IterativeStrategy) else None
        return UncertainRetrieval(
            documents=[
                describe_document(
                    chunk.snippet_id, chunk.doc_id, chunk.k_final, chunk.score_raw, chunk.text
                )
                for chunk in chunks
            ],
            miss_rate=self._source.read_rate(claim),
            heuristic_v0=claim["heuristic_v0"],
            similar_judged=claim["similar_judged"],
            coverage=float(frame[COVERAGE_SIGNAL][0]),
            corpus=self._coverage,
            gaps=semantic_gaps(context, np.array([0]), k)[0][:MAX_GAPS],
            iterations=[] if last is None else list_expansions(last.steps).get(0, []),
            harder_share=float(harder.mean()) if len(harder) else np.nan,
            chunks=chunks,
            reason=self._source.reason,
        )


def open_live(evaluation: Evaluation, name: str = "") -> LiveStrategy:
    """Open a strategy of a gold set for live questions, and index new chunks.

    Without a name, the primary strategy is opened. Raises InputError if there is no such strategy,
    if it is external, or if the corpus cannot be used.
    """
    config = evaluation.config
    wanted, here = name or config.primary_strategy, {each.name: each for each in config.strategies}
    code = message = ""
    if wanted not in here:
        code, message = "unknown_strategy", f"{config.name} has no such strategy"
    elif here[wanted].own_units:
        code = "external_strategy"
        message = "an external retriever is not asked here; ask it yourself"
    if code:
        accepted = ", ".join(spec.name for spec in here.values() if not spec.own_units)
        raise InputError.of(code, message, field="STRATEGY", found=wanted, accepted=accepted)
    with evaluation.lock:
        return LiveStrategy(evaluation, here[wanted])


def _check(query: str) -> None:
    try:
        QUESTION.validate_python(query)
        why = "" if query.strip() else "a blank question"
    except ValidationError as error:
        why = error.errors()[0]["msg"]
    if why:
        accepted = f"a text of 1 to {MAX_QUERY:,} characters"
        raise InputError.of("bad_question", why, field="QUESTION", accepted=accepted)


def _read_unlabelled(runner: Runner, name: str, fingerprint: str) -> FloatArray:
    """Read the signals of the last run's queries, [n, p]; none if they are of another index."""
    stored = runner.find_recorded(Node("retrieval_signals"))
    if isinstance(stored, RetrievalSignals) and name in stored.about:
        has_signals = set(SIGNALS) <= set(stored.signals)
        if stored.about[name].fingerprint == fingerprint and has_signals:
            return stored.unlabelled(name)
    return np.zeros((0, len(SIGNALS)))


def _read_stated(runner: Runner, name: str, fingerprint: str, calibrator: str) -> FloatArray:
    """Read the miss rates that the last run stated by the same calibrator, [n]; else none."""
    stored = runner.find_recorded(Node("miss_rate_claims"))
    if not isinstance(stored, MissRateClaims):
        return np.zeros(0)
    claims: pd.DataFrame = stored.claims_of(name)
    same = (claims["strategy_fingerprint"] == fingerprint) & (claims["calibrator"] == calibrator)
    return claims.loc[same, "miss_rate"].dropna().to_numpy(dtype=np.float64)
