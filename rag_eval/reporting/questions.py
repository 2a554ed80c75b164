"""The parts of the explorer as files: their format, their texts, and what a page has room for.

The result page embeds these parts. The viewer serves them. A browser reads them part by part.
"""

import functools
import gzip
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from rag_eval.core.arrays import IntArray
from rag_eval.core.types import ELLIPSIS, SNIPPET_CHARS, snippet
from rag_eval.corpus.masking import mask_shown_address, mask_snippet, masked_text
from rag_eval.reporting.report import FoundCount, LookFirst
from rag_eval.reporting.tables import visible
from rag_eval.storage.artifacts import Artifact

# ---- Format of the parts: rounded numbers, compact JSON, reproducible gzip bytes.

Json: TypeAlias = dict[str, Any]
PER_PART: Final = 200
"""Number of questions in one part."""
PACKED: Final = ".json.gz"
SUMMARY_FILE: Final = f"summary{PACKED}"
DIGITS, FEW_DIGITS = 6, 4
"""Significant digits of the table, and of scores and miss rates, which make up most bytes."""


def packed(value: object) -> bytes:
    """Write compact, gzipped JSON. The bytes hold no time, so equal values give equal bytes."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return gzip.compress(text.encode(), compresslevel=6, mtime=0)


def unpacked(data: bytes) -> Any:
    """Read the bytes that `packed` wrote."""
    return json.loads(gzip.decompress(data))


def rounded(values: npt.ArrayLike, digits: int = DIGITS) -> list[float | None]:
    """Round numbers for JSON; NaN and infinity become null."""
    numbers = np.asarray(values, dtype=np.float64).tolist()
    return [float(f"{x:.{digits}g}") if math.isfinite(x) else None for x in numbers]


# ---- Texts: personal data masked, invisible characters written out, cut to a limit.

MAX_NAME, MAX_ADDRESS, MAX_QUESTION, MAX_WORDING, MAX_ANSWER = 200, 500, 300, 600, 600
"""Limits in code points: ids and titles, addresses, questions in the table, wordings, answers."""
REACH: Final = 500
"""Characters on both sides of a window that are masked together with the window.

A window may show only the end of a value. The characters beside it reveal the whole value.
"""


def line(text: str, limit: int = SNIPPET_CHARS) -> str:
    """Write a text as one line of at most `limit` code points.

    Personal data is masked, and invisible characters are written out.
    """
    return visible(mask_snippet(text, limit))


@functools.lru_cache(maxsize=20_000)
def short_name(text: str) -> str:
    """Write an id, a title or a tag as one line. Results are cached, because names recur."""
    return line(text, MAX_NAME)


_WEB: Final = re.compile(r"https?://[^\s\x00-\x20\\\"'<>`{}|^]{1,2000}", re.IGNORECASE)


def _web_address(address: str) -> str:
    """Return an http or https address that a browser may follow, else an empty text."""
    return address if _WEB.fullmatch(address) and visible(address) == address else ""


@functools.lru_cache(maxsize=20_000)
def address(url: str) -> dict[str, str]:
    """Write an address as `source`, its text, and as `link`.

    The link is empty when the address is no web address or holds masked personal data.
    """
    start = url[: 10 * MAX_ADDRESS]
    masked = mask_shown_address(start)
    link = _web_address(url) if masked == url else ""
    return {"source": visible(snippet(masked, MAX_ADDRESS)), "link": link}


def marked(text: str, spans: Sequence[tuple[int, int]], limit: int = SNIPPET_CHARS) -> list[str]:
    """Cut a window of at most `limit` characters of a text around the first of several spans.

    `spans` are [begin, end) in characters of the text. Returns the window in pieces; every second
    piece is the text of a span. White space is collapsed, personal data is masked, and invisible
    characters are written out.
    """
    spans = sorted((begin, min(end, len(text))) for begin, end in spans if begin < len(text))
    if not spans:
        return [line(text, limit)]
    begin, end = spans[0]
    start = max(0, begin - max(0, limit - (end - begin)) // 2)
    stop, low = min(len(text), start + limit), max(0, start - REACH)
    region, place = masked_text(text[low : stop + REACH]), start
    pieces = []
    for begin, end in spans:
        first, last = max(begin, place), min(end, stop)
        if first < last:
            pieces += [region[place - low : first - low], region[first - low : last - low]]
            place = last
    pieces.append(region[place - low : stop - low])
    pieces = [visible(re.sub(r"\s+", " ", piece)) for piece in pieces]
    pieces[0] = (ELLIPSIS if start else "") + pieces[0].lstrip()
    pieces[-1] = pieces[-1].rstrip() + (ELLIPSIS if stop < len(text) else "")
    return pieces


N_LOOK_FIRST: Final = 3
"""Number of questions that the report names first."""


def rank_missed(summary: Json, groups: IntArray, lost: Mapping[str, str]) -> list[LookFirst]:
    """Name the questions of a summary to look at first: missed by the primary strategy.

    The smallest share of retrievals with gold comes first. Among equals, a question that another
    strategy finds comes first, then the one with the smallest stated miss rate, as this claim is
    wrong by most. `groups` are int [n_questions]. Each group of questions gives one.
    `lost` says by question what lost the gold of its original wording.
    """
    names, primary, asked = summary["strategies"], summary["primary"], summary["questions"]
    hits, runs = (np.array(asked[name], dtype=np.float64) for name in ("hits", "runs"))
    share = hits / runs
    others = np.nan_to_num(np.delete(share, primary, axis=0))
    gain = others.max(axis=0, initial=0.0) - share[primary]
    miss_rates = np.array(asked["miss"][primary], dtype=np.float64)
    # NaN sorts last: questions without gold, and questions without a stated miss rate.
    order = np.lexsort((miss_rates, -gain, share[primary]))
    order = order[share[primary, order] < 1]
    _, first = np.unique(groups[order], return_index=True)

    def count(at: int, question: int) -> FoundCount:
        n_found, n_runs = int(hits[at, question]), int(runs[at, question])
        return FoundCount(strategy=names[at], n_found=n_found, n_runs=n_runs)

    missed = []
    for question in order[np.sort(first)[:N_LOOK_FIRST]].tolist():
        best = int(np.argmax(np.nan_to_num(share[:, question])))
        missed.append(
            LookFirst(
                query_id=asked["id"][question],
                text=asked["text"][question],
                primary=count(primary, question),
                other=None if gain[question] <= 0 else count(best, question),
                miss_rate=asked["miss"][primary][question],
                status=asked["status"][primary][question],
                lost=lost.get(asked["id"][question]),
            )
        )
    return missed


# ---- Parts embedded in the HTML report: within a limit of bytes.

CUTS: Final = ((10, 5), (3, 1), (0, 0))
"""What a page keeps, from much to little: ranks of wordings beside the original, and first ranks
of the original wording with their texts."""


def _embedded_size(parts: Mapping[str, bytes]) -> int:
    """Count the bytes of all parts in base64."""
    return sum(4 * -(-len(part) // 3) for part in parts.values())


def slim(artifact: Artifact, limit_bytes: int) -> dict[str, bytes]:
    """Fit the parts into a page: cut them by the first of CUTS that fits, or by the last.

    `limit_bytes` is the largest size of all parts together in base64. Gold and answers stay. In
    the summary, `cut` holds the numbers of CUTS.
    """
    whole = {name: artifact.bytes(name) for name in sorted(artifact.files) if name.endswith(PACKED)}
    parts = whole
    for cut in CUTS:
        if _embedded_size(parts) <= limit_bytes:
            break
        parts = {
            name: packed([_shorten(question, *cut) for question in unpacked(part)])
            for name, part in whole.items()
            if name != SUMMARY_FILE
        }
        parts[SUMMARY_FILE] = packed(unpacked(whole[SUMMARY_FILE]) | {"cut": cut})
    return parts


def _shorten(question: Json, others: int, texts: int) -> Json:
    """Cut the lists of other wordings, and leave out the texts of later ranks."""
    runs = [
        run
        if run["w"] == 0
        else {
            **run,
            "units": run["units"][:others],
            "scores": run["scores"][:others],
            "hits": [place for place in run["hits"] if place < others],
        }
        for run in question["runs"]
    ]
    listed = {unit for run in runs for unit in run["units"]}
    shown = {unit for run in runs if run["w"] == 0 for unit in run["units"][:texts]}
    bare = {"text": None, "title": "", "source": "", "link": ""}
    units = [
        None if at not in listed else unit if at in shown else {**unit, **bare}
        for at, unit in enumerate(question["units"])
    ]
    return {**question, "runs": runs, "units": units}
