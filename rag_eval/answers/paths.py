"""Find paths in a text for the path gates. The word lists are in `paths.json`."""

import json
import re
import unicodedata
from collections.abc import Collection, Iterable, Iterator
from importlib.resources import files

_WORDS = {
    name: frozenset(words.split())
    for name, words in json.loads(
        files("rag_eval.answers").joinpath("paths.json").read_text("utf-8")
    ).items()
}
_CLEAR_FOLDERS = _WORDS["clear_folders"]
"""Folder names that make two parts a path, unlike `public/private`, which is two words."""
_FOLDERS = _WORDS["folders"] | _CLEAR_FOLDERS
_MANY_PARTS = 4

_URL = (
    r"(?:[A-Za-z][A-Za-z0-9+.-]{1,20}://(?=[\w/.~])|www\.)[^\s<>\"'`|\\^{}\[\]()]*"
    r"(?:\([^\s<>\"'`()]*\)[^\s<>\"'`|\\^{}\[\]()]*)*"
)
_WORDISH = r"[^\s<>\"'`|,;(){}\[\]*?!=“”‘’«»…–—]+"
_FOUND = re.compile(rf"(?P<url>{_URL})|(?P<word>{_WORDISH})(?P<call>\()?")
_LINES = re.compile(r":(?P<first>[0-9]{1,9})(?:-(?P<last>[0-9]{1,9}))?$")
_LETTER = re.compile(r"[^\W\d_]")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{1,20}://(?=[\w/.~])")
_HOST = re.compile(r"\\\\[\w.-]{2,}\\[\w$.-]")
_ONLY_EXTENSION = re.compile(r"(?:\.[A-Za-z0-9]{1,8})+")
_OPENING = frozenset("\"'`(<[=:|{*“‘«,;")
_CLOCK = re.compile(r"\d{4}-\d\d-\d\dT\d\d(?::\d\d)?|(?:UTC|GMT)[+-]\d\d?", re.IGNORECASE)
_ROOT = re.compile(r"(?:\.{1,2}/|~[\w-]*/|/|[A-Za-z]:/|//)(?=[\w.~-])")
_EXTENSION = re.compile(r"(?P<base>.*[\w)])\.(?P<ext>[A-Za-z0-9]{1,12})")
_GLUED = re.compile(r"(.*[\w)]\.[A-Za-z0-9]{1,12})[^\w./\\]")
_DOTTED_ENV = re.compile(
    r".*\.env\.(?:local|prod|production|dev|development|test|testing|stage|staging|example|sample"
    r"|template|defaults|backup|old|docker|ci)",
    re.IGNORECASE,
)
_HALF_SCHEME = re.compile(r"(?:https?|ftps?|sftp|wss?|ssh|git|file):/?[\w.~-]", re.IGNORECASE)
_ADDRESS = re.compile(
    r"(?:\d{1,3}\.){3}\d{1,3}(?::\d{1,5})?"
    r"|(?:[\w.-]+@)?(?:localhost|(?P<name>[\w-]+(?:\.[\w-]+)*)\.(?P<domain>[a-z]{2,9}))"
    r"(?::\d{1,5})?"
    r"|[A-Za-z][\w.-]*:\d{2,5}"
)
_CLASS = re.compile(r"(?:.*\.)?[A-Z]\w*[a-z]\w*")
_TAIL = ".:,-_~&#"
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Further invisible characters, besides format characters and variation selectors."""


def _is_shown(character: str) -> bool:
    return not (
        character in _BLANK
        or "\u180b" <= character <= "\u180f"
        or "\ufe00" <= character <= "\ufe0f"
        or character >= "\U000e0000"
        or unicodedata.category(character) == "Cf"
    )


def visible(text: str) -> str:
    r"""Remove invisible characters: format characters, fillers, variation selectors.

    Examples
    --------
    >>> visible("hidden.md\u200b")
    'hidden.md'
    """
    return text if text.isascii() else "".join(filter(_is_shown, text))


def has_content(text: str) -> bool:
    r"""Tell whether a text has a visible letter or digit.

    Examples
    --------
    >>> has_content("...\u200b"), has_content("7")
    (False, True)
    """
    return any(map(str.isalnum, visible(text)))


def tidy_path(text: str) -> str:
    r"""Return a path for comparison: forward slashes, no leading `./`, no final punctuation.

    Examples
    --------
    >>> tidy_path(".\\src\\app.py."), tidy_path("docs/")
    ('src/app.py', 'docs')
    """
    path = visible(text).replace("\\", "/").rstrip(".:,;")
    while path.startswith("./"):
        path = path[2:]
    return path.rstrip("/") or path[:1]


def split_lines(path: str) -> tuple[str, int, int] | None:
    """Split a cite token into (path, first line, last line); None without lines or a letter."""
    match = _LINES.search(path)
    if match is None or not _LETTER.search(path, 0, match.start()):
        return None
    first = int(match["first"])
    return path[: match.start()], first, int(match["last"] or first)


def _is_file_name(name: str, *, call: bool) -> bool:
    lowered = name.lower()
    if (
        lowered in _WORDS["dot_files"]
        or (lowered in _WORDS["files"] and not call)
        or (name.startswith(".") and "." + lowered.split(".")[1] in _WORDS["dot_files"])
        or _DOTTED_ENV.fullmatch(name)
    ):
        return True
    match = _EXTENSION.fullmatch(name)
    if match is None or call or _ONLY_EXTENSION.fullmatch(name) or lowered in _WORDS["products"]:
        return False
    base, ext = match["base"], match["ext"]
    is_known = ext.lower() in _WORDS["extensions"] and not ext.isdigit()
    if not is_known or not re.search(r"[^\W\d]|\d{2}", base):
        return False
    if len(ext) == 1 and not re.fullmatch(r"[\w-]{2,}", base):  # D.C and U.S.C are abbreviations
        return False
    # classes with an attribute `log` are listed, because Server.log is a file
    is_class = base in _WORDS["logarithms"] if ext == "log" else _CLASS.fullmatch(base)
    return ext not in _WORDS["attributes"] or not (base in _WORDS["objects"] or is_class)


def _is_address(parts: list[str]) -> bool:
    """Tell whether the first of several parts looks like a host; `df.info/df.describe` does not."""
    match = _ADDRESS.fullmatch(parts[0])
    if match is None or not any(map(_LETTER.search, parts[1:])):
        return False
    second = _ADDRESS.fullmatch(parts[1])
    # Booking.com/Expedia.com is two names, not a path
    two_names = not parts[2:] and second and second["domain"]
    is_host = match["domain"] in _WORDS["domains"] and match["name"] not in _WORDS["objects"]
    return match["domain"] is None or bool(is_host and not two_names)


def _is_slashed_path(path: str, folders: Collection[str], *, call: bool) -> bool:
    parts = [part for part in path.split("/") if part]
    if not parts or not _LETTER.search(path):
        return False
    if (
        _ROOT.match(path)
        or _is_file_name(parts[-1], call=call)
        or any(re.match(r"\.[^\W\d]", part) for part in parts)
        or _is_address(parts)
    ):
        return True
    # home/office looks like a path but is two alternatives
    through = [] if path in _WORDS["alternatives"] else parts[:-1]
    through = parts if path.endswith("/") else through
    customary = _FOLDERS if parts[2:] else _CLEAR_FOLDERS
    return (
        any(part in customary or part in folders for part in through)
        or sum(bool(_LETTER.search(part)) for part in parts) >= _MANY_PARTS
    )


def _is_path(word: str, folders: Collection[str], *, call: bool) -> bool:
    if _HALF_SCHEME.match(word):
        return True
    lines = split_lines(word)
    if lines is not None:
        return not _CLOCK.fullmatch(lines[0])
    path = word.replace("\\", "/").partition("#")[0]
    if word.startswith("\\") and not _HOST.match(word):
        path = path.lstrip("/")  # \alpha and \d have no root
    slashed = "/" in path
    return _is_slashed_path(path, folders, call=call) if slashed else _is_file_name(path, call=call)


def _split_words(text: str) -> Iterator[tuple[str, bool, bool]]:
    """Yield (word, whether it is a URL, whether a call's bracket follows)."""
    for match in _FOUND.finditer(text):
        inner = None if match["url"] else _SCHEME.search(match["word"])
        if match["url"] or inner:
            url = match["url"] or match["word"][inner.start() if inner else 0 :]
            yield url.rstrip(".,:;!?_~'*"), True, False
            continue
        word = match["word"].lstrip(":&#-+%").partition("::")[0]  # tests/test_a.py::test_b
        start = match.start("word") + match["word"].find(word)
        before = text[start - 1] if start else " "
        opened = before.isspace() or before in _OPENING
        if word.startswith("/") and "/" not in word[1:] and not opened:
            word = word[1:]  # in `(mg)/kg`, the slash is no root
        word = (word.lstrip(".") if word.startswith("...") else word).rstrip(_TAIL)
        yield word, False, bool(match["call"])


def find_paths(text: str, folders: Collection[str] = ()) -> tuple[str, ...]:
    """Find the paths of a text, in order, each once, without the punctuation around them.

    A relative path through one of `folders`, the folders of the evidence, counts too.

    Examples
    --------
    >>> find_paths("See docs/guide.md, `setup.py` and/or guide.md:3-7; on 2024/01/31, e.g. v1.2.3.")
    ('docs/guide.md', 'setup.py', 'guide.md:3-7')
    """
    paths: dict[str, None] = {}
    for word, is_url, call in _split_words(visible(text)):
        glued = None if is_url or split_lines(word) else _GLUED.match(word)
        if word and (is_url or _is_path(word, folders, call=call)):
            paths[word] = None
        elif glued and _is_path(glued[1], folders, call=False):
            paths[glued[1]] = None  # guide.md:first
    return tuple(paths)


def folders_of(paths: Iterable[str]) -> frozenset[str]:
    """Name the folders that paths go through, for `find_paths`."""
    return frozenset(
        part
        for path in paths
        for part in tidy_path(path).split("/")[:-1]
        if len(part) > 1 and "." not in part and ":" not in part
    )
