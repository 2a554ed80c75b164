"""Evidence preflights: `retrieve`, `grep` and `section` for many questions at once, each with the artifact that records what it found.

Belongs here: finding. Terms and case rules are `grep_terms`; lines and tokens are `evidence`.
"""

import dataclasses
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rag_eval.answers.codes import Fault
from rag_eval.answers.events import Events
from rag_eval.answers.evidence import Library, merged
from rag_eval.answers.grep_terms import default_terms, find_terms
from rag_eval.answers.patterns import BadPatternError, PatternTimeoutError, TimedPattern
from rag_eval.answers.questions import Plan
from rag_eval.answers.withheld import Withheld
from rag_eval.records.answer_settings import Grep, Preflight, Retrieve, Section
from rag_eval.records.answers import Evidence
from rag_eval.records.problems import InputError, Problem, quoted
from rag_eval.records.retrieval import RetrievalResult, ScoredChunk

SCHEMA_VERSION = 1
Retriever = Callable[[Sequence[str], int], Sequence[RetrievalResult | None]]
"""(queries, top_k) -> one result for each query, None where its retrieval failed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Gathered:
    """What the preflights of one question gave: merged evidence, one JSON-able artifact a step, and why gathering failed, if it did."""

    evidence: tuple[Evidence, ...]
    artifacts: tuple[dict[str, Any], ...]
    fault: Fault | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class _Found:
    parameters: dict[str, Any]
    chunks: list[ScoredChunk]
    matched: list[list[str]] = dataclasses.field(
        default_factory=list
    )  # grep: what each chunk matched
    filtered: dict[str, int] = dataclasses.field(default_factory=dict)
    missing: list[str] = dataclasses.field(default_factory=list)


def check_patterns(plans: Iterable[Plan]) -> None:
    """Compile every pattern of every question.

    Raises
    ------
    InputError
        `bad_pattern` for each that does not compile.
    """
    found: dict[str, Problem] = {}
    for plan in plans:
        for pattern in _patterns([plan]):
            try:
                found.get(pattern) or TimedPattern(pattern)
            except BadPatternError as error:
                found[pattern] = Problem(
                    "bad_pattern",
                    quoted(str(error), 400),
                    field="preflights.patterns",
                    found=pattern,
                    accepted="a regular expression",
                )
    if found:
        raise InputError(list(found.values()))


def depends_on_top_k(steps: Iterable[Preflight]) -> bool:
    """Whether raising top_k can change what the steps find."""
    return any(
        isinstance(step, Retrieve) or (isinstance(step, Section) and not step.sections)
        for step in steps
    )


def _patterns(plans: Iterable[Plan]) -> dict[str, None]:
    return {
        pattern: None
        for plan in plans
        for step in plan.preflights
        if isinstance(step, Grep)
        for pattern in step.patterns
    }


def _terms(plan: Plan, step: Grep) -> tuple[str, ...]:
    return step.terms or (() if step.patterns else default_terms(plan.question.text))


def _depth(plan: Plan, step: Preflight, raised: int | None) -> int:
    """Chunks that a step asks retrieval for; 0 where it asks for none."""
    if isinstance(step, Retrieve):
        return max(step.top_k or plan.top_k, raised or 0)
    return max(plan.top_k, raised or 0) if isinstance(step, Section) and not step.sections else 0


def _withheld_count(n: int) -> dict[str, int]:
    """Part of an artifact's `filtered`; nothing where nothing was withheld."""
    return {"withheld": n} if n else {}


def _complete(
    results: Sequence[RetrievalResult | None], count: int
) -> list[RetrievalResult | None]:
    if len(results) != count:
        raise ValueError(f"the retriever gave {len(results)} results for {count} queries")
    return [*results]


class Preflights:
    """Runs preflights over one corpus.

    Parameters
    ----------
    library
        The corpus.
    retrieve
        The ranking of the strategy whose evidence is used.
    withheld
        Chunks that grep and section leave out, as the ranking does by itself.
    """

    def __init__(
        self, library: Library, retrieve: Retriever, withheld: Withheld | None = None
    ) -> None:
        self._library, self._retrieve, self._withheld = library, retrieve, withheld or Withheld()
        self._term_rows: dict[str, list[int]] = {}
        self._pattern_rows: dict[str, list[int] | None] = {}
        self._lock = threading.Lock()

    def gather(
        self, plans: Sequence[Plan], events: Sequence[Events], raised: int | None = None
    ) -> list[Gathered]:
        """Run the steps of every question, all questions at once.

        Parameters
        ----------
        plans
            The questions. Their patterns must compile (`check_patterns`).
        events
            Where each question's events go.
        raised
            top_k of an adaptive rerun; steps that name a larger one keep theirs.
        """
        with self._lock:  # reruns come from several threads; a retriever need not bear that
            ranked = self._rankings(plans, raised)
            self._grep_all(plans)
        gathered = []
        for number, (plan, log) in enumerate(zip(plans, events, strict=True)):
            steps: list[list[Evidence]] = []
            artifacts: list[dict[str, Any]] = []
            fault: Fault | None = None
            for place, step in enumerate(plan.preflights):
                log.add(
                    "preflight.step.start",
                    query_id=plan.question.query_id,
                    step=place,
                    kind=step.kind,
                )
                found = self._found(plan, step, _depth(plan, step, raised), ranked.get(number, {}))
                if isinstance(found, Fault):
                    fault = found
                    break
                evidence, artifact = self._record(plan, place, step, found)
                steps.append(evidence)
                artifacts.append(artifact)
                if not evidence:
                    log.add(
                        "preflight.step.filtered_to_zero",
                        query_id=plan.question.query_id,
                        step=place,
                        kind=step.kind,
                        missing=len(found.missing),
                    )
            gathered.append(Gathered(() if fault else merged(steps), tuple(artifacts), fault))
        return gathered

    def _found(
        self, plan: Plan, step: Preflight, depth: int, ranked: Mapping[int, RetrievalResult]
    ) -> _Found | Fault:
        if depth and depth not in ranked:
            return Fault("retrieval_error", "retrieval failed for this question.")
        if isinstance(step, Retrieve):
            return _Found({"top_k": depth}, list(ranked[depth].chunks[:depth]))
        if isinstance(step, Section):
            return self._section(plan, step, ranked.get(depth))
        late = next(
            (pattern for pattern in step.patterns if self._pattern_rows[pattern] is None), None
        )
        return (
            self._grep(plan, step)
            if late is None
            else Fault("pattern_timeout", f"the pattern {quoted(late)} ran out of time.")
        )

    def _rankings(
        self, plans: Sequence[Plan], raised: int | None
    ) -> dict[int, dict[int, RetrievalResult]]:
        """Question -> top_k -> ranking: one call of the retriever for each top_k. What fails is left out."""
        asked: dict[int, dict[int, None]] = {}
        for number, plan in enumerate(plans):
            for step in plan.preflights:
                if depth := _depth(plan, step, raised):
                    asked.setdefault(depth, {})[number] = None
        found: dict[int, dict[int, RetrievalResult]] = {}
        for depth, numbers in sorted(asked.items()):
            texts = [plans[number].question.text for number in numbers]
            for number, result in zip(numbers, self._asked(texts, depth), strict=True):
                if result is not None:
                    found.setdefault(number, {})[depth] = result
        return found

    def _asked(self, texts: list[str], depth: int) -> list[RetrievalResult | None]:
        """One ranking for each text; where the batch fails, one call each, so that one question's failure stops no other."""
        try:
            return _complete(self._retrieve(texts, depth), len(texts))
        except InputError:
            raise
        except Exception:  # noqa: BLE001 - the retriever may be anybody's code
            if len(texts) == 1:
                return [None]
        return [result for text in texts for result in self._asked([text], depth)]

    def _grep_all(self, plans: Sequence[Plan]) -> None:
        """Find the terms and patterns of all questions that were not looked for before. None stands for a pattern that ran out of time."""
        steps = [
            (plan, step) for plan in plans for step in plan.preflights if isinstance(step, Grep)
        ]
        new = dict.fromkeys(
            term
            for plan, step in steps
            for term in _terms(plan, step)
            if term not in self._term_rows
        )
        self._term_rows.update(find_terms(new, self._library.texts) if new else {})
        for pattern in _patterns(plans):
            if pattern not in self._pattern_rows:
                try:
                    self._pattern_rows[pattern] = TimedPattern(pattern).found_in(
                        self._library.texts
                    )
                except PatternTimeoutError:
                    self._pattern_rows[pattern] = None

    def _grep(self, plan: Plan, step: Grep) -> _Found:
        """Chunks by the summed rarity (idf) of what they match, best first; ties in the order of the chunks."""
        sought = [(term, self._term_rows[term]) for term in _terms(plan, step)] + [
            (pattern, self._pattern_rows[pattern] or []) for pattern in step.patterns
        ]
        scores: dict[int, float] = {}
        matched: dict[int, list[str]] = {}
        best = 0.0
        for name, rows in sought:
            weight = math.log1p(len(self._library.texts) / len(rows)) if rows else 0.0
            best += weight
            for row in rows:
                scores[row] = scores.get(row, 0.0) + weight
                matched.setdefault(row, []).append(name)
        ranked = sorted(scores, key=lambda row: (-scores[row], row))
        rows = self._withheld.left(
            plan.question.query_id, ranked
        )  # before the cut, so that what is withheld takes no place of what may be shown
        kept = rows[: step.max_hits]
        chunks = [
            self._library.payload(
                row, rank=rank, score_raw=scores[row], score_norm=scores[row] / best
            )
            for rank, row in enumerate(kept, 1)
        ]
        parameters = {
            "terms": list(_terms(plan, step)),
            "patterns": list(step.patterns),
            "max_hits": step.max_hits,
        }
        return _Found(
            parameters,
            chunks,
            [matched[row] for row in kept],
            {"over_max_hits": len(rows) - len(kept), **_withheld_count(len(ranked) - len(rows))},
            [name for name, places in sought if not places],
        )

    def _section(self, plan: Plan, step: Section, ranked: RetrievalResult | None) -> _Found:
        """Chunks of whole sections: those named, else the first sections of the ranking."""
        wanted = step.sections or tuple(
            dict.fromkeys(chunk.section_id for chunk in ranked.chunks) if ranked else ()
        )
        kept = wanted[: step.max_sections] if not step.sections else wanted
        ranking = {chunk.snippet_id: chunk for chunk in ranked.chunks} if ranked else {}
        chunks: list[ScoredChunk] = []
        missing = []
        n_withheld = 0
        for section in kept:
            rows = self._library.section_rows(section)
            if rows is None:  # of an outside retriever, or gone since the gold set was written
                alike = [chunk for chunk in ranking.values() if chunk.section_id == section]
                chunks.extend(alike)
                missing.extend([] if alike else [section])
            left = self._withheld.left(plan.question.query_id, rows or ())
            n_withheld += len(rows or ()) - len(left)
            for row in left:
                chunk = self._library.payload(
                    row, rank=len(chunks) + 1, score_raw=1.0, score_norm=1.0
                )
                chunks.append(ranking.get(chunk.snippet_id, chunk))
        return _Found(
            {"sections": list(step.sections), "max_sections": step.max_sections},
            chunks,
            filtered={"over_max_sections": len(wanted) - len(kept), **_withheld_count(n_withheld)},
            missing=missing,
        )

    def _record(
        self, plan: Plan, place: int, step: Preflight, found: _Found
    ) -> tuple[list[Evidence], dict[str, Any]]:
        items = [self._library.evidence(chunk, step.kind) for chunk in found.chunks]
        evidence = [item for item in items if item is not None]
        hits = [
            {
                "token": item.token,
                "doc_id": item.chunk.doc_id,
                "section_id": item.chunk.section_id,
                "snippet_id": item.chunk.snippet_id,
                "start": item.chunk.offsets.start,
                "end": item.chunk.offsets.end,
                "rev": item.chunk.rev,
                "score_raw": round(item.chunk.score_raw, 9)
                if math.isfinite(item.chunk.score_raw)
                else None,
                "k_final": item.chunk.k_final,
                "matched": found.matched[number] if found.matched else [],
            }
            for number, item in enumerate(items)
            if item is not None
        ]
        artifact = {
            "schema_version": SCHEMA_VERSION,
            "query_id": plan.question.query_id,
            "question": plan.question.text,
            "step": place,
            "kind": step.kind,
            "parameters": found.parameters,
            "tokens": list(dict.fromkeys(item.token for item in evidence)),
            "hits": hits,
            "filtered": {"blank": len(items) - len(evidence), **found.filtered},
            "missing": found.missing,
        }
        return evidence, artifact
