"""Iterative strategies of an evaluation: their identity, and a base strategy with rounds of expansion around its search.

Belongs here: which risk steers the rounds, and what a search leaves behind. The rounds themselves are `rag_eval.uncertainty.iterative`.
"""

import functools
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rag_eval.answers.chat import ChatClient
from rag_eval.answers.chat_cache import ChatCache
from rag_eval.evaluation.batches import batch_of, term_space
from rag_eval.evaluation.calibrator_files import accepted_calibrator
from rag_eval.evaluation.fingerprints import Accepted, accepted, strategy_fingerprint
from rag_eval.evaluation.inputs import Evaluation
from rag_eval.records.gold_set import Bm25, Hybrid, Iterative, Vector
from rag_eval.records.problems import InputError, Problem
from rag_eval.records.uncertainty import DISCOUNTING
from rag_eval.retrieval.ranking import Ranking
from rag_eval.retrieval.strategies import ReadyStrategy
from rag_eval.storage.hashing import digest
from rag_eval.uncertainty.batch import FloatArray, RankedBatch
from rag_eval.uncertainty.expansion.context import ExpansionContext, Suggester
from rag_eval.uncertainty.expansion.llm import ChatSuggester
from rag_eval.uncertainty.expansion.wordnet import WordNet, installed_wordnet
from rag_eval.uncertainty.expansion.words import CorpusWords
from rag_eval.uncertainty.heuristic import heuristic_v0
from rag_eval.uncertainty.histories import Iterated
from rag_eval.uncertainty.iterative import iterate
from rag_eval.uncertainty.model import MissRateModel
from rag_eval.uncertainty.signals import SIGNALS, signals

if TYPE_CHECKING:
    from rag_eval.evaluation.index_steps import Opened

KEPT_CHAT = "chat"
"""Folder of the home where replies are kept, shared with the answers."""
CALIBRATED, HEURISTIC = "calibrated", "heuristic_v0"


def base_accepted(
    evaluation: Evaluation, spec: Iterative, base: Bm25 | Vector | Hybrid, base_hash: str
) -> Accepted:
    """Find the calibrator of the base that steers the rounds: one that was accepted before the run and has earned it, else none."""
    found = accepted(evaluation, spec.base, strategy_fingerprint(evaluation, base, base_hash))
    return found if found.status in DISCOUNTING else Accepted("", "absent", None)


def steered_otherwise(
    evaluation: Evaluation, spec: Iterative, base: Bm25 | Vector | Hybrid, base_hash: str
) -> bool:
    """Whether the next run's rounds are steered by another calibrator of the base than this run's, by what is accepted for the base by now."""
    own = evaluation.config.uncertainty
    now = accepted_calibrator(
        evaluation.settings.home, evaluation.config.name, spec.base, own.target, own.k
    )
    holds = (
        now is not None
        and now.status in DISCOUNTING
        and now.strategy_fingerprint == strategy_fingerprint(evaluation, base, base_hash)
    )
    return (now.calibrator_id if now is not None and holds else "") != base_accepted(
        evaluation, spec, base, base_hash
    ).calibrator_id


def iterative_hash(
    evaluation: Evaluation, spec: Iterative, base: Bm25 | Vector | Hybrid, base_hash: str
) -> str:
    """Identity of an iterative strategy's rankings: its base's index, its options, and the calibrator that steers it."""
    steered = base_accepted(evaluation, spec, base, base_hash).calibrator_id or HEURISTIC
    model = (
        evaluation.settings.endpoints[spec.endpoint].model
        if spec.endpoint in evaluation.settings.endpoints and spec.endpoint is not None
        else ""
    )
    return f"iterative:{digest([base_hash, spec.model_dump(mode='json', exclude={'name', 'base'}), steered, model, thesaurus(evaluation) is not None])}"


def thesaurus(evaluation: Evaluation) -> WordNet | None:
    """WordNet where it is installed, looked for once an evaluation; what it adds is part of the strategy's identity."""
    return evaluation.once("thesaurus", installed_wordnet)


class IterativeStrategy(ReadyStrategy):
    """A ready strategy whose searches go through rounds of expansion; `spec` is the base's, so that it stands for its kind at the port."""

    def __init__(
        self, evaluation: Evaluation, opened: "Opened", iterative: Iterative, base: ReadyStrategy
    ) -> None:
        super().__init__(base.spec, base.index)
        self.name, self.iterative, self.base = iterative.name, iterative, base
        self.index_hash = iterative_hash(evaluation, iterative, base.spec, base.index_hash)
        self.reranks_outside = base.reranks_outside
        self._evaluation, self._opened = evaluation, opened
        found = base_accepted(evaluation, iterative, base.spec, base.index_hash)
        self._model = None if found.body is None else MissRateModel.from_json(found.body["model"])
        self._group_of_query: dict[str, str] = (
            {} if found.body is None else found.body["group_of_query"]
        )
        self._groups: dict[str, str] | None = None
        self.last: Iterated | None = None
        """Rounds of the last search, for the batch that was asked."""

    def search(
        self,
        queries: list[str],
        depth: int,
        seed: int = 0,
        *,
        allowed: npt.NDArray[np.bool_] | None = None,
        cached: bool = True,
        strict: bool = True,
    ) -> Ranking:
        """Rank chunks for each query as `ReadyStrategy.search` does, expanding the questions whose retrieval is not trusted."""
        k = self._evaluation.config.uncertainty.k
        first = self.base.search(
            queries, max(depth, k), seed, allowed=allowed, cached=cached, strict=strict
        )
        context = ExpansionContext(
            batch_of(self._evaluation, self._opened, self.base.spec, queries, first),
            queries,
            self._corpus_words(),
            self._suggester,
            thesaurus(self._evaluation),
        )

        def again(texts: list[str]) -> Ranking:
            return self.base.search(
                texts, max(depth, k), seed, allowed=allowed, cached=cached, strict=strict
            )

        def risk(batch: RankedBatch) -> tuple[FloatArray, str]:
            if self._model is None:
                whole = batch.rows.shape[1]  # of ten places it sees too little to expand anything
                return heuristic_v0(batch, whole), f"{HEURISTIC}@{whole}"
            return self._model.predict(
                signals(batch, k), SIGNALS, self._known_groups(queries)
            ), CALIBRATED

        self.last = iterate(first, context, self.iterative, search=again, risk=risk, k=k)
        return self.last.ranking.cut(depth)

    def rounds(self) -> dict[str, Any]:
        """What the last search left behind, as parts of a run's artifact.

        Parts: expansions (EXPANSIONS_FRAME), round_<i> (rows of the merged rankings, the first ranking's as round_0), about.iterative (basis, n_rounds,
        stops, not_viable and suggestions_failed by name).
        """
        if self.last is None:
            raise RuntimeError(f"{self.name} has not searched yet")
        last = self.last
        about = {
            "basis": last.basis,
            "n_rounds": len(last.rounds),
            "stops": dict(sorted(Counter(last.stopped).items())),
            "not_viable": dict(sorted(last.not_viable.items())),
            "suggestions_failed": self._failed_suggestions,
        }
        return {
            "expansions": last.frame(),
            **{f"round_{at}": rows for at, rows in enumerate(last.rounds)},
            "about": {"iterative": about},
        }

    @property
    def _failed_suggestions(self) -> dict[str, int]:
        """Suggestions that a chat endpoint did not give, by code; the corpus's own associations stood in for them."""
        return (
            dict(sorted(self._suggester.failed.items()))
            if isinstance(self._suggester, ChatSuggester)
            else {}
        )

    def _known_groups(self, queries: list[str]) -> list[str]:
        """Group of each wording of the gold set, so that none is judged by a fit that saw its outcome; empty for any other text."""
        if self._groups is None:
            from rag_eval.evaluation.gold_steps import gold_variants

            variants = gold_variants(self._evaluation).frame("variants")
            groups = [
                self._group_of_query.get(query, group)
                for query, group in zip(variants["query_id"], variants["group_id"], strict=True)
            ]
            self._groups = dict(zip(variants["text"], groups, strict=True))
        return [self._groups.get(text, "") for text in queries]

    def _corpus_words(self) -> CorpusWords:
        space = term_space(self._evaluation, self._opened)
        return self._evaluation.once("corpus words", lambda: CorpusWords(self._opened.table, space))

    @functools.cached_property
    def _suggester(self) -> Suggester | None:
        """The chat endpoint that words questions anew, where one is configured; its replies are kept with those of the answers."""
        name, settings = self.iterative.endpoint, self._evaluation.settings
        if name is None:
            return None
        if name not in settings.endpoints:
            accepted = (
                ", ".join(sorted(settings.endpoints)) or "none is enabled; see RAG_EVAL_ENDPOINTS"
            )
            raise InputError(
                Problem(
                    "unknown_endpoint",
                    "the settings enable no chat endpoint of this name",
                    field=f"strategies.{self.name}.endpoint",
                    found=name,
                    accepted=accepted,
                )
            )
        endpoint = settings.endpoints[name]
        return ChatSuggester(
            ChatClient(endpoint, ChatCache(settings.home / KEPT_CHAT)), threads=endpoint.concurrency
        )


def iterative_strategy(
    evaluation: Evaluation, opened: "Opened", spec: Iterative
) -> IterativeStrategy:
    """Make an iterative strategy ready over its base, which is among the opened ones.

    Raises
    ------
    InputError
        The base reads its vectors from a file, which has none for expanded questions.
    """
    base = evaluation.config.base_of(spec)
    if isinstance(base, Vector | Hybrid) and base.embedding.vectors is not None:
        accepted = "a base of kind bm25, or one whose embedding names a model"
        raise InputError(
            Problem(
                "vectors_of_rounds",
                "a file of vectors has none for expanded questions",
                field=f"strategies.{spec.name}.base",
                found=spec.base,
                accepted=accepted,
            )
        )
    return IterativeStrategy(evaluation, opened, spec, opened.strategies[spec.base])
