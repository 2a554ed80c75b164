"""Write the parts of the explorer: texts, answers, rankings, gold, miss rates and the summary.

The result page embeds these parts. The viewer serves them. A browser reads them part by part.
"""

import dataclasses
import functools
import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.core.arrays import BoolArray, FloatArray, IntArray
from rag_eval.core.config import STATUSES, Level
from rag_eval.core.types import ELLIPSIS, OUTCOMES, SNIPPET_CHARS, Answer, is_joined, snippet
from rag_eval.corpus.masking import (
    MAX_READ_CHARS,
    PATTERNS,
    mask_shown_address,
    mask_snippet,
    masked_text,
)
from rag_eval.measures.ranking import Qrels
from rag_eval.pipeline.answers import find_answered
from rag_eval.pipeline.claims import MissRateClaims
from rag_eval.pipeline.corpus import (
    CorpusChunks,
    EvidenceTrust,
    GoldArrays,
    admitted_chunks,
    admitted_trust,
    corpus_snapshot,
    evidence_trust,
    gold_variants,
)
from rag_eval.pipeline.history import (
    NO_PREVIOUS,
    KeptRun,
    are_comparable,
    changes,
    earlier_runs,
    previous_means,
    run_basis,
)
from rag_eval.pipeline.measures import (
    ALWAYS_K,
    COMPARED,
    STATES,
    Runs,
    stability_measures,
    wording_of,
)
from rag_eval.pipeline.retrieval import unit_verdicts
from rag_eval.reporting.html.elements import visible, web_address
from rag_eval.reporting.metrics_report import Outgoing
from rag_eval.storage.artifacts import Artifact

# ---- Format of the parts: rounded numbers, compact JSON, reproducible gzip bytes, file names.

SCHEMA_VERSION: Final = 1
QUESTIONS, CHUNKS = 200, 1000
"""Number of questions or chunks in one part."""
SUMMARY_FILE: Final = "summary.json.gz"
DIGITS, FEW_DIGITS = 6, 4
"""Significant digits of the table, and of scores and miss rates in the parts of questions.

Scores and miss rates make up most bytes of the parts, so they have fewer digits.
"""
_WHOLE: Final = 2.0**53
_EXACT: Final = 22
"""Powers of ten up to this one are exact in float64."""


def rounded(values: npt.ArrayLike, digits: int = DIGITS) -> FloatArray:
    """Round to significant digits. NaN and infinity stay.

    Each value is the float64 nearest to the rounded decimal.
    """
    found = np.array(values, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        power = digits - 1 - np.floor(np.log10(np.abs(found)))
        usual = np.isfinite(power) & (np.abs(power) <= _EXACT)
        scale = 10.0 ** np.where(usual, np.abs(power), 0.0)
        up = np.rint(found * scale) / scale
        down = np.rint(found / scale) * scale
        result: FloatArray = np.where(usual, np.where(power >= 0, up, down), found)
    for place in zip(*np.nonzero(np.isfinite(found) & (found != 0) & ~usual), strict=True):
        result[place] = float(f"{found[place]:.{digits}g}")
    return result


def nullable(values: npt.ArrayLike, digits: int = DIGITS) -> list[Any]:
    """Round numbers for JSON, in the shape of the array.

    Whole numbers have no fraction. NaN and infinity become null.
    """
    found = rounded(values, digits)
    whole = np.isfinite(found) & (found == np.rint(found)) & (np.abs(found) < _WHOLE)
    listed = found.astype(object)
    listed[whole] = found[whole].astype(np.int64)
    listed[~np.isfinite(found)] = None
    result: list[Any] = listed.tolist()
    return result


def packed(value: Any) -> bytes:
    """Write compact, gzipped JSON. Equal values give equal bytes because the time is absent."""
    return gzip.compress(
        json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode(),
        compresslevel=6,
        mtime=0,
    )


def unpacked(data: bytes) -> Any:
    """Read the bytes that `packed` wrote."""
    return json.loads(gzip.decompress(data))


def shards(n: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, first entry and end of every part."""
    for number, start in enumerate(range(0, n, size)):
        yield number, start, min(start + size, n)


def part_name(kind: Literal["questions", "chunks"], number: int) -> str:
    """Return the file name of a part.

    Examples
    --------
    >>> part_name("chunks", 12)
    'chunks-0012.json.gz'
    """
    return f"{kind}-{number:04d}.json.gz"


def explorer_schema(kind: Literal["summary", "questions", "chunks"]) -> dict[str, Any]:
    """Return the published JSON Schema of a part."""
    loaded: dict[str, Any] = json.loads(
        resources.files("rag_eval.pipeline")
        .joinpath(f"explorer-{kind}.schema.json")
        .read_text(encoding="utf-8")
    )
    return loaded


# ---- Texts: personal data masked, invisible characters written out, cut to a snippet or window.

MAX_NAME, MAX_ADDRESS, MAX_QUESTION, MAX_WORDING, MAX_ANSWER = 200, 500, 300, 600, 600
"""Limits in code points: ids and titles, addresses, questions in the table, wordings, answers."""
REACH: Final = 500
"""Characters on both sides of a window that are masked together with the window.

A window may show only the end of a value. The characters beside it reveal the whole value.
"""
_ESCAPE: Final = 12
"""Largest length of an escaped character."""
_ANCHORS: Final = tuple(sorted({anchor for pattern in PATTERNS for anchor in pattern.anchors}))
_NUMBER: Final = re.compile(r"[0-9][0-9 .()/-]{6}")
"""Match a run of digits that may be personal data.

Every pattern of personal data needs an anchor or such a run.
"""
_ENCODED: Final = re.compile("%[2-7][0-9A-Fa-f]")
"""Match a percent escape, which may be an anchor after decoding."""
_PLAIN: Final = re.compile(
    "[ -~\u00a1-\u00ac\u00ae-\u02ff\u0391-\u03a1\u03a3-\u0482\u048a-\u052f"
    "\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff]*"
)
"""Match characters that are written unchanged. `_piece` looks up all other characters."""


def _unmasked(text: str) -> bool:
    """Check quickly whether a text surely holds nothing to mask.

    Most texts hold no personal data, and searching for each pattern is slow.
    """
    if _NUMBER.search(text) or _ENCODED.search(text):
        return False
    lowered = text.lower()
    return not any(anchor in lowered for anchor in _ANCHORS)


def line(text: str, limit: int = SNIPPET_CHARS) -> str:
    """Write a text as one line of at most `limit` code points.

    Personal data is masked, and invisible characters are written out. The result equals
    `visible(mask_snippet(text, limit))`, but plain texts without personal data take less time.
    """
    # No word is empty, so `limit + 1` words are longer than the limit.
    head = " ".join(text[:MAX_READ_CHARS].split(None, limit + 1)[: limit + 1])[: limit + 1]
    if not _PLAIN.fullmatch(head) or not _unmasked(text[:MAX_READ_CHARS]):
        return visible(mask_snippet(text, limit))
    return head if len(head) <= limit else head[: limit - 1].rstrip() + ELLIPSIS


@functools.lru_cache(maxsize=20_000)
def name(text: str, limit: int = MAX_NAME) -> str:
    """Write an id, a title or a tag. The cache helps because the same names recur."""
    return line(text, limit)


@functools.lru_cache(maxsize=20_000)
def address(url: str) -> tuple[str, str]:
    """Write an address as text and as a link.

    The link is empty when the address is no web address or holds masked personal data.
    """
    read = url[: 10 * MAX_ADDRESS]
    masked = read if "%" not in read and _unmasked(read) else mask_shown_address(read)
    plain = len(masked) <= MAX_ADDRESS and " " not in masked and _PLAIN.fullmatch(masked)
    return masked if plain else visible(snippet(masked, MAX_ADDRESS)), web_address(
        url
    ) if masked == url else ""


@functools.lru_cache(maxsize=10_000)
def _piece(character: str) -> str:
    return " " if character.isspace() else visible(snippet(character, _ESCAPE))


def _pieces(text: str) -> list[str]:
    """Write out each character. A run of white space keeps only its first character."""
    if "  " not in text and _PLAIN.fullmatch(text):
        return list(text)
    found, blank = [], False
    for character in text:
        here = character.isspace()
        found.append("" if here and blank else _piece(character))
        blank = here
    return found


def _window(pieces: Sequence[str], begin: int, end: int, budget: int) -> tuple[int, int]:
    """Choose the bounds of the window within the budget.

    The window holds as much of begin..end as fits. The rest of the budget goes to the text before
    and after it, half to each side when both sides are long enough.
    """
    right, left_over = begin, budget
    while right < end and len(pieces[right]) <= left_over:
        left_over -= len(pieces[right])
        right += 1
    left, half = begin, left_over // 2
    while left > 0 and len(pieces[left - 1]) <= half:
        left -= 1
        half -= len(pieces[left])
        left_over -= len(pieces[left])
    while right < len(pieces) and len(pieces[right]) <= left_over:
        left_over -= len(pieces[right])
        right += 1
    while left > 0 and len(pieces[left - 1]) <= left_over:
        left -= 1
        left_over -= len(pieces[left])
    return left, right


def part(text: str, start: int, end: int) -> str:
    """Write a part of a text as `line` does.

    Masking also reads the surrounding text, because a word before the part may mark a secret.
    """
    low = max(0, start - REACH)
    around = text[low : end + REACH]
    return line((around if _unmasked(around) else masked_text(around))[start - low : end - low])


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
    spans = [
        (start, min(stop, len(text)))
        for start, stop in sorted(spans)
        if start < min(stop, len(text))
    ]
    if not spans:
        return line(text, limit), []
    begin, end = spans[0]
    low, high = (
        max(0, begin - limit - REACH),
        min(len(text), min(end, begin + limit) + limit + REACH),
    )
    inside, outside = max(0, begin - limit), min(len(text), min(end, begin + limit) + limit)
    around = text[low:high]
    region = (around if _unmasked(around) else masked_text(around))[inside - low : outside - low]
    pieces = _pieces(region)
    left, right = _window(
        pieces, begin - inside, min(end, outside) - inside, limit - 2 * len(ELLIPSIS)
    )
    while left < begin - inside and (not pieces[left].strip() or is_joined(region[left])):
        left += 1
    while right > begin - inside + 1 and (
        not pieces[right - 1].strip() or (right < len(region) and is_joined(region[right]))
    ):
        right -= 1
    before = ELLIPSIS if inside + left > 0 and text[: inside + left].strip() else ""
    after = ELLIPSIS if text[inside + right :].strip() else ""
    place = [len(before)]
    for piece in pieces[left:right]:
        place.append(place[-1] + len(piece))
    at: list[list[int]] = []
    for start, stop in spans:
        first, last = (
            place[min(max(edge - inside - left, 0), right - left)] for edge in (start, stop)
        )
        if at and first <= at[-1][1]:
            at[-1][1] = max(at[-1][1], last)
        elif first < last:
            at.append([first, last])
    return before + "".join(pieces[left:right]) + after, at


# ---- Answers: outcome, text and each citation with its verdict. `Outgoing` limits source text.


@dataclasses.dataclass(frozen=True)
class Answered:
    """Answers of the questions, in the order of the questions.

    Parameters
    ----------
    entries
        Entry of each question; None for a question without an answer.
    columns
        outcome, correct, cited, groundedness: one value per question, or null.
    """

    entries: list[dict[str, Any] | None]
    columns: dict[str, list[Any]]


def answered(runs: Runs) -> Answered:
    """Read the answers. Without configured answers, all entries are None."""
    found, n = find_answered(runs.evaluation), len(runs.gold.queries)
    if found is None:
        return Answered(
            [None] * n,
            {column: [None] * n for column in ("outcome", "correct", "cited", "groundedness")},
        )
    per_question = found.measures.per_question.set_index("query_id").reindex(
        runs.gold.queries["query_id"]
    )
    judged = per_question["n_gold"].to_numpy() > 0
    columns = {
        "outcome": [
            OUTCOMES.index(outcome) if outcome in OUTCOMES else None
            for outcome in per_question["outcome"].tolist()
        ],
        "correct": nullable(per_question["n_correct"].where(judged).to_numpy(dtype=float)),
        "cited": nullable(per_question["n_cited"].to_numpy(dtype=float)),
        "groundedness": nullable(per_question["groundedness"].to_numpy(dtype=float)),
    }
    strategy = runs.names.index(found.answers.about.strategy)
    verdicts = {
        str(query_id): part
        for query_id, part in found.citations.citations.groupby("query_id", sort=False)
    }
    has_gold = dict(zip(per_question.index.tolist(), judged.tolist(), strict=True))
    grounded = dict(zip(per_question.index.tolist(), columns["groundedness"], strict=True))
    entries = {
        answer.query_id: {
            "outcome": OUTCOMES.index(answer.outcome),
            **_said(
                answer, verdicts.get(answer.query_id), judged=has_gold.get(answer.query_id, False)
            ),
            "strategy": strategy,
            "groundedness": grounded.get(answer.query_id),
        }
        for answer in found.answers.read()
    }
    return Answered([entries.get(query_id) for query_id in runs.gold.queries["query_id"]], columns)


def _said(answer: Answer, verdicts: pd.DataFrame | None, *, judged: bool) -> dict[str, Any]:
    outgoing = Outgoing(answer)
    codes: Sequence[str] = [] if verdicts is None else verdicts["code"].tolist()
    correct: Sequence[bool] = [] if verdicts is None else verdicts["correct"].tolist()
    cited = []
    for span, quote, code, right in zip(
        answer.citations, outgoing.quotes, codes, correct, strict=True
    ):
        source, link = address(quote.source_url or "")
        section = (
            answer.evidence[span.evidence].chunk.section_id
            if 0 <= span.evidence < len(answer.evidence)
            else ""
        )
        cited.append(
            {
                "doc": name(quote.doc_id),
                "section": name(section),
                "quote": line(quote.text),
                "code": code,
                "correct": int(right) if judged else None,
                "link": link,
                "source": source,
            }
        )
    return {"text": line(outgoing.text, MAX_ANSWER), "citations": cited}


# ---- Rankings: the first ten of every retrieval, the numbers of their units, and relevance.

DEPTH: Final = 10
"""Number of ranks in the parts."""
NEVER_FIRST: Final = 10
"""Number added to the best rank of a unit that no original wording found."""


@dataclasses.dataclass(frozen=True)
class Top:
    """First ten results of one strategy.

    Parameters
    ----------
    seeds
        Seeds of the run, ascending.
    units
        int [n_seeds, n_variants, 10]: units of all strategies (see `Units`); -1 pads the list.
    scores
        float of the same shape: the score by which the strategy ranks.
    hits
        bool of the same shape: whether the unit is relevant at the headline level.
    """

    seeds: tuple[int, ...]
    units: IntArray
    scores: FloatArray
    hits: BoolArray


@dataclasses.dataclass(frozen=True)
class Units:
    """Units in the lists: the chunks by row, then the own units of each external strategy.

    Parameters
    ----------
    own
        Strategy -> its UNITS frame and the number of its first unit.
    number
        int [n]: number in the explorer; -1 for a unit in no list.
    unit
        int [n_numbers]: unit of each number.
    priority
        int [n_numbers]: best rank from 0 under an original wording and the first seed.
        Ranks under other wordings and seeds count 10 more.
    """

    own: dict[str, tuple[pd.DataFrame, int]]
    number: IntArray
    unit: IntArray
    priority: npt.NDArray[np.uint8]


def order_of_variants(gold: GoldArrays) -> IntArray:
    """Order the variants by question. Within a question, the original wording comes first."""
    return np.asarray(np.lexsort((wording_of(gold)[0], gold.query_of)), dtype=np.int64)


def relevant(rows: IntArray, gold: GoldArrays, level: Level) -> BoolArray:
    """Mark the units that `scoring` judges relevant to their questions, bool [n_variants, n].

    A unit is relevant when its document or section is judged relevant. At the span level it is
    relevant when it carries a gold span.
    """
    choices: dict[Level, tuple[Qrels, IntArray | None]] = {
        "document": (gold.qrels_document, gold.document_of_chunk),
        "section": (gold.qrels_section, gold.section_of_chunk),
        "span": (gold.qrels_chunk, None),
    }
    qrels, code_of = choices[level]
    found = np.zeros(rows.shape, dtype=bool)
    there = rows >= 0
    if not there.any() or not len(qrels.items):
        return found
    items = rows if code_of is None else np.where(there, code_of[np.where(there, rows, 0)], -1)
    width = int(max(items.max(), qrels.items.max())) + 1
    owner = np.repeat(np.arange(len(qrels.indptr) - 1), np.diff(qrels.indptr))
    good = (owner * width + qrels.items)[qrels.gains > 0]
    found[there] = np.isin((gold.query_of[:, None] * width + items)[there], good)
    return found


def _own_units(runs: Runs, n_chunks: int) -> dict[str, tuple[pd.DataFrame, int]]:
    found, start = {}, n_chunks
    for name in runs.names:
        if runs.spec(name).own_units:
            found[name] = (runs.units(name), start)
            start += len(found[name][0])
    return found


def _joint(rows: IntArray, own: tuple[pd.DataFrame, int] | None) -> IntArray:
    """Convert rows of a strategy's units to units of all strategies.

    A unit that equals a chunk of the corpus word for word becomes that chunk.
    """
    if own is None or not len(own[0]):
        return rows
    units, start = own
    chunk = units["chunk"].to_numpy()
    ours = (chunk >= 0) & (units["returned"] == "").to_numpy(dtype=bool)
    joint = np.where(ours, chunk, start + np.arange(len(units)))
    return np.where(rows >= 0, joint[np.where(rows >= 0, rows, 0)], -1)


def top_of(runs: Runs, name: str, own: tuple[pd.DataFrame, int] | None) -> Top:
    """Read the first ten results from the stored run of a strategy."""
    run, n_variants = runs.runs[name].artifact, len(runs.gold.variants)
    seeds = tuple(sorted(int(seed) for seed in runs.about(name).seeds))
    columns = ["variant", "seed", "chunk", "k_final", "score_raw", "rerank_score"]
    frame = pd.read_parquet(
        run.path("run.parquet"), columns=columns, filters=[("k_final", "<=", DEPTH)]
    )
    place = (
        np.searchsorted(seeds, frame["seed"].to_numpy()),
        frame["variant"].to_numpy(),
        frame["k_final"].to_numpy() - 1,
    )
    rows = np.full((len(seeds), n_variants, DEPTH), -1, dtype=np.int64)
    scores = np.full(rows.shape, np.nan)
    rows[place] = frame["chunk"].to_numpy()
    reranked = frame["rerank_score"].to_numpy()
    scores[place] = np.where(np.isnan(reranked), frame["score_raw"].to_numpy(), reranked)
    level, gold = runs.evaluation.config.level, runs.gold_of(name)
    judged = level not in runs.unmeasured(name)
    hits = np.stack([relevant(part, gold, level) & judged for part in rows])
    return Top(seeds, _joint(rows, own), scores, hits)


def numbered(
    tops: Sequence[Top], own: dict[str, tuple[pd.DataFrame, int]], gold: GoldArrays, n_chunks: int
) -> Units:
    """Number the units of all lists.

    Chunks come first, then the own units of external strategies. Both are in the order of their
    first appearance.
    """
    n = n_chunks + sum(len(units) for units, _ in own.values())
    order = order_of_variants(gold)
    lists = np.concatenate([top.units for top in tops])[:, order].transpose(1, 0, 2)
    flat = lists.ravel()
    unit, first = np.unique(flat[flat >= 0], return_index=True)
    unit = unit[np.lexsort((first, unit >= n_chunks))]
    number = np.full(n, -1, dtype=np.int64)
    number[unit] = np.arange(len(unit))
    best = np.full(n, 2 * NEVER_FIRST, dtype=np.uint8)
    original = wording_of(gold)[0] == 0
    for top in tops:
        rank = np.full(top.units.shape, 0, dtype=np.uint8) + np.arange(DEPTH, dtype=np.uint8)
        rank += np.uint8(NEVER_FIRST)
        rank[0, original] -= np.uint8(NEVER_FIRST)
        there = top.units >= 0
        np.minimum.at(best, top.units[there], rank[there])
    return Units(own, number, unit, best[unit])


def rankings(runs: Runs) -> tuple[list[Top], Units]:
    """Read and number the first ten of every strategy, in the order of the configuration."""
    n_chunks = len(runs.chunks)
    own = _own_units(runs, n_chunks)
    tops = [top_of(runs, name, own.get(name)) for name in runs.names]
    return tops, numbered(tops, own, runs.gold, n_chunks)


# ---- Claimed miss rates as arrays by strategy, seed and wording.


@dataclasses.dataclass(frozen=True)
class Stated:
    """Claims of one strategy.

    Parameters
    ----------
    figures
        float [n_seeds, n_variants, 3]: miss rate, low, high; NaN for unknown values.
    status
        int [n_seeds, n_variants]: place in STATUSES; `absent` without a claim.
    calibrator
        Text of the same shape; empty without a claim.
    """

    figures: FloatArray
    status: npt.NDArray[np.int64]
    calibrator: npt.NDArray[np.object_]


def stated(runs: Runs, tops: list[Top]) -> list[Stated]:
    """Read the claims of every strategy."""
    columns = [
        "strategy",
        "query_id",
        "paraphrase_id",
        "seed",
        "miss_rate",
        "ci_low",
        "ci_high",
        "status",
        "calibrator",
    ]
    claims = runs.evaluation.runner.get(MissRateClaims).artifact.frame("claims", columns)
    wordings = pd.MultiIndex.from_frame(runs.gold.variants[["query_id", "paraphrase_id"]])
    found = []
    for name, top in zip(runs.names, tops, strict=True):
        part = claims[claims["strategy"] == name]
        variant = wordings.get_indexer(
            pd.MultiIndex.from_frame(part[["query_id", "paraphrase_id"]])
        )
        place = (np.searchsorted(top.seeds, part["seed"].to_numpy()), variant)
        shape = top.units.shape[:2]
        figures = np.full((*shape, 3), np.nan)
        figures[place] = part[["miss_rate", "ci_low", "ci_high"]].to_numpy(dtype=np.float64)
        status = np.full(shape, STATUSES.index("absent"), dtype=np.int64)
        status[place] = pd.Index(STATUSES).get_indexer(pd.Index(part["status"]))
        calibrator = np.full(shape, "", dtype=object)
        calibrator[place] = part["calibrator"].to_numpy(dtype=object)
        found.append(Stated(figures, status, calibrator))
    return found


# ---- Gold of each question: quoted spans, then judged sections and documents without a span.

Gold = dict[str, list[dict[str, Any]]]
MAX_GOLD = 50
"""Largest number of gold entries of one question."""
_READ = 1000
"""Number of characters of a quote that are masked. Fewer characters are shown."""


def sections_of(spans: pd.DataFrame, sections: pd.DataFrame) -> list[str]:
    """Find the smallest section that holds the first character of each span; empty without one."""
    rows = (
        spans[["doc_id", "start"]]
        .reset_index(names="span")
        .merge(
            sections[["section_id", "doc_id", "start", "end"]],
            on="doc_id",
            suffixes=("", "_of_section"),
        )
    )
    rows = rows[(rows["start_of_section"] <= rows["start"]) & (rows["start"] < rows["end"])]
    rows = (
        rows.assign(size=rows["end"] - rows["start_of_section"])
        .sort_values(["span", "size", "section_id"], kind="stable")
        .drop_duplicates("span")
    )
    found = pd.Series("", index=spans.index, dtype=object)
    found.loc[rows["span"]] = rows["section_id"].to_numpy(dtype=object)
    return [str(section) for section in found]


def _entry(doc_id: str, section: str, quote: str, url: str) -> dict[str, Any]:
    source, link = address(url)
    return {
        "doc": name(doc_id),
        "section": name(section),
        "quote": quote,
        "link": link,
        "source": source,
    }


def gold_entries(
    spans: pd.DataFrame,
    documents: pd.DataFrame,
    sections: pd.DataFrame,
    judged_sections: pd.DataFrame,
    judged_documents: pd.DataFrame,
) -> Gold:
    """Collect the gold evidence of each query, by query id.

    Parameters
    ----------
    spans, documents, sections
        SPANS, DOCUMENTS and SECTIONS frames.
    judged_sections, judged_documents
        QRELS frames.
    """
    texts, urls = (
        dict(zip(documents["doc_id"].tolist(), documents[column].tolist(), strict=True))
        for column in ("text", "source_url")
    )
    found: Gold = {}
    covered: set[tuple[str, str]] = set()

    def add(query_id: str, entry: dict[str, Any]) -> None:
        its = found.setdefault(query_id, [])
        if len(its) < MAX_GOLD:
            its.append(entry)

    for query_id, doc_id, start, end, section in zip(
        *(spans[column].tolist() for column in ("query_id", "doc_id", "start", "end")),
        sections_of(spans, sections),
        strict=True,
    ):
        covered |= {(query_id, doc_id), (query_id, section)}
        add(
            query_id,
            _entry(
                doc_id,
                section,
                part(texts.get(doc_id, ""), start, min(end, start + _READ)),
                urls.get(doc_id, ""),
            ),
        )
    owner = dict(zip(sections["section_id"].tolist(), sections["doc_id"].tolist(), strict=True))
    for query_id, section in _relevant(judged_sections):
        doc_id = owner.get(section, "")
        # A document without headings is judged as a document.
        if (query_id, section) not in covered and section != doc_id:
            covered.add((query_id, doc_id))
            add(query_id, _entry(doc_id, section, "", urls.get(doc_id, "")))
    for query_id, doc_id in _relevant(judged_documents):
        if (query_id, doc_id) not in covered:
            add(query_id, _entry(doc_id, "", "", urls.get(doc_id, "")))
    return found


def _relevant(qrels: pd.DataFrame) -> list[tuple[str, str]]:
    kept = qrels[np.asarray(qrels["gain"] > 0)]
    return list(zip(kept["query_id"].tolist(), kept["item_id"].tolist(), strict=True))


# ---- Gold spans in the retrieved units of a question: a window of text with marked characters.

Places = pd.DataFrame
"""doc_id, start, end and text of the units in the lists; start is -1 for an unknown place."""
Marks = dict[int, dict[str, dict[str, Any]]]
"""Question -> number of the unit -> `text` and `at`."""


def _retrieved(
    tops: Sequence[Top], gold: GoldArrays, asked: IntArray, n_units: int
) -> tuple[IntArray, IntArray]:
    """Return the distinct pairs of question and unit in the lists of the questions `asked`."""
    wanted = np.isin(gold.query_of, asked)
    codes = []
    for top in tops:
        units = top.units[:, wanted]
        pairs = gold.query_of[wanted][None, :, None] * n_units + units
        codes.append(np.unique(pairs[units >= 0]))
    found = np.unique(np.concatenate(codes))
    return found // n_units, found % n_units


def _overlaps(
    question: IntArray, unit: IntArray, places: Places, spans: pd.DataFrame, owner: IntArray
) -> tuple[IntArray, IntArray]:
    """Find the pairs (place in `question`, row of `spans`) that share characters.

    The pairs are in the order of `question`.
    """
    order = np.argsort(owner, kind="stable")
    first, last = (np.searchsorted(owner[order], question, side=side) for side in ("left", "right"))
    counts = last - first
    pair = np.repeat(np.arange(len(question)), counts)
    within = np.arange(len(pair)) - np.repeat(np.cumsum(counts) - counts, counts)
    span = order[np.repeat(first, counts) + within]
    documents = pd.Index(spans["doc_id"].unique())
    of_unit, of_span = (
        documents.get_indexer(pd.Index(places["doc_id"])),
        documents.get_indexer(pd.Index(spans["doc_id"])),
    )
    low, high = places["start"].to_numpy(), places["end"].to_numpy()
    begin, end = spans["start"].to_numpy(), spans["end"].to_numpy()
    at = unit[pair]
    meets = (
        (of_unit[at] == of_span[span])
        & (low[at] >= 0)
        & (begin[span] < high[at])
        & (low[at] < end[span])
        & (begin[span] < end[span])
    )
    return pair[meets], span[meets]


def gold_marks(
    tops: Sequence[Top], units: Units, gold: GoldArrays, places: Places, spans: pd.DataFrame
) -> Marks:
    """Mark the gold spans of every question in the units that were retrieved for it.

    Parameters
    ----------
    tops, units
        Results of `rankings`.
    gold
        The gold over the chunks.
    places
        Places of the units.
    spans
        SPANS frame.
    """
    owner = np.asarray(
        pd.Index(gold.queries["query_id"]).get_indexer(pd.Index(spans["query_id"])), dtype=np.int64
    )
    if not len(spans) or not tops:
        return {}
    question, unit = _retrieved(tops, gold, np.unique(owner), len(units.number))
    pair, span = _overlaps(question, unit, places, spans, owner)
    begin, end, texts = (
        spans["start"].to_numpy(),
        spans["end"].to_numpy(),
        places["text"].to_numpy(dtype=object),
    )
    low, high = places["start"].to_numpy()[unit[pair]], places["end"].to_numpy()[unit[pair]]
    starts, ends = (
        (np.maximum(begin[span], low) - low).tolist(),
        (np.minimum(end[span], high) - low).tolist(),
    )
    by_pair: dict[int, list[tuple[int, int]]] = {}
    for at, *edges in zip(pair.tolist(), starts, ends, strict=True):
        by_pair.setdefault(at, []).append((edges[0], edges[1]))
    found: Marks = {}
    for at, edges_of in by_pair.items():
        text, where = marked(str(texts[unit[at]]), edges_of)
        if where:
            found.setdefault(int(question[at]), {})[str(units.number[unit[at]])] = {
                "text": text,
                "at": where,
            }
    return found


# ---- The previous run, and the change of recall at 10 of each question since that run.


@dataclasses.dataclass(frozen=True)
class Previous:
    """The run before this one.

    Attributes
    ----------
    run
        The previous run; None without one.
    changes
        One sentence for each changed input of the figures.
    comparable
        Whether both runs measured the same thing; None without a previous run.
    """

    run: KeptRun | None
    changes: tuple[str, ...] = ()
    comparable: bool | None = None


def _find_previous(runs: Runs) -> Previous:
    earlier = earlier_runs(runs.evaluation).runs
    if not earlier:
        return Previous(None)
    basis = run_basis(
        runs.evaluation,
        runs.gold_variants.about.hash,
        runs.admitted_chunks.about.chunks_hash,
        {name: runs.about(name).index_hash for name in runs.names},
    )
    found = changes(earlier[-1], basis)
    return Previous(earlier[-1], tuple(found.values()), are_comparable(found))


def _identify(previous: Previous) -> list[Any]:
    """Name the previous run in a key. The key also says whether the ranking measures are gone."""
    run = previous.run
    if run is None:
        return []
    return [run.run_id, list(previous.changes), run.artifact("ranking_measures") is None]


def _with_previous(base: dict[str, Any], previous: Previous, runs: Runs) -> dict[str, Any]:
    """Add the change of each question, [n_strategies, n_questions]; null when it is unknown."""
    run, level, values = previous.run, runs.evaluation.config.level, values_of(runs)
    change, reason = np.full(values.shape, np.nan), NO_PREVIOUS
    if run is not None:
        queries = runs.gold.queries["query_id"].tolist()
        means = previous_means(run, runs.gold_variants.about.hash, runs.names, queries, level)
        reason = means if isinstance(means, str) else ""
        if not isinstance(means, str):
            change = np.round(values - means[:, COMPARED.index(MEASURE) :: len(COMPARED)].T, 12)
    return {
        **base,
        "previous": None if run is None else run.run_id,
        "previous_reason": reason or None,
        "previous_comparable": previous.comparable,
        "previous_changes": list(previous.changes),
        "questions": {**base["questions"], "change": nullable(change)},
    }


# ---- Parts of questions: wordings, gold, first ten of every retrieval, marks and answer.


@dataclasses.dataclass(frozen=True)
class Material:
    """Inputs of the parts of questions."""

    tops: list[Top]
    units: Units
    stated: list[Stated]
    gold: Gold
    marks: Marks
    answers: list[dict[str, Any] | None]


@dataclasses.dataclass(frozen=True)
class _Columns:
    """Retrievals of one strategy under one seed, as lists by wording of the part."""

    strategy: int
    seed: int
    ran: list[bool]
    units: list[list[int]]
    scores: list[list[float | None]]
    hits: list[list[bool]]
    first: list[int | None]
    value: list[float | None]
    stated: list[list[float | None]]
    status: list[int]
    calibrator: list[str]
    failed: list[bool]


def first_rank(reciprocal: FloatArray) -> FloatArray:
    """Compute the rank of the first relevant item from its reciprocal.

    The rank is NaN when the stored run holds no relevant item.
    """
    with np.errstate(divide="ignore"):
        found: FloatArray = np.where(reciprocal > 0, np.rint(1.0 / reciprocal), np.nan)
    return found


def _columns(runs: Runs, its: Material, variants: IntArray) -> list[_Columns]:
    """Collect the retrievals of the wordings of one part."""
    level, found, n = runs.evaluation.config.level, [], len(runs.gold.variants)
    for strategy, (name, top, claims) in enumerate(
        zip(runs.names, its.tops, its.stated, strict=True)
    ):
        scores, ran = runs.scores(name), runs.ran(name)
        for at, seed in enumerate(top.seeds):
            rows = at * n + variants  # scores are ordered by seed, then by variant
            units = top.units[at, variants]
            found.append(
                _Columns(
                    strategy,
                    seed,
                    ran[variants].tolist(),
                    np.where(units >= 0, its.units.number[units], -1).tolist(),
                    nullable(top.scores[at, variants], FEW_DIGITS),
                    top.hits[at, variants].tolist(),
                    nullable(first_rank(scores.column(level, "RR")[rows])),
                    nullable(scores.column(level, f"R@{ALWAYS_K}")[rows]),
                    nullable(claims.figures[at, variants], FEW_DIGITS),
                    claims.status[at, variants].tolist(),
                    claims.calibrator[at, variants].tolist(),
                    scores.failed[rows].tolist(),
                )
            )
    return found


def _run(columns: _Columns, wording: int, at: int) -> dict[str, Any]:
    units = columns.units[at]
    n = units.index(-1) if -1 in units else len(units)
    return {
        "s": columns.strategy,
        "w": wording,
        "seed": columns.seed,
        "c": units[:n],
        "x": columns.scores[at][:n],
        "h": [place for place, hit in enumerate(columns.hits[at][:n]) if hit],
        "first": columns.first[at],
        "value": columns.value[at],
        "miss": [*columns.stated[at], columns.status[at], columns.calibrator[at]],
        "failed": int(columns.failed[at]),
    }


def question_parts(runs: Runs, its: Material) -> dict[str, bytes]:
    """Write the parts of questions, in the order of the gold set."""
    order = order_of_variants(runs.gold)
    owner = runs.gold.query_of[order]
    ids = runs.gold.queries["query_id"].tolist()
    names, texts = (
        [str(text) for text in runs.gold.variants[column].to_numpy(dtype=object)[order]]
        for column in ("paraphrase_id", "text")
    )
    parts = {}
    for number, start, end in shards(len(ids), QUESTIONS):
        low, high = (int(np.searchsorted(owner, edge)) for edge in (start, end))
        columns = _columns(runs, its, order[low:high])
        edges = np.searchsorted(owner[low:high], np.arange(start, end + 1)).tolist()
        body = []
        for question in range(start, end):
            first, last = edges[question - start], edges[question - start + 1]
            body.append(
                {
                    "id": visible(ids[question]),
                    "wordings": [
                        {"id": visible(names[low + at]), "text": line(texts[low + at], MAX_WORDING)}
                        for at in range(first, last)
                    ],
                    "gold": its.gold.get(ids[question], []),
                    "runs": [
                        _run(column, at - first, at)
                        for column in columns
                        for at in range(first, last)
                        if column.ran[at]
                    ],
                    "marks": its.marks.get(question, {}),
                    "answer": its.answers[question],
                }
            )
        parts[part_name("questions", number)] = packed(body)
    return parts


# ---- Table of the explorer: one entry per question and strategy, readable without other parts.

MEASURE = f"R@{ALWAYS_K}"


def values_of(runs: Runs) -> FloatArray:
    """Average recall at 10 over wordings and seeds at the headline level.

    The array is float [n_strategies, n_questions].
    """
    level, n = runs.evaluation.config.level, len(runs.gold.queries)
    return np.stack(
        [
            runs.scores(strategy).per_query(level, n, runs.gold)[
                :, runs.scores(strategy).labels[level].index(MEASURE)
            ]
            for strategy in runs.names
        ]
    )


def _originals(runs: Runs) -> np.ndarray:
    """Return the variant that is the original wording of each question."""
    original = np.flatnonzero(wording_of(runs.gold)[0] == 0)
    found = np.empty(len(runs.gold.queries), dtype=np.int64)
    found[runs.gold.query_of[original]] = original
    return found


def _answerable(runs: Runs) -> list[int | None]:
    """Return 1 or 0 for each question.

    The value is null for questions that only recorded outputs name, because nobody said whether
    they have an answer.
    """
    said = runs.gold.queries["answerable"].to_numpy(dtype=bool)
    known = runs.gold_variants.answerable_known
    return [
        int(flag) if sure else None
        for flag, sure in zip(said.tolist(), known.tolist(), strict=True)
    ]


def _counts(runs: Runs, strategy: str) -> tuple[list[Any], list[Any]]:
    """Count hits at 10 and retrievals by question. Hits are null when nothing can be judged."""
    level, n, scores, ran = (
        runs.evaluation.config.level,
        len(runs.gold.queries),
        runs.scores(strategy),
        runs.ran(strategy),
    )
    owner, hit = runs.gold.query_of[scores.variant], scores.column(level, f"Success@{ALWAYS_K}")
    judged = ~np.isnan(hit)
    hits = np.bincount(owner[judged], weights=hit[judged], minlength=n)
    there: BoolArray = np.bincount(owner[judged], minlength=n) > 0
    return nullable(np.where(there, hits, np.nan)), np.bincount(
        owner[ran[scores.variant]], minlength=n
    ).tolist()


def _tags(queries: pd.DataFrame) -> tuple[list[str], list[list[int]]]:
    """List the tags in the order of their first appearance, and the tags of each question."""
    shown = [[name(str(tag)) for tag in tags] for tags in queries["tags"].tolist()]
    index = {tag: at for at, tag in enumerate(dict.fromkeys(tag for tags in shown for tag in tags))}
    return list(index), [list(dict.fromkeys(index[tag] for tag in tags)) for tags in shown]


def _states(runs: Runs) -> list[list[int | None]]:
    frame = stability_measures(runs).frame("per_query")
    place = {state: at for at, state in enumerate(STATES)}
    ids = runs.gold.queries["query_id"]
    by_name = {
        strategy: part.set_index("query_id")["lambda_state"].reindex(ids).tolist()
        for strategy, part in frame.groupby("strategy", sort=False)
    }
    return [[place.get(state) for state in by_name[strategy]] for strategy in runs.names]


def summary_of(
    runs: Runs, units: Units, claims: list[Stated], answered: dict[str, list[Any]]
) -> dict[str, Any]:
    """Build the summary without the comparison with the previous run."""
    evaluation, queries, originals = runs.evaluation, runs.gold.queries, _originals(runs)
    config, level, n_variants = evaluation.config, evaluation.config.level, len(runs.gold.variants)
    tags, tags_of = _tags(queries)
    counts = [_counts(runs, strategy) for strategy in runs.names]
    reciprocal = np.stack(
        [
            runs.scores(strategy).column(level, "RR")[:n_variants][originals]
            for strategy in runs.names
        ]
    )
    return {
        "schema_version": SCHEMA_VERSION,
        "gold_set": config.name,
        "primary": runs.names.index(config.primary_strategy),
        "strategies": runs.names,
        "measure": MEASURE,
        "level": level,
        "target": config.uncertainty.target,
        "k": config.uncertainty.k,
        "depth": DEPTH,
        "statuses": list(STATUSES),
        "states": list(STATES),
        "outcomes": list(OUTCOMES),
        "tags": tags,
        "questions": {
            "id": [visible(query_id) for query_id in queries["query_id"].tolist()],
            "text": [line(text, MAX_QUESTION) for text in queries["text"].tolist()],
            "tags": tags_of,
            "answerable": _answerable(runs),
            "group": runs.gold.groups.tolist(),
            "wordings": np.bincount(runs.gold.query_of, minlength=len(queries)).tolist(),
            "value": nullable(values_of(runs)),
            "first": nullable(first_rank(reciprocal)),
            "hits": [hits for hits, _ in counts],
            "runs": [ran for _, ran in counts],
            "miss": nullable(np.stack([its.figures[0, originals, 0] for its in claims])),
            "status": [its.status[0, originals].tolist() for its in claims],
            "state": _states(runs),
            **answered,
        },
        "shards": {"questions": QUESTIONS, "chunks": CHUNKS},
        "n_questions": len(queries),
        "n_chunks": len(units.unit),
        "texts": {"kept": len(units.unit), "of": len(units.unit)},
    }


# ---- Units of the lists: document, section, snippet, address, trust and verdict by number.

VERDICTS: Final = {"clean": 0, "warning": 1, "blocked": 2}


def unit_frame(runs: Runs, units: Units) -> pd.DataFrame:
    """Read the facts of every unit that the lists may name, by unit.

    Columns: doc_id, section_id, start, end, title, text, shown, trust, verdict and reasons. `shown`
    is the text that the source returned when it differs from `text`.
    """
    evaluation = runs.evaluation
    facts = admitted_trust(evaluation)
    chunks = pd.read_parquet(
        admitted_chunks(evaluation).path("chunks.parquet"),
        columns=["doc_id", "section_id", "start", "end", "title", "text"],
    )
    parts = [
        chunks.assign(
            shown="",
            **{column: facts[column].to_numpy() for column in ("trust", "verdict", "reasons")},
        )
    ]
    titles = (
        corpus_snapshot(evaluation).frame("documents").set_index("doc_id")["title"]
        if units.own
        else None
    )
    for own, _ in units.own.values():
        judged = unit_verdicts(
            evaluation.config,
            evaluation.runner.get(CorpusChunks),
            evaluation.runner.get(EvidenceTrust),
            runs.gold_variants.texts,
            own,
        )
        reasons = pd.Series(judged.reasons, index=own.index, dtype=object)
        part = own[["doc_id", "section_id", "start", "end", "text"]].assign(
            shown=own["returned"], trust=judged.trust, verdict=judged.verdict, reasons=reasons
        )
        if titles is not None:
            part = part.assign(title=titles.reindex(own["doc_id"]).fillna("").to_numpy())
        parts.append(part)
    return pd.concat(parts, ignore_index=True)


def chunk_parts(runs: Runs, units: Units, frame: pd.DataFrame) -> dict[str, bytes]:
    """Write the parts of units. `frame` comes from `unit_frame`."""
    documents = pd.read_parquet(
        corpus_snapshot(runs.evaluation).path("documents.parquet"), columns=["doc_id", "source_url"]
    )
    urls = dict(zip(documents["doc_id"].tolist(), documents["source_url"].tolist(), strict=True))
    trusted = runs.evaluation.config.trust.configured
    found = {}
    for number, start, end in shards(len(units.unit), CHUNKS):
        part = frame.iloc[units.unit[start:end]]
        columns: dict[str, list[Any]] = {
            column: part[column].tolist()
            for column in ("doc_id", "section_id", "title", "text", "shown", "verdict", "reasons")
        }
        addresses = [address(urls.get(doc_id, "")) for doc_id in columns["doc_id"]]
        body = {
            "doc": [name(doc_id) for doc_id in columns["doc_id"]],
            "section": [name(section) for section in columns["section_id"]],
            "title": [name(title) for title in columns["title"]],
            "text": [
                line(shown or text)
                for text, shown in zip(columns["text"], columns["shown"], strict=True)
            ],
            "source": [source for source, _ in addresses],
            "link": [link for _, link in addresses],
            "trust": nullable(part["trust"].to_numpy(dtype=np.float64))
            if trusted
            else [None] * len(part),
            "verdict": [VERDICTS.get(verdict) for verdict in columns["verdict"]],
            "reasons": [[name(code) for code in codes] for codes in columns["reasons"]],
        }
        found[part_name("chunks", number)] = packed(body)
    return found


# ---- Explorer stage: write the parts once per run, so that a browser can read them separately.

PRIORITY = "priority"
"""Name of the array that orders the snippets of the HTML report (`Units.priority`)."""


def explorer_bundle(runs: Runs) -> Artifact:
    """Write the parts of the explorer.

    The parts are summary.json.gz, questions-NNNN.json.gz and chunks-NNNN.json.gz, with published
    schemas `explorer-*.schema.json`, and the array `priority` by number of the unit. When only the
    previous run differs, all parts except the summary are shared with the earlier artifact.
    """
    return runs.evaluation.once("explorer", lambda: _explorer_bundle(runs))


def _explorer_bundle(runs: Runs) -> Artifact:
    evaluation, previous = runs.evaluation, _find_previous(runs)
    made = _without_previous(runs)

    def make() -> dict[str, Any]:
        # The parts are linked, not copied, because the previous run changes every night.
        shared = [
            *sorted(made.folder.glob("*.json.gz")),
            made.path(f"{PRIORITY}.npy"),
        ]
        return {
            SUMMARY_FILE: packed(_with_previous(made.json("base"), previous, runs)),
            **{path.name: path for path in shared},
        }

    return evaluation.memo(
        "explorer", evaluation.key("explorer", made.key, _identify(previous)), make
    )


def _without_previous(runs: Runs) -> Artifact:
    """Write the parts that do not depend on the previous run.

    Parts: base (JSON), parts of questions and chunks, priority.
    """
    evaluation, config = runs.evaluation, runs.evaluation.config
    made_of = [gold_variants, corpus_snapshot, admitted_chunks, evidence_trust]
    measured = [
        stability_measures(runs),
        evaluation.runner.get(MissRateClaims).artifact,
    ]
    answered = find_answered(evaluation)
    keys = [
        *(step(evaluation).key for step in made_of),
        *(artifact.key for artifact in measured),
        answered and [answered.answers.id, answered.citations.id, answered.measures.id],
    ]
    about = [
        config.name,
        config.level,
        config.primary_strategy,
        runs.names,
        config.uncertainty.target,
        config.uncertainty.k,
        config.trust.configured,
    ]
    key = evaluation.key("explorer parts", keys, runs.keys, about)

    def make() -> dict[str, Any]:
        with evaluation.progress.step(
            "Writing the explorer", len(runs.gold.queries), "questions"
        ) as advance:
            parts = _parts(runs)
            advance(len(runs.gold.queries))
        return parts

    return evaluation.memo("explorer parts", key, make)


def _parts(runs: Runs) -> dict[str, Any]:
    gold, corpus = gold_variants(runs.evaluation), corpus_snapshot(runs.evaluation)
    tops, units = rankings(runs)
    claims, spoken = stated(runs, tops), answered(runs)
    frame, spans = unit_frame(runs, units), gold.frame("spans")
    marks = gold_marks(tops, units, runs.gold, frame, spans)
    entries = gold_entries(
        spans,
        corpus.frame("documents"),
        corpus.frame("sections"),
        gold.frame("qrels_section"),
        gold.frame("qrels_document"),
    )
    parts: dict[str, Any] = {
        "base": summary_of(runs, units, claims, spoken.columns),
        PRIORITY: units.priority,
    }
    return (
        parts
        | question_parts(runs, Material(tops, units, claims, entries, marks, spoken.entries))
        | chunk_parts(runs, units, frame)
    )


# ---- Parts embedded in the HTML report: within a limit of bytes, with as many snippets as fit.

_LEFT_OUT: Final = (("title",), ("title", "source", "link"))
"""Columns that units without a snippet lose when the page is too small."""
RANKINGS_SHARE: Final = 0.7
"""Largest share of the limit for rankings, gold, marks and answers while rankings can shrink."""


@dataclasses.dataclass(frozen=True)
class Lists:
    """Number of ranks of original and other wordings, and whether other wordings keep scores."""

    original: int
    others: int
    scores: bool


LISTS: Final = (
    Lists(10, 10, scores=False),
    Lists(10, 5, scores=False),
    Lists(10, 3, scores=False),
    Lists(5, 3, scores=False),
    Lists(5, 1, scores=False),
    Lists(3, 0, scores=False),
)
"""Smaller and smaller lists. The least viewed ranks go first."""
_TRIES: Final = 6
_CLOSE: Final = 0.98
"""Share of the limit at which the search stops."""


def embedded_size(parts: Mapping[str, bytes]) -> int:
    """Count the bytes of all parts in base64."""
    return sum(4 * -(-len(part) // 3) for part in parts.values())


def slim(artifact: Artifact, limit_bytes: int) -> dict[str, bytes]:
    """Fit the parts into a page.

    Parameters
    ----------
    artifact
        Result of `explorer_bundle`.
    limit_bytes
        Largest size of all parts together in base64. When rankings leave too little space for
        snippets, `LISTS` shortens them, those of other wordings first. Then the last ranked
        snippets go. Then the units without a snippet lose their titles, and then their
        addresses. Gold, marks and answers always stay.

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
    chunks = {name: unpacked(part) for name, part in whole.items() if name.startswith("chunks-")}
    fixed, lists = _lists(
        {
            name: part
            for name, part in whole.items()
            if not name.startswith("chunks-") and name != SUMMARY_FILE
        },
        limit_bytes,
    )
    summary = {
        **summary,
        **(
            {}
            if lists is None
            else {
                "lists": {
                    "original": lists.original,
                    "others": lists.others,
                    "scores": lists.scores,
                }
            }
        ),
    }
    order = np.argsort(artifact.array(PRIORITY), kind="stable")

    def with_texts(n: int, without: Sequence[str] = ()) -> dict[str, bytes]:
        return {
            SUMMARY_FILE: packed({**summary, "texts": {"kept": n, "of": len(order)}}),
            **fixed,
            **_slim_fields(chunks, order[:n], without),
        }

    best = with_texts(0)
    without: Sequence[str] = ()
    for columns in _LEFT_OUT:
        if embedded_size(best) > limit_bytes:
            without = columns
            best = with_texts(0, columns)
    return dict(
        sorted(
            _most(
                lambda n: with_texts(n, without),
                best,
                (len(order), embedded_size(whole)),
                limit_bytes,
            ).items()
        )
    )


def _lists(fixed: Mapping[str, bytes], limit: int) -> tuple[dict[str, bytes], Lists | None]:
    """Shorten the rankings until they leave snippets their share of the limit.

    The lists are None when the whole rankings fit. Otherwise they are the first of LISTS that fits,
    or the last of LISTS.
    """
    if embedded_size(fixed) <= RANKINGS_SHARE * limit:
        return dict(fixed), None
    read = {name: unpacked(part) for name, part in fixed.items()}
    thin = dict(fixed)
    for lists in LISTS:
        thin = {
            name: packed(
                [
                    {**question, "runs": [_thin(run, lists) for run in question["runs"]]}
                    for question in part
                ]
            )
            for name, part in read.items()
        }
        if embedded_size(thin) <= RANKINGS_SHARE * limit:
            return thin, lists
    return thin, LISTS[-1]


def _thin(run: Mapping[str, Any], lists: Lists) -> dict[str, Any]:
    depth, scores = (lists.original, True) if run["w"] == 0 else (lists.others, lists.scores)
    return {
        **run,
        "c": run["c"][:depth],
        "x": run["x"][:depth] if scores else [],
        "h": [place for place in run["h"] if place < depth],
    }


def _slim_fields(
    chunks: Mapping[str, dict[str, list[Any]]],
    numbers: npt.NDArray[np.int64],
    without: Sequence[str],
) -> dict[str, bytes]:
    """Write the parts of units with only these snippets. Other units lose the columns `without`."""
    found, start = {}, 0
    inside = set(numbers.tolist())
    for name, part in chunks.items():
        stays = [start + at in inside for at in range(len(part["text"]))]
        texts = [text if kept else None for text, kept in zip(part["text"], stays, strict=True)]
        bare = {
            column: [value if kept else "" for value, kept in zip(part[column], stays, strict=True)]
            for column in without
        }
        found[name] = packed({**part, "text": texts, **bare})
        start += len(texts)
    return found


def _most(
    with_texts: Callable[[int], dict[str, bytes]],
    best: dict[str, bytes],
    whole: tuple[int, int],
    limit: int,
) -> dict[str, bytes]:
    """Search for the largest number of snippets that fits, with a few tries.

    Sizes are nearly proportional to the number of snippets. Each try therefore interpolates between
    the last two points. `best` holds no snippet; `whole` is the number and size with all snippets.
    """
    low, low_size = 0, embedded_size(best)
    high, high_size = whole
    for _ in range(_TRIES):
        if low_size > limit or low_size >= _CLOSE * limit or high - low <= 1:
            break
        middle = low + int((high - low) * (limit - low_size) / max(high_size - low_size, 1) * 0.995)
        middle = min(max(middle, low + 1), high - 1)
        found = with_texts(middle)
        size = embedded_size(found)
        if size <= limit:
            best, low, low_size = found, middle, size
        else:
            high, high_size = middle, size
    return best
