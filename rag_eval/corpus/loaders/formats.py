"""Read Markdown, text, reStructuredText, HTML, notebooks and PDF as texts with headings or pages.

HTML and notebooks become Markdown. Of HTML, scripts, styles and comments are dropped, as every
reader drops them. Hidden elements stay, marked as hidden, because they reach a model that is given
the page, and the poisoning guard judges them. Output of notebooks is dropped.
"""

import io
import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from rag_eval.core.errors import InputError
from rag_eval.core.parts import explain_missing
from rag_eval.corpus.chunking import front_matter, headings, rst_headings

MAX_DEPTH, MAX_ATTRIBUTES = 1000, 5000
"""Most open elements of HTML, and attributes of a tag, because parsers take quadratic time."""
MAX_PAGES, MAX_STREAM, MAX_SECONDS = 5000, 16 * 1024 * 1024, 120.0
"""Most pages of a PDF, most bytes of drawing of a page or form, and most seconds of the processor:
a small file can repeat its pages, forms and fonts without end."""
MAX_CHARS = 64 * 1024 * 1024


class Content(NamedTuple):
    """A text, its format as a kind of `RawDocument`, its title, and front matter with its end."""

    text: str
    kind: str
    title: str = ""
    front_matter: Mapping[str, object] = {}
    body_start: int = 0


class UnreadableError(Exception):
    """A file that is not in its format; the text says why."""


# ---- HTML

_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)")
_ATTRIBUTE = r"""[\s/]*+[^\s/>][^\s/>=]*+(?:\s*+=\s*+(?:"[^"]*+"?|'[^']*+'?|[^\s>]*+))?+"""
_FULL_TAG = re.compile(
    rf"<[a-zA-Z][^\s/>]*+(?:{_ATTRIBUTE}){{0,{MAX_ATTRIBUTES}}}+(?P<more>{_ATTRIBUTE})?"
)
_NEVER_OPEN = frozenset(
    "area base br col embed hr img input link meta source track wbr p li dt dd tr td th thead tbody"
    " tfoot option optgroup colgroup".split()
)
_DROPPED = frozenset("script style template iframe object title -comment".split())
_HEADINGS = {f"h{level}": "#" * level for level in range(1, 7)}
_BREAKS = dict.fromkeys(
    "address article aside blockquote body center dd details div dl dt fieldset figcaption figure"
    " footer form header hr main nav ol p section summary table ul caption legend".split(),
    "\n\n",
) | {"li": "\n- ", "tr": "\n", "br": "\n", "td": " | ", "th": " | ", "option": "\n"}
_HIDDEN = re.compile(
    r"(?:display|content-visibility)\s*:\s*(?:none|hidden)|visibility\s*:\s*(?:hidden|collapse)"
    r"|(?:font-size|opacity)\s*:\s*0(?![.\d]*[1-9])",
    re.IGNORECASE,
)
_MARKUP = re.compile(r"<(?=[a-zA-Z/!?])")
_LINE_MARK = re.compile(r"\s*(?:#{1,6}(?=\s|$)|```|~~~|>|[-=]{3,}\s*$)")
_BLANK_LINES = re.compile(r"(?<![ \t])[ \t]*+\n(?:[ \t]*+\n)+")


def _fence(code: str, language: str = "") -> str:
    longest = max((len(run) for run in re.findall("`+", code)), default=0)
    mark = "`" * max(3, longest + 1)
    return f"\n\n{mark}{language}\n{code.strip(chr(10))}\n{mark}\n\n"


def _is_hidden(attributes: Mapping[str, str | None]) -> bool:
    return "hidden" in attributes or bool(_HIDDEN.search(attributes.get("style") or ""))


def _check_bounds(text: str) -> None:
    if any(tag["more"] for tag in _FULL_TAG.finditer(text)):
        raise UnreadableError(f"more than {MAX_ATTRIBUTES:,} attributes in a tag of HTML")
    depth = 0
    for closes, tag in _TAG.findall(text):
        if tag.lower() not in _NEVER_OPEN:
            depth = max(depth - 1, 0) if closes else depth + 1
        if depth > MAX_DEPTH:
            raise UnreadableError(f"more than {MAX_DEPTH:,} elements of HTML are open at once")


def _write_markdown(root: Any) -> Iterator[str]:
    """Yield the parts of the Markdown of an element and everything below it."""
    left: list[Any] = [root]
    is_start = True
    while left:
        node = left.pop()
        if isinstance(node, str):
            yield node
            is_start = is_start or "\n" in node
            continue
        tag = node.tag
        if tag == "-text":
            words = _MARKUP.sub(r"\\<", " ".join(f".{node.text(deep=False)}.".split())[1:-1])
            yield f"\\{words.lstrip()}" if is_start and _LINE_MARK.match(words) else words
            is_start = is_start and not words.strip()
        elif tag in {"pre", "textarea"}:
            left.append(_fence(node.text(deep=True)))
        elif tag not in _DROPPED:
            before = after = _BREAKS.get(tag, "")
            if tag in _HEADINGS:
                before, after = f"\n\n{_HEADINGS[tag]} ", "\n\n"
            elif after != "\n\n":
                after = ""
            if _is_hidden(node.attributes):
                before, after = f"{before}<span hidden>", f"</span>{after}"
            yield before
            is_start = is_start or "\n" in before
            inner, child = [], node.child
            while child is not None:
                inner.append(child)
                child = child.next
            left += [after, *reversed(inner)]


def read_html(text: str) -> Content:
    """Read a page as Markdown, h1 to h6 as headings."""
    from selectolax.lexbor import LexborHTMLParser

    _check_bounds(text)
    tree = LexborHTMLParser(text)
    body = "".join(_write_markdown(tree.root)) if tree.root is not None else ""
    body = _BLANK_LINES.sub("\n\n", body).strip()
    element = tree.css_first("title")
    title = "" if element is None else " ".join(element.text().split())
    return Content(body, "markdown", title or _first_heading(body))


# ---- Other texts


def _read_notebook(text: str) -> Content:
    """Read the cells of a notebook: Markdown as it is, code in fences, without output."""
    try:
        book = json.loads(text)
        language = book.get("metadata", {}).get("language_info", {}).get("name", "python")
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in book["cells"]]
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise UnreadableError("not a notebook of nbformat 4 with its cells") from error
    parts = [
        _fence(source, str(language)) if kind == "code" else f"\n\n{source}\n\n"
        for kind, source in cells
        if source.strip()
    ]
    body = _BLANK_LINES.sub("\n\n", "".join(parts)).strip()
    return Content(body, "markdown", _first_heading(body))


def _read_markdown(text: str) -> Content:
    values, start = front_matter(text)
    title = first_text(values, "title") or _first_heading(text, start)
    return Content(text, "markdown", title, values, start)


def _read_rst(text: str) -> Content:
    return Content(text, "rst", next((head.title for head in rst_headings(text)), ""))


def _first_heading(text: str, start: int = 0) -> str:
    titles = (head.title for head in headings(text, start) if head.level == 1)
    return next(filter(None, titles), "")


def first_text(values: Mapping[str, object], *keys: str) -> str:
    """Return the first text, without outer white space, at the keys of front matter, else ""."""
    texts = (value.strip() for key in keys if isinstance(value := values.get(key), str))
    return next(filter(None, texts), "")


# ---- PDF


def _check_drawing(drawing: Any) -> None:
    if drawing is not None and len(drawing.get_data()) > MAX_STREAM:
        raise UnreadableError(f"more than {MAX_STREAM:,} bytes of drawing at once")


def _read_pages(source: bytes) -> Content:
    from pypdf import PdfReader
    from pypdf.generic import IndirectObject, PdfObject, StreamObject

    # its warnings quote the file, with control characters for the terminal
    logging.getLogger("pypdf").setLevel(logging.CRITICAL)
    n_chars, until = 0, time.thread_time() + MAX_SECONDS
    pages = list[str]()

    def check_time(*_: object) -> None:
        if time.thread_time() > until:
            raise UnreadableError(f"it takes more than {MAX_SECONDS:g} seconds")

    class Reader(PdfReader):
        def get_object(self, indirect_reference: int | IndirectObject) -> PdfObject | None:
            check_time()
            value = super().get_object(indirect_reference)
            if isinstance(value, StreamObject) and value.get("/Subtype") == "/Form":
                _check_drawing(value)
            return value

    reader = Reader(io.BytesIO(source))
    if len(reader.pages) > MAX_PAGES:
        raise UnreadableError(f"more than {MAX_PAGES:,} pages")
    for page in reader.pages:
        _check_drawing(page.get_contents())
        pages.append(page.extract_text(visitor_operand_before=check_time).replace("\f", "\n"))
        n_chars += len(pages[-1])
        if n_chars > MAX_CHARS:
            raise UnreadableError(f"more than {MAX_CHARS:,} characters")
    title = reader.metadata.title if reader.metadata is not None else ""
    return Content("\f".join(pages), "pages", title if isinstance(title, str) else "")


def _read_pdf(source: bytes) -> Content:
    """Read the text of a PDF, a form feed between pages."""
    try:
        return _read_pages(source)
    except UnreadableError:
        raise
    except Exception as error:  # pypdf raises errors of many types for a broken file
        reason = f"{type(error).__name__}: {error}"[:200]
        raise UnreadableError(f"the PDF cannot be read ({reason})") from error


_TEXTS: Mapping[str, Callable[[str], Content]] = {
    ".md": _read_markdown,
    ".markdown": _read_markdown,
    ".txt": lambda text: Content(text, "text"),
    ".rst": _read_rst,
    ".html": read_html,
    ".htm": read_html,
    ".ipynb": _read_notebook,
}
_EXTRA = frozenset({".html", ".htm", ".pdf"})
ENDINGS = (*_TEXTS, ".pdf")
"""Endings of the files that `read_format` reads."""


def read_format(
    ending: str, source: bytes, decode: Callable[[bytes], str | None]
) -> Content | None:
    """Read a file by its ending, one of `ENDINGS`; None where `decode` has reported a fault.

    Raises UnreadableError for a file that is not in its format, or beyond a bound, and InputError
    `missing_package` without the package that reads the ending.
    """
    if ending in _EXTRA and (missing := explain_missing(f"Reading {ending}", "documents")):
        raise InputError.of("missing_package", missing, accepted="the package, or `exclude`")
    if ending == ".pdf":
        return _read_pdf(source)
    text = decode(source)
    return None if text is None else _TEXTS[ending](text)
