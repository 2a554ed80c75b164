"""What is known of a document's source: its address, and its row of SOURCES, both fit to be stored.

Belongs here: what holds for every loader. What each source says is the loader's own; what it is worth is `rag_eval.trust`.
"""

import hashlib
import re
from typing import NamedTuple

from rag_eval.corpus import addresses, authors, masking
from rag_eval.corpus.raw_documents import RawDocument

_SURROGATE = re.compile(r"[\ud800-\udfff]")


class SourceFacts(NamedTuple):
    """Address of a document, the pieces masked in it by pattern name, and the columns of SOURCES."""

    address: str
    counts: dict[str, int]
    row: dict[str, str]


def storable(text: str) -> str:
    """Lone surrogates, which neither UTF-8 nor Parquet can hold, as U+FFFD: one character each, so offsets stay."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def facts_of(document: RawDocument, *, mask_pii: bool) -> SourceFacts:
    """Take the facts of a document's source.

    Parameters
    ----------
    document
        As its source has it.
    mask_pii
        Whether personal data in the author's name and the address is masked; the domain and the author's hash are taken before. User name and
        password leave the address in any case.
    """
    url, author = addresses.without_user(storable(document.source_url)), storable(document.author)
    # made one line before it is masked: what is left out of it afterwards could bring the parts of an address together
    shown = authors.one_line(author)
    row = {
        "doc_id": document.doc_id,
        "source_hash": hashlib.sha256(document.source).hexdigest(),
        "author": (masking.mask(shown).text if mask_pii else shown)[: authors.MAX_SHOWN_CHARS],
        "author_hash": authors.author_hash(author) if shown else "",
        "date": document.date,
        "domain": addresses.domain_of(url),
    }
    address = addresses.masked(url) if mask_pii else addresses.MaskedAddress(url, {})
    return SourceFacts(address.address, address.counts, row)
