"""The explorer's parts as the HTML report embeds them: within a limit of bytes, with as many snippets as fit.

Belongs here: what is left out. A page says of a text that is not in it where it can be seen.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rag_eval.evaluation.explorer_packing import SUMMARY_FILE, packed, unpacked
from rag_eval.evaluation.explorer_steps import PRIORITY
from rag_eval.storage.artifacts import Artifact

LEAST_BYTES: Final = 2_300_000
"""What the explorer may take of a page for 1,000 questions or fewer, in base64; more questions have as much more."""
_LEFT_OUT: Final = (("title",), ("title", "source", "link"))
"""Columns that units without a snippet go without, where the page is too small for the rest."""
RANKINGS_SHARE: Final = 0.7
"""Share of the limit that rankings, gold, marks and answers may take while something of the rankings can go."""


@dataclasses.dataclass(frozen=True)
class Lists:
    """Ranks that stay of original and of other wordings, and whether the others keep their scores."""

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
"""Less and less, what is looked at least goes first."""
_TRIES: Final = 6
_CLOSE: Final = 0.98
"""Share of the limit that is good enough to stop trying."""


def bytes_for(n_questions: int) -> int:
    """Limit for a gold set of this size."""
    return LEAST_BYTES * max(1000, n_questions) // 1000


def embedded_size(parts: Mapping[str, bytes]) -> int:
    """Bytes of all parts in base64."""
    return sum(4 * -(-len(part) // 3) for part in parts.values())


def slim(artifact: Artifact, limit_bytes: int) -> dict[str, bytes]:
    """Fit the parts into a page.

    Parameters
    ----------
    artifact
        Of `explorer_bundle`.
    limit_bytes
        Most bytes of all parts together in base64. Where rankings would leave too little for snippets, those of other wordings lose their
        scores and then their last ranks, and then the original wordings theirs (`LISTS`). Snippets are left out next, the last ranked ones first;
        where that is not enough, the units without one lose their titles too, and then their addresses. Gold, marks and answers always stay.

    Returns
    -------
    parts
        Name of the part -> its bytes, as in the artifact; in the summary `texts` says how many snippets of how many are in, `lists` how many
        ranks of original and other wordings, and whether others have their scores.
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
            **_kept(chunks, order[:n], without),
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
    """Rankings that leave snippets their share of the limit: whole (None) where they do, else the first of LISTS that does, else the last."""
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


def _kept(
    chunks: Mapping[str, dict[str, list[Any]]],
    numbers: npt.NDArray[np.int64],
    without: Sequence[str],
) -> dict[str, bytes]:
    """Parts of units with the texts of these only; the others are without some columns too."""
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
    """The most texts that fit, as far as a few tries find it: sizes are nearly proportional, so each try goes where the line through the last two points meets the limit. `best` is without any, `whole` their number and size."""
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
