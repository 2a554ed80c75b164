r"""What counts as a path in a text, for the path gates.

Belongs here: finding paths and telling them from ordinary words. Whether a path is known is `gates`.

A path is
- a URL (`https://example.org/a`, `www.example.org`),
- a cite token (`guide.md:12`, `x:12-14`): something with a letter, a colon, a line number,
- a slash or backslash path: from a root (`/etc/hosts`, `./run`, `../a`, `~/a`, `C:\a`, `\\host\a`); or ending in a file name with an extension;
  or with a hidden folder (`.github/workflows`), a customary folder (`src/app`), a folder that the evidence names, or four parts and more,
- a file name with an extension in customary use (`setup.py`, `data.tar.gz`), a customary dot file (`.gitignore`, `.env.production`) or one of the
  customary files without extension (`Makefile`, `id_rsa`),
- a host and what it serves, without a scheme or with half of one (`example.org/a`, `localhost:80/a`, `10.0.0.1/a`, `http:example.org`).
Characters that do not show (zero-width and other format characters) are no part of a name and hide none.
Not a path: a host's name alone (`Booking.com`), `and/or`, `home/office`, `1/2`, `km/h`, `2024/01/31`, `12:30`, `3.14`, `v1.2.3`, `e.g.`, `DataFrame.sort_values`, `np.log(x)`, `Node.js`, `.loc`.
"""

import re
import unicodedata
from collections.abc import Collection, Iterable

EXTENSIONS = frozenset(
    """
    py pyi pyx ipynb md markdown rst txt text log csv tsv json jsonl ndjson yaml yml toml ini cfg conf config properties env lock xml xsd html htm css scss less
    js mjs cjs jsx ts tsx vue svelte java kt kts scala groovy gradle c cc cpp cxx h hh hpp cs go rs rb php pl pm lua swift dart r jl sh bash zsh bat cmd ps1 sql
    db sqlite sqlite3 parquet feather arrow orc avro pkl pickle npy npz h5 hdf5 mat pt pth onnx safetensors gguf proto graphql tf tfvars tex bib
    pdf doc docx xls xlsx ppt pptx odt rtf epub png jpg jpeg gif svg webp bmp ico tif tiff mp3 mp4 wav avi mov mkv flac zip tar gz tgz bz2 xz zst 7z rar whl egg jar war
    exe dll so dylib bin iso dmg deb rpm apk msi pem crt cer key csr pub bak tmp swp diff patch mk cmake service
    """.split()
)
FOLDERS = frozenset(
    """
    src lib libs bin etc usr var tmp opt home root mnt dev proc sys docs doc scripts config configs conf assets static public dist build vendor include
    internal pkg cmd modules packages plugins services utils helpers templates resources migrations components node_modules site-packages tests
    """.split()
)
DOT_FILES = frozenset(
    ".gitignore .gitattributes .gitmodules .env .bashrc .zshrc .profile .bash_profile .npmrc .dockerignore .editorconfig .htaccess .vimrc .pypirc .netrc .ssh .aws".split()
)
PRODUCTS = frozenset(
    "node.js vue.js next.js nuxt.js react.js express.js three.js d3.js angular.js ember.js backbone.js chart.js moment.js asp.net".split()
)
ATTRIBUTES = frozenset("log text diff patch mat r pt c h".split())
"""Extensions that are also customary names of attributes: after a class name or one of these, no file is meant."""
LOGARITHMS = frozenset("Math Logger Log Tensor Decimal Symbol NumPy Torch".split())
"""Classes that have an attribute `log`; after any other name (`Server.log`) it is a file's extension."""
OBJECTS = frozenset(
    "np numpy math cmath torch tf jnp mpmath scipy logging plt ax df s ser series r response resp self".split()
)
CLEAR_FOLDERS = frozenset(
    "src lib libs usr mnt docs scripts tests node_modules site-packages dist pkg etc var tmp opt proc bin dev home root config configs conf secrets".split()
)
"""Folders that make a path of two parts one; `include/exclude` and `public/private` are words."""
ALTERNATIVES = frozenset(
    """
    bin/bag bin/box config/setup config/data config/code dev/prod dev/production dev/test dev/testing dev/staging dev/stage dev/ops dev/qa dev/design
    home/work home/office home/school home/away home/garden home/end home/hospital home/family home/house home/community home/business home/host home/visitor home/institution root/row root/column
    opt/in root/leaf root/branch root/shoot root/stem root/crown root/admin root/administrator root/user tmp/temp var/let var/const
    """.split()
)
"""What two words with a slash mean that begin like a path of two parts."""
FILES = frozenset(
    """
    makefile gnumakefile dockerfile containerfile jenkinsfile vagrantfile procfile gemfile rakefile pipfile podfile brewfile caddyfile
    id_rsa id_dsa id_ecdsa id_ed25519 authorized_keys known_hosts
    """.split()
)
"""Customary names of files without extension."""
DOMAINS = frozenset(
    "com org net edu gov mil int biz dev app ai io co uk de fr es it nl pl ru cn jp kr br in eu us ca au ch at se no local localhost example test invalid xyz onion".split()
)
MANY_PARTS = 4

_URL = r"(?:[A-Za-z][A-Za-z0-9+.-]{1,20}://(?=[\w/.~])|www\.)[^\s<>\"'`|\\^{}\[\]()]*(?:\([^\s<>\"'`()]*\)[^\s<>\"'`|\\^{}\[\]()]*)*"
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
    r".*\.env\.(?:local|prod|production|dev|development|test|testing|stage|staging|example|sample|template|defaults|backup|old|docker|ci)",
    re.IGNORECASE,
)
_HALF_SCHEME = re.compile(r"(?:https?|ftps?|sftp|wss?|ssh|git|file):/?[\w.~-]", re.IGNORECASE)
_ADDRESS = re.compile(
    r"(?:\d{1,3}\.){3}\d{1,3}(?::\d{1,5})?|(?:[\w.-]+@)?(?:localhost|(?P<name>[\w-]+(?:\.[\w-]+)*)\.(?P<domain>[a-z]{2,9}))(?::\d{1,5})?|[A-Za-z][\w.-]*:\d{2,5}"
)
_CLASS = re.compile(r"(?:.*\.)?[A-Z]\w*[a-z]\w*")
_TAIL = ".:,-_~&#"
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Letters and marks that show nothing, beside the format characters (Cf) and the variation selectors."""


def _shows(character: str) -> bool:
    return not (
        character in _BLANK
        or "\u180b" <= character <= "\u180f"
        or "\ufe00" <= character <= "\ufe0f"
        or character >= "\U000e0000"
        or unicodedata.category(character) == "Cf"
    )


def visible(text: str) -> str:
    """Text without the characters that do not show: zero-width and other format characters, fillers, variation selectors, private use beyond them.

    Examples
    --------
    >>> visible("hidden.md\u200b")
    'hidden.md'
    """
    return text if text.isascii() else "".join(filter(_shows, text))


def has_content(text: str) -> bool:
    """Whether a text has a letter or digit that shows.

    Examples
    --------
    >>> has_content("...\u200b"), has_content("7")
    (False, True)
    """
    return any(character.isalnum() for character in visible(text))


def tidied(text: str) -> str:
    r"""A path as it is compared: slashes forward, no `./` before it, no slash or punctuation after it.

    Examples
    --------
    >>> tidied(".\\src\\app.py."), tidied("docs/")
    ('src/app.py', 'docs')
    """
    path = visible(text).replace("\\", "/").rstrip(".:,;")
    while path.startswith("./"):
        path = path[2:]
    return path.rstrip("/") or path[:1]


def split_lines(path: str) -> tuple[str, int, int] | None:
    """(path, first line, last line) of a cite token; None where there are no lines or no letter before them."""
    match = _LINES.search(path)
    if match is None or not _LETTER.search(path, 0, match.start()):
        return None
    first = int(match["first"])
    return path[: match.start()], first, int(match["last"] or first)


def _is_file_name(name: str, *, call: bool) -> bool:
    lowered = name.lower()
    if (
        lowered in DOT_FILES
        or (lowered in FILES and not call)
        or (name.startswith(".") and "." + lowered.split(".")[1] in DOT_FILES)
        or _DOTTED_ENV.fullmatch(name)
    ):
        return True
    match = _EXTENSION.fullmatch(name)
    if _ONLY_EXTENSION.fullmatch(name):  # .tar.gz
        return False
    if (
        match is None
        or call
        or match["ext"].isdigit()
        or match["ext"].lower() not in EXTENSIONS
        or name.lower() in PRODUCTS
    ):
        return False
    if not re.search(r"[^\W\d]|\d{2}", match["base"]):
        return False
    if len(match["ext"]) == 1 and not re.fullmatch(r"[\w-]{2,}", match["base"]):  # D.C, U.S.C
        return False
    is_class = (
        match["base"] in LOGARITHMS
        if match["ext"] == "log"
        else _CLASS.fullmatch(match["base"]) is not None
    )
    return not (match["ext"] in ATTRIBUTES and (match["base"] in OBJECTS or is_class))


def _is_address(parts: list[str]) -> bool:
    """Whether the first of several parts is a host, as far as its looks tell: `df.info/df.describe` is none."""
    match = _ADDRESS.fullmatch(parts[0])
    if match is None or len(parts) == 1 or not any(_LETTER.search(part) for part in parts[1:]):
        return False
    second = _ADDRESS.fullmatch(parts[1])  # Booking.com/Expedia.com are two names
    return match["domain"] is None or (
        match["domain"] in DOMAINS
        and match["name"] not in OBJECTS
        and not (len(parts) == len(("host", "name")) and second and second["domain"])
    )


def _is_slashed_path(path: str, folders: Collection[str], *, call: bool) -> bool:
    parts = [part for part in path.split("/") if part]
    if not parts or not _LETTER.search(path):
        return False
    if (
        _ROOT.match(path)
        or _is_file_name(parts[-1], call=call)
        or any(re.match(r"\.[^\W\d]", part) for part in parts)
    ):
        return True
    if _is_address(parts):
        return True
    through = parts if path.endswith("/") else [] if path in ALTERNATIVES else parts[:-1]
    customary = CLEAR_FOLDERS if len(parts) <= len(("folder", "name")) else FOLDERS | CLEAR_FOLDERS
    return (
        any(part in customary or part in folders for part in through)
        or sum(bool(_LETTER.search(part)) for part in parts) >= MANY_PARTS
    )


def _is_path(word: str, folders: Collection[str], *, call: bool) -> bool:
    if _HALF_SCHEME.match(word):
        return True
    lines = split_lines(word)
    if lines is not None:
        return not _CLOCK.fullmatch(lines[0])
    path = word.replace("\\", "/").partition("#")[0]
    if word.startswith("\\") and not _HOST.match(word):
        path = path.lstrip("/")  # \alpha and \d come from no root
    return (
        _is_slashed_path(path, folders, call=call)
        if "/" in path
        else _is_file_name(path, call=call)
    )


def _words(text: str) -> Iterable[tuple[str, bool, bool]]:
    """(word, whether it is a URL, whether a call's bracket follows)."""
    for match in _FOUND.finditer(text):
        inner = None if match["url"] else _SCHEME.search(match["word"])
        if match["url"] or inner:
            url = match["url"] or match["word"][inner.start() if inner else 0 :]
            yield url.rstrip(".,:;!?_~'*"), True, False
        else:
            word = match["word"].lstrip(":&#-+%").partition("::")[0]  # tests/test_a.py::test_b
            start = match.start("word") + match["word"].find(word)
            before = text[start - 1] if start else " "
            if (
                word.startswith("/")
                and "/" not in word[1:]
                and not (before.isspace() or before in _OPENING)
            ):
                word = word[1:]  # of `(mg)/kg`, which is no root
            word = (word.lstrip(".") if word.startswith("...") else word).rstrip(_TAIL)
            yield word, False, bool(match["call"])


def find_paths(text: str, folders: Collection[str] = ()) -> tuple[str, ...]:
    """Paths of a text in their order, each once, as they stand but for punctuation around them.

    Parameters
    ----------
    text
        Any text; characters that do not show are passed over.
    folders
        Names of folders that the evidence knows; a relative path through one of them counts.

    Examples
    --------
    >>> find_paths("See docs/guide.md, `setup.py` and/or guide.md:3-7; on 2024/01/31 it was 1/2 done (e.g. v1.2.3).")
    ('docs/guide.md', 'setup.py', 'guide.md:3-7')
    """
    found: dict[str, None] = {}
    for word, is_url, call in _words(visible(text)):
        glued = None if is_url or split_lines(word) else _GLUED.match(word)
        if word and (is_url or _is_path(word, folders, call=call)):
            found[word] = None
        elif glued and _is_path(glued[1], folders, call=False):
            found[glued[1]] = None  # guide.md:first
    return tuple(found)


def folders_of(paths: Iterable[str]) -> frozenset[str]:
    """Names of the folders that paths go through, for `find_paths`."""
    return frozenset(
        part
        for path in paths
        for part in tidied(path).split("/")[:-1]
        if len(part) > 1 and "." not in part and ":" not in part
    )
