"""Documents -> sections: spans of text under one heading, with ids that people can write into a gold set.

Belongs here: headings to sections. Sections part the text: each ends where the next begins, so every character lies in one at most.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from rag_eval.corpus import markdown

_UNDERLINED = re.compile(
    r"^(?P<title>[^\s=>.|+-][^\r\n]{0,79}+)\r?\n(?P<rule>-{3,80}+)[ \t]*+\r?$", re.MULTILINE
)
_NOT_SLUG = re.compile(r"[^\w\s-]+")
_RULE_SLACK = (
    2  # "about equal": headings and their rules differ by a character or two in real docstrings
)


class Section(NamedTuple):
    """One row of the SECTIONS frame."""

    section_id: str
    title: str
    start: int
    end: int


def slug(heading: str) -> str:
    """Anchor of a heading as the usual renderers make it: lower case, words joined by hyphens.

    Examples
    --------
    >>> slug("See Also"), slug("C++ & Python!"), slug("???")
    ('see-also', 'c-python', 'section')
    """
    return "-".join(_NOT_SLUG.sub("", heading.lower()).split()) or "section"


def _unused(path: str, taken: set[str]) -> str:
    number, candidate = 1, path
    while candidate in taken:
        number += 1
        candidate = f"{path}-{number}"
    taken.add(candidate)
    return candidate


def whole(doc_id: str, title: str, text: str, section_id: str | None = None) -> list[Section]:
    """One section for all of a document."""
    return [Section(section_id or doc_id, title, 0, len(text))]


def numpydoc_content(text: str, start: int, end: int) -> int:
    """Offset after a heading and its rule at the section's start; `start` where there is none."""
    head = _UNDERLINED.match(text, start, end)
    return head.end() if head else start


def of_numpydoc(doc_id: str, title: str, text: str) -> list[Section]:
    """Sections of a docstring: `#summary` before the first underlined heading, then one for each (`#parameters`, `#see-also`)."""
    heads = [
        (match["title"].rstrip(), match.start())
        for match in _UNDERLINED.finditer(text)
        if abs(len(match["title"].rstrip()) - len(match["rule"])) <= _RULE_SLACK
        and _follows_blank(text, match.start())
    ]
    first = heads[0][1] if heads else len(text)
    taken: set[str] = set()
    found = (
        [Section(f"{doc_id}#{_unused('summary', taken)}", title, 0, first)]
        if not heads or text[:first].strip()
        else []
    )
    for (heading, start), end in zip(
        heads, [*(start for _, start in heads), len(text)][1:], strict=True
    ):
        found.append(Section(f"{doc_id}#{_unused(slug(heading), taken)}", heading, start, end))
    return found


def _follows_blank(text: str, start: int) -> bool:
    before = text[:start] if start < 4 else text[start - 4 : start]  # noqa: PLR2004 - two line ends, each at most CRLF
    return not before or before.replace("\r", "").endswith("\n\n") or not before.strip()


def of_markdown(doc_id: str, title: str, text: str, body_start: int = 0) -> list[Section]:
    """Sections of a Markdown document: `<doc_id>#guide/installing`, a path through the levels of headings.

    Text before the first heading is the section `<doc_id>`. Front matter lies in no section. Equal paths get `-2`, `-3`.
    """
    heads = markdown.headings(text, body_start)
    first = heads[0].start if heads else len(text)
    found = (
        [Section(doc_id, title, body_start, first)]
        if not heads or text[body_start:first].strip()
        else []
    )
    taken: set[str] = set()
    above: list[tuple[int, str]] = []  # level and path of the headings that this one stands under
    ends = [*(head.start for head in heads), len(text)][1:]
    for head, end in zip(heads, ends, strict=True):
        above = [(level, path) for level, path in above if level < head.level]
        path = _unused(f"{above[-1][1]}/{slug(head.title)}" if above else slug(head.title), taken)
        above.append((head.level, path))
        found.append(Section(f"{doc_id}#{path}", head.title, head.start, end))
    return found


def duplicates(section_ids: Iterable[str]) -> set[str]:
    """Ids that occur more than once."""
    seen: set[str] = set()
    return {section_id for section_id in section_ids if section_id in seen or seen.add(section_id)}  # type: ignore[func-returns-value]  # set.add gives None, which is what the condition needs
