"""Compute each document's trust, 0 to 1, and the guard's findings about its source."""

import datetime as dt
import functools
import itertools
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

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
from rag_eval.core.types import PoisonCheck, TrustScore
from rag_eval.corpus.source import MAX_DOMAIN_CHARS, MAX_SHOWN_CHARS, author_hash
from rag_eval.trust.signatures import DocumentState
from rag_eval.trust.spelling import load_folds, load_texts, load_words

# ---- Host names taken apart

_HOSTS = {name: frozenset(words) for name, words in load_words("hosts").items()}
_DIGITS = str.maketrans("0123456789i", "olzeasbtbgl")
_ADDRESS = frozenset("0123456789abcdef:.[]")
_COUNTRY_LETTERS = 2


class _Host(NamedTuple):
    """A host in three parts: `en.wikipedia.org` has ("en",), "wikipedia" and "org".

    The name is empty if the host is itself a suffix or has one label.
    """

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


def _is_address(host: str) -> bool:
    return host.rpartition(".")[2].isdecimal() or (":" in host and set(host) <= _ADDRESS)


def _decode_label(label: str) -> str:
    """Decode an xn-- label to readable letters (RFC 3492); a malformed label stays."""
    if label.startswith("xn--"):
        try:
            return label[4:].encode("ascii").decode("punycode")
        except UnicodeError:
            pass
    return label


def _decode_host(host: str) -> str:
    return ".".join(map(_decode_label, host.split("."))) if "xn--" in host else host


@functools.cache
def _load_letters() -> dict[int, str]:
    """Return the Latin letters that characters look like; signs of host names come from a list."""
    accents, alike = load_folds()
    listed = {char: plain for plain, chars in load_texts("host_letters").items() for char in chars}
    return str.maketrans(accents | alike | listed)


def _fold_letters(text: str) -> str:
    """Replace letters by the lower-case Latin letters that they look like, without accents."""
    letters = (
        char
        for char in unicodedata.normalize("NFKD", text).casefold()
        if not unicodedata.combining(char) and unicodedata.category(char) != "Cf"
    )
    return "".join(letters).translate(_load_letters())


def _make_skeleton(text: str) -> str:
    """Replace digits and letter pairs of a folded name by the letters that they look like.

    Two names with one skeleton look alike, as in Unicode Technical Standard 39, section 4.
    """
    shown = text.replace("-", "").translate(_DIGITS)
    return shown.replace("rn", "m").replace("vv", "w").replace("cl", "d")


# ---- Imitations

_MIN_SAME, _MIN_NEAR = 4, 5
"""Least number of letters of names that are compared for equality, and for other likeness."""
_MAX_PARTS = 8


def _drop_doubles(name: str) -> str:
    return "".join(letter for letter, _ in itertools.groupby(name))


def _near_keys(name: str) -> set[str]:
    """Return keys of a name; names that share a key are equal or one edit apart.

    An edit is an insertion, a deletion, a substitution or a swap of neighbours. The signs ? and ~
    stand for any letter and for two letters in any order.
    """
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
       from 5 letters also with doubled letters (`wikkipedia.org`) or without dots
       (`wikipediaorg.net`, `docspython.org`);
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
        self._near: dict[str, set[tuple[str, str]]] = {}
        self._parts: dict[str, str] = {}
        # Addresses and hosts of one label have no imitations.
        for host in sorted({host for host in hosts if "." in host and not _is_address(host)}):
            self._add(_split_host(_fold_letters(_decode_host(host))), _split_host(host).registered)

    def _add(self, host: _Host, registered: str) -> None:
        self._registered.add(registered)
        self._chains.setdefault(".".join(_split_parts([host.registered])), registered)
        name = host.name.replace("-", "")
        same = [name] if name else []
        if len(name) >= _MIN_NEAR:
            same += [name + host.suffix.replace(".", ""), f"www{name}"]
            same += [f"{label}{name}" for label in host.below]
            self._same.setdefault(_drop_doubles(_make_skeleton(name)), registered)
            for key in _near_keys(name):
                self._near.setdefault(key, set()).add((name, registered))
            if host.name not in _HOSTS["everyday"]:
                self._parts.setdefault(_make_skeleton(name), registered)
        for spelling in same:
            self._same.setdefault(_make_skeleton(spelling), registered)

    def find(self, host: str) -> str | None:
        """Return the registration that a host imitates, or None; the host is not allowed itself.

        The host is in lower case, of 253 characters at most, international labels in xn-- form.
        """
        whole = _split_host(host)
        if whole.registered in self._registered or whole.registered in _HOSTS["established"]:
            return None
        shown = _split_host(_fold_letters(_decode_host(host)))
        first, _, others = whole.suffix.partition(".")
        if first in _HOSTS["controlled"] and (first != "ac" or others):
            return self._find_chain(_split_parts(shown.below))
        name = shown.name.replace("-", "")
        skeleton = _make_skeleton(name)
        foreign = not _split_host(_decode_host(host)).name.isascii()
        same = self._same.get(skeleton) if len(name) >= _MIN_SAME or foreign else None
        if same is None and len(name) >= _MIN_NEAR:
            same = self._same.get(_drop_doubles(skeleton))
        # `t.co.uk` is not an extension of `t.co`
        last = shown.registered if len(shown.name) >= _MIN_SAME else shown.name
        return (
            same
            or self._find_chain(_split_parts([*shown.below, last]))
            or self._find_near(name)
            or self._find_part([shown.name, *shown.below])
        )

    def _find_chain(self, parts: list[str]) -> str | None:
        runs = _join_runs(parts, ".")
        return next((self._chains[run] for run in runs if run in self._chains), None)

    def _find_near(self, name: str) -> str | None:
        near = {pair for key in _near_keys(name) for pair in self._near.get(key, ())}
        return min(near)[1] if near else None

    def _find_part(self, labels: Sequence[str]) -> str | None:
        runs = (_make_skeleton(run) for label in labels for run in _join_runs(label.split("-"), ""))
        return next((self._parts[run] for run in runs if run in self._parts), None)


# ---- Domains

_PACKAGE = "python:"


class DomainJudgement(NamedTuple):
    """State of a domain, and the registration that a look-alike imitates."""

    state: DomainState
    imitated: str = ""


def _below(host: str, parents: frozenset[str]) -> bool:
    """Tell whether a host lies below one of the parents; a parent is not below itself."""
    labels = host.split(".")
    return any(".".join(labels[start:]) in parents for start in range(1, len(labels)))


def _read_host(domain: str) -> str:
    return domain if domain.startswith(_PACKAGE) else domain.strip().rstrip(".").lower()


def _judge_domains(domains: Iterable[str], allowlist: Sequence[str]) -> dict[str, DomainJudgement]:
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
    hosts = frozenset(entry for entry in entries if not entry.startswith(("*.", _PACKAGE)))
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


def _judge_dates(dates: Sequence[str], as_of: dt.date) -> pd.DataFrame:
    """Return `state` (dated, future, unknown) and `factor` of each date (YYYY-MM-DD or empty).

    The factor is max(0.7, 1 - 0.3 * age / 365). The factor is 0.7 for unknown dates and for dates
    more than a day after `as_of`, so that a false date gains nothing.
    """
    age = np.array([_age_days(text, as_of) for text in dates], dtype=float)
    unknown, future = np.isnan(age), age < -_TOLERATED_DAYS
    fallen = np.maximum(STALE, FRESH - (FRESH - STALE) * np.maximum(age, 0.0) / YEAR_DAYS)
    state = np.select([unknown, future], ["unknown", "future"], default="dated")
    factor = np.where(unknown | future, STALE, fallen)
    return pd.DataFrame({"state": pd.Series(state, dtype="str"), "factor": factor})


def _judge_author(author: str, whole: str, accepted: frozenset[str]) -> AuthorState:
    """Return the state of a document's author.

    `author` (masked) and `whole` (the hash of the unmasked name) are of a SOURCES frame, `accepted`
    are the hashes of the configured names. If commas join several authors, all of them must be
    known, because an unknown author may have written the whole document.
    """
    if not accepted:
        return "not_configured"
    if not whole:
        return "unknown"
    if whole in accepted:
        return "known"
    # Do not split a shortened list, because it lacks names.
    names = author.split(",") if len(author) < MAX_SHOWN_CHARS else []
    several = len(names) > 1 and all(author_hash(name) in accepted for name in names)
    return "known" if several else "not_listed"


# ---- Findings about sources

_MAX_DETAIL_CHARS, _MAX_PART_CHARS = 200, 80
_DETAILS = {
    ("domain", "lookalike"): ("lookalike", "the domain {domain} imitates {imitated}"),
    ("manifest", "changed"): (
        "changed",
        "the document's bytes are not those that the manifest records",
    ),
    ("manifest", "not_in_manifest"): ("not_in_manifest", "the manifest does not know the document"),
    ("domain", "not_listed"): ("not_listed", "the domain {domain} is not on the allowlist"),
    # Report missing addresses, because a source could omit the address to evade the allowlist.
    ("domain", "unknown"): (
        "no_address",
        "the document has no address to look for on the allowlist",
    ),
}
"""(check, state) -> rule and detail of the finding."""
_SEVERITY = {"allow": "", "warn": "warning", "block": "blocked"}


def _quote_ascii(text: str) -> str:
    return quoted(text.encode("ascii", "backslashreplace").decode("ascii"), _MAX_PART_CHARS)


def _find_false_claims(
    judgements: Mapping[str, DomainJudgement],
    domains: Sequence[str],
    states: Mapping[str, Sequence[str]],
    config: Trust,
) -> pd.DataFrame:
    """Return FINDINGS by document; `states` are the states of the documents for each check."""
    severity_of = dict.fromkeys(("not_listed", "unknown"), _SEVERITY[config.unlisted])
    severity_of["not_in_manifest"] = "warning"
    findings: list[tuple[int | str, ...]] = []
    for (check, state), (rule, template) in _DETAILS.items():
        severity = severity_of.get(state, "blocked")
        for row in np.flatnonzero(np.array(states[check], dtype=object) == state).tolist():
            names = {"domain": domains[row], "imitated": judgements[domains[row]].imitated}
            quotes = {name: _quote_ascii(text) for name, text in names.items()}
            detail = template.format(**quotes)[:_MAX_DETAIL_CHARS]
            if severity:
                findings.append((row, -1, -1, check, rule, severity, detail))
    return make_frame(FINDINGS, sorted(findings, key=lambda finding: finding[0]))


# ---- Trust

_DECIMALS = 6
_FALSE_CLAIMS = {"domain_state": "lookalike", "signature_state": "invalid"}
"""Column -> state of a false claim, which voids all other claims of a document."""
POINTS = {
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
    an invalid signature, and NaN if the configuration names no domain, author or key. The start and
    end of the findings are -1.
    """
    fresh = _judge_dates(sources["date"].tolist(), as_of)
    judgements = _judge_domains(sources["domain"].tolist(), config.domains)
    accepted = frozenset(map(author_hash, config.authors)) - {""}
    manifest: Sequence[str] = manifest_states or [""] * len(sources)
    frame = sources[["doc_id", "domain"]].assign(
        domain_state=[judgements[domain].state for domain in sources["domain"]],
        signature_state=[_SIGNED.get(state, "missing") for state in manifest]
        if config.keys
        else "not_configured",
        author_state=[
            _judge_author(author, whole, accepted)
            for author, whole in zip(sources["author"], sources["author_hash"], strict=True)
        ],
        freshness_state=fresh["state"].to_numpy(),
        freshness=fresh["factor"].to_numpy(),
        # Do not repeat text that is no date.
        date=sources["date"].where((fresh["state"] != "unknown").to_numpy(), ""),
    )
    points = np.zeros(len(frame))
    for factor, (state, weight) in POINTS.items():
        points += weight * (frame[f"{factor}_state"] == state).to_numpy(dtype=float)
    for column, state in _FALSE_CLAIMS.items():
        points *= (frame[column] != state).to_numpy()
    trust = np.round(frame["freshness"].to_numpy() * points, _DECIMALS)
    states = {"domain": frame["domain_state"].tolist(), "manifest": manifest}
    facts = frame.assign(trust=trust if config.configured else np.nan)
    return facts, _find_false_claims(judgements, frame["domain"].tolist(), states, config)


def explain_factors(row: Mapping[Any, Any], as_of: dt.date) -> dict[str, dict[str, Any]]:
    """Return the state and points of each factor, and state, factor and age of the freshness.

    `row` is a row of `source_trust` or of EVIDENCE_TRUST on the same day. `age_days` is None
    without a date, and negative for a date after `as_of`.
    """
    honest = all(row[column] != state for column, state in _FALSE_CLAIMS.items())
    factors: dict[str, dict[str, Any]] = {}
    for factor, (state, weight) in POINTS.items():
        present = str(row[f"{factor}_state"])
        factors[factor] = {
            "state": present,
            "points": weight if honest and present == state else 0.0,
        }
    age = _age_days(str(row["date"]), as_of)
    factors["freshness"] = {
        "state": str(row["freshness_state"]),
        "factor": round(float(row["freshness"]), _DECIMALS),
        "age_days": None if np.isnan(age) else int(age),
    }
    return factors


def explain_trust(row: Mapping[Any, Any], as_of: dt.date) -> TrustScore:
    """Give the trust of a chunk with its factors, and the verdict of the guard.

    `row` is a row of EVIDENCE_TRUST, made on the day `as_of`.
    """
    is_blocked = row["verdict"] == "blocked"
    return TrustScore(
        snippet_id=str(row["chunk_id"]),
        score=None if np.isnan(row["trust"]) else float(row["trust"]),
        factors=explain_factors(row, as_of),
        poison_check=PoisonCheck(not is_blocked, is_blocked, tuple(map(str, row["reasons"]))),
    )


def vouched_for(facts: pd.DataFrame) -> BoolArray | None:
    """Tell whether the allowlist or a valid signature vouches for each source.

    `facts` has the columns domain_state and signature_state of `source_trust`. Returns None if
    neither domains nor keys are configured. As for trust, one false claim voids the other claim.
    """
    domains, signatures = facts["domain_state"], facts["signature_state"]
    if (domains == "not_configured").all() and (signatures == "not_configured").all():
        return None
    honest = (domains != "lookalike") & (signatures != "invalid")
    return (((domains == "allowed") | (signatures == "valid")) & honest).to_numpy(dtype=bool)
