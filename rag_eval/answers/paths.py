"""Find paths in a text for the path gates. The word lists are in `paths.json`."""

import json
import re
import unicodedata
from collections.abc import Collection
from importlib.resources import files

_WORDS = {
    name: frozenset(words.split())
    for name, words in json.loads(
        files("rag_eval.answers").joinpath("paths.json").read_text("utf-8")
    ).items()
}
_MANY_PARTS = 4
"""Number of parts from which words between slashes are a path in any case."""

_URL = (
    r"(?:[A-Za-z][A-Za-z0-9+.-]{1,20}://(?=[\w/.~])|www\.)[^\s<>\"'`|\\^{}\[\]()]*"
    r"(?:\([^\s<>\"'`()]*\)[^\s<>\"'`|\\^{}\[\]()]*)*"
)
# The slash behind a bracket, as in `(mg)/kg`, is no root.
_FOUND = re.compile(
    rf"(?P<url>{_URL})|(?:(?<=\))/)?(?P<word>[^\s<>\"'`|,;(){{}}\[\]*?!=“”‘’«»…–—。，；：]+)(?P<call>\()?"
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]{1,20}://(?=[\w/.~])")
_HALF_SCHEME = re.compile(r"(?:https?|ftps?|sftp|wss?|ssh|git|file):/?[\w.~-]", re.IGNORECASE)
_LINES = re.compile(r":(?P<first>[0-9]{1,9})(?:-(?P<last>[0-9]{1,9}))?$")
_CLOCK = re.compile(r"\d{4}-\d\d-\d\dT\d\d(?::\d\d)?|(?:UTC|GMT)[+-]\d\d?", re.IGNORECASE)
_LETTER = re.compile(r"[^\W\d_]")
_ROOT = re.compile(r"(?:\.{1,2}/|~[\w-]*/|/|[A-Za-z]:/|//)(?=[\w.~-])")
_SHARE = re.compile(r"\\\\[\w.-]{2,}\\[\w$.-]")
_EXTENSION = re.compile(r"(?P<base>.*[\w)])\.(?P<ext>[A-Za-z0-9]{1,12})")
_CLASS = re.compile(r"(?:.*\.)?[A-Z]\w*[a-z]\w*")
_HOST = re.compile(
    r"(?:\d{1,3}\.){3}\d{1,3}(?::\d{1,5})?|[A-Za-z][\w.-]*:\d{2,5}"
    r"|(?:[\w.-]+@)?(?:localhost|(?P<name>[\w-]+(?:\.[\w-]+)*)\.(?P<domain>[a-z]{2,9}))(?::\d{1,5})?"
)
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
    """Tell whether a text has a visible letter or digit."""
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
    if name.startswith(".") and "." + lowered.split(".")[1] in _WORDS["dot_files"]:
        return True
    match = _EXTENSION.fullmatch(name)
    if call or match is None or lowered in _WORDS["products"]:
        return lowered in _WORDS["files"] and not call
    base, ext = match["base"], match["ext"]
    if ext.lower() not in _WORDS["extensions"] or not re.search(r"[^\W\d]|\d{2}", base):
        return False
    if len(ext) == 1 and not re.fullmatch(r"[\w-]{2,}", base):  # D.C and U.S.C are abbreviations
        return False
    is_object = base in _WORDS["objects"] or _CLASS.fullmatch(base)
    return not base.startswith(".") and not (ext in _WORDS["attributes"] and is_object)


def _is_host(part: str) -> bool:
    match = _HOST.fullmatch(part)
    return match is not None and (
        match["domain"] is None
        or (match["domain"] in _WORDS["domains"] and match["name"] not in _WORDS["objects"])
    )


def _is_slashed_path(path: str, folders: Collection[str], *, call: bool) -> bool:
    parts = [part for part in path.split("/") if part]
    with_letters = sum(bool(_LETTER.search(part)) for part in parts)
    if not with_letters:
        return False
    # public/private is two words, and public/img/logo is a path
    customary = _WORDS["folders"] if parts[2:] else _WORDS["clear_folders"]
    return (
        with_letters >= _MANY_PARTS
        or _ROOT.match(path) is not None
        or _is_file_name(parts[-1], call=call)
        or any(re.match(r"\.[^\W\d]", part) for part in parts)
        or (_is_host(parts[0]) and any(map(_LETTER.search, parts[1:])))
        or any(
            part in customary or part in folders
            for part in (parts if path.endswith("/") else parts[:-1])
        )
    )


def _is_path(word: str, folders: Collection[str], *, call: bool) -> bool:
    if _HALF_SCHEME.match(word):
        return True
    if lines := split_lines(word):
        return not _CLOCK.fullmatch(lines[0])
    path = word.replace("\\", "/").partition("#")[0]
    if word.startswith("\\") and not _SHARE.match(word):
        path = path.lstrip("/")  # \alpha and \d have no root
    slashed = "/" in path
    return _is_slashed_path(path, folders, call=call) if slashed else _is_file_name(path, call=call)


def find_paths(text: str, folders: Collection[str] = ()) -> tuple[str, ...]:
    """Find the paths of a text, in order, each once, without the punctuation around them.

    A relative path through one of `folders`, the folders of the evidence, counts too.

    Examples
    --------
    >>> find_paths("See docs/guide.md, `setup.py` and/or guide.md:3-7; on 2024/01/31, e.g. v1.2.3.")
    ('docs/guide.md', 'setup.py', 'guide.md:3-7')
    """
    paths: dict[str, None] = {}
    for match in _FOUND.finditer(visible(text)):
        url, word = match["url"], match["word"] or ""
        if url is None and (inner := _SCHEME.search(word)):
            url = word[inner.start() :]
        if url is not None:
            paths[url.rstrip(".,:;!?_~'*")] = None
            continue
        word = word.lstrip(":&#-+%").partition("::")[0]  # tests/test_a.py::test_b
        word = (word.lstrip(".") if word.startswith("...") else word).rstrip(".:,-_~&#")
        if word and _is_path(word, folders, call=bool(match["call"])):
            paths[word] = None
    return tuple(paths)
