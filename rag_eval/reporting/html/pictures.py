"""Matplotlib figures as inline SVG that follows the page's colours, can be read aloud, and holds no style attribute, so that a strict policy allows it.

Belongs here: from a figure to markup. What is drawn is the business of the panels. The only file of `reporting.html` that names colours of plots.
"""

import contextlib
import io
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from markupsafe import Markup, escape

from rag_eval.reporting.html.untrusted import visible

if TYPE_CHECKING:
    from xml.etree import ElementTree as ET

    from matplotlib.figure import Figure

SERIES: Final = (
    "#1f5a81",
    "#c05622",
    "#4a7c3b",
    "#8a4f9e",
    "#b08a1e",
    "#2a8a8a",
    "#a83a4a",
    "#5f6b7a",
)
"""Stand-ins for the page's series colours, in order."""
FOREGROUND, MUTED, LINE, PANEL, GOOD, BAD, WARN = (
    "#1b1f24",
    "#5b6570",
    "#d5dae0",
    "#fefefe",
    "#1a7f38",
    "#b4232a",
    "#9a6701",
)
_VARIABLES: Final = {colour: f"var(--s{at + 1})" for at, colour in enumerate(SERIES)} | {
    FOREGROUND: "var(--fg)",
    MUTED: "var(--muted)",
    LINE: "var(--line)",
    PANEL: "var(--panel)",
    GOOD: "var(--good)",
    BAD: "var(--bad)",
    WARN: "var(--warn)",
}
_KEPT: Final = frozenset(
    {
        "fill",
        "fill-opacity",
        "fill-rule",
        "stroke",
        "stroke-width",
        "stroke-opacity",
        "stroke-dasharray",
        "stroke-dashoffset",
        "stroke-linecap",
        "stroke-linejoin",
        "opacity",
        "text-anchor",
        "font-size",
        "font-weight",
    }
)
_SVG, _LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}"
_PLACES: Final = frozenset({"d", "x", "y", "width", "height"})
_LONG: Final = re.compile(r"-?\d+\.\d{2,}")
_REFERENCE: Final = re.compile(r"#([A-Za-z0-9_.-]+)")
PARAMETERS: Final = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "text.usetex": False,
    "font.size": 9.5,
    "font.family": "DejaVu Sans",
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.titlecolor": FOREGROUND,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "grid.color": LINE,
    "grid.linewidth": 0.8,
    "text.color": FOREGROUND,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "legend.frameon": False,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "svg.hashsalt": "rag_eval",
}
"""No mathematics in labels: names of strategies and tags are data, and a dollar sign is one."""


def colour(at: int) -> str:
    """Colour of the series at a place; the same strategy has the same one in every picture of a page."""
    return SERIES[at % len(SERIES)]


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Draw as the page does: its sizes, its greys, no frame, no mathematics in labels."""
    import matplotlib as mpl

    parameters: Any = PARAMETERS
    with mpl.rc_context(parameters):
        yield


def svg(figure: "Figure", slug: str, title: str, description: str) -> Markup:
    """Write a figure as inline SVG.

    Parameters
    ----------
    figure
        Made within `drawing()`, with colours of this module only.
    slug
        Distinguishes its ids from those of the page's other pictures: letters, digits and hyphens.
    title, description
        What a screen reader says: what is shown, and what there is to see.
    """
    from xml.etree import ElementTree as ET

    out = io.BytesIO()
    with drawing():
        layout = figure.get_layout_engine()
        if layout is not None:  # once: saving would draw the whole figure twice for it
            layout.execute(figure)
            figure.set_layout_engine("none")
        figure.savefig(
            out,
            format="svg",
            metadata={"Date": None, "Creator": None, "Format": None, "Type": None},
        )
    root = ET.fromstring(out.getvalue())  # noqa: S314 - matplotlib's own output, not a document from outside
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.removeprefix(_SVG) in {"metadata", "style"}:
                parent.remove(child)
    named = {
        name
        for element in root.iter()
        for value in element.attrib.values()
        for name in _REFERENCE.findall(value)
    }
    for element in root.iter():
        _plain(element, slug, named)
    width, height = (
        float(root.attrib[name].removesuffix("pt")) * 4 / 3 for name in ("width", "height")
    )
    inner = "".join(_written(child) for child in root)
    return Markup(
        '<svg class="plot" role="img" aria-labelledby="{0}-title {0}-desc" viewBox="{1}" width="{2}" height="{3}"><title id="{0}-title">{4}</title><desc id="{0}-desc">{5}</desc>{6}</svg>'
    ).format(
        slug,
        root.attrib["viewBox"],
        f"{width:.0f}",
        f"{height:.0f}",
        visible(title),
        visible(description),
        Markup(inner),
    )  # noqa: S704 - written by `_written`, which escapes


def _plain(element: "ET.Element", slug: str, named: set[str]) -> None:
    """Turn style attributes into presentation attributes, colours into the page's, ids that something refers to into the picture's own; hundredths of a point are enough."""
    attributes = element.attrib
    attributes |= _presentation(attributes.pop("style", ""))
    for name in ("fill", "stroke"):
        if name in attributes:
            attributes[name] = _VARIABLES.get(attributes[name].lower(), attributes[name])
    own = attributes.pop("id", "")
    if own in named:
        attributes["id"] = f"{slug}-{own}"
    if attributes.get("transform", "").startswith("rotate(-0 "):
        del attributes["transform"]
    for name in _PLACES & attributes.keys():
        attributes[name] = _LONG.sub(
            lambda match: f"{float(match[0]):.2f}".rstrip("0").rstrip("."),
            " ".join(attributes[name].split()),
        )
    if f"{_LINK}href" in attributes:
        attributes["href"] = attributes.pop(f"{_LINK}href")
    for name in ("href", "clip-path", "mask"):
        if name in attributes:
            attributes[name] = _REFERENCE.sub(lambda match: f"#{slug}-{match[1]}", attributes[name])


def _presentation(style: str) -> dict[str, str]:
    """Read a style attribute as presentation attributes; of a font only its size and weight stay."""
    found = {}
    for name, _, value in (piece.partition(":") for piece in style.split(";")):
        key, said = name.strip(), value.strip()
        if key in _KEPT:
            found[key] = said
        elif key == "font":
            size = re.search(r"([\d.]+)px", said)
            found |= {"font-size": size[1]} if size else {}
            found |= {"font-weight": "bold"} if "bold" in said or " 700 " in f" {said} " else {}
    return found


def _written(element: "ET.Element") -> str:
    """Write an element without name spaces, every text escaped; groups that only name things lose their names."""
    tag = element.tag.removeprefix(_SVG)
    attributes = "".join(
        f' {name}="{escape(value)}"'
        for name, value in element.attrib.items()
        if not name.startswith("{")
    )
    inner = str(escape(visible((element.text or "").strip()))) + "".join(
        _written(child) for child in element
    )
    if tag == "g" and not attributes:
        return inner
    return f"<{tag}{attributes}>{inner}</{tag}>" if inner else f"<{tag}{attributes}/>"
