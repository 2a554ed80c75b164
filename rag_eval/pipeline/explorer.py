"""Collect what the explorer shows: a summary with a table of questions, and the questions."""

import functools
import itertools
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd

from rag_eval.core.arrays import BoolArray, IntArray
from rag_eval.core.types import ELLIPSIS, SNIPPET_CHARS, Level
from rag_eval.measures.intervals import COMPARED
from rag_eval.measures.ranking import Qrels
from rag_eval.measures.run_scores import ALWAYS_K, MEASURE, GoldArrays, judge_runs
from rag_eval.pipeline.corpus import CorpusChunks, CorpusSnapshot, EvidenceTrust, GoldVariants
from rag_eval.pipeline.exports import Answered
from rag_eval.pipeline.history import Previous
from rag_eval.pipeline.measure_stages import MissedQuestions
from rag_eval.pipeline.miss_rate_stages import MissRateClaims
from rag_eval.pipeline.runner import Work
from rag_eval.pipeline.strategy_runs import ScoredRuns
from rag_eval.reporting.outgoing import Outgoing
from rag_eval.reporting.questions import (
    FEW_DIGITS,
    MAX_ANSWER,
    MAX_QUESTION,
    MAX_WORDING,
    PACKED,
    PER_PART,
    SUMMARY_FILE,
    Json,
    address,
    line,
    marked,
    packed,
    rounded,
    short_name,
)
from rag_eval.reporting.tables import visible
from rag_eval.storage.artifacts import Artifact, Parts
from rag_eval.trust.guard import judge_units
from rag_eval.uncertainty.misses import describe_miss

DEPTH: Final = 10
"""Number of ranks of a retrieval that are shown."""
MAX_GOLD: Final = 50
"""Largest number of gold entries of one question."""
Unit = tuple[int, int]
"""Row of a question and number of a unit."""


class Explored(NamedTuple):
    """The results that the explorer shows; `answered` is None without configured answers."""

    runs: ScoredRuns
    corpus_snapshot: CorpusSnapshot
    corpus_chunks: CorpusChunks
    evidence_trust: EvidenceTrust
    miss_rate_claims: MissRateClaims
    missed_questions: MissedQuestions
    answered: Answered | None


def write_explorer(work: Work, data: Explored, previous: Previous | None) -> Artifact:
    """Write the parts of the explorer: summary.json.gz and questions-NNNN.json.gz."""
    config, runs = work.config, data.runs
    results = (runs.gold_variants, runs.admitted_chunks, *data[1:6], *runs.runs.values())
    compared = None if previous is None or previous.means is None else previous.part.run_id
    identity = [
        *(result.id for result in results),
        data.answered and data.answered.ids,
        [config.name, config.level, config.primary_strategy, runs.names],
        [config.uncertainty.target, config.uncertainty.k, config.trust.configured],
        compared,
    ]

    def make() -> Parts:
        n = len(runs.gold.queries)
        with work.progress.step("Writing the explorer", n, "questions") as advance:
            wordings = _order_wordings(runs.gold)
            retrievals = _list_retrievals(runs, wordings, data.miss_rate_claims.claims)
            parts: dict[str, object] = {
                SUMMARY_FILE: packed(_summarize(data, retrievals, previous))
            }
            questions = _write_questions(data, wordings, retrievals)
            for part in iter(lambda: list(itertools.islice(questions, PER_PART)), []):
                parts[f"questions-{len(parts) - 1:04d}{PACKED}"] = packed(part)
                advance(len(part))
        return parts

    return work.keep("explorer", identity, make)


# ---- Rows of the explorer: the stages' tables, joined by wording and by unit.


def _order_wordings(gold: GoldArrays) -> pd.DataFrame:
    """List the wordings of each question with `w`, their place; the original has 0."""
    wordings = gold.variants[["query_id", "paraphrase_id", "text"]].assign(question=gold.query_of)
    wordings = wordings.iloc[np.lexsort((gold.wordings[0], gold.query_of))]
    return wordings.assign(w=wordings.groupby("question").cumcount())


def _list_retrievals(
    runs: ScoredRuns, wordings: pd.DataFrame, claims: pd.DataFrame
) -> pd.DataFrame:
    """List the retrievals of all strategies with their scores and claims (CLAIMS).

    Columns beside those of the wordings: strategy, s (its place), variant, seed, failed, value
    (recall at 10), hit (success at 10), first (rank of the first relevant item), is_lowest (of the
    lowest seed), miss_rate, ci_low, ci_high, status and calibrator.
    """
    level, parts = runs.config.level, []
    for place, strategy in enumerate(runs.names):
        scores, first = runs.scores(strategy), judge_runs(runs, strategy).first
        part = pd.DataFrame(
            {
                "strategy": strategy,
                "s": place,
                "variant": scores.variant,
                "seed": scores.seed,
                "failed": scores.failed,
                "value": scores.column(level, MEASURE),
                "hit": scores.column(level, f"Success@{ALWAYS_K}"),
                "first": np.where(np.isfinite(first), first, np.nan),
                "is_lowest": scores.seed == scores.seed.min(),
            }
        )
        parts.append(part[runs.ran(strategy)[scores.variant]])
    rows = pd.concat(parts).join(wordings.drop(columns="text"), on="variant")
    keys = ["strategy", "query_id", "paraphrase_id", "seed"]
    figures = ["miss_rate", "ci_low", "ci_high", "status", "calibrator"]
    rows = rows.merge(claims[keys + figures], on=keys, how="left")
    rows = rows.fillna({"status": "absent", "calibrator": ""})
    return rows.sort_values(["question", "s", "seed", "w"], ignore_index=True)


def _is_relevant(question: IntArray, row: IntArray, gold: GoldArrays, level: Level) -> BoolArray:
    """Mark the units (rows of the rankings) that the scores count as relevant to their questions.

    A unit is relevant when its document or section is judged relevant. At the span level it is
    relevant when it carries a gold span.
    """
    choices: dict[Level, tuple[Qrels, IntArray]] = {
        "document": (gold.qrels_document, gold.document_of_chunk[row]),
        "section": (gold.qrels_section, gold.section_of_chunk[row]),
        "span": (gold.qrels_chunk, row),
    }
    qrels, item = choices[level]
    owner = np.repeat(np.arange(len(qrels.indptr) - 1), np.diff(qrels.indptr))
    relevant = pd.MultiIndex.from_arrays([owner, qrels.items])[qrels.gains > 0]
    return pd.MultiIndex.from_arrays([question, item]).isin(relevant)


def _list_ranks(runs: ScoredRuns, retrievals: pd.DataFrame) -> pd.DataFrame:
    """List the first ten results of every retrieval with `unit`: the chunks, then own units.

    A unit that equals a chunk of the corpus word for word becomes that chunk.
    """
    start, level, parts = len(runs.chunks), runs.config.level, []
    for strategy, run in runs.runs.items():
        top = run.run[run.run["k_final"] <= DEPTH]
        unit = row = top["chunk"].to_numpy(dtype=np.int64)
        if run.units is not None:
            chunk = run.units["chunk"].to_numpy()
            is_chunk = (chunk >= 0) & (run.units["returned"] == "").to_numpy(dtype=bool)
            unit = np.where(is_chunk, chunk, start + np.arange(len(chunk)))[row]
            start += len(chunk)
        question = runs.gold.query_of[top["variant"]]
        hit = _is_relevant(question, row, runs.gold_of(strategy), level)
        hit &= level not in runs.unmeasured(strategy)
        score = top["rerank_score"].fillna(top["score_raw"])
        parts.append(top.assign(strategy=strategy, unit=unit, hit=hit, score=score))
    keys = ["strategy", "seed", "variant"]
    owners = retrievals[[*keys, "question"]].reset_index(names="retrieval")
    ranks = pd.concat(parts).merge(owners, on=keys)
    return ranks.sort_values(["retrieval", "k_final"], ignore_index=True)


def _describe_units(data: Explored) -> pd.DataFrame:
    """Describe every unit that the lists may name: the chunks, then own units of each strategy.

    `shown` is the text that a source returned when it differs from `text`.
    """
    runs, trust = data.runs, data.evidence_trust
    columns = ["doc_id", "section_id", "start", "end", "title", "text"]
    facts = ["trust", "verdict", "reasons"]
    chunks = runs.admitted_chunks.artifact.frame("chunks", columns).assign(shown="")
    parts = [pd.concat([chunks, runs.admitted_chunks.trust_of(trust)[facts]], axis=1)]
    documents = data.corpus_snapshot.documents.set_index("doc_id")
    for run in runs.runs.values():
        if run.units is not None:
            verdicts = judge_units(run.units, data.corpus_chunks.chunks, trust.trust)
            described = run.units.assign(
                title=documents["title"].reindex(run.units["doc_id"]).fillna("").to_numpy(),
                shown=run.units["returned"],
                trust=verdicts.trust,
                verdict=verdicts.verdict,
                reasons=pd.Series(verdicts.reasons, index=run.units.index, dtype=object),
            )
            parts.append(described[[*columns, "shown", *facts]])
    units = pd.concat(parts, ignore_index=True)
    urls = documents["source_url"].reindex(units["doc_id"]).fillna("").to_numpy()
    return units.assign(url=urls, trust=units["trust"] if runs.config.trust.configured else None)


# ---- Gold of each question, and where the retrieved units hold it.


def _collect_gold(corpus: CorpusSnapshot, gold: GoldVariants) -> dict[str, list[Json]]:
    """Collect the gold evidence by query id.

    A document is shown by its quoted spans; without a span by its judged sections; else whole.
    """
    sections = corpus.sections[["section_id", "doc_id"]]
    sections_judged = gold.qrels_section.rename(columns={"item_id": "section_id"}).merge(sections)
    # A document without headings is a section of the same id. The document judgement covers it.
    sections_judged = sections_judged[sections_judged["section_id"] != sections_judged["doc_id"]]
    whole = gold.qrels_document.rename(columns={"item_id": "doc_id"})
    frames = [gold.spans.assign(gain=1), sections_judged, whole]
    rows = pd.concat([frame.assign(kind=kind) for kind, frame in enumerate(frames)])
    rows = rows[rows["gain"] > 0]
    rows = rows[rows["kind"] == rows.groupby(["query_id", "doc_id"])["kind"].transform("min")]
    documents, entries = corpus.documents.set_index("doc_id"), dict[str, list[Json]]()
    for row in rows.groupby("query_id").head(MAX_GOLD).to_dict("records"):
        doc_id, quote = row["doc_id"], ""
        if row["kind"] == 0:
            start, end = int(row["start"]), int(row["end"])
            quote = "".join(marked(documents["text"].get(doc_id, ""), [(start, end)])[1:2])
            quote += ELLIPSIS if end - start > SNIPPET_CHARS else ""
        entries.setdefault(row["query_id"], []).append(
            {
                "doc": short_name(doc_id),
                "section": short_name(row["section_id"]) if row["kind"] == 1 else "",
                "quote": quote,
                **address(documents["source_url"].get(doc_id, "")),
            }
        )
    return entries


def _find_gold(
    ranks: pd.DataFrame, units: pd.DataFrame, gold: GoldVariants
) -> dict[Unit, list[tuple[int, int]]]:
    """Find the gold spans of a question in its retrieved units."""
    pairs = ranks[["question", "unit"]].drop_duplicates()
    pairs = pairs.assign(query_id=gold.queries["query_id"].to_numpy()[pairs["question"]])
    places = units[["doc_id", "start", "end"]].rename(columns={"start": "low", "end": "high"})
    overlaps = pairs.merge(gold.spans[["query_id", "doc_id", "start", "end"]], on="query_id")
    overlaps = overlaps.merge(places.reset_index(names="unit"), on=["unit", "doc_id"])
    start, end = overlaps[["start", "low"]].max(axis=1), overlaps[["end", "high"]].min(axis=1)
    overlaps = overlaps.assign(start=start - overlaps["low"], end=end - overlaps["low"])
    overlaps = overlaps[(overlaps["low"] >= 0) & (start < end)]  # An unknown place is -1.
    spans: dict[Unit, list[tuple[int, int]]] = {}
    columns = (overlaps[name].tolist() for name in ("question", "unit", "start", "end"))
    for question, unit, low, high in zip(*columns, strict=True):
        spans.setdefault((question, unit), []).append((low, high))
    return spans


# ---- Parts of questions: wordings, gold, ranked units of every retrieval, and the answer.


def _describe_answers(answered: Answered) -> Iterator[tuple[str, Json]]:
    """Describe the answers by query id: outcome, text and each citation with its verdict."""
    figures = answered.measures.per_question.set_index("query_id")
    has_gold = figures["n_gold"] > 0
    verdicts = answered.citations.citations
    by_query = dict(iter(verdicts.groupby("query_id")))
    for answer in answered.answers.answers:
        outgoing = Outgoing(answer)
        cells = by_query.get(answer.query_id, verdicts.iloc[:0])
        cited = zip(answer.citations, outgoing.quotes, cells["code"], cells["correct"], strict=True)
        yield (
            answer.query_id,
            {
                "outcome": answer.outcome,
                "text": line(outgoing.text, MAX_ANSWER),
                "strategy": answered.answers.about.strategy,
                "groundedness": rounded([figures["groundedness"].get(answer.query_id, np.nan)])[0],
                "citations": [
                    {
                        "doc": short_name(quote.doc_id),
                        "section": short_name(answer.evidence[span.evidence].chunk.section_id)
                        if 0 <= span.evidence < len(answer.evidence)
                        else "",
                        "quote": line(quote.text),
                        "code": code,
                        "correct": bool(correct) if has_gold.get(answer.query_id) else None,
                        **address(quote.source_url or ""),
                    }
                    for span, quote, code, correct in cited
                ],
            },
        )


def missed_sentences(missed: pd.DataFrame) -> dict[tuple[str, str], str]:
    """Say what lost the gold of each missed question, by (strategy, visible id)."""
    return {
        (row["strategy"], visible(row["query_id"])): line(describe_miss(row), MAX_ANSWER)
        for row in missed.to_dict("records")
    }


def _write_retrievals(
    ranks: pd.DataFrame, retrievals: pd.DataFrame, missed: pd.DataFrame
) -> Iterator[Json]:
    """Write the retrievals in their order.

    `units` holds numbers of units, best first, `scores` their scores, and `hits` the places of the
    relevant ones. `first` is the rank of the first relevant item, `value` the recall at 10, and
    `miss` the miss rate with its interval, status and calibrator. `lost` is a sentence on the step
    that lost the gold; empty for a hit and for other wordings.
    """
    lost = missed_sentences(missed)
    units, hits = ranks["unit"].tolist(), ranks["hit"].to_numpy()
    scores = rounded(ranks["score"], FEW_DIGITS)
    bounds = np.searchsorted(ranks["retrieval"], np.arange(len(retrievals) + 1)).tolist()
    columns = ("first", "value", "miss_rate", "ci_low", "ci_high")
    figures = list(zip(*(rounded(retrievals[name], FEW_DIGITS) for name in columns), strict=True))
    for at, row in enumerate(retrievals.to_dict("records")):
        low, high = bounds[at : at + 2]
        first, value, *rates = figures[at]
        key = row["strategy"], visible(row["query_id"])
        yield {
            **{name: row[name] for name in ("s", "w", "seed")},
            "failed": bool(row["failed"]),
            "first": first,
            "value": value,
            "miss": [*rates, row["status"], row["calibrator"]],
            "lost": lost.get(key, "") if row["w"] == 0 else "",
            "units": units[low:high],
            "scores": scores[low:high],
            "hits": np.flatnonzero(hits[low:high]).tolist(),
        }


def _write_questions(
    data: Explored, wordings: pd.DataFrame, retrievals: pd.DataFrame
) -> Iterator[Json]:
    """Write the questions in the order of the gold set, with the retrievals of the lowest seed.

    The retrievals of a question name its units by their place in `units`. The pieces of a unit's
    text are plain and gold in turn.
    """
    gold = data.runs.gold_variants
    retrievals = retrievals[retrievals["is_lowest"]].reset_index(drop=True)
    ranks, units = _list_ranks(data.runs, retrievals), _describe_units(data)
    evidence, spans = _collect_gold(data.corpus_snapshot, gold), _find_gold(ranks, units, gold)
    answers = {} if data.answered is None else dict(_describe_answers(data.answered))
    rows = units.loc[ranks["unit"].unique()].to_dict("index")

    @functools.cache
    def describe(unit: int) -> Json:
        row = rows[unit]
        return {
            "doc": short_name(row["doc_id"]),
            "section": short_name(row["section_id"]),
            "title": short_name(row["title"]),
            "text": [line(row["shown"] or row["text"])],
            "trust": rounded([row["trust"]])[0],
            "verdict": row["verdict"],
            "reasons": [short_name(code) for code in row["reasons"]],
            **address(row["url"]),
        }

    lists = _write_retrievals(ranks, retrievals, data.missed_questions.missed)
    ids = gold.queries["query_id"].tolist()
    n_retrievals = np.bincount(retrievals["question"], minlength=len(ids)).tolist()
    asked = dict(iter(wordings.groupby("question")))
    for question, (query_id, n) in enumerate(zip(ids, n_retrievals, strict=True)):
        places, listed = dict[int, int](), list(itertools.islice(lists, n))
        for run in listed:
            run["units"] = [places.setdefault(unit, len(places)) for unit in run["units"]]
        pairs = zip(asked[question]["paraphrase_id"], asked[question]["text"], strict=True)
        yield {
            "id": visible(query_id),
            "wordings": [{"id": visible(w), "text": line(text, MAX_WORDING)} for w, text in pairs],
            "gold": evidence.get(query_id, []),
            "runs": listed,
            "units": [
                {**describe(unit), "text": marked(rows[unit]["text"], spans[question, unit])}
                if (question, unit) in spans
                else describe(unit)
                for unit in places
            ],
            "answer": answers.get(query_id),
        }


# ---- The summary: the table of questions, and what the page says about the run.


def _summarize(data: Explored, retrievals: pd.DataFrame, previous: Previous | None) -> Json:
    """Write the summary.

    A column of the table of questions has one value for each question, or a list of them for each
    strategy.
    """
    runs, config, missed = data.runs, data.runs.config, data.missed_questions.missed
    queries, names, values = runs.gold.queries, runs.names, runs.recall()
    cells = pd.MultiIndex.from_product([range(len(names)), range(len(queries))])

    def table(column: pd.Series) -> list[list[Any]]:
        return column.reindex(cells).to_numpy().reshape(len(names), len(queries)).tolist()

    def numbers(column: pd.Series) -> list[list[float | None]]:
        return [rounded(row) for row in table(column)]

    def texts(column: pd.Series, default: str | None) -> list[list[str | None]]:
        rows = table(column)
        return [[text if isinstance(text, str) else default for text in row] for row in rows]

    by_question = retrievals.groupby(["s", "question"])
    first = retrievals[retrievals["is_lowest"] & (retrievals["w"] == 0)]
    first = first.set_index(["s", "question"])
    steps = pd.MultiIndex.from_arrays(
        [
            pd.Index(names).get_indexer(pd.Index(missed["strategy"])),
            pd.Index(queries["query_id"]).get_indexer(pd.Index(missed["query_id"])),
        ]
    )
    change = np.full(values.shape, np.nan)
    if previous is not None and previous.means is not None:
        means = previous.means[:, COMPARED.index(MEASURE) :: len(COMPARED)].T
        change = np.round(values - means, 12)
    questions = {
        "id": [visible(query_id) for query_id in queries["query_id"]],
        "text": [line(text, MAX_QUESTION) for text in queries["text"]],
        "value": [rounded(row) for row in values],
        "change": [rounded(row) for row in change],
        "first": numbers(first["first"]),
        "hits": numbers(by_question["hit"].sum(min_count=1)),
        "runs": numbers(by_question.size()),
        "lost": texts(pd.Series(missed["lost"].to_numpy(dtype=object), steps), None),
        "miss": numbers(first["miss_rate"]),
        "status": texts(first["status"], "absent"),
    }
    return {
        "gold_set": config.name,
        "primary": names.index(config.primary_strategy),
        "strategies": names,
        "measure": MEASURE,
        "level": config.level,
        "target": config.uncertainty.target,
        "k": config.uncertainty.k,
        "per_part": PER_PART,
        "n_questions": len(queries),
        "questions": questions,
    }
