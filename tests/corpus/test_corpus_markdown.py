"""Markdown and numpydoc structure: headings, section ids, front matter, offsets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.corpus import chunking as markdown
from rag_eval.corpus import chunking as sections

GUIDE = """intro text

# The *Guide* to `x_y`

```python
# not a heading
```

> # quoted

## Installing

text

Installing
----------

again

# Other [link](http://e.org/a_b)
<!--
# hidden
-->
"""


def ids(found):
    return [section.section_id for section in found]


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_sections_follow_headings_outside_fences_with_exact_offsets(newline):
    text = GUIDE.replace("\n", newline)
    found = sections.markdown_sections("g.md", "G", text)
    assert ids(found) == [
        "g.md",
        "g.md#the-guide-to-x_y",
        "g.md#the-guide-to-x_y/installing",
        "g.md#the-guide-to-x_y/installing-2",
        "g.md#other-link",
    ]
    titles = ["G", "The Guide to x_y", "Installing", "Installing", "Other link"]
    assert [section.title for section in found] == titles
    assert "".join(text[section.start : section.end] for section in found) == text
    assert text[found[2].start :].startswith("## Installing")
    assert text[found[3].start :].startswith("Installing" + newline + "---")


def test_equal_headings_never_share_an_id():
    found = sections.markdown_sections("d", "", "# a\n# a-2\n# a\n# a\n# ???\n# !!!\n")
    assert ids(found) == ["d#a", "d#a-2", "d#a-3", "d#a-4", "d#section", "d#section-2"]


@pytest.mark.parametrize(
    ("head", "values"),
    [
        ("---\ntitle: A\n---\n", {"title": "A"}),
        ("---\r\ntitle: A\r\n---\r\n", {"title": "A"}),
        ("---\ntitle: A\n...\n", {}),
        ('+++\ntitle = "A"\n+++\n', {"title": "A"}),
        ("+++\ntitle = \n+++\n", {}),
        ("---\n- a list\n---\n", {}),
        ("---\n[broken\n---\n", {}),
        ("---\nno end\n", {}),
        (" ---\ntitle: A\n---\n", {}),
        ("", {}),
    ],
)
def test_front_matter(head, values):
    text = head + "# H\n"
    assert markdown.front_matter(text) == (values, len(head) if values else 0)


LINES = st.sampled_from(
    "# a|## b|```|text||- x|    code|> # q|===|---|<!--|-->|\t|é\u2028x|\x0bv".split("|")
)


@given(st.lists(st.tuples(LINES, st.sampled_from(["\n", "\r\n", "\r"]))))
def test_sections_part_the_text(lines):
    text = "".join(line + newline for line, newline in lines)
    found = sections.markdown_sections("d", "t", text)
    assert [s.start for s in found[1:]] == [s.end for s in found[:-1]]
    assert found[-1].end == len(text)
    assert text[: found[0].start].strip() == ""
    assert len(set(ids(found))) == len(found)


DOCSTRING = """Fill values.

Longer.

Parameters
----------
axis : int
    Which.

See Also
---------
other : It.

Examples
--------
>>> print(x)
total
-----
1

Examples
--------
More.
"""


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_numpydoc_sections(newline):
    text = DOCSTRING.replace("\n", newline)
    found = sections.numpydoc_sections("p.f", "p.f", text)
    names = ("summary", "parameters", "see-also", "examples", "examples-2")
    assert ids(found) == [f"p.f#{name}" for name in names]
    assert "".join(text[s.start : s.end] for s in found) == text
    assert found[0].title == "p.f"
    assert text[found[1].start : found[1].end].startswith("Parameters")
