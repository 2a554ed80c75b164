"""Screen single texts for poison, and judge chunks by all findings.

Every rule, and a model over sentences, runs on every view of a text. Hidden and encoded text are
findings too.
"""

import functools
import itertools
import json
import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.core.arrays import FloatArray, IntArray, Ranges, find_overlaps
from rag_eval.core.config import EVIDENCE_TRUST, FINDINGS, Verdict
from rag_eval.core.frames import make_frame
from rag_eval.trust.rules import LinearPattern, RuleSet, Severity
from rag_eval.trust.spelling import load_words
from rag_eval.trust.text import View, read_all

# ---- Sentences that speak to a language model: features of a sentence

_MOST_TOKENS, _SHORT_FEATURES = 100, 16
_ALIKE = {word: name for name, words in load_words("addressing_alike").items() for word in words}
_WORD_OR_MARK = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?|\d+|!\[|[\"“”:?]|<(?:url|mail)>")
_URL = re.compile(r"https?://[^\s\"')>]+|\bwww\.[^\s\"')>]+")
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+")
_STAND_INS = {"![": "<img>", "“": '"', "”": '"'}


def _tokens_of(sentence: str) -> list[str]:
    """Return the words of a normalised sentence, with stand-ins for addresses and numbers."""
    if "://" in sentence or "www." in sentence:
        sentence = _URL.sub(" <url> ", sentence)
    if "@" in sentence:
        sentence = _MAIL.sub(" <mail> ", sentence)
    words = _WORD_OR_MARK.findall(sentence)[:_MOST_TOKENS]
    return ["<num>" if word.isdigit() else _STAND_INS.get(word, word) for word in words]


def _features_of(sentence: str) -> set[str]:
    """Return words and pairs of words, in which words of one kind share a name."""
    words = _tokens_of(sentence)
    alike = ["^", *(_ALIKE.get(word, word) for word in words)]
    return {*words, *map(" ".join, itertools.pairwise(alike))}


def _scale_of(features: set[str]) -> float:
    """Return the factor of a sentence's weights: long sentences collect them by chance."""
    return math.sqrt(_SHORT_FEATURES / max(len(features), _SHORT_FEATURES))


# ---- Candidates: sentences with a word that orders to a model seldom lack

_BACK, _REACH = 200, 400
"""Most characters of a sentence before, and after, its trigger word."""
_END = re.compile(r"[.!?。！？][\"'”’»)\]*]{0,5}(?: |$)")


@functools.cache
def _triggers() -> LinearPattern:
    verbs, words = (
        "|".join(sorted(load_words("sentences")["tasks"])),
        "|".join(load_words("addressing")["triggers"]),
    )
    return LinearPattern(rf"(?:^|[.!?:] )(?:{verbs})\b|\b(?:{words})\b")


def _sentences_looked_at(text: str) -> Iterator[tuple[int, int]]:
    """Yield the characters of each sentence with a trigger in a normalised text, in order."""
    last = 0
    # One byte for each character keeps places equal; the pattern is ASCII.
    for _, end in _triggers().find(text.encode("ascii", "replace")):
        stop = end - 1
        if stop < last:
            continue
        low = max(last, stop - _BACK)
        for match in _END.finditer(text, low, stop):
            low = match.end()
        furthest = min(len(text), stop + _REACH)
        ended = _END.search(text, stop, furthest)
        last = ended.end() if ended else furthest
        yield low, last


# ---- Scores

_WEIGHTS_FILE = "addressing.json"
_SHARE, _LOWEST = 0.25, -3.0
"""Share of a neighbour's score that a sentence gets, and the lowest score that counts.

Instructions come in several sentences. Two harmless neighbours lower the score of an order by 1.5
at most."""
MOST_FINDINGS = 200
"""Most findings in one view of a text; the last finding covers all later places."""


class _AddressingWeights(NamedTuple):
    """Logistic regression on the features of a sentence."""

    weights: dict[str, float]
    bias: float
    threshold: float

    def score(self, features: set[str]) -> float:
        """Score a sentence by its features; `fsum` makes their order irrelevant."""
        weighed = self.weights.keys() & features
        return self.bias + _scale_of(features) * math.fsum(self.weights[name] for name in weighed)


@functools.cache
def _load_weights() -> _AddressingWeights:
    """Read the weights, which were fitted once; `provenance` in the file says to which texts."""
    fitted = json.loads((files("rag_eval.trust") / _WEIGHTS_FILE).read_text(encoding="utf-8"))
    return _AddressingWeights(fitted["weights"], fitted["bias"], fitted["threshold"])


def _find_addressing(views: Sequence[View]) -> list[list[tuple[int, int, str]]]:
    """Find the sentences of each view that speak to a model: (start, end, detail).

    Places are characters of the original text, which the detail never quotes. Neighbouring
    sentences are one finding.
    """
    # Search all views first, because alternating automata drive each other out of the cache.
    looked_at = [list(_sentences_looked_at(view.text)) for view in views]
    return [_find_in(view, spans) for view, spans in zip(views, looked_at, strict=True)]


def _find_in(view: View, spans: list[tuple[int, int]]) -> list[tuple[int, int, str]]:
    if not spans:
        return []
    fitted = _load_weights()
    scores = [fitted.score(_features_of(view.text[start:end])) for start, end in spans]
    total = list(scores)
    for at, (before, after) in enumerate(itertools.pairwise(spans), 1):
        if before[1] == after[0]:
            total[at] += _SHARE * max(scores[at - 1], _LOWEST)
            total[at - 1] += _SHARE * max(scores[at], _LOWEST)
    spoken: list[tuple[int, int, float]] = []
    for (start, end), score in zip(spans, total, strict=True):
        if score <= fitted.threshold:
            continue
        if spoken and (spoken[-1][1] == start or len(spoken) == MOST_FINDINGS):
            low, _, best = spoken.pop()
            spoken.append((low, end, max(best, score)))
        else:
            spoken.append((start, end, score))
    detail = f"worded as if to an answering model (score {{:.1f}}, limit {fitted.threshold:.1f})"
    return [
        (*view.back(start, len(view.text[:end].rstrip(" "))), detail.format(score))
        for start, end, score in spoken
    ]


# ---- Screening

SPEAKS = "speaks_to_model"
"""Rule name in findings of the model over sentences (`addressing`)."""
QUOTED = "quoted_order"
"""Rule name of warnings about orders in quotations and code."""
_BATCH_CHARS = 1_000_000
_BORDER = 200
"""Characters at the end of a title and at the beginning of the text that are read together."""

Finding = tuple[int, int, int, str, str, str, str]
_Match = tuple[int, int, str, Severity, str]
"""Characters of the original text, rule, severity and detail."""
_MILDER: dict[Severity, Severity] = {"blocked": "warning", "warning": "hint", "hint": "hint"}
_RAISED: dict[Severity, Severity] = {"hint": "hint", "warning": "blocked", "blocked": "blocked"}
"""Severity in hidden or decoded text. Honest text is visible, so a warning becomes a block."""


_QUOTED = re.compile(
    r"(?<!\w)\"(?=\S)[^\"]{2,300}\"(?!\w)|“[^“”]{2,300}”|„[^„“”]{2,300}[“”]|«[^«»]{2,300}»"
    r"|(?<!\w)['‘](?=\S{1,40}\s\S{1,40}\s\S)(?:[^'‘’]|(?<=\w)['’](?=\w)){2,300}['’](?!\w)"
    r"|(?<!`)(`{1,2})(?!`)[^`]{1,300}(?<!`)\1(?!`)"
    r"|^ {0,3}>[^\n]{1,300}(?:\n {0,3}>[^\n]{0,300}){0,5}"
    r"|<(code|pre|kbd|samp|q|blockquote)\b[^<>]{0,100}>[^<]{1,600}</\2>",
    re.MULTILINE,
)
_FENCE = re.compile(r"^[ \t>]{0,12}(?:`{3,20}|~{3,20})[^\n]*", re.MULTILINE)
_LONGEST_FENCE, _MOST_QUOTED = 2000, 0.5


def _find_quotations(text: str) -> list[tuple[int, int]]:
    """List the quotations and the code of a text in order, without overlaps.

    Long ones do not count, and none count when they are half of the text: otherwise an attacker
    could quote all of it.
    """
    fences = [match.span() for match in _FENCE.finditer(text)]
    code = ((first[0], last[1]) for first, last in zip(fences[::2], fences[1::2], strict=False))
    spans = [span for span in code if span[1] - span[0] <= _LONGEST_FENCE]
    spans += [match.span() for match in _QUOTED.finditer(text)]
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start < joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((start, end))
    total = sum(end - start for start, end in joined)
    return joined if total <= _MOST_QUOTED * len(text.strip()) else []


def _soften_quotations(
    text: str, matches: list[_Match], about_code: frozenset[str]
) -> Iterator[_Match]:
    """Yield the matches, those in a quotation or code one step milder, except of `about_code`."""
    # A person mentions an order in quotation marks, but an attacker may add the marks as well. So a
    # quotation with matches of different rules, hints aside, is a warning too. All warnings in
    # quotations are of one rule: a page that quotes many orders has one sign of an attack.
    quotations = _find_quotations(text) if matches else []
    quoted: dict[int, set[str]] = {}
    for start, end, rule, severity, detail in matches:
        place = bisect_right(quotations, (start, len(text))) - 1
        if place < 0 or end > quotations[place][1] or rule in about_code:
            yield start, end, rule, severity, detail
            continue
        if severity != "hint":
            quoted.setdefault(place, set()).add(rule)
        milder = _MILDER[severity]
        shown_rule = QUOTED if milder == "warning" else rule
        yield start, end, shown_rule, milder, f"{detail}, in a quotation or code"
    for place, rules in quoted.items():
        if len(rules) > 1:
            detail = f"{len(rules)} rules found in one quotation"
            yield *quotations[place], QUOTED, "warning", detail


def _raise_unseen(visible: list[_Match], matches: list[_Match]) -> Iterator[_Match]:
    """Yield the matches of a hidden or decoded view, raised, without those that are visible too."""
    spans: dict[str, list[tuple[int, int]]] = {}
    for start, end, rule, *_ in visible:
        spans.setdefault(rule, []).append((end, start))
    for start, end, rule, severity, detail in matches:
        # A decoded passage holds the plain words around the code too.
        beside = spans.get(rule, [])
        place = bisect_right(beside, (start, end))
        if place == len(beside) or beside[place][1] >= end:
            yield start, end, rule, _RAISED[severity], detail


def _screen_batch(
    first: int, texts: Sequence[str], rules: RuleSet, *, sentences: bool
) -> Iterator[Finding]:
    """Yield the findings of texts whose rows begin at `first`: the tricks, then the views."""
    readings = read_all(texts)
    views = [view for reading in readings for view in reading.views]
    ruled = iter(rules.find([view.text for view in views]))
    spoken = iter(_find_addressing(views) if sentences else [[] for _ in views])
    for row, (text, reading) in enumerate(zip(texts, readings, strict=True), first):
        yield from ((row, *trick) for trick in reading.tricks)
        visible: list[_Match] = []
        tricks = {trick.rule for trick in reading.tricks}
        for view in reading.views:
            where = f"found in {view.kind} text ({view.source})"
            matches: list[_Match] = [
                (*view.back(start, end), rule.id, rule.severity, f"rule {rule.id} {where}")
                for rule, start, end in next(ruled)
            ]
            addressing: list[_Match] = [
                (start, end, SPEAKS, "warning", why) for start, end, why in next(spoken)
            ]
            if view.kind == "visible":
                visible = matches
                graded = _soften_quotations(text, matches + addressing, rules.about_code)
            else:
                # The model never blocks alone, so its findings are not raised.
                is_respelled = view.kind == "decoded" and view.source not in tricks
                raised = _raise_unseen(visible if is_respelled else [], matches)
                graded = itertools.chain(raised, addressing)
            for start, end, name, severity, detail in graded:
                yield row, start, end, "pattern", name, severity, detail


def screen(
    texts: Sequence[str], rules: RuleSet | None = None, *, sentences: bool = True
) -> pd.DataFrame:
    """Screen documents, chunks or passages one by one, in time linear in each length.

    `sentences` adds the model over sentences, which finds orders that no rule knows.
    Returns FINDINGS of the checks `pattern`, `hidden` and `encoded`; `row` is the place in `texts`.
    """
    rules = rules or RuleSet.load()
    findings: list[Finding] = []
    first = size = 0
    for end, text in enumerate(texts, 1):
        size += len(text)
        if size >= _BATCH_CHARS or end == len(texts):
            findings += _screen_batch(first, texts[first:end], rules, sentences=sentences)
            first, size = end, 0
    return make_frame(FINDINGS, findings)


# ---- Verdicts: findings about documents become clean, warning or blocked for each chunk

ALLOWED = "allowed"
"""Reason code of a chunk that a person allowed."""
BESIDE = "pattern.beside_blocked"
"""Reason code of a chunk with a warning in a document with a blocked text."""
TOGETHER = "pattern.two_warnings"
"""Reason code of a chunk that its warnings block together."""

_OF_TEXT = ("pattern", "hidden", "encoded", "topic_shift")
_SIGNS = 2
"""Fewest warnings of different rules that block a text together."""
_LANGUAGE = r"\.[a-z]{2}(?=_|$)"
"""Language in the id of a rule, as in `override.de_void`."""
VERDICTS: tuple[Verdict, ...] = ("clean", "warning", "blocked")
"""Verdicts in the order of their ranks."""
_RANK = {"hint": 0, "warning": 1, "blocked": 2}
_FACTS = (
    "trust domain domain_state signature_state author_state freshness_state freshness date"
).split()


def find_across_titles(chunks: pd.DataFrame) -> pd.DataFrame:
    """Find poison that begins in a title and ends in the text, because an index joins them.

    Returns FINDINGS by chunk row; those of a chunk depend on no other chunk.
    """
    rows = np.flatnonzero(chunks["title"] != "")
    heads, texts = chunks["title"].iloc[rows].str[-_BORDER:], chunks["text"].iloc[rows]
    joined = (heads + " " + texts.str[:_BORDER]).tolist()
    findings = screen(joined, sentences=False)
    at = findings["row"].to_numpy(dtype=np.int64)
    border = heads.str.len().to_numpy(dtype=np.int64)[at]
    over = (findings["start"].to_numpy() < border) & (findings["end"].to_numpy() > border + 1)
    across: pd.DataFrame = findings[over].assign(row=rows[at[over]], start=-1, end=-1)
    return across


def _spread_findings(
    findings: pd.DataFrame, documents: pd.Index, chunks: pd.DataFrame
) -> pd.DataFrame:
    """Spread FINDINGS about `documents` (doc_ids) over chunks: the first of a rule and severity."""
    columns = ["start", "end"]
    start, end = findings[columns].to_numpy(dtype=np.int64).T
    low, high = chunks[columns].to_numpy(dtype=np.int64).T
    whole = start < 0
    beyond = int(high.max(initial=0)) + 1
    row = findings["row"].to_numpy(dtype=np.int64)
    places = Ranges(row, np.where(whole, 0, start), np.where(whole, beyond, end))
    owner = documents.get_indexer(pd.Index(chunks["doc_id"])).astype(np.int64)
    finding, chunk = find_overlaps(places, Ranges(owner, low, high))
    spread = findings.iloc[finding].assign(row=chunk.astype(np.int64))
    spread = spread.sort_values(["row", "start", "check", "rule"], kind="stable")
    return spread.drop_duplicates(["row", "check", "rule", "severity"])


def join_findings(parts: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Concatenate FINDINGS frames. Empty frames are left out: they would change column types."""
    filled = [part for part in parts if len(part)] or parts[:1]
    return FINDINGS.check(pd.concat(filled, ignore_index=True))


def _find_signs(findings: pd.DataFrame) -> "pd.Series[bool]":
    """Tell which FINDINGS are warnings about the text itself, which can add up to a block."""
    return findings["check"].isin((*_OF_TEXT, "flood")) & (findings["severity"] == "warning")


def rank_findings(findings: pd.DataFrame, n: int) -> tuple[IntArray, list[list[str]]]:
    """Rank n texts by their FINDINGS, whose rows are the texts: 0 clean, 1 warning, 2 blocked.

    The second value is the reason codes of each text, the gravest first. Two warnings of different
    rules block a text together. They must be about the text itself, see `_find_signs`. One rule in
    two languages is the same sign, because related languages share phrases.
    """
    graded = findings.assign(rank=findings["severity"].map(_RANK).astype("int64"))
    rank = np.zeros(n, dtype=np.int64)
    np.maximum.at(rank, graded["row"].to_numpy(), graded["rank"].to_numpy())
    shown = graded[graded["rank"] > 0].sort_values(
        ["row", "rank", "check", "rule"], ascending=[True, False, True, True], kind="stable"
    )
    shown = shown.drop_duplicates(["row", "check", "rule"])
    reasons: list[list[str]] = [[] for _ in range(n)]
    for row, code in zip(shown["row"], shown["check"] + "." + shown["rule"], strict=True):
        reasons[row].append(code)
    signs = shown[_find_signs(shown)]
    signs = signs.assign(rule=signs["rule"].str.replace(_LANGUAGE, "", regex=True))
    signs = signs.drop_duplicates(["row", "check", "rule"])
    count = np.bincount(signs["row"].to_numpy(dtype=np.int64), minlength=n)
    together = (count >= _SIGNS) & (rank == _RANK["warning"])
    for row in np.flatnonzero(together).tolist():
        reasons[row].insert(0, TOGETHER)
    rank[together] = _RANK["blocked"]
    return rank, reasons


def judge_chunks(
    chunks: pd.DataFrame,
    documents: pd.DataFrame,
    findings: pd.DataFrame,
    across: pd.DataFrame,
    allowed: Mapping[str, str],
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Judge every chunk; return EVIDENCE_TRUST in the order of chunks, and FINDINGS by chunk.

    `documents` has the facts of `sources.judge_sources`, and `findings` are about its rows. The
    start and end of a finding stay places in the document. `across` is the result of
    `find_across_titles`. `allowed` is doc_id -> person: their blocks become warnings with the
    reason ALLOWED.
    """
    spread = _spread_findings(findings, pd.Index(documents["doc_id"]), chunks)
    findings = join_findings([spread, across])
    rank, reasons = rank_findings(findings, len(chunks))
    allowed_by = np.array([allowed.get(doc_id, "") for doc_id in chunks["doc_id"]], dtype=object)
    # An attack seldom ends with its chunk, so a warning in the same document blocks too. Chunks
    # that warnings block together do not count against other chunks.
    doc_ids = chunks["doc_id"].to_numpy()
    of_text = findings["check"].isin(_OF_TEXT)
    stopped = findings.loc[of_text & (findings["severity"] == "blocked"), "row"].to_numpy()
    blocked_in = set(doc_ids[stopped])
    warned = _find_signs(findings)
    for row in findings.loc[warned, "row"].unique().tolist():
        if rank[row] < _RANK["blocked"] and doc_ids[row] in blocked_in:
            rank[row] = _RANK["blocked"]
            reasons[row].insert(0, BESIDE)
    allowed_by[rank == 0] = ""
    is_allowed = allowed_by != ""
    rank[is_allowed] = _RANK["warning"]
    for row in np.flatnonzero(is_allowed).tolist():
        reasons[row].insert(0, ALLOWED)
    facts = documents.set_index("doc_id").loc[doc_ids, _FACTS].reset_index(drop=True)
    frame = facts.assign(
        chunk_id=chunks["chunk_id"].to_numpy(),
        doc_id=doc_ids,
        verdict=np.array(VERDICTS, dtype=object)[rank],
        reasons=pd.Series(reasons, dtype=object),
        allowed_by=allowed_by,
    )
    return EVIDENCE_TRUST.check(frame), findings


# ---- Units of an outside retriever: verdicts of overlapping chunks, or a scan


class UnitVerdicts(NamedTuple):
    """Names (chunk_id, doc_id), trust, verdict and reasons of the units of a strategy, [n_units].

    The trust of a unit of an unknown document is 0.
    """

    names: pd.DataFrame
    trust: FloatArray
    verdict: npt.NDArray[np.object_]
    reasons: list[list[str]]

    @classmethod
    def of_chunks(cls, evidence: pd.DataFrame) -> "UnitVerdicts":
        """Return the verdicts of chunks (EVIDENCE_TRUST) as those of units."""
        names, trust = evidence[["chunk_id", "doc_id"]], evidence["trust"].to_numpy()
        verdict = evidence["verdict"].to_numpy(dtype=object)
        return cls(names, trust, verdict, evidence["reasons"].tolist())


def judge_units(units: pd.DataFrame, chunks: pd.DataFrame, evidence: pd.DataFrame) -> UnitVerdicts:
    """Judge the units of an external strategy (UNITS) by the verdicts on all chunks.

    `evidence` is the EVIDENCE_TRUST of `chunks`. A unit without a chunk, and a returned text that
    differs from the corpus, are screened alone.
    """
    rank = np.zeros(len(units), dtype=np.int64)
    reasons: list[list[str]] = [[] for _ in range(len(units))]

    def mark(unit: int, grade: int, codes: Sequence[str]) -> None:
        rank[unit] = max(rank[unit], grade)
        reasons[unit] += [code for code in codes if code not in reasons[unit]]

    overlaps = _find_overlapping(units, chunks, evidence)
    columns = (overlaps["unit"], overlaps["verdict"], overlaps["reasons"])
    for unit, verdict, codes in zip(*columns, strict=True):
        mark(unit, VERDICTS.index(verdict), codes)
    # Do not screen text that a person allowed. The loop above covers the other overlapping chunks.
    is_allowed = np.array([ALLOWED in codes for codes in reasons], dtype=bool)
    texts, returned = (units[name].to_numpy(dtype=object) for name in ("text", "returned"))
    foreign = np.flatnonzero((units["chunk"] < 0).to_numpy() & (texts != "") & ~is_allowed)
    # The returned text differs from the corpus, so no judgement or allowance covers it.
    other = np.flatnonzero(returned != "")
    places = np.concatenate([foreign, other])
    findings = screen([str(text) for text in (*texts[foreign], *returned[other])])
    graded = rank_findings(findings, len(places))
    for place, grade, codes in zip(places, *graded, strict=True):
        mark(place, grade, codes)
    trust = evidence.drop_duplicates("doc_id").set_index("doc_id")["trust"]
    return UnitVerdicts(
        units.rename(columns={"unit_id": "chunk_id"})[["chunk_id", "doc_id"]],
        trust.reindex(units["doc_id"]).fillna(0.0).to_numpy(dtype=np.float64),
        np.array(VERDICTS, dtype=object)[rank],
        reasons,
    )


def _find_overlapping(
    units: pd.DataFrame, chunks: pd.DataFrame, evidence: pd.DataFrame
) -> pd.DataFrame:
    """Match units with the chunks that are not clean: rows of unit, verdict and reasons."""
    is_blocked = evidence["verdict"] == "blocked"
    marked = chunks[["doc_id", "start", "end"]].assign(
        verdict=evidence["verdict"].to_numpy(),
        reasons=evidence["reasons"].to_numpy(),
        wholly=is_blocked.groupby(evidence["doc_id"]).transform("all").to_numpy(),
    )
    marked = marked[marked["verdict"] != "clean"]
    places = units[["doc_id", "start", "end"]].assign(unit=np.arange(len(units)))
    both = places.merge(marked, on="doc_id", suffixes=("", "_chunk"))
    is_placed = both["start"] >= 0
    shares = (both["start_chunk"] < both["end"]) & (both["start"] < both["end_chunk"])
    return both[(is_placed & shares) | (~is_placed & both["wholly"])]
