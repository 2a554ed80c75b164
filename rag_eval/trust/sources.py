"""Compute each document's trust, 0 to 1, and the guard's findings about its source."""

import datetime as dt
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple, TypedDict

import numpy as np
import pandas as pd

from rag_eval.core.arrays import BoolArray
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
from rag_eval.corpus.masking import MAX_DOMAIN_CHARS
from rag_eval.corpus.source import MAX_SHOWN_CHARS, author_hash
from rag_eval.trust.rules import Severity
from rag_eval.trust.signatures import DocumentState
from rag_eval.trust.spelling import load_texts, load_words

# ---- Hosts that imitate an allowed host

_HOSTS = {name: frozenset(words) for name, words in load_words("hosts").items()}

# ---- Host names taken apart

_LOOKS_LIKE = load_texts("host_letters").items()
_FOLDED = {ord(char): plain for plain, chars in _LOOKS_LIKE for char in chars}
_DIGITS = str.maketrans("0123456789i", "olzeasbtbgl")
_PAIRS = (("rn", "m"), ("vv", "w"), ("cl", "d"))
_ADDRESS = frozenset("0123456789abcdef:.[]")
_COUNTRY_LETTERS = 2
_MAX_LABEL = 63
"""Most characters of a label in the DNS (RFC 1035, section 2.3.4)."""


class _HostName(NamedTuple):
    """A host in three parts: `en.wikipedia.org` has ("en",), "wikipedia" and "org".

    The name is empty if the host is itself a suffix or has one label.
    """

    below: tuple[str, ...]
    name: str
    suffix: str

    @property
    def registrable(self) -> str:
        """Name and suffix joined by a dot; only the suffix if there is no name."""
        return f"{self.name}.{self.suffix}" if self.name else self.suffix

    @property
    def controlled(self) -> bool:
        """Whether a registry checks the owners of names under the suffix."""
        first, _, rest = self.suffix.partition(".")
        return first in _HOSTS["controlled"] and (first != "ac" or bool(rest))


def _split_host(host: str) -> _HostName:
    """Split a host; a suffix has one label, or two labels if a short list has the suffix."""
    labels = host.split(".")
    before, last = labels[-2:-1], labels[-1]
    shared = ".".join(labels[-2:]) in _HOSTS["shared"]
    country = len(last) == _COUNTRY_LETTERS and not _HOSTS["second_level"].isdisjoint(before)
    cut = len(labels) - (2 if before and (shared or country) else 1)
    if cut <= 0:
        return _HostName((), "", host)
    return _HostName(tuple(labels[: cut - 1]), labels[cut - 1], ".".join(labels[cut:]))


def _is_address(host: str) -> bool:
    """Tell whether a host is an IP address."""
    return host.rpartition(".")[2].isdecimal() or (":" in host and set(host) <= _ADDRESS)


def _decode_host(host: str) -> str:
    """Return the host with xn-- labels decoded to readable letters (RFC 3492)."""
    if "xn--" not in host:
        return host
    labels = host.split(".")
    for at, label in enumerate(labels):
        if label.startswith("xn--") and len(label) <= _MAX_LABEL:
            try:
                labels[at] = label[4:].encode("ascii").decode("punycode")
            except UnicodeError:
                continue  # compare a malformed label unchanged
    return ".".join(labels)


def _fold_letters(text: str) -> str:
    """Replace letters by the lower-case Latin letters that they look like, without accents."""
    if text.isascii():
        return text.lower()
    letters = (
        char
        for char in unicodedata.normalize("NFKD", text).casefold()
        if not unicodedata.combining(char) and unicodedata.category(char) != "Cf"
    )
    return "".join(letters).translate(_FOLDED)


def _make_skeleton(text: str) -> str:
    """Replace digits and letter pairs of a folded name by the letters that they look like.

    Two names with one skeleton look alike, as in Unicode Technical Standard 39, section 4.
    """
    shown = text.translate(_DIGITS)
    for pair, letter in _PAIRS:
        shown = shown.replace(pair, letter)
    return shown


# ---- Imitations

_MIN_SAME, _MIN_NEAR, _MIN_FAR, _MAX_FAR = 4, 5, 10, 24
"""Least number of letters of names that are compared for equality, for one edit and for two edits,
and most letters for two edits."""
_MAX_PARTS = 8
_SEPARATORS = re.compile(r"[.-]+")


class _Imitation(NamedTuple):
    """The registration that a host imitates, and the means of imitation."""

    imitated: str
    by: str


def _edit_distance(a: str, b: str) -> int:
    """Count edits; a swap of neighbours is one edit (optimal string alignment)."""
    before, row = [0] * (len(b) + 1), list(range(len(b) + 1))
    for i, letter in enumerate(a, start=1):
        last, before, row = before, row, [i, *[0] * len(b)]
        for j, other in enumerate(b, start=1):
            row[j] = min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == other:
                row[j] = min(row[j], last[j - 2] + 1)
    return row[-1]


def _shorten(name: str, depth: int) -> set[str]:
    """Return the name without up to `depth` letters; names within `depth` edits share a result."""
    found = step = {name}
    for _ in range(depth):
        step = {one[:i] + one[i + 1 :] for one in step for i in range(len(one))}
        found = found | step
    return found


def _undouble(name: str) -> str:
    return "".join(letter for letter, _ in groupby(name))


def _join_runs(parts: list[str], joint: str) -> Iterator[str]:
    for start in range(len(parts)):
        for end in range(start + 1, min(start + _MAX_PARTS, len(parts)) + 1):
            yield joint.join(parts[start:end])


def _split_parts(text: str) -> list[str]:
    return [_make_skeleton(part) for part in _SEPARATORS.split(text) if part]


class _Lookalikes:
    """Index of allowed hosts (without `*.`), which finds the host that another host imitates.

    Registrations are compared (`wikipedia` of `en.wikipedia.org`), so hosts below an allowed
    registration imitate nobody. The first of these rules that applies is reported:

    1. the same name after look-alike letters, hyphens and the suffix are set aside, from 4 letters:
       `wikipedla.org`, `wiki-pedia.org`, `wikipedia.com`; letters of other scripts at any length;
    2. the name and the suffix, `www` or a host below it written without their dots, from 5 letters:
       `wikipediaorg.net`, `docspython.org`;
    3. the allowed registration as a run of labels or hyphen parts: `wikipedia.org.evil.com`,
       `en-wikipedia-org.net`, `wikipedia-org.net`;
    4. doubled or undoubled letters, from 5: `wikkipedia.org`, `gogle.com`;
    5. one edit (insertion, deletion, substitution, swap of neighbours) from 5 letters, two from 10;
    6. the name as a label, or as hyphen parts of one, of another host, from 5 letters and not for
       everyday words: `wikipedia.evil.com`, `arxiv-vanity.com`.

    Some honest neighbours must be listed, because the rules apply to them too: sister sites under
    another suffix, and projects named after what they serve. For suffixes with checked names
    (`gov`, `edu`, `ac.uk`) only rule 3 is applied, below the registered name.
    """

    def __init__(self, hosts: Iterable[str]) -> None:
        self._registered: set[str] = set()
        self._chains: dict[str, str] = {}
        self._names: dict[str, list[tuple[str, str]]] = {}
        self._joined: dict[str, str] = {}
        self._undoubled: dict[str, str] = {}
        self._near: dict[int, dict[str, list[tuple[str, str]]]] = {1: {}, 2: {}}
        self._lengths: dict[int, set[int]] = {1: set(), 2: set()}
        self._compared: dict[str, _Imitation | None] = {}
        # Addresses and hosts of one label have no imitations.
        for host in sorted({host for host in hosts if "." in host and not _is_address(host)}):
            self._add(_split_host(_fold_letters(_decode_host(host))), _split_host(host).registrable)

    def _add(self, host: _HostName, registered: str) -> None:
        known = registered in self._registered
        self._registered.add(registered)
        name = host.name.replace("-", "")
        if len(name) >= _MIN_NEAR:
            below = (label.replace("-", "") for label in host.below)
            suffix = host.suffix.replace(".", "")
            for joined in (f"{name}{suffix}", f"www{name}", *(f"{one}{name}" for one in below)):
                self._joined.setdefault(_make_skeleton(joined), registered)
        if known:
            return
        self._chains.setdefault(".".join(_split_parts(host.registrable)), registered)
        if not name:
            return
        self._names.setdefault(_make_skeleton(name), []).append((registered, host.name))
        if len(name) >= _MIN_NEAR:
            self._undoubled.setdefault(_undouble(_make_skeleton(name)), registered)
            depth = 2 if _MIN_FAR <= len(name) <= _MAX_FAR else 1
            self._lengths[depth].add(len(name))
            for key in _shorten(name, depth):
                self._near[depth].setdefault(key, []).append((name, registered))

    def find(self, host: str) -> _Imitation | None:
        """Return the imitation of a host that is not allowed, or None.

        The host is in lower case, of 253 characters at most, international labels in xn-- form.
        """
        whole = _split_host(host)
        registered = whole.registrable
        if (
            _is_address(host)
            or registered in self._registered
            or registered in _HOSTS["established"]
        ):
            return None
        read = _decode_host(host)
        shown = whole if read == host and host.isascii() else _split_host(_fold_letters(read))
        if whole.controlled:
            return self._find_chain(shown, controlled=True)
        foreign = shown is not whole and not _split_host(read).name.isascii()
        return (
            self._find_same(shown, foreign=foreign)
            or self._find_chain(shown, controlled=False)
            or self._find_near(shown.name.replace("-", ""))
            or self._find_part(shown)
        )

    def _find_same(self, host: _HostName, *, foreign: bool) -> _Imitation | None:
        name = host.name.replace("-", "")
        same = (
            self._names.get(_make_skeleton(name), []) if len(name) >= _MIN_SAME or foreign else []
        )
        if same and foreign:
            return _Imitation(same[0][0], "letters of another script")
        for registered, other in same:
            if other == host.name:
                return _Imitation(registered, "the same name under another suffix")
        for registered, other in same:
            if other.replace("-", "") == name:
                return _Imitation(registered, "hyphens added or removed")
        if same:
            return _Imitation(same[0][0], "letters that look alike")
        joined = self._joined.get(_make_skeleton(name))
        return _Imitation(joined, "its name without the dots") if joined else None

    def _find_chain(self, host: _HostName, *, controlled: bool) -> _Imitation | None:
        parts = [part for label in host.below for part in _split_parts(label)]
        if not controlled:
            # `t.co.uk` is not an extension of `t.co`
            parts += _split_parts(host.registrable if len(host.name) >= _MIN_SAME else host.name)
        for run in _join_runs(parts, "."):
            if run in self._chains:
                return _Imitation(self._chains[run], "its whole name within another")
        return None

    def _find_near(self, name: str) -> _Imitation | None:
        # compare a name once, because many hosts lie below one registration
        if name not in self._compared:
            self._compared[name] = self._compare(name)
        return self._compared[name]

    def _compare(self, name: str) -> _Imitation | None:
        doubled = self._undoubled.get(_undouble(_make_skeleton(name))) if name else None
        if doubled:
            return _Imitation(doubled, "letters doubled or undoubled")
        for depth, lengths in self._lengths.items():
            if lengths.isdisjoint(range(len(name) - depth, len(name) + depth + 1)):
                continue
            index = self._near[depth]
            found = sorted({pair for key in _shorten(name, depth) for pair in index.get(key, ())})
            distances = [(_edit_distance(name, allowed), known) for allowed, known in found]
            for most, by in ((1, "one letter changed"), (2, "two letters changed"))[:depth]:
                for distance, registered in distances:
                    if distance <= most:
                        return _Imitation(registered, by)
        return None

    def _find_part(self, host: _HostName) -> _Imitation | None:
        for label in (host.name, *host.below):
            for run in _join_runs(label.split("-"), ""):
                for registered, other in self._names.get(_make_skeleton(run), ()):
                    long = len(other.replace("-", "")) >= _MIN_NEAR
                    if long and other not in _HOSTS["everyday"]:
                        return _Imitation(registered, "its name as a part of another")
        return None


# ---- Domains

_PACKAGE = "python:"


class DomainJudgement(NamedTuple):
    """State of a domain; the note names the imitated host and the means of imitation."""

    state: DomainState
    note: str = ""


def _read_host(domain: str) -> str:
    return domain if domain.startswith(_PACKAGE) else domain.strip().rstrip(".").lower()


def _below(host: str, parents: frozenset[str]) -> bool:
    """Tell whether a host lies below one of the parents; a parent is not below itself."""
    labels = host.split(".")
    return any(".".join(labels[start:]) in parents for start in range(1, len(labels)))


def judge_domains(domains: Iterable[str], allowlist: Sequence[str]) -> dict[str, DomainJudgement]:
    """Judge every distinct domain: a host in lower case, `python:<package>`, or empty.

    In the allowlist, `example.org` allows `example.org` and `www.example.org`. `*.example.org`
    allows all hosts below `example.org`, but not `example.org`. An unlisted host with the
    registered name of a listed host is not_listed. A host of more than 253 characters, which cannot
    exist, is also not_listed.
    """
    distinct = dict.fromkeys(domains)
    if not allowlist:
        return dict.fromkeys(distinct, DomainJudgement("not_configured"))
    entries = frozenset(map(_read_host, allowlist))
    parents = frozenset(entry[2:] for entry in entries if entry.startswith("*."))
    hosts = frozenset(one for one in entries if not one.startswith(("*.", _PACKAGE)))
    lookalikes = _Lookalikes(hosts | parents)

    def judge(domain: str) -> DomainJudgement:
        host = _read_host(domain)
        if not host:
            return DomainJudgement("unknown")
        if host.startswith(_PACKAGE):
            return DomainJudgement("allowed" if host in entries else "not_listed")
        if len(host) > MAX_DOMAIN_CHARS:
            return DomainJudgement("not_listed")
        if host in hosts or host.removeprefix("www.") in hosts or _below(host, parents):
            return DomainJudgement("allowed")
        if (found := lookalikes.find(host)) is None:
            return DomainJudgement("not_listed")
        return DomainJudgement("lookalike", f"imitates {found.imitated}: {found.by}")

    return {domain: judge(domain) for domain in distinct}


# ---- Freshness; the caller names the day, so that equal inputs give equal trust

_TOLERATED_DAYS = 1
"""Days that a date may lie ahead of `as_of`, because time zones differ."""
_DAY = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


def _age_days(text: str, as_of: dt.date) -> float:
    """Return the days from a date to `as_of`; NaN without a date."""
    try:
        return float((as_of - dt.date.fromisoformat(text)).days) if _DAY.fullmatch(text) else np.nan
    except ValueError:  # no such day, for example the 31st of February
        return np.nan


def freshness(dates: Sequence[str], as_of: dt.date) -> pd.DataFrame:
    """Return `state` (dated, future, unknown) and `factor` of each date (YYYY-MM-DD or empty).

    The factor is max(0.7, 1 - 0.3 * age / 365). The factor is 0.7 for unknown dates and for dates
    more than a day after `as_of`, so that a false date gains nothing.

    Examples
    --------
    >>> freshness(["2026-01-01", "", "2027-01-01"], dt.date(2026, 1, 1)).to_dict("list")
    {'state': ['dated', 'unknown', 'future'], 'factor': [1.0, 0.7, 0.7]}
    """
    ages = {text: _age_days(text, as_of) for text in set(dates)}
    age = np.fromiter((ages[text] for text in dates), dtype=float, count=len(dates))
    unknown, future = np.isnan(age), age < -_TOLERATED_DAYS
    fallen = np.maximum(STALE, FRESH - (FRESH - STALE) * np.maximum(age, 0.0) / YEAR_DAYS)
    state = np.select([unknown, future], ["unknown", "future"], default="dated")
    factor = np.where(unknown | future, STALE, fallen)
    return pd.DataFrame({"state": pd.Series(state, dtype="str"), "factor": factor})


# ---- Authors


def author_states(
    authors: Sequence[str], hashes: Sequence[str], known: Sequence[str]
) -> list[AuthorState]:
    """Return the state of each document's author.

    `authors` (masked) and `hashes` (of the unmasked names) are columns of a SOURCES frame, `known`
    are the configured names. If commas join several authors, all of them must be known, because an
    unknown author may have written the whole document.
    """
    if not known:
        return ["not_configured"] * len(authors)
    accepted = frozenset(map(author_hash, known)) - {""}

    def judge(author: str, whole: str) -> AuthorState:
        if not whole:
            return "unknown"
        if whole in accepted:
            return "known"
        # Do not split a shortened list, because it lacks names.
        names = author.split(",") if len(author) < MAX_SHOWN_CHARS else []
        several = len(names) > 1 and all(author_hash(name) in accepted for name in names)
        return "known" if several else "not_listed"

    pairs = list(zip(authors, hashes, strict=True))
    states = {pair: judge(*pair) for pair in set(pairs)}
    return [states[pair] for pair in pairs]


# ---- Trust

_DECIMALS = 6
_FALSE_CLAIMS = {"domain_state": "lookalike", "signature_state": "invalid"}
"""Column -> state of a false claim, which voids all other claims of a document."""
_POINTS = {
    "domain": ("domain_state", "allowed", DOMAIN_WEIGHT),
    "signature": ("signature_state", "valid", SIGNATURE_WEIGHT),
    "author": ("author_state", "known", AUTHOR_WEIGHT),
}
"""Factor -> column, state that earns points, and points."""


def source_trust(
    sources: pd.DataFrame,
    config: Trust,
    signature_states: Mapping[str, SignatureState] | None,
    as_of: dt.date,
) -> pd.DataFrame:
    """Return the trust of every document of a SOURCES frame, in its order, with its reasons.

    `signature_states` comes from `signatures.verify`; None means that no signatures were read.
    Without keys, the hashes that a source itself recorded take their place.
    Columns: doc_id, domain, domain_state, signature_state, author_state, freshness_state,
    freshness, date, trust. Trust is freshness times the sum of 0.4 for an allowed domain, 0.3 for
    a valid signature and 0.3 for a known author. It is 0 for a look-alike domain or an invalid
    signature, and NaN if the configuration names no domain, author or key.
    """
    fresh = freshness(sources["date"].tolist(), as_of)
    domains = sources["domain"].tolist()
    judged = judge_domains(domains, config.domains)
    missing: SignatureState = "missing" if config.keys else "not_configured"
    states = signature_states if signature_states is not None and config.keys else {}
    recorded, counts = sources["signature"].tolist(), config.configured and not config.keys
    authors, hashes = sources["author"].tolist(), sources["author_hash"].tolist()
    frame = pd.DataFrame(
        {
            "doc_id": sources["doc_id"].to_numpy(),
            "domain": sources["domain"].to_numpy(),
            "domain_state": [judged[domain].state for domain in domains],
            "signature_state": [
                states.get(one, own if own and counts else missing)
                for one, own in zip(sources["doc_id"].tolist(), recorded, strict=True)
            ],
            "author_state": author_states(authors, hashes, config.authors),
            "freshness_state": fresh["state"],
            "freshness": fresh["factor"],
            # Do not repeat text that is no date.
            "date": sources["date"].where((fresh["state"] != "unknown").to_numpy(), "").to_numpy(),
        }
    )
    points = np.zeros(len(frame))
    for column, state, weight in _POINTS.values():
        points += weight * (frame[column] == state).to_numpy(dtype=float)
    for column, state in _FALSE_CLAIMS.items():
        points *= (frame[column] != state).to_numpy()
    trust = np.round(frame["freshness"].to_numpy() * points, _DECIMALS)
    return frame.assign(trust=trust if config.configured else np.nan)


class _Points(TypedDict):
    state: str
    points: float


class _Freshness(TypedDict):
    state: str
    factor: float
    age_days: int | None


class TrustFactors(TypedDict):
    """Parts of a document's trust: the sum of the points times the freshness factor."""

    domain: _Points
    signature: _Points
    author: _Points
    freshness: _Freshness


def explain_factors(row: Mapping[Any, object], as_of: dt.date) -> TrustFactors:
    """Explain the trust of a row of `source_trust` or of EVIDENCE_TRUST on the same day.

    `age_days` is None without a date, and negative for a date after `as_of`.
    """
    honest = all(row[column] != state for column, state in _FALSE_CLAIMS.items())

    def count(factor: str) -> _Points:
        column, state, weight = _POINTS[factor]
        earned = honest and row[column] == state
        return {"state": str(row[column]), "points": weight if earned else 0.0}

    age = _age_days(str(row["date"]), as_of)
    return {
        "domain": count("domain"),
        "signature": count("signature"),
        "author": count("author"),
        "freshness": {
            "state": str(row["freshness_state"]),
            "factor": round(float(str(row["freshness"])), _DECIMALS),
            "age_days": None if np.isnan(age) else int(age),
        },
    }


def vouched_for(domain_states: Sequence[str], signature_states: Sequence[str]) -> BoolArray | None:
    """Tell whether the allowlist or a valid signature vouches for each source.

    Returns None if neither domains nor keys are configured. As for trust, one false claim voids the
    other claim.
    """
    domains = np.asarray(domain_states, dtype=object)
    signatures = np.asarray(signature_states, dtype=object)
    if (domains == "not_configured").all() and (signatures == "not_configured").all():
        return None
    honest = (domains != "lookalike") & (signatures != "invalid")
    return np.asarray(((domains == "allowed") | (signatures == "valid")) & honest, dtype=bool)


# ---- Findings about sources

_MAX_DETAIL_CHARS, _MAX_PART_CHARS = 200, 80
_UNLISTED: Mapping[str, Severity | None] = {"allow": None, "warn": "warning", "block": "blocked"}
_DETAILS = {
    ("domain", "lookalike"): "the domain {domain} {note}",
    ("signature", "invalid"): "the signature does not hold for the document's bytes",
    ("manifest", "changed"): "the document's bytes are not those that the manifest records",
    ("manifest", "not_in_manifest"): "the manifest does not know the document",
    ("domain", "not_listed"): "the domain {domain} is not on the allowlist",
    ("domain", "unknown"): "the document has no address to look for on the allowlist",
}
"""(check, state) -> detail of the finding, with placeholders for the domain and the note."""


def _quote_ascii(text: str) -> str:
    return quoted(text.encode("ascii", "backslashreplace").decode("ascii"), _MAX_PART_CHARS)


def source_findings(
    sources: pd.DataFrame,
    facts: pd.DataFrame,
    config: Trust,
    manifest_states: Sequence[DocumentState] | None,
) -> pd.DataFrame:
    """Return FINDINGS about the sources of documents, by row; start and end are -1.

    `facts` is the result of `source_trust`. `manifest_states` is the result of `check_manifest`, or
    None without a manifest.
    """
    domains = sources["domain"].tolist()
    judged = judge_domains(domains, config.domains)
    states: dict[str, Sequence[str]] = {
        "domain": facts["domain_state"].tolist(),
        "signature": facts["signature_state"].tolist(),
        "manifest": manifest_states or [],
    }
    found: list[tuple[int | str, ...]] = []
    for (check, state), template in _DETAILS.items():
        # Report missing addresses, because a source could omit the address to evade the allowlist.
        unlisted = state in {"not_listed", "unknown"}
        warning = "warning" if state == "not_in_manifest" else "blocked"
        severity = _UNLISTED[config.unlisted] if unlisted else warning
        rule = "no_address" if state == "unknown" else state
        for row, given in enumerate(states[check]) if severity else ():
            if given == state:
                domain, note = _quote_ascii(domains[row]), _quote_ascii(judged[domains[row]].note)
                detail = template.format(domain=domain, note=note)[:_MAX_DETAIL_CHARS]
                found.append((row, -1, -1, check, rule, severity or "", detail))
    return make_frame(FINDINGS, sorted(found, key=lambda finding: finding[0]))
