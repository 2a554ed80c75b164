"""Write the parts of the explorer: the summary, the questions, and the units of their rankings.

The result page embeds these parts. The viewer serves them. A browser reads them part by part.
"""

import bisect
import dataclasses
import functools
import gzip
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypedDict

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray
from rag_eval.core.config import STATUSES, Level
from rag_eval.core.types import ELLIPSIS, OUTCOMES, SNIPPET_CHARS, Answer, is_joined, snippet
from rag_eval.corpus.masking import PATTERNS, mask_shown_address, mask_snippet, masked_text
from rag_eval.measures.ranking import Qrels
from rag_eval.pipeline.answers import Answered
from rag_eval.pipeline.claims import MissRateClaims, judge_runs
from rag_eval.pipeline.corpus import (
    CorpusChunks,
    CorpusSnapshot,
    EvidenceTrust,
    GoldArrays,
    GoldVariants,
)
from rag_eval.pipeline.external import unit_verdicts
from rag_eval.pipeline.history import NO_PREVIOUS, Previous, are_comparable
from rag_eval.pipeline.measures import (
    ALWAYS_K,
    COMPARED,
    STATES,
    ScoredRuns,
    StabilityMeasures,
    wording_of,
)
from rag_eval.pipeline.runner import Work
from rag_eval.reporting.html.elements import visible, web_address
from rag_eval.reporting.metrics_report import Outgoing
from rag_eval.storage.artifacts import Artifact, Parts

# ---- Format of the parts: rounded numbers, compact JSON, reproducible gzip bytes.

SCHEMA_VERSION: Final = 1
QUESTIONS, CHUNKS = 200, 1000
"""Number of questions or units in one part."""
SUMMARY_FILE: Final = "summary.json.gz"
DIGITS, FEW_DIGITS = 6, 4
"""Significant digits of the table, and of scores and miss rates in the parts of questions.

Scores and miss rates make up most bytes of the parts, so they have fewer digits.
"""
_WHOLE: Final = 2.0**53
"""Limit of whole numbers. Float64 holds every smaller whole number exactly."""


def nullable(values: npt.ArrayLike, digits: int = DIGITS) -> list[Any]:
    """Round numbers to significant digits for JSON, in the shape of the array.

    Whole numbers have no fraction. NaN and infinity become null.
    """
    array = np.asarray(values, dtype=np.float64)
    cells = np.empty(array.size, dtype=object)
    for at, value in enumerate(array.ravel().tolist()):
        short = float(f"{value:.{digits}g}")
        if np.isfinite(short):
            cells[at] = int(short) if abs(short) < _WHOLE and short.is_integer() else short
    result: list[Any] = cells.reshape(array.shape).tolist()
    return result


def packed(value: object) -> bytes:
    """Write compact, gzipped JSON. The bytes hold no time, so equal values give equal bytes."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return gzip.compress(text.encode(), compresslevel=6, mtime=0)


def unpacked(data: bytes) -> Any:
    """Read the bytes that `packed` wrote."""
    return json.loads(gzip.decompress(data))


def _codes(values: Iterable[object], names: Sequence[str]) -> list[int | None]:
    """Return the place of each value in `names`; null for other values."""
    place = {name: at for at, name in enumerate(names)}
    return [place.get(str(value)) for value in values]


# ---- Texts: personal data masked, invisible characters written out, cut to a snippet or window.

MAX_NAME, MAX_ADDRESS, MAX_QUESTION, MAX_WORDING, MAX_ANSWER = 200, 500, 300, 600, 600
"""Limits in code points: ids and titles, addresses, questions in the table, wordings, answers."""
REACH: Final = 500
"""Characters on both sides of a window that are masked together with the window.

A window may show only the end of a value. The characters beside it reveal the whole value.
"""
_ESCAPE: Final = 12
"""Largest length of an escaped character."""
_MASKABLE: Final = re.compile(
    "%|[0-9][0-9 .()/-]{6}|"
    + "|".join(re.escape(anchor) for pattern in PATTERNS for anchor in pattern.anchors),
    re.IGNORECASE,
)
"""Signs of personal data. Addresses without a sign are not masked, because masking takes long."""


def line(text: str, limit: int = SNIPPET_CHARS) -> str:
    """Write a text as one line of at most `limit` code points.

    Personal data is masked, and invisible characters are written out.
    """
    return visible(mask_snippet(text, limit))


@functools.lru_cache(maxsize=20_000)
def name(text: str) -> str:
    """Write an id, a title or a tag as one line. Results are cached, because names recur."""
    return line(text, MAX_NAME)


@functools.lru_cache(maxsize=20_000)
def address(url: str) -> tuple[str, str]:
    """Write an address as text and as a link.

    The link is empty when the address is no web address or holds masked personal data.
    """
    start = url[: 10 * MAX_ADDRESS]
    masked = mask_shown_address(start) if _MASKABLE.search(start) else start
    return visible(snippet(masked, MAX_ADDRESS)), web_address(url) if masked == url else ""


@functools.lru_cache(maxsize=10_000)
def _piece(character: str) -> str:
    return " " if character.isspace() else visible(snippet(character, _ESCAPE))


def _cut(text: str, start: int, end: int) -> str:
    """Return text[start:end] with personal data masked.

    Masking also reads up to REACH characters on both sides.
    """
    low = max(0, start - REACH)
    return masked_text(text[low : end + REACH])[start - low : end - low]


def _window(edges: IntArray, begin: int, end: int, budget: int) -> tuple[int, int]:
    """Choose the bounds of the window within the budget.

    The window holds as much of begin..end as fits. The text before and the text after each get half
    of the remaining budget. A side that is too short leaves its share to the other side. `edges`
    are the lengths of the shown text up to each character.
    """
    right = min(end, int(np.searchsorted(edges, edges[begin] + budget, "right")) - 1)
    spare = budget - (edges[right] - edges[begin])
    left = np.searchsorted(edges, edges[begin] - spare // 2)
    right = int(np.searchsorted(edges, edges[left] + budget, "right")) - 1
    return int(np.searchsorted(edges, edges[right] - budget)), right


def marked(
    text: str, spans: Sequence[tuple[int, int]], limit: int = SNIPPET_CHARS
) -> tuple[str, list[list[int]]]:
    """Cut a window of a text around the first of several spans.

    Parameters
    ----------
    text
        Any text.
    spans
        [begin, end) in characters of `text`, begin at least 0. Ends beyond the text are cut.
    limit
        Most code points of the window, ellipses included.

    Returns
    -------
    window
        One line with personal data masked, white space collapsed, invisible characters written out.
    at
        [begin, end) of the spans in code points of the window, ascending and without contact.
        A span that the window cuts ends at the border of the window.
    """
    spans = sorted((start, min(end, len(text))) for start, end in spans)
    spans = [(start, end) for start, end in spans if start < end]
    if not spans:
        return line(text, limit), []
    begin, end = spans[0]
    start = max(0, begin - limit)
    region = _cut(text, start, min(len(text), min(end, begin + limit) + limit))
    pieces = [
        "" if character.isspace() and before.isspace() else _piece(character)
        for before, character in zip("x" + region, region, strict=False)
    ]
    edges = np.cumsum([0, *map(len, pieces)])
    begin, end = begin - start, min(end - start, len(region))
    left, right = _window(edges, begin, end, limit - 2 * len(ELLIPSIS))
    while left < begin and (not pieces[left].strip() or is_joined(region[left])):
        left += 1
    while right > begin + 1 and (
        not pieces[right - 1].strip() or (right < len(region) and is_joined(region[right]))
    ):
        right -= 1
    before = ELLIPSIS if text[: start + left].strip() else ""
    after = ELLIPSIS if text[start + right :].strip() else ""
    places = np.clip(np.array(spans) - start, left, right)
    at: list[list[int]] = []
    for first, last in (edges[places] - edges[left] + len(before)).tolist():
        if at and first <= at[-1][1]:
            at[-1][1] = max(at[-1][1], last)
        elif first < last:
            at.append([first, last])
    return before + "".join(pieces[left:right]) + after, at


# ---- Rows of the explorer: the stages' tables, joined by wording and by unit.

MEASURE: Final = "R@10"
DEPTH: Final = 10
"""Number of ranks in the parts."""
NEVER_FIRST: Final = 10
"""Number added to the best rank of a unit that no original wording found."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows that the parts show.

    Parameters
    ----------
    wordings
        Wordings of all questions, by variant, in the order of the parts: query_id, paraphrase_id,
        text, question, and w, the place among the wordings of the question. The original has 0.
    retrievals
        Retrievals in the order of the parts: strategy, s (its place), variant, seed, question, w,
        is_first (whether the original wording was asked under the lowest seed), failed, value
        (recall at 10), hit (success at 10), first (rank of the first relevant item), miss_rate,
        ci_low, ci_high, status (place in STATUSES) and calibrator.
    ranks
        First ten results of every retrieval, best first: retrieval (its row), question, k_final,
        number of the unit, score by which the strategy ranks, and hit (whether it is relevant).
    units
        Units of `ranks` by number: doc_id, section_id, start, end, title, text, shown, trust,
        verdict, reasons, and priority. The chunks of the corpus come first. `shown` is the text
        that the source returned when that text differs from `text`. `priority` is the best rank
        from 0 under an original wording and the lowest seed. Ranks of other retrievals count 10
        more.
    """

    wordings: pd.DataFrame
    retrievals: pd.DataFrame
    ranks: pd.DataFrame
    units: pd.DataFrame


def _order_wordings(gold: GoldArrays) -> pd.DataFrame:
    wordings = gold.variants[["query_id", "paraphrase_id", "text"]].assign(question=gold.query_of)
    wordings = wordings.iloc[np.lexsort((wording_of(gold)[0], gold.query_of))]
    return wordings.assign(w=wordings.groupby("question").cumcount())


def _list_retrievals(
    runs: ScoredRuns, wordings: pd.DataFrame, claims: pd.DataFrame
) -> pd.DataFrame:
    """List the retrievals of all strategies with their scores and claims (CLAIMS)."""
    level, parts = runs.config.level, []
    for place, strategy in enumerate(runs.names):
        scores = runs.scores(strategy)
        first = judge_runs(runs, strategy).first
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
    status = rows["status"].fillna("absent")
    rows = rows.assign(
        status=pd.Index(STATUSES).get_indexer(pd.Index(status)),
        calibrator=rows["calibrator"].fillna(""),
        is_first=rows["is_lowest"] & (rows["w"] == 0),
    )
    return rows.sort_values(["question", "s", "seed", "w"], ignore_index=True)


def _relevant(question: IntArray, row: IntArray, gold: GoldArrays, level: Level) -> BoolArray:
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
    judged = pd.MultiIndex.from_arrays([owner, qrels.items])[qrels.gains > 0]
    return pd.MultiIndex.from_arrays([question, item]).isin(judged)


def _list_ranks(runs: ScoredRuns, retrievals: pd.DataFrame) -> pd.DataFrame:
    """List the first ten results of every retrieval, with `unit`: the chunks, then own units.

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
        is_judged = level not in runs.unmeasured(strategy)
        hit = _relevant(question, row, runs.gold_of(strategy), level) & is_judged
        score = top["rerank_score"].fillna(top["score_raw"])
        parts.append(top.assign(strategy=strategy, unit=unit, hit=hit, score=score))
    keys = ["strategy", "seed", "variant"]
    owners = retrievals[[*keys, "question", "w", "is_first"]].reset_index(names="retrieval")
    ranks = pd.concat(parts).merge(owners, on=keys)
    return ranks.sort_values(["retrieval", "k_final"], ignore_index=True)


def _describe_units(
    runs: ScoredRuns, corpus: CorpusSnapshot, cut: CorpusChunks, trust: EvidenceTrust
) -> pd.DataFrame:
    """Describe every unit that the lists may name: the chunks, then own units of each strategy."""
    columns = ["doc_id", "section_id", "start", "end", "title", "text"]
    facts = ["trust", "verdict", "reasons"]
    chunks = runs.admitted_chunks.artifact.frame("chunks", columns).assign(shown="")
    parts = [pd.concat([chunks, runs.admitted_chunks.trust_of(trust)[facts]], axis=1)]
    titles = corpus.documents.set_index("doc_id")["title"]
    for run in runs.runs.values():
        if run.units is not None:
            judged = unit_verdicts(runs.config, cut, trust, runs.gold_variants.texts, run.units)
            own = run.units.assign(
                title=titles.reindex(run.units["doc_id"]).fillna("").to_numpy(),
                shown=run.units["returned"],
                trust=judged.trust,
                verdict=judged.verdict,
                reasons=pd.Series(judged.reasons, index=run.units.index, dtype=object),
            )
            parts.append(own[[*columns, "shown", *facts]])
    return pd.concat(parts, ignore_index=True)


def _join_rows(runs: ScoredRuns, claims: pd.DataFrame, units: pd.DataFrame) -> Rows:
    wordings = _order_wordings(runs.gold)
    retrievals = _list_retrievals(runs, wordings, claims)
    ranks = _list_ranks(runs, retrievals)
    by_place = ranks.sort_values(["question", "w", "retrieval", "k_final"])
    listed = by_place["unit"].unique()
    listed = listed[np.argsort(listed >= len(runs.chunks), kind="stable")]
    number = pd.Series(np.arange(len(listed)), index=listed)
    ranks = ranks.assign(number=number[ranks["unit"]].to_numpy())
    rank = ranks["k_final"] - 1 + np.where(ranks["is_first"], 0, NEVER_FIRST)
    priority = rank.groupby(ranks["number"]).min().to_numpy(dtype=np.uint8)
    units = units.iloc[listed].reset_index(drop=True).assign(priority=priority)
    return Rows(wordings, retrievals, ranks, units)


# ---- Gold of each question: quoted spans, then judged sections and documents without a span.

MAX_GOLD = 50
"""Largest number of gold entries of one question."""
_READ = 1000
"""Number of characters of a quote that are masked. Fewer characters are shown."""


class GoldEntry(TypedDict):
    """A piece of gold evidence of a question; `quote` is empty without a quoted span."""

    doc: str
    section: str
    quote: str
    link: str
    source: str


class Mark(TypedDict):
    """A window of a unit's text, and the places of the gold spans in the window."""

    text: str
    at: list[list[int]]


def _find_sections(spans: pd.DataFrame, sections: pd.DataFrame) -> list[str]:
    """Find the smallest section that holds the first character of each span.

    The section id is empty when no section holds the character.
    """
    rows = spans[["doc_id", "start"]].reset_index(names="span")
    rows = rows.merge(sections, on="doc_id", suffixes=("", "_of_section"))
    rows = rows[(rows["start_of_section"] <= rows["start"]) & (rows["start"] < rows["end"])]
    rows = rows.assign(size=rows["end"] - rows["start_of_section"])
    rows = rows.sort_values(["size", "section_id"], kind="stable").drop_duplicates("span")
    return list(rows.set_index("span")["section_id"].reindex(spans.index, fill_value=""))


def _drop_known(rows: pd.DataFrame, known: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    index, other = (pd.MultiIndex.from_frame(frame[keys]) for frame in (rows, known))
    return rows[~index.isin(other)]


def _collect_gold(corpus: CorpusSnapshot, gold: GoldVariants) -> dict[str, list[GoldEntry]]:
    """Collect the gold evidence of each query, by query id."""
    sections = corpus.sections
    spans = gold.spans.assign(section_id=_find_sections(gold.spans, sections))
    judged = gold.qrels_section[gold.qrels_section["gain"] > 0]
    judged = judged.rename(columns={"item_id": "section_id"})
    judged = judged.merge(sections[["section_id", "doc_id"]], on="section_id", how="left")
    judged = judged.fillna({"doc_id": ""})
    # A document without headings is a section of the same id. The document judgement covers it.
    judged = judged[judged["section_id"] != judged["doc_id"]]
    rows = pd.concat([spans, _drop_known(judged, spans, ["query_id", "section_id"])])
    whole = gold.qrels_document[gold.qrels_document["gain"] > 0]
    whole = whole.rename(columns={"item_id": "doc_id"}).assign(section_id="")
    rows = pd.concat([rows, _drop_known(whole, rows, ["query_id", "doc_id"])])
    documents, entries = corpus.documents.set_index("doc_id"), dict[str, list[GoldEntry]]()
    for row in rows.groupby("query_id").head(MAX_GOLD).to_dict("records"):
        doc_id, quote = row["doc_id"], ""
        if pd.notna(row["start"]):
            start, end = int(row["start"]), int(row["end"])
            quote = line(_cut(documents["text"].get(doc_id, ""), start, min(end, start + _READ)))
        source, link = address(documents["source_url"].get(doc_id, ""))
        entry = GoldEntry(
            doc=name(doc_id), section=name(row["section_id"]), quote=quote, link=link, source=source
        )
        entries.setdefault(row["query_id"], []).append(entry)
    return entries


def _mark_gold(rows: Rows, gold: GoldVariants) -> dict[str, dict[str, Mark]]:
    """Mark the gold spans in the units that were retrieved for their question.

    The result is by query id and number of the unit.
    """
    ids = gold.queries["query_id"]
    pairs = rows.ranks[["question", "number"]].drop_duplicates()
    pairs = pairs.assign(query_id=ids.to_numpy()[pairs["question"]])
    places = rows.units[["doc_id", "start", "end"]].rename(columns={"start": "low", "end": "high"})
    held = pairs.merge(gold.spans[["query_id", "doc_id", "start", "end"]], on="query_id")
    held = held.merge(places.reset_index(names="number"), on=["number", "doc_id"])
    # The place of a unit is -1 when it is unknown.
    start, end = held[["start", "low"]].max(axis=1), held[["end", "high"]].min(axis=1)
    held = held.assign(start=start - held["low"], end=end - held["low"])
    held = held[(held["low"] >= 0) & (start < end)]
    edges: dict[tuple[str, int], list[tuple[int, int]]] = {}
    columns = (held[column].tolist() for column in ("query_id", "number", "start", "end"))
    for query_id, number, *span in zip(*columns, strict=True):
        edges.setdefault((query_id, number), []).append((span[0], span[1]))
    texts, marks = rows.units["text"].tolist(), dict[str, dict[str, Mark]]()
    for (query_id, number), spans in edges.items():
        text, at = marked(texts[number], spans)
        if at:
            marks.setdefault(query_id, {})[str(number)] = {"text": text, "at": at}
    return marks


# ---- Answers: outcome, text and each citation with its verdict. `Outgoing` limits source text.


class Citation(GoldEntry):
    """A citation of an answer; `correct` is null for a question without gold spans."""

    code: str
    correct: int | None


Columns = dict[str, list[Any]]
"""Columns of a JSON table: numbers, texts and nulls."""


class AnswerEntry(TypedDict):
    """An answer: places of outcome and strategy, text, citations, groundedness."""

    outcome: int
    text: str
    citations: list[Citation]
    strategy: int
    groundedness: float | None


def _cite(answer: Answer, outgoing: Outgoing, verdicts: pd.DataFrame) -> Iterator[Citation]:
    for span, quote, code, correct in zip(
        answer.citations, outgoing.quotes, verdicts["code"], verdicts["correct"], strict=True
    ):
        source, link = address(quote.source_url or "")
        is_evidence = 0 <= span.evidence < len(answer.evidence)
        section = answer.evidence[span.evidence].chunk.section_id if is_evidence else ""
        yield {
            "doc": name(quote.doc_id),
            "section": name(section),
            "quote": line(quote.text),
            "code": code,
            "correct": None if pd.isna(correct) else int(correct),
            "link": link,
            "source": source,
        }


def _list_answers(runs: ScoredRuns, answered: Answered) -> tuple[dict[str, AnswerEntry], Columns]:
    """List the answers by query id, and make their columns of the table of questions."""
    figures = answered.measures.per_question.set_index("query_id")
    figures = figures.reindex(runs.gold.queries["query_id"])
    has_gold = figures["n_gold"] > 0
    columns: Columns = {
        "outcome": _codes(figures["outcome"], OUTCOMES),
        "correct": nullable(figures["n_correct"].where(has_gold)),
        "cited": nullable(figures["n_cited"]),
        "groundedness": nullable(figures["groundedness"]),
    }
    groundedness = dict(zip(figures.index, nullable(figures["groundedness"]), strict=True))
    verdicts = answered.citations.citations
    is_known = has_gold.reindex(verdicts["query_id"]).to_numpy()
    verdicts = verdicts.assign(correct=verdicts["correct"].astype(float).where(is_known))
    by_query, entries = dict(iter(verdicts.groupby("query_id"))), dict[str, AnswerEntry]()
    for answer in answered.answers.answers:
        outgoing = Outgoing(answer)
        own = by_query.get(answer.query_id, verdicts.iloc[:0])
        entries[answer.query_id] = {
            "outcome": OUTCOMES.index(answer.outcome),
            "text": line(outgoing.text, MAX_ANSWER),
            "citations": list(_cite(answer, outgoing, own)),
            "strategy": runs.names.index(answered.answers.about.strategy),
            "groundedness": groundedness.get(answer.query_id),
        }
    return entries, columns


# ---- Parts of questions: wordings, gold, first ten of every retrieval, marks and answer.


class Retrieval(TypedDict):
    """A retrieval of a question.

    `s` and `w` are the places of strategy and wording. `c` holds the numbers of the units, best
    first. `x` holds the scores of the units, and `h` the places of relevant units in `c`. `first`
    is the rank of the first relevant item, and `value` the recall at 10. `miss` holds the miss
    rate, its interval, the place of its status, and the calibrator.
    """

    s: int
    w: int
    seed: int
    c: list[int]
    x: list[float | None]
    h: list[int]
    first: int | None
    value: float | None
    miss: list[float | str | None]
    failed: int


class Wording(TypedDict):
    """A wording of a question."""

    id: str
    text: str


class Question(TypedDict):
    """A question with all its retrievals."""

    id: str
    wordings: list[Wording]
    gold: list[GoldEntry]
    runs: list[Retrieval]
    marks: dict[str, Mark]
    answer: AnswerEntry | None


def _write_retrievals(rows: Rows) -> Iterator[Retrieval]:
    """Write the retrievals in their order."""
    ranks, retrievals = rows.ranks, rows.retrievals
    numbers, hits = ranks["number"].tolist(), ranks["hit"].tolist()
    scores = nullable(ranks["score"], FEW_DIGITS)
    bounds = np.searchsorted(ranks["retrieval"], np.arange(len(retrievals) + 1)).tolist()
    rates = nullable(retrievals[["miss_rate", "ci_low", "ci_high"]], FEW_DIGITS)
    first, value = nullable(retrievals["first"]), nullable(retrievals["value"])
    for at, row in enumerate(retrievals.to_dict("records")):
        low, high = bounds[at : at + 2]
        yield {
            "s": row["s"],
            "w": row["w"],
            "seed": row["seed"],
            "c": numbers[low:high],
            "x": scores[low:high],
            "h": [place for place, hit in enumerate(hits[low:high]) if hit],
            "first": first[at],
            "value": value[at],
            "miss": [*rates[at], row["status"], row["calibrator"]],
            "failed": int(row["failed"]),
        }


def _write_questions(
    rows: Rows,
    gold: GoldVariants,
    evidence: Mapping[str, list[GoldEntry]],
    answers: Mapping[str, AnswerEntry],
) -> Iterator[Question]:
    """Write the questions in the order of the gold set."""
    retrievals, marks = _write_retrievals(rows), _mark_gold(rows, gold)
    ids = gold.queries["query_id"].tolist()
    n_retrievals = np.bincount(rows.retrievals["question"], minlength=len(ids)).tolist()
    wordings: dict[str, list[Wording]] = {query_id: [] for query_id in ids}
    for query_id, wording, text in zip(
        *(rows.wordings[column] for column in ("query_id", "paraphrase_id", "text")), strict=True
    ):
        wordings[query_id].append({"id": visible(wording), "text": line(text, MAX_WORDING)})
    for query_id, n in zip(ids, n_retrievals, strict=True):
        yield {
            "id": visible(query_id),
            "wordings": wordings[query_id],
            "gold": evidence.get(query_id, []),
            "runs": list(itertools.islice(retrievals, n)),
            "marks": marks.get(query_id, {}),
            "answer": answers.get(query_id),
        }


# ---- Summary with the table of questions, and parts of units.

VERDICTS: Final = ("clean", "warning", "blocked")


def values_of(runs: ScoredRuns) -> FloatArray:
    """Average recall at 10 over wordings and seeds: float [n_strategies, n_questions]."""
    level, gold = runs.config.level, runs.gold
    tables = [runs.scores(name).per_query(level, gold) for name in runs.names]
    at = runs.scores(runs.names[0]).labels[level].index(MEASURE)
    return np.stack([table[:, at] for table in tables])


def _list_tags(queries: pd.DataFrame) -> tuple[list[str], list[list[int]]]:
    """List the tags in the order of their first appearance, and the tags of each question."""
    rows = [[name(str(tag)) for tag in tags] for tags in queries["tags"]]
    index = {tag: at for at, tag in enumerate(dict.fromkeys(itertools.chain(*rows)))}
    return list(index), [list(dict.fromkeys(index[tag] for tag in tags)) for tags in rows]


def _summarize(
    runs: ScoredRuns, rows: Rows, stability: StabilityMeasures, answers: Columns
) -> dict[str, object]:
    """Write the summary without the comparison with the previous run."""
    config, queries, names = runs.config, runs.gold.queries, runs.names
    tags, tags_of = _list_tags(queries)
    known = runs.gold_variants.answerable_known
    shape = len(names), len(queries)
    cells = pd.MultiIndex.from_product([range(size) for size in shape])

    def table(values: pd.Series, missing: float = np.nan) -> list[Any]:
        return nullable(values.reindex(cells, fill_value=missing).to_numpy().reshape(shape))

    by_question = rows.retrievals.groupby(["s", "question"])
    first = rows.retrievals[rows.retrievals["is_first"]].set_index(["s", "question"])
    states = stability.per_query.pivot_table("lambda_state", "strategy", "query_id", "first")
    states = states.reindex(index=names, columns=queries["query_id"])
    questions = {
        "id": [visible(query_id) for query_id in queries["query_id"]],
        "text": [line(text, MAX_QUESTION) for text in queries["text"]],
        "tags": tags_of,
        "answerable": nullable(np.where(known, queries["answerable"], np.nan)),
        "group": runs.gold.groups.tolist(),
        "wordings": np.bincount(runs.gold.query_of, minlength=len(queries)).tolist(),
        "value": nullable(values_of(runs)),
        "first": table(first["first"]),
        "hits": table(by_question["hit"].sum(min_count=1)),
        "runs": table(by_question.size(), 0),
        "miss": table(first["miss_rate"]),
        "status": table(first["status"], STATUSES.index("absent")),
        "state": [_codes(row, STATES) for row in states.to_numpy()],
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "gold_set": config.name,
        "primary": names.index(config.primary_strategy),
        "strategies": names,
        "measure": MEASURE,
        "level": config.level,
        "target": config.uncertainty.target,
        "k": config.uncertainty.k,
        "depth": DEPTH,
        "statuses": STATUSES,
        "states": STATES,
        "outcomes": OUTCOMES,
        "tags": tags,
        "questions": questions | answers,
        "shards": {"questions": QUESTIONS, "chunks": CHUNKS},
        "n_questions": len(queries),
        "n_chunks": len(rows.units),
        "texts": {"kept": len(rows.units), "of": len(rows.units)},
    }


def _write_units(
    runs: ScoredRuns, units: pd.DataFrame, documents: pd.DataFrame
) -> dict[str, bytes]:
    """Write the parts of units."""
    urls = documents.set_index("doc_id")["source_url"].reindex(units["doc_id"]).fillna("")
    addresses = [address(url) for url in urls]
    is_trusted = runs.config.trust.configured
    columns: Columns = {
        "doc": [name(doc_id) for doc_id in units["doc_id"]],
        "section": [name(section) for section in units["section_id"]],
        "title": [name(title) for title in units["title"]],
        "text": [line(text) for text in units["text"].where(units["shown"] == "", units["shown"])],
        "source": [source for source, _ in addresses],
        "link": [link for _, link in addresses],
        "trust": nullable(units["trust"]) if is_trusted else [None] * len(units),
        "verdict": _codes(units["verdict"], VERDICTS),
        "reasons": [[name(code) for code in codes] for codes in units["reasons"]],
    }
    return {
        f"chunks-{start // CHUNKS:04d}.json.gz": packed(
            {column: values[start : start + CHUNKS] for column, values in columns.items()}
        )
        for start in range(0, len(units), CHUNKS)
    }


# ---- The previous run, and the change of recall at 10 of each question since that run.


def _with_previous(
    base: Mapping[str, Any], previous: Previous | None, runs: ScoredRuns
) -> dict[str, object]:
    """Add the change of each question, [n_strategies, n_questions]; null when it is unknown."""
    values = values_of(runs)
    change = np.full(values.shape, np.nan)
    if previous is not None and previous.means is not None:
        means = previous.means[:, COMPARED.index(MEASURE) :: len(COMPARED)].T
        change = np.round(values - means, 12)
    return {
        **base,
        "previous": None if previous is None else previous.run.run_id,
        "previous_reason": (NO_PREVIOUS if previous is None else previous.reason) or None,
        "previous_comparable": None if previous is None else are_comparable(previous.changes),
        "previous_changes": [] if previous is None else list(previous.changes.values()),
        "questions": {**base["questions"], "change": nullable(change)},
    }


# ---- Explorer stage: write the parts once per run, so that a browser can read them separately.

PRIORITY = "priority"
"""Name of the array that orders the snippets of the HTML report (`Units.priority`)."""


@dataclasses.dataclass(frozen=True)
class Explored:
    """The results that the explorer shows; `answered` is None without configured answers."""

    runs: ScoredRuns
    corpus_snapshot: CorpusSnapshot
    corpus_chunks: CorpusChunks
    evidence_trust: EvidenceTrust
    stability_measures: StabilityMeasures
    miss_rate_claims: MissRateClaims
    answered: Answered | None


def write_explorer(work: Work, made: Explored, previous: Previous | None) -> Artifact:
    """Write the parts of the explorer.

    The parts are summary.json.gz, questions-NNNN.json.gz and chunks-NNNN.json.gz, with published
    schemas `explorer-*.schema.json`, and the array `priority` by number of the unit. When only the
    previous run differs, all parts except the summary are shared with the earlier artifact.
    """
    lasting = _without_previous(work, made)
    identity: list[object] = []
    if previous is not None:
        changed = list(previous.changes.values())
        identity = [previous.run.run_id, changed, previous.means is None]

    def make() -> Parts:
        # Give paths, so that the store links the files instead of copying them every night.
        shared = [*sorted(lasting.folder.glob("*.json.gz")), lasting.path(f"{PRIORITY}.npy")]
        return {
            SUMMARY_FILE: packed(_with_previous(lasting.json("base"), previous, made.runs)),
            **{path.name: path for path in shared},
        }

    return work.keep("explorer", [lasting.key, identity], make)


def _without_previous(work: Work, made: Explored) -> Artifact:
    """Write the parts that do not depend on the previous run.

    Parts: base (JSON), parts of questions and chunks, priority.
    """
    config, runs = work.config, made.runs
    identity = [
        *(one.id for one in (runs.gold_variants, runs.admitted_chunks, made.corpus_snapshot)),
        *(one.id for one in (made.evidence_trust, made.stability_measures, made.miss_rate_claims)),
        *(run.id for run in runs.runs.values()),
        made.answered and made.answered.ids,
        [config.name, config.level, config.primary_strategy, runs.names],
        [config.uncertainty.target, config.uncertainty.k, config.trust.configured],
    ]

    def make() -> Parts:
        n = len(runs.gold.queries)
        with work.progress.step("Writing the explorer", n, "questions") as advance:
            parts = _parts(made)
            advance(n)
        return parts

    return work.keep("explorer parts", identity, make)


def _parts(made: Explored) -> Parts:
    runs, corpus, gold = made.runs, made.corpus_snapshot, made.runs.gold_variants
    units = _describe_units(runs, corpus, made.corpus_chunks, made.evidence_trust)
    rows = _join_rows(runs, made.miss_rate_claims.claims, units)
    answers: dict[str, AnswerEntry] = {}
    columns: Columns = {
        name: [None] * len(gold.queries) for name in ("outcome", "correct", "cited", "groundedness")
    }
    if made.answered is not None:
        answers, columns = _list_answers(runs, made.answered)
    questions = _write_questions(rows, gold, _collect_gold(corpus, gold), answers)
    shards = iter(lambda: list(itertools.islice(questions, QUESTIONS)), [])
    parts: dict[str, object] = {
        "base": _summarize(runs, rows, made.stability_measures, columns),
        PRIORITY: rows.units["priority"].to_numpy(),
    }
    for at, shard in enumerate(shards):
        parts[f"questions-{at:04d}.json.gz"] = packed(shard)
    return parts | _write_units(runs, rows.units, corpus.documents)


# ---- Parts embedded in the HTML report: within a limit of bytes, with as many snippets as fit.

RANKINGS_SHARE: Final = 0.7
"""Rankings shrink while rankings, gold, marks and answers exceed this share of the limit."""
LISTS: Final = ((10, 5), (5, 3), (3, 0))
"""Numbers of ranks of original wordings and of other wordings, from long lists to short lists."""
STEPS: Final = 64
"""Number of equal steps from no snippet to all snippets."""


def embedded_size(parts: Mapping[str, bytes]) -> int:
    """Count the bytes of all parts in base64."""
    return sum(4 * -(-len(part) // 3) for part in parts.values())


def slim(artifact: Artifact, limit_bytes: int) -> dict[str, bytes]:
    """Fit the parts into a page.

    Parameters
    ----------
    artifact
        Result of `write_explorer`.
    limit_bytes
        Largest size of all parts together in base64. When rankings leave too little space for
        snippets, `LISTS` shortens them, and other wordings lose their scores. Then the last ranked
        snippets go, with the titles and addresses of their units. Gold, marks and answers stay.

    Returns
    -------
    parts
        Name of the part -> its bytes, as in the artifact. In the summary, `texts` counts the
        snippets, and `lists` gives the ranks of original and other wordings and whether other
        wordings have scores.
    """
    whole = {path.name: path.read_bytes() for path in sorted(artifact.folder.glob("*.json.gz"))}
    if embedded_size(whole) <= limit_bytes:
        return whole
    summary = unpacked(whole[SUMMARY_FILE])
    chunks = {part: unpacked(data) for part, data in whole.items() if part.startswith("chunks")}
    fixed = {part: data for part, data in whole.items() if part.startswith("questions")}
    if embedded_size(fixed) > RANKINGS_SHARE * limit_bytes:
        fixed, depths = _shorten_rankings(fixed, RANKINGS_SHARE * limit_bytes)
        summary["lists"] = {"original": depths[0], "others": depths[1], "scores": False}
    order = np.argsort(artifact.array(PRIORITY), kind="stable")
    place = np.argsort(order)

    def page(step: int) -> dict[str, bytes]:
        """Write all parts with the first snippets. Other units lose title and address."""
        n, parts, start = step * len(order) // STEPS, dict(fixed), 0
        for part, columns in chunks.items():
            stays = (place[start : start + len(columns["text"])] < n).tolist()
            start += len(stays)
            slimmer: Columns = {
                column: [
                    value if stay else absent
                    for value, stay in zip(columns[column], stays, strict=True)
                ]
                for column, absent in (("text", None), ("title", ""), ("source", ""), ("link", ""))
            }
            parts[part] = packed(columns | slimmer)
        counts = {"texts": {"kept": n, "of": len(order)}}
        return dict(sorted({**parts, SUMMARY_FILE: packed(summary | counts)}.items()))

    def is_too_large(step: int) -> bool:
        return embedded_size(page(step)) > limit_bytes

    return page(bisect.bisect_left(range(1, STEPS), x=True, key=is_too_large))


def _shorten_rankings(
    parts: Mapping[str, bytes], limit: float
) -> tuple[dict[str, bytes], tuple[int, int]]:
    """Shorten the rankings by the first of LISTS that fits into the limit, or by the last."""
    read: dict[str, list[Question]] = {part: unpacked(data) for part, data in parts.items()}
    for depths in LISTS:
        short = {
            part: packed([_shorten(question, depths) for question in questions])
            for part, questions in read.items()
        }
        if embedded_size(short) <= limit:
            break
    return short, depths


def _shorten(question: Question, depths: tuple[int, int]) -> Question:
    runs: list[Retrieval] = []
    for run in question["runs"]:
        depth = depths[0] if run["w"] == 0 else depths[1]
        runs.append(
            {
                **run,
                "c": run["c"][:depth],
                "x": run["x"][:depth] if run["w"] == 0 else [],
                "h": [place for place in run["h"] if place < depth],
            }
        )
    return {**question, "runs": runs}
