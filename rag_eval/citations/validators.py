"""Every rule of the citation payload, tried on every citation: the first code that fails, and counts by code.

Belongs here: rules over a run, and the verdicts. What one record shows by itself is `rag_eval.citations.structure`, what the live index says about it
is `rag_eval.citations.live_rules`.

A record is a citation payload. Beside its fields these keys are read, all optional, null meaning absent:

- `query_id` (text or whole number), `segment` (text or whole number; -1 = the answer as a whole): which answer sentence it supports.
- `quote`: the text that the answer says stands at the offsets; empty where it quotes nothing. Masked parts are held against the masked text.
- `quote_chars`: more than the characters of `quote`, which ends in an ellipsis: it was cut where it left the home, and only its beginning is compared.
- `reranked`: a rerank step ran, so `k_final` is due even without a `rerank_score`.
- `order`, `cited_before_answer`: where the citations stood in the reply, see `structure.cites_late`.
- `in_evidence`: false where the answer cites what is not among its evidence. Nothing was retrieved that could carry a payload, so the
  one code of such a record is `unknown_snippet`.

Such a key with a value that cannot be read fails the rule that needs it: a rule is never skipped because its input is broken.
"""

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from rag_eval.citations.live_index import LiveIndex
from rag_eval.citations.live_rules import live_findings
from rag_eval.citations.structure import (
    Finding,
    Record,
    is_empty,
    is_text,
    is_whole,
    structural_findings,
    unit_of,
)
from rag_eval.records.citation import CODES, REQUIRED

LIVE_CODES = (
    "mismatch_index_hash",
    "analyzer_mismatch",
    "rev_mismatch",
    "unknown_snippet",
    "quote_mismatch",
)
"""Codes whose rules ask the live index; without one `bad_offsets` does not know the document's length either."""
_RANK = {code: rank for rank, code in enumerate(CODES)}
_STRUCTURAL = (
    "empty_citations",
    "missing_score",
    "trace_incomplete",
    *(f"missing_{name}" for name in REQUIRED),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Rules:
    """What a run allows.

    Parameters
    ----------
    section_pairs
        Pairs of section_ids, in either order, that one answer segment may cite together.
    """

    section_pairs: Collection[tuple[str, str]] = ()


@dataclasses.dataclass(frozen=True)
class Verdicts:
    """What validation found.

    Parameters
    ----------
    failures
        Per record every (code, field) that fails, in the order of CODES; empty where it is ok.
    counts
        Records by code, in the order of CODES; a record counts under each code that fails, `ok` counts those with none. A run
        without any record counts once as `empty_citations`.
    tried
        Records on which each code's rule could be tried: the denominators of `counts`.
    live
        Whether a live index was asked.
    """

    failures: tuple[tuple[Finding, ...], ...]
    counts: Mapping[str, int]
    tried: Mapping[str, int]
    live: bool

    @property
    def codes(self) -> tuple[str, ...]:
        """First failing code of each record, `ok` where none fails."""
        return tuple(found[0][0] if found else "ok" for found in self.failures)

    @property
    def fields(self) -> tuple[str, ...]:
        """Field of each record's first failing code; empty where it is ok or no single field is at fault."""
        return tuple(found[0][1] if found else "" for found in self.failures)

    @property
    def valid(self) -> npt.NDArray[np.bool_]:
        """Whether each record is ok, bool `[n]`."""
        return np.fromiter(
            (not found for found in self.failures), dtype=bool, count=len(self.failures)
        )

    @property
    def not_tried(self) -> tuple[str, ...]:
        """Codes whose rule was tried on no record, because what it needs was not given."""
        return tuple(code for code in CODES[:-1] if not self.tried[code])

    @property
    def passed(self) -> bool:
        """Whether there is at least one record and every one is ok."""
        return bool(self.failures) and not any(self.failures)

    @property
    def fail_fast(self) -> bool:
        """Whether the run must end at once: its analyzer is not the read path's, so nothing else that it says can be trusted."""
        return self.counts["analyzer_mismatch"] > 0


def validate(
    records: Sequence[Record], live: LiveIndex | None = None, rules: Rules | None = None
) -> Verdicts:
    """Try every rule on every record of one run.

    Parameters
    ----------
    records
        Citation records as the module's docstring describes them; anything may stand in them.
    live
        The index that they are held against; without it the rules of LIVE_CODES are not tried.
    rules
        What the run allows; default `Rules()`.

    Notes
    -----
    `mixed_units` falls on the records whose unit is the rarer one in the run (on a tie: `token`). `cross_section_reuse` falls on a
    record whose section may not stand beside the sections that the same (query_id, segment) cited before it; records without a
    segment, or with -1, support no single segment and are left out. `unknown_snippet` also falls on a snippet that belongs to
    another document or section than the record says, and `bad_offsets` on offsets that do not touch the named snippet.
    """
    tried: Counter[str] = Counter()
    found = [_alone(record, live, tried) for record in records]
    judged = [
        place
        for place, record in enumerate(records)
        if not is_empty(record) and record.get("in_evidence") is not False
    ]
    _mixed_units(records, judged, found, tried)
    _cross_section(records, judged, found, tried, rules or Rules())
    failures = tuple(
        tuple(sorted(each, key=lambda finding: _RANK[finding[0]])) if len(each) > 1 else tuple(each)
        for each in found
    )
    counts = Counter(code for each in failures for code, _ in each)
    counts["ok"] = sum(not each for each in failures)
    if not records:
        counts["empty_citations"], tried["empty_citations"] = 1, 1
    return Verdicts(
        failures,
        {code: counts[code] for code in CODES},
        {code: tried[code] for code in CODES[:-1]},
        live is not None,
    )


def _alone(record: Record, live: LiveIndex | None, tried: Counter[str]) -> list[Finding]:
    """Hold one record against the rules that need no other record."""
    tried["empty_citations"] += 1
    if not isinstance(record, Mapping) or (
        record.get("in_evidence") is not False and is_empty(record)
    ):
        return [("empty_citations", "")]
    if record.get("in_evidence") is False:
        tried["unknown_snippet"] += 1
        return [("unknown_snippet", "snippet_id")]
    found = structural_findings(record)
    tried.update(_STRUCTURAL[1:])
    tried["bad_offsets"] += any(
        record.get(name) is not None for name in ("offsets", "window", "page")
    )
    tried["explained_before_cited"] += (
        record.get("order") is not None or record.get("cited_before_answer") is not None
    )
    inside = record.get("in_evidence")
    if inside is not None and inside is not True:
        found.append(("unknown_snippet", "in_evidence"))
        tried["unknown_snippet"] += 1
    quote = record.get("quote")
    if quote is not None and not isinstance(quote, str):
        found.append(("quote_mismatch", "quote"))
        tried["quote_mismatch"] += 1
    if live is not None:
        known = {code for code, _ in found}
        found.extend(
            finding for finding in live_findings(record, live, tried) if finding[0] not in known
        )
    return found


def _mixed_units(
    records: Sequence[Record], judged: list[int], found: list[list[Finding]], tried: Counter[str]
) -> None:
    """Mark the records whose unit is not the run's."""
    units = [(place, unit) for place in judged if (unit := unit_of(records[place])) is not None]
    counts = Counter(unit for _, unit in units)
    tried["mixed_units"] += len(units)
    if len(counts) > 1:
        rarer = "char" if counts["char"] < counts["token"] else "token"
        for place, unit in units:
            if unit == rarer:
                found[place].append(("mixed_units", "offsets.unit"))


def _cross_section(
    records: Sequence[Record],
    judged: list[int],
    found: list[list[Finding]],
    tried: Counter[str],
    rules: Rules,
) -> None:
    """Mark the records that add a section to a segment which may not stand beside those cited before."""
    allowed = {frozenset(pair) for pair in rules.section_pairs}
    cited: dict[tuple[object, object], dict[str, None]] = {}
    for place in judged:
        record = records[place]
        segment, query_id = record.get("segment"), record.get("query_id")
        section_id: Any = record.get("section_id")
        if segment is None or (segment == -1 and is_whole(segment, -1)):
            continue
        tried["cross_section_reuse"] += 1
        unreadable = next(
            (
                name
                for name, value in (("segment", segment), ("query_id", query_id))
                if value is not None and not is_text(value) and not is_whole(value, 0)
            ),
            "",
        )
        if unreadable:
            found[place].append(("cross_section_reuse", unreadable))
        elif is_text(section_id):
            before = cited.setdefault((query_id, segment), {})
            if section_id not in before and not all(
                frozenset((section_id, other)) in allowed for other in before
            ):
                found[place].append(("cross_section_reuse", "section_id"))
            else:
                before[section_id] = None
