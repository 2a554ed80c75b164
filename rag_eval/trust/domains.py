"""Whether the domain of a document is on the gold set's allowlist, and if not, whether it imitates one that is.

Belongs here: the states of domains. What makes an imitation is `lookalikes`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from rag_eval.corpus.addresses import MAX_DOMAIN_CHARS
from rag_eval.records.trust import DomainState
from rag_eval.trust.lookalikes import Lookalikes

_PACKAGE = "python:"


class Judged(NamedTuple):
    """State of a domain; a look-alike has a note that says what it imitates and by what."""

    state: DomainState
    note: str = ""


def _host(domain: str) -> str:
    return domain if domain.startswith(_PACKAGE) else domain.strip().rstrip(".").lower()


def _below(host: str, parents: frozenset[str]) -> bool:
    """Whether a host lies below one of the parents, which do not hold themselves."""
    labels = host.split(".")
    return any(".".join(labels[start:]) in parents for start in range(1, len(labels)))


def judge_domains(domains: Iterable[str], allowlist: Sequence[str]) -> dict[str, Judged]:
    """State of every distinct domain.

    Parameters
    ----------
    domains
        Hosts in lower case with international labels in their xn-- form, `python:<package>`, or empty.
    allowlist
        `example.org` allows itself and `www.example.org`; `*.example.org` all below `example.org` but not it; `python:<package>` that package.

    Returns
    -------
    dict
        allowed, not_listed or lookalike; unknown without a domain; not_configured with an empty allowlist. A host that is not listed but
        shares its registered name with a listed one is not_listed. Hosts of more than 253 characters do not exist: not_listed.
    """
    distinct = dict.fromkeys(domains)
    if not allowlist:
        return dict.fromkeys(distinct, Judged("not_configured"))
    entries = [_host(entry) for entry in allowlist]
    packages = frozenset(entry for entry in entries if entry.startswith(_PACKAGE))
    hosts = frozenset(
        entry for entry in entries if entry not in packages and not entry.startswith("*.")
    )
    parents = frozenset(entry[2:] for entry in entries if entry.startswith("*."))
    lookalikes = Lookalikes(hosts | parents)

    def judged(domain: str) -> Judged:
        host = _host(domain)
        if not host:
            return Judged("unknown")
        if host.startswith(_PACKAGE):
            return Judged("allowed" if host in packages else "not_listed")
        if len(host) > MAX_DOMAIN_CHARS:
            return Judged("not_listed")
        if host in hosts or host.removeprefix("www.") in hosts or _below(host, parents):
            return Judged("allowed")
        found = lookalikes.find(host)
        return (
            Judged("lookalike", f"imitates {found.of}: {found.by}")
            if found
            else Judged("not_listed")
        )

    return {domain: judged(domain) for domain in distinct}


def domain_states(domains: Sequence[str], allowlist: Sequence[str]) -> list[DomainState]:
    """State of each domain, in their order; parameters and states are those of `judge_domains`."""
    judged = judge_domains(domains, allowlist)
    return [judged[domain].state for domain in domains]


def lookalike_notes(judged: Mapping[str, Judged]) -> dict[str, str]:
    """Look-alike domain -> what it imitates and by what, for `source_findings`."""
    return {domain: found.note for domain, found in judged.items() if found.state == "lookalike"}
