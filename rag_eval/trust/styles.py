"""Whether a style keeps an element from being seen.

Belongs here: declarations of CSS and what they do to text. Not here: elements and attributes (`markup`).
"""

import html
import re

_COMMENT = re.compile(r"/\*[^*]{0,2000}\*/")
_ESCAPE = re.compile(r"\\([0-9a-f]{1,6})\s?")
_CLASS_OR_ID = re.compile(r"[.#]([a-z_][\w-]{0,100})")
_HIDING = re.compile(
    r"(?:^|;)(?:display:none|visibility:(?:hidden|collapse)|content-visibility:hidden|opacity:(?:0?\.0*[0-9]?|0+%?)(?:;|$|!)"
    r"|font-size:(?:0?\.[0-9]+|0+|1)(?:px|pt|em|rem|ex|%|vw)?(?:;|$|!)|font:0"
    r"|(?:max-)?(?:height|width):0(?:px|%)?(?:;|$|!)|line-height:0(?:px|%)?(?:;|$|!)"
    r"|(?:left|right|top|bottom|text-indent|margin(?:-left|-top)?):-[0-9]{3,}(?:px|em|rem|%|pt|vw|vh)"
    r"|clip:rect\([01](?:px)?[, ]|clip-path:(?:inset\((?:50|100)%|circle\(0)|transform:[^;]{0,100}(?:scale[xy]?\(0(?:\.0+)?[),]|translate[xy]?\(-[0-9]{3,})"
    r"|(?:-webkit-text-fill-)?color:(?:transparent|rgba\([^)]{0,40},0?\.?0+\)|hsla\([^)]{0,40},0?\.?0+\)|#[0-9a-f]{6}00(?:;|$|!)|#[0-9a-f]{3}0(?:;|$|!)))"
)
_COLOUR = re.compile(r"(?:^|;)color:([^;!]{1,60})")
_BACKGROUND = re.compile(r"(?:^|;)background(?:-color)?:([^;!]{1,60})")
_WHITE = frozenset(
    "white #fff #ffffff snow ivory whitesmoke ghostwhite #fefefe #fdfdfd #fcfcfc rgb(255,255,255) rgba(255,255,255,1) hsl(0,0%,100%)".split()
)
_LONGEST = 8000


def _declarations(style: str) -> str:
    """Lower case, without comments, escapes and white space."""
    plain = _COMMENT.sub("", html.unescape(style[:_LONGEST]).lower())
    plain = _ESCAPE.sub(lambda found: chr(min(int(found[1], 16), 0x10FFFF)), plain)
    return "".join(plain.split())


def _colour(name: str) -> str:
    short = re.fullmatch(r"#([0-9a-f])([0-9a-f])([0-9a-f])", name)
    return (
        "#" + "".join(digit * 2 for digit in short.groups())
        if short
        else "#ffffff"
        if name in _WHITE
        else "#000000"
        if name == "black"
        else name
    )


def hides(style: str) -> bool:
    """Whether the declarations of a style attribute make an element's text impossible to see.

    White text counts where the style sets no background: pages are white unless they say otherwise.

    Examples
    --------
    >>> hides("color: red; DISPLAY : none"), hides("color:#fff;background:#000"), hides("color: white")
    (True, False, True)
    """
    plain = _declarations(style)
    if _HIDING.search(plain):
        return True
    colour, background = _COLOUR.search(plain), _BACKGROUND.search(plain)
    if colour is None:
        return False
    shown = _colour(colour[1])
    return shown == _colour(background[1]) if background else shown == "#ffffff"


def hiding_names(sheet: str) -> frozenset[str]:
    """Classes and ids that the rules of a style sheet hide."""
    rules = (block.rpartition("{") for block in sheet.lower().split("}"))
    return frozenset(
        name
        for selector, _, declarations in rules
        if hides(declarations)
        for name in _CLASS_OR_ID.findall(selector)
    )
