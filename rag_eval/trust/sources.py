"""Compute each document's trust, 0 to 1, and the guard's findings about its source."""

import datetime as dt
import functools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from rag_eval.core.config import (
    AUTHOR_WEIGHT,
    DOMAIN_WEIGHT,
    FINDINGS,
    FRESH,
    SIGNATURE_WEIGHT,
    STALE,
    YEAR_DAYS,
    AuthorState,
    DomainState,
    SignatureState,
    Trust,
)
from rag_eval.core.errors import quoted
from rag_eval.core.frames import make_frame
from rag_eval.core.types import PoisonCheck, TrustScore
from rag_eval.corpus.loading import MAX_DOMAIN_CHARS, MAX_SHOWN_CHARS, author_hash
from rag_eval.trust.signatures import DocumentState
from rag_eval.trust.spelling import load_folds, load_words

# ---- Host names that look alike

_HOSTS = {name: frozenset(words) for name, words in load_words("hosts").items()}
_PACKAGE = "python:"
_DIGITS = str.maketrans("0123456789i", "olzeasbtbgl")
_COUNTRY_LETTERS = 2
_MIN_SAME, _MIN_NEAR = 4, 5
"""Least number of letters of names that are compared for equality, and for other likeness."""
_MAX_PARTS = 8


class _Host(NamedTuple):
    """The parts of a host, as ("en",), "wikipedia", "org"; a suffix alone has an empty name."""

    below: tuple[str, ...]
    name: str
    suffix: str

    @property
    def registered(self) -> str:
        return f"{self.name}.{self.suffix}" if self.name else self.suffix


def _split_host(host: str) -> _Host:
    """Split a host; a suffix has one label, or two labels if a short list has the suffix."""
    labels = host.split(".")
    before, last = labels[-2:-1], labels[-1]
    shared = ".".join(labels[-2:]) in _HOSTS["shared"]
    country = len(last) == _COUNTRY_LETTERS and not _HOSTS["second_level"].isdisjoint(before)
    cut = len(labels) - (2 if before and (shared or country) else 1)
    if cut <= 0:
        return _Host((), "", host)
    return _Host(tuple(labels[: cut - 1]), labels[cut - 1], ".".join(labels[cut:]))


def _decode_label(label: str) -> str:
    """Decode an xn-- label to readable letters (RFC 3492); a malformed label stays."""
    try:
        return label[4:].encode().decode("punycode") if label.startswith("xn--") else label
    except UnicodeError:
        return label


@functools.cache
def _load_letters() -> dict[int, str]:
    """Return the Latin letters that characters look like; signs of host names come from a list."""
    letters = load_words("host_letters").items()
    listed = {char: plain for plain, chars in letters for char in "".join(chars)}
    accents, alike = load_folds()
    return str.maketrans(accents | alike | listed)


def _show_host(host: str) -> str:
    """Decode a host and replace its letters by the Latin letters that they look like."""
    decoded = unicodedata.normalize(
        "NFKD", ".".join(map(_decode_label, host.split(".")))
    ).casefold()
    letters = (
        char
        for char in decoded
        if not unicodedata.combining(char) and unicodedata.category(char) != "Cf"
    )
    return "".join(letters).translate(_load_letters())


def _make_skeleton(text: str) -> str:
    """Replace digits and letter pairs by the letters that they look like (UTS 39, section 4)."""
    shown = text.replace("-", "").translate(_DIGITS)
    return shown.replace("rn", "m").replace("vv", "w").replace("cl", "d")


def _near_keys(name: str) -> set[str]:
    """Return keys that names share if one edit apart; ? is any letter, ~ two in any order."""
    n = len(name)
    changed = {f"{name[:at]}?{name[at + 1 :]}" for at in range(n)}
    inserted = {f"{name[:at]}?{name[at:]}" for at in range(n + 1)}
    pairs = ("".join(sorted(name[at : at + 2])) for at in range(n - 1))
    swapped = {f"{name[:at]}~{pair}{name[at + 2 :]}" for at, pair in enumerate(pairs)}
    return changed | inserted | swapped


def _join_runs(parts: Sequence[str], joint: str) -> Iterator[str]:
    for start in range(len(parts)):
        for end in range(start + 1, min(start + _MAX_PARTS, len(parts)) + 1):
            yield joint.join(parts[start:end])


def _split_parts(labels: Iterable[str]) -> list[str]:
    return [_make_skeleton(part) for label in labels for part in re.split("[.-]", label) if part]


class _Lookalikes:
    """Index of allowed hosts (without `*.`), which finds the host that another host imitates.

    Registrations are compared (`wikipedia` of `en.wikipedia.org`), so hosts below an allowed
    registration imitate nobody. A host imitates an allowed host by one of these:

    1. the same name after look-alike letters, hyphens and the suffix are set aside, from 4 letters:
       `wikipedla.org`, `wiki-pedia.org`, `wikipedia.com`; letters of other scripts at any length;
       from 5 letters also without dots (`wikipediaorg.net`, `docspython.org`);
    2. the allowed registration as a run of labels or hyphen parts: `wikipedia.org.evil.com`,
       `en-wikipedia-org.net`;
    3. one edit (insertion, deletion, substitution, swap of neighbours) from 5 letters;
    4. the name as a label, or as hyphen parts of one, of another host, from 5 letters and not for
       everyday words: `wikipedia.evil.com`, `arxiv-vanity.com`.

    Some honest neighbours must be listed, because the rules apply to them too: sister sites under
    another suffix, and projects named after what they serve. For suffixes whose registry checks
    the owners (`gov`, `edu`, `ac.uk`) only rule 2 is applied, below the registered name.
    """

    def __init__(self, hosts: Iterable[str]) -> None:
        self._registered: set[str] = set()
        self._same: dict[str, str] = {}
        self._chains: dict[str, str] = {}
        self._near: dict[str, str] = {}
        self._parts: dict[str, str] = {}
        for host in sorted(hosts):
            before, _, last = host.rpartition(".")
            if not before or last.isdecimal():
                continue  # hosts of one label and addresses have no imitations
            self._add(_split_host(_show_host(host)), _split_host(host).registered)

    def _add(self, host: _Host, registered: str) -> None:
        self._registered.add(registered)
        self._chains.setdefault(".".join(_split_parts([host.registered])), registered)
        name = host.name.replace("-", "")
        same = [name] if name else []
        if len(name) >= _MIN_NEAR:
            same += [name + host.suffix.replace(".", ""), f"www{name}"]
            same += [f"{label}{name}" for label in host.below]
            for key in _near_keys(name):
                self._near.setdefault(key, registered)
            if host.name not in _HOSTS["everyday"]:
                self._parts.setdefault(_make_skeleton(name), registered)
        for spelling in same:
            self._same.setdefault(_make_skeleton(spelling), registered)

    def find(self, host: str) -> str | None:
        """Return the registration that a host imitates, or None; the host is not allowed itself."""
        whole = _split_host(host)
        if whole.registered in self._registered or whole.registered in _HOSTS["established"]:
            return None
        shown = _split_host(_show_host(host))
        first, _, others = whole.suffix.partition(".")
        if first in _HOSTS["controlled"] and (first != "ac" or others):
            return self._find_chain(shown.below)
        name = shown.name.replace("-", "")
        is_long = len(name) >= _MIN_SAME or whole.name.startswith("xn--")
        same = self._same.get(_make_skeleton(name)) if is_long else None
        # `t.co.uk` is not an extension of `t.co`
        last = shown.registered if len(shown.name) >= _MIN_SAME else shown.name
        near = (self._near[key] for key in sorted(_near_keys(name)) if key in self._near)
        labels = (shown.name, *shown.below)
        runs = (_make_skeleton(run) for part in labels for run in _join_runs(part.split("-"), ""))
        return (
            same
            or self._find_chain((*shown.below, last))
            or next(near, None)
            or next((self._parts[run] for run in runs if run in self._parts), None)
        )

    def _find_chain(self, labels: Sequence[str]) -> str | None:
        runs = _join_runs(_split_parts(labels), ".")
        return next((self._chains[run] for run in runs if run in self._chains), None)


class DomainJudgement(NamedTuple):
    """State of a domain, and the registration that a look-alike imitates."""

    state: DomainState
    imitated: str = ""


def _read_host(domain: str) -> str:
    return domain if domain.startswith(_PACKAGE) else domain.strip().rstrip(".").lower()


def _judge_domains(domains: Iterable[str], allowlist: Sequence[str]) -> dict[str, DomainJudgement]:
    """Judge every distinct domain: a host in lower case, `python:<package>`, or empty."""
    # `example.org` allows `www.example.org` too, and `*.example.org` all hosts below, not itself.
    distinct = dict.fromkeys(domains)
    if not allowlist:
        return dict.fromkeys(distinct, DomainJudgement("not_configured"))
    entries = frozenset(map(_read_host, allowlist))
    parents = frozenset(entry[2:] for entry in entries if entry.startswith("*."))
    hosts = frozenset(entry for entry in entries if not entry.startswith(("*.", _PACKAGE)))
    lookalikes = _Lookalikes(hosts | parents)

    def judge(domain: str) -> DomainJudgement:
        host = _read_host(domain)
        if not host:
            return DomainJudgement("unknown")
        if host in entries or host.removeprefix("www.") in hosts:
            return DomainJudgement("allowed")
        if host.startswith(_PACKAGE) or len(host) > MAX_DOMAIN_CHARS:
            return DomainJudgement("not_listed")
        labels = host.split(".")
        if any(".".join(labels[start:]) in parents for start in range(1, len(labels))):
            return DomainJudgement("allowed")
        imitated = lookalikes.find(host)
        return DomainJudgement("lookalike" if imitated else "not_listed", imitated or "")

    return {domain: judge(domain) for domain in distinct}


# ---- Freshness and authors

_TOLERATED_DAYS = 1
"""Days that a date may lie ahead of `as_of`, because time zones differ."""
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def _age_days(text: str, as_of: dt.date) -> float:
    """Return the days from a date to `as_of`; NaN without a date."""
    try:
        return float((as_of - dt.date.fromisoformat(text)).days) if _DAY.fullmatch(text) else np.nan
    except ValueError:  # no such day, for example the 31st of February
        return np.nan


def _judge_author(author: str, whole: str, accepted: frozenset[str]) -> AuthorState:
    """Return the state of an author (masked) by the hash of the unmasked name, `whole`."""
    # Of several authors all must be known: an unknown one may have written the whole document.
    if not accepted:
        return "not_configured"
    if not whole:
        return "unknown"
    # Do not split a shortened list, because it lacks names.
    names = author.split(",") if len(author) < MAX_SHOWN_CHARS else []
    several = len(names) > 1 and all(author_hash(name) in accepted for name in names)
    return "known" if several or whole in accepted else "not_listed"


# ---- Findings about sources

_MAX_DETAIL_CHARS, _MAX_PART_CHARS = 200, 80
_DETAILS = (
    ("domain", "lookalike", "lookalike", "the domain {} imitates {}"),
    ("manifest", "changed", "changed", "the document's bytes are not those of the manifest"),
    ("manifest", "not_in_manifest", "not_in_manifest", "the manifest does not know the document"),
    ("domain", "not_listed", "not_listed", "the domain {} is not on the allowlist"),
    # Report missing addresses, because a source could omit the address to evade the allowlist.
    ("domain", "unknown", "no_address", "the document has no address for the allowlist"),
)
"""Check, state, rule and detail of the findings."""
_SEVERITY = {"allow": "", "warn": "warning", "block": "blocked"}


def _find_false_claims(
    judgements: Sequence[DomainJudgement],
    domains: Sequence[str],
    manifest: Sequence[str],
    config: Trust,
) -> pd.DataFrame:
    """Return FINDINGS by document; the sequences are of all documents."""
    severity_of = dict.fromkeys(("not_listed", "unknown"), _SEVERITY[config.unlisted])
    severity_of["not_in_manifest"] = "warning"
    states = {"domain": [judgement.state for judgement in judgements], "manifest": list(manifest)}
    findings: list[tuple[int | str, ...]] = []
    for check, state, rule, template in _DETAILS:
        severity = severity_of.get(state, "blocked")
        for row in np.flatnonzero(np.array(states[check], dtype=object) == state).tolist():
            names = (
                quoted(name.encode("ascii", "backslashreplace").decode(), _MAX_PART_CHARS)
                for name in (domains[row], judgements[row].imitated)
            )
            detail = template.format(*names)[:_MAX_DETAIL_CHARS]
            if severity:
                findings.append((row, -1, -1, check, rule, severity, detail))
    return make_frame(FINDINGS, sorted(findings, key=lambda finding: finding[0]))


# ---- Trust

_DECIMALS = 6
_FALSE_CLAIMS = {"domain_state": "lookalike", "signature_state": "invalid"}
"""Column -> state of a false claim, which voids all other claims of a document."""
_POINTS = {
    "domain": ("allowed", DOMAIN_WEIGHT),
    "signature": ("valid", SIGNATURE_WEIGHT),
    "author": ("known", AUTHOR_WEIGHT),
}
"""Factor -> state that earns points, and points."""
_SIGNED: dict[str, SignatureState] = {"same": "valid", "changed": "invalid"}
"""State in a signed manifest -> state of the signature; other documents have none."""


def judge_sources(
    sources: pd.DataFrame,
    config: Trust,
    manifest_states: Sequence[DocumentState] | None,
    as_of: dt.date,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the trust of every document of a SOURCES frame with its reasons, and FINDINGS.

    `manifest_states` comes from `compare_manifest`; None means that there is no manifest. Where
    keys are given, the manifest is signed, so its states are those of the documents' signatures.
    Columns of the first frame: doc_id, domain, domain_state, signature_state, author_state,
    freshness_state, freshness, date, trust. Trust is freshness times the sum of 0.4 for an allowed
    domain, 0.3 for a valid signature and 0.3 for a known author. It is 0 for a look-alike domain or
    an invalid signature, and NaN if the configuration names no domain, author or key. Freshness is
    max(0.7, 1 - 0.3 * age / 365), and 0.7 without a date or for a date more than a day after
    `as_of`, so that a false date gains nothing. The start and end of the findings are -1.
    """
    age = np.array([_age_days(text, as_of) for text in sources["date"]], dtype=float)
    unknown, future = np.isnan(age), age < -_TOLERATED_DAYS
    fallen = np.maximum(STALE, FRESH - (FRESH - STALE) * np.maximum(age, 0.0) / YEAR_DAYS)
    judged = _judge_domains(sources["domain"].tolist(), config.domains)
    judgements = [judged[domain] for domain in sources["domain"]]
    accepted = frozenset(map(author_hash, config.authors)) - {""}
    manifest: Sequence[str] = manifest_states or [""] * len(sources)
    frame = sources[["doc_id", "domain"]].assign(
        domain_state=[judgement.state for judgement in judgements],
        signature_state=[_SIGNED.get(state, "missing") for state in manifest]
        if config.keys
        else "not_configured",
        author_state=[
            _judge_author(author, whole, accepted)
            for author, whole in zip(sources["author"], sources["author_hash"], strict=True)
        ],
        freshness_state=np.select([unknown, future], ["unknown", "future"], default="dated"),
        freshness=np.where(unknown | future, STALE, fallen),
        # Do not repeat text that is no date.
        date=sources["date"].where(~unknown, ""),
    )
    points = np.zeros(len(frame))
    for factor, (state, weight) in _POINTS.items():
        points += weight * (frame[f"{factor}_state"] == state).to_numpy(dtype=float)
    for column, state in _FALSE_CLAIMS.items():
        points *= (frame[column] != state).to_numpy()
    trust = np.round(frame["freshness"].to_numpy() * points, _DECIMALS)
    facts = frame.assign(trust=trust if config.configured else np.nan)
    return facts, _find_false_claims(judgements, frame["domain"].tolist(), manifest, config)


def explain_factors(row: Mapping[Any, Any], as_of: dt.date) -> dict[str, dict[str, Any]]:
    """Return the state and points of each factor, and state, factor and age of the freshness.

    `row` is a row of `judge_sources` or of EVIDENCE_TRUST on the same day. `age_days` is None
    without a date, and negative for a date after `as_of`.
    """
    honest = all(row[column] != state for column, state in _FALSE_CLAIMS.items())
    factors: dict[str, dict[str, Any]] = {}
    for factor, (state, weight) in _POINTS.items():
        present = str(row[f"{factor}_state"])
        points = weight if honest and present == state else 0.0
        factors[factor] = {"state": present, "points": points}
    age = _age_days(str(row["date"]), as_of)
    factors["freshness"] = {
        "state": str(row["freshness_state"]),
        "factor": round(float(row["freshness"]), _DECIMALS),
        "age_days": None if np.isnan(age) else int(age),
    }
    return factors


def explain_trust(row: Mapping[Any, Any], as_of: dt.date) -> TrustScore:
    """Give the trust of a row of EVIDENCE_TRUST of the day `as_of`, and the guard's verdict."""
    is_blocked = row["verdict"] == "blocked"
    return TrustScore(
        snippet_id=str(row["chunk_id"]),
        score=None if np.isnan(row["trust"]) else float(row["trust"]),
        factors=explain_factors(row, as_of),
        poison_check=PoisonCheck(not is_blocked, is_blocked, tuple(map(str, row["reasons"]))),
    )
