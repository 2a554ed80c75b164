r"""Forbidden phrases: the rules of `rules/*.toml`, compiled to automata in linear time (RE2).

A rule runs only on the parts of a text that hold all words which one of its phrases needs.

A phrase is a row of tokens between blanks, for text in lower case with single blanks:

`word`           this word; a hyphen also matches a blank or nothing, and `é` also matches `e`
`word*`          any word that begins so; only for words in other letters than Latin
`{ignore}`       an entry of the word list `ignore`; an entry `re:...` is RE2 syntax
`this|{those}`   one of these words or entries
`token?`         the token or nothing
`..`, `...`      at most 2 or 6 other words of the same sentence
`~`              any text, for code
`^`              the beginning of a sentence; only as the first token
`re:...`         a whole phrase in RE2 syntax, for structure instead of words

Marks may stand between words, but no end of a sentence. Chinese and Japanese have no blanks: there,
tokens follow each other directly, and `..` and `...` are at most 4 and 12 characters.
"""

import functools
import itertools
import re
import tomllib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import re2

from rag_eval.core.parts import Part
from rag_eval.storage.hashing import digest
from rag_eval.trust.spelling import load_words

Severity = Literal["hint", "warning", "blocked"]
"""Severity of a finding. A hint alone does not change the verdict."""
ViewKind = Literal["visible", "hidden", "decoded"]

_MAX_MEM = 32 << 20
"""Most bytes for the automaton of a pattern; beyond them, RE2 uses a slower linear engine."""

# ---- Phrases

Lists = Mapping[str, str | Sequence[str]]
"""Word lists by name: words between blanks, or entries of several words."""

_MARKS = r"\x00-/:-@\[-`{-~\x{a0}-\x{bf}\x{2000}-\x{206f}\x{3000}-\x{303f}"
_WORD = rf"[^{_MARKS}]+(?:[._][^{_MARKS}]+)*"
_BETWEEN = r"[\x00- \"-\-/:->@\[-`{-~\x{a0}-\x{bf}\x{2000}-\x{206f}]+"
_LEFT, _RIGHT = rf"(?:^|[{_MARKS}])", rf"(?:$|[{_MARKS}])"
_BEGIN = (
    r"(?:^|[>|\x{3002}]|[.!?:;*#=\-)\]}\x{2013}\x{2014}\x{2022}\x{201d}\"'] )"
    r"[ \"'*_(\[`\x{2018}-\x{201d}]{0,4}"
)
_GAPS = {"..": 2, "...": 6}
_ANYTHING = "~"
_WITHOUT_BLANKS = frozenset(("zh", "ja"))
_IN_SENTENCE = r"[^.!?\x{3002}]"
_RAW = "re:"
_SPECIAL = {"-": "[ -]?", "'": r"['\x{2019}]", "*": f"[^{_MARKS}]*"}
_PAIRS = {"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss"}
"""Letters that German also spells with two letters of ASCII."""
_SCRIPTS = {"CYRILLIC": "[\u0430-\u045f]", "HAN": "[\u3400-\u9fff]"}
"""Scripts without words in ASCII; their names stand for words in `_needed_words`."""
_ASCII_WORD = re.compile(r"[a-z0-9]+")


def _options(token: str, lists: Lists) -> list[str]:
    """Return the entries that may stand for a token."""
    options: list[str] = []
    for part in token.split("|"):
        words = lists[part[1:-1]] if part.startswith("{") else [part]
        options += words.split() if isinstance(words, str) else words
    return options


def _fold(word: str) -> str:
    """Drop the accents."""
    letters = unicodedata.normalize("NFD", word)
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


def _compile_letter(letter: str) -> str:
    base = _fold(letter)
    spellings = dict.fromkeys((letter, base, _PAIRS.get(letter, base)))
    alike = f"(?:{'|'.join(spellings)})" if len(spellings) > 1 else re.escape(letter)
    return _SPECIAL.get(letter, alike)


@functools.cache
def _compile_option(option: str, between: str) -> str:
    if option.startswith(_RAW):
        return f"(?:{option.removeprefix(_RAW)})"
    return between.join("".join(map(_compile_letter, word)) for word in option.split())


def _compile_tokens(tokens: Sequence[str], lists: Lists, *, blanks: bool) -> str:
    between = _BETWEEN if blanks else "[ ]?"
    pieces: list[str] = []
    begun = False
    for before, token in zip(("", *tokens), tokens, strict=False):
        if token == _ANYTHING:
            pieces.append("(?s:.*)")
            continue
        if token in _GAPS:
            words = f"(?:{between}{_WORD}){{0,{_GAPS[token]}}}"
            pieces.append(words if blanks else f"{_IN_SENTENCE}{{0,{2 * _GAPS[token]}}}")
            continue
        options = _options(token.removesuffix("?"), lists)
        piece = f"(?:{'|'.join(_compile_option(option, between) for option in options)})"
        if token.endswith("?"):
            piece = f"(?:{between}{piece})?" if begun else f"(?:{piece}{between})?"
        elif before == _ANYTHING:
            piece = f"[{_MARKS}]{piece}"
        else:
            piece, begun = (between if begun else "") + piece, True
        pieces.append(piece)
    return "".join(pieces)


def compile_phrases(phrases: Iterable[str], lists: Lists, language: str = "en") -> str:
    """Compile the phrases of a rule to one pattern; its only group that matched is the phrase."""
    blanks = language not in _WITHOUT_BLANKS
    inner: list[str] = []
    first: list[str] = []
    raw: list[str] = []
    for phrase in phrases:
        if phrase.startswith(_RAW):
            raw.append(f"({phrase.removeprefix(_RAW)})")
        else:
            tokens = phrase.split()
            anchored = tokens[0] == "^"
            compiled = _compile_tokens(tokens[anchored:], lists, blanks=blanks)
            (first if anchored else inner).append(compiled)
    left, right = (_LEFT, _RIGHT) if blanks else ("", "")
    parts = [f"{left}({'|'.join(inner)}){right}"] if inner else []
    parts += [f"{_BEGIN}({'|'.join(first)}){right}"] if first else []
    return "|".join((*parts, *raw))


@functools.cache
def _keys(option: str, frequent: frozenset[str]) -> list[str]:
    """List words in ASCII or scripts, one of which stands in every text with the option."""
    if option.startswith(_RAW):
        return []
    for script, letters in _SCRIPTS.items():
        if re.search(letters, option):
            return [script]
    word = max(option.split(), key=lambda word: (word not in frequent, len(word)))
    pairs = "".join(_PAIRS.get(letter, letter) for letter in word)
    runs = [
        _ASCII_WORD.findall(spelling.partition("-")[0]) for spelling in (word, _fold(word), pairs)
    ]
    joined = [_fold(word).replace("-", "")] if "-" in word else []
    return [max(run, key=len) for run in runs] + joined if all(runs) else []


def _needed_words(phrase: str, lists: Lists, frequent: frozenset[str]) -> list[frozenset[str]]:
    """List sets of ASCII words and _SCRIPTS; every text with the phrase has one of each set."""
    if phrase.startswith(_RAW):
        return []
    needed = []
    for token in phrase.removeprefix("^ ").split():
        if token not in (*_GAPS, _ANYTHING) and not token.endswith("?"):
            keys = [_keys(option, frequent) for option in _options(token, lists)]
            if all(keys):
                needed.append(frozenset(key for some in keys for key in some))
    return needed


# ---- Patterns


def _make_options() -> Any:
    options = re2.Options()
    options.max_mem = _MAX_MEM
    options.log_errors = False
    return options


class Signals:
    """Tries many cheap patterns in one pass over a text; `patterns` is name -> RE2 syntax."""

    def __init__(self, patterns: Mapping[str, str]) -> None:
        self._patterns = patterns
        self._set = re2.Set.SearchSet(_make_options())
        for pattern in (*patterns.values(), r"\z"):
            self._set.Add(pattern)
        self._set.Compile()

    def find(self, data: bytes) -> set[str]:
        """Return the names of the patterns that match somewhere."""
        matched = self._set.Match(data) or ()
        if len(self._patterns) in matched:
            return {name for index, name in enumerate(self._patterns) if index in matched}
        # The last pattern matches everywhere, so the automaton ran out of memory.
        search = functools.partial(re2.search, options=_make_options())
        return {name for name, text in self._patterns.items() if search(text, data) is not None}


class LinearPattern:
    r"""A pattern over UTF-8 in RE2 syntax (no look-around, no back references).

    `\b` knows ASCII letters only.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern

    @functools.cached_property
    def _compiled(self) -> Any:
        """Compiled at the first use, because few texts need the rules of all languages."""
        return re2.compile(self._pattern, _make_options())

    def matches(self, data: bytes) -> bool:
        """Tell whether the pattern matches somewhere."""
        return self._compiled.search(data) is not None

    def find(self, data: bytes) -> Iterator[tuple[int, int]]:
        """Yield the byte spans of the matches in order, each of the only group that matched."""
        for match in self._compiled.finditer(data):
            yield match.span(match.lastindex or 0)

    def find_all(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield the characters of all matches."""
        data = text.encode("utf-8", "replace")
        spans = [match.span() for match in self._compiled.finditer(data)]
        places = _list_characters(data, itertools.chain.from_iterable(spans))
        return ((places[start], places[end]) for start, end in spans)


def _list_characters(data: bytes, offsets: Iterable[int]) -> dict[int, int]:
    """Return byte offset -> character offset, in one pass."""
    ordered = sorted(set(offsets))
    if data.isascii():
        return {offset: offset for offset in ordered}
    places, before, counted = {}, 0, 0
    for offset in ordered:
        counted += len(data[before:offset].decode("utf-8", "replace"))
        places[offset], before = counted, offset
    return places


# ---- The rules


class Rule(Part):
    """Forbidden phrases with the reason, and texts that test them."""

    id: str
    """Family and name, as in `override.ignore_earlier`."""
    severity: Severity
    reason: str
    phrases: tuple[str, ...]
    match: tuple[str, ...]
    """Texts in which the rule finds something."""
    clean: tuple[str, ...]
    """Harmless texts in which the rule finds nothing."""
    language: str = "en"
    """Language of the word lists."""
    about_code: bool = False
    """Whether the rule reads code, which stands between fences, so that these excuse nothing."""


class RuleMatch(NamedTuple):
    """A match of a rule in characters [start, end) of a text."""

    rule: Rule
    start: int
    end: int


FOLDER = Path(__file__).parent
_PIECE, _OVERLAP = 4_000, 500
"""Bytes of the parts in which a long text is searched, so that few rules run on each part."""
_PER_PART = 6
"""Most matches of a rule in a part; the last one reaches to its end. This bounds the cost of
patterns that look far ahead."""
_NO_WORDS = "<"
"""Stands for the word that phrases in RE2 syntax need."""
_FREQUENT = frozenset(load_words("sentences")["closed"])
"""English words that stand in most texts."""
_WORD_BYTES = bytes(
    byte if chr(byte).isalnum() and byte < 0x80 else ord(" ")  # noqa: PLR2004 - end of ASCII
    for byte in range(256)
)


def _cut(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Cut a text into overlapping parts, with the place of each."""
    starts = range(0, max(len(data) - _OVERLAP, 1), _PIECE - _OVERLAP)
    return ((start, data[start : start + _PIECE]) for start in starts)


def _rarity(words: frozenset[str]) -> tuple[bool, int, int]:
    """Estimate how rare the most frequent of some words is: no `the`, and long words are rare."""
    return words.isdisjoint(_FREQUENT), min(map(len, words)), -len(words)


class RuleSet:
    """Compiled rules, which search normalised texts; `words` are the lists of each language."""

    def __init__(self, rules: Iterable[Rule], words: Mapping[str, Lists] | None = None) -> None:
        self.rules, self.words = tuple(rules), words or {}
        self.about_code = frozenset(rule.id for rule in self.rules if rule.about_code)
        self._compiled: list[LinearPattern] = []
        # word -> the phrases that are looked up by it: all sets of needed words, place of the rule
        self._phrases: dict[bytes, list[tuple[list[frozenset[bytes]], int]]] = {}
        raw = []
        for place, rule in enumerate(self.rules):
            lists = self.words.get(rule.language, {})
            pattern = compile_phrases(rule.phrases, lists, rule.language)
            self._compiled.append(LinearPattern(pattern))
            for phrase in rule.phrases:
                needed = _needed_words(phrase, lists, _FREQUENT)
                if phrase.startswith(_RAW):
                    raw.append(phrase.removeprefix(_RAW))
                    needed = [frozenset((_NO_WORDS,))]
                encoded = [frozenset(map(str.encode, keys)) for keys in needed]
                for key in max(needed, key=_rarity):
                    self._phrases.setdefault(key.encode(), []).append((encoded, place))
        self._raw = LinearPattern("|".join(raw) or r"[^\x00-\x{10ffff}]")
        self._scripts = {
            name.encode(): LinearPattern(letters) for name, letters in _SCRIPTS.items()
        }
        content = [rule.model_dump(mode="json") for rule in self.rules]
        self.version = digest([content, self.words], 12)

    @classmethod
    @functools.cache
    def load(cls) -> "RuleSet":
        """Read and compile the shipped rules, once in a process."""
        paths = sorted(FOLDER.glob("rules/*.toml"))
        contents = [tomllib.loads(path.read_text(encoding="utf-8")) for path in paths]
        rules: list[Rule] = []
        words: dict[str, dict[str, str | list[str]]] = {}
        for content in contents:
            language = content.get("language", "en")
            words.setdefault(language, {}).update(content.get("words", {}))
            rules += [Rule(**rule, language=language) for rule in content.get("rule", ())]
        return cls(rules, words)

    def _candidates(self, part: bytes) -> set[int]:
        """Return the rules with a phrase whose needed words all stand in a part of a text."""
        words = set(part.translate(_WORD_BYTES).split())
        if not part.isascii():
            words |= {name for name, letters in self._scripts.items() if letters.matches(part)}
        if self._raw.matches(part):
            words.add(_NO_WORDS.encode())
        return {
            place
            for word in self._phrases.keys() & words
            for needed, place in self._phrases[word]
            if not any(map(words.isdisjoint, needed))
        }

    def find(self, texts: Sequence[str]) -> list[list[RuleMatch]]:
        """Return the matches in each normalised text, in the order of the rules and of the text.

        Each rule searches many texts before the next rule, because alternating automata drive each
        other out of the processor's cache.
        """
        data = [text.encode("utf-8", "replace") for text in texts]
        asked: list[list[tuple[int, int, bytes]]] = [[] for _ in self.rules]
        for at, text in enumerate(data):
            for low, part in _cut(text):
                for place in self._candidates(part):
                    asked[place].append((at, low, part))
        spans_found: list[set[tuple[int, int, int]]] = [set() for _ in texts]
        for place, parts in enumerate(asked):
            for at, low, part in parts:
                spans = list(itertools.islice(self._compiled[place].find(part), _PER_PART))
                if len(spans) == _PER_PART:
                    spans[-1] = spans[-1][0], len(part)
                spans_found[at].update((place, low + start, low + end) for start, end in spans)
        return [self._locate(*both) for both in zip(data, spans_found, strict=True)]

    def _locate(self, data: bytes, matches: set[tuple[int, int, int]]) -> list[RuleMatch]:
        places = _list_characters(data, (byte for _, *span in matches for byte in span))
        return [
            RuleMatch(self.rules[place], places[start], places[end])
            for place, start, end in sorted(matches)
        ]
