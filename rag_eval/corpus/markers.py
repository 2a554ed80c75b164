"""Read the citation markers of an answer: `[1]`, `[1-3]`, `【1†source】`, `(Document 3)` and more.

`docs/recorded.md` has the table of forms. Everything that reads or strips markers does so here.
"""

import bisect
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from rag_eval.corpus.chunking import ITEM, segments

Range = tuple[int, int]
"""First and last number that a marker cites."""
Names = Mapping[str, Sequence[int]]
"""Casefolded name of a source -> the numbers, from 1, of the sources with this name."""

MOST_NUMBERS = 10_000
"""Most numbers that the ranges of an answer stand for, because `[1-99]` is short to write."""
_INSIDE = 200
"""Most characters between the brackets of a marker, so that the time is linear."""

# ---- What stands between the brackets

_CJK_LABEL = "来源|來源|文档|文檔|文献|资料|資料|上下文|段落|出典|文書|出处|출처|문서"
_LABEL = (
    r"(?:(?<![^\W_])(?:search results?"
    r"|sources?|documents?|docs?|contexts?|passages?|references?|refs?|citations?"
    r"|cite|snippets?|chunks?|excerpts?|evidence|quellen?|dokument(?:e|y|um?)?|fuentes?|documentos?"
    r"|fonti|fontes?|documento|documenti|источник[а-я]{0,3}|документ[а-я]{0,3}|kaynak|belge|źródło"
    rf"|bron|källa|kontext|contexte|contexto|contesto|контекст[а-я]{{0,3}}|extrait|auszug|réf"
    rf"|المصدر|المستند|الوثيقة|स्रोत|दस्तावेज़)(?![^\W\d_])|{_CJK_LABEL})"
)
_TAGGED = rf"(?:{_LABEL}[ \t:#_.-]{{0,3}}){{1,2}}(?:(?:id|no|nr|number)\b[\s:.]{{0,2}}|№\s?)?"
_NUMBER = r"\d{1,3}(?!\d)"
_DASH = r"\s*+(?:[-‐‑‒–—−~〜]|\.\.|to\b|bis\b|through\b)\s*+"
_LOCATOR = (
    r"\s*+[,;:]?\s*+\(?(?:pp?|pages?|S|Seiten?|sec|sections?|§+|ch|chapters?|figs?|figure|tab|table"
    r"|lines?|L|para|paragraph|p[áa]gs?|página|Abs|Kap|стр|с|页|頁)\.?\s*+"
    r"\d{1,5}(?:\s*+[-–]\s*+\d{1,5})?\)?"
)
_CITED = re.compile(
    rf"(?:{_TAGGED}|[#^@]|[SD](?=\d)|№|n[or]\.)?\s*+(?P<first>{_NUMBER})(?::(?P<result>{_NUMBER})(?=\s*+†))?"
    rf"(?:{_DASH}(?:{_TAGGED}|[\^SD])?(?P<last>{_NUMBER}))?\^?(?:{_LOCATOR})?(?:\s*+†(?P<name>[^†,]*))?",
    re.IGNORECASE,
)
_AND = r"and|und|et|y|e|och|en|ve|и|or"
_SEPARATOR = re.compile(
    rf"(?:\s*+(?:[,;、，；&·]|\b(?:{_AND})\b|[和与と]))++\s*+|\s++", re.IGNORECASE
)
_SPLIT = re.compile(r"\s*+[,;]\s*+")
_TAG = re.compile(rf"{_LABEL}\s*+[:#]?\s*+", re.IGNORECASE)
_STATED_IN = (
    "as (?:(?:also )?(?:stated|described|noted|mentioned|shown|reported|explained|indicated|given"
    "|documented|found|outlined|discussed|specified|seen) (?:in|by)|per)"
)
_LEAD = (
    rf"(?:according to|based on|{_STATED_IN}|laut|gemäß|selon|d['’]après|según|secondo|segundo"
    r"|de acordo com|согласно|根据|根據|据)"
)
_ARTICLE = r"(?:\s*+\b(?:the|le|la|l['’]|el|il|lo|o|a|dem|der))?\s*+"
_IN_PARENTHESES = re.compile(
    rf"(?:(?:see(?: also)?|cf\.?|from|per|siehe|vgl\.?|voir|véase|cfr\.?|{_LEAD}){_ARTICLE})?",
    re.IGNORECASE,
)


def _parse(inside: str, names: Names) -> list[Range] | None:
    """Read what stands between the brackets of a marker; None if it is no list of sources."""
    at, ranges = 0, list[Range]()
    while match := _CITED.match(inside, at):
        first, last = int(match["first"]), int(match["last"] or match["first"])
        if match["name"] is not None:  # `4:0†source`: message 4, search result 0, counted from 0
            first = last = first if match["result"] is None else int(match["result"]) + 1
            places = names.get(match["name"].strip().casefold())
            first = last = places[0] if places else first
        if first > last:
            return None
        ranges.append((first, last))
        if match.end() == len(inside):
            return ranges
        gap = _SEPARATOR.match(inside, match.end())
        if gap is None:
            return None
        at = gap.end()
    tag = _TAG.match(inside)
    listed = _SPLIT.split(inside[tag.end() if tag else 0 :].casefold())
    places = [names[name][0] for name in listed if name in names]
    return [(place, place) for place in places] if len(places) == len(listed) else None


# ---- Where a marker may stand

_SUPER = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_DIGITS = str.maketrans(_SUPER, "0123456789")
_BARE = (
    rf"{_TAGGED}{_NUMBER}(?:(?:[ \t]*+,|[ \t]*+,?[ \t]*+\b(?:{_AND})\b)[ \t]*+{_TAGGED}{_NUMBER})*+"
    r"(?![A-Za-z\d]|\.\d)"
)
_BARE_LIST = (
    r"(?<![^\W_])(?:sources|documents|docs|passages|contexts)\s++"
    rf"{_NUMBER}(?:\s*+,\s*+{_NUMBER})*+(?:,?\s*+(?:and|to)\s++{_NUMBER}|{_DASH}{_NUMBER})"
)
_CODE = (
    r"(?P<fence>```|~~~).*?(?:(?P=fence)|\Z)|(?P<ticks>`[^`\n]++`)"
    r"|(?P<indented>\n[ \t\r]*+\n(?:(?: {4}|\t)[^\n]*+(?:\n[ \t\r]*+(?=\n))*+(?:\n|\Z))++)"
)
_SCAN = re.compile(
    rf"{_CODE}"
    rf"|(?P<two>\[(?=\[))?\\?(?P<open>[\[【［〔])(?P<square>[^\[\]【】［］〔〕\n]{{1,{_INSIDE}}})[\]】］〕](?(two)\])"
    r"(?P<link>\([^()\s]{0,2000}(?:\s\"[^\"\n]{0,200}\")?\))?"
    rf"|<(?P<tag>cite|sup|ref|source|citation)\b[^<>\n]{{0,100}}>(?P<html>[^<>\n]{{1,{_INSIDE}}})</(?P=tag)>"
    rf"|[(（](?P<round>[^()（）\n]{{1,{_INSIDE}}})[)）]"
    rf"|(?P<super>[{_SUPER}]{{1,3}}+(?:[,⸴ ]{{1,2}}[{_SUPER}]{{1,3}}+){{0,9}}+)(?![⁺⁻\w])"
    rf"|(?P<bare>{_BARE_LIST}|{_BARE})"
    r"|(?P<private>\ue200[^\ue200\ue201\n]{1,200}\ue201)",
    re.IGNORECASE | re.DOTALL,
)
_LOOK_BACK = 40
_LEADS = re.compile(rf"(?:(?<![^\W_])|(?<=[\s,(]))(?P<lead>{_LEAD}{_ARTICLE})$", re.IGNORECASE)
_WEAK_LEADS = re.compile(
    rf"(?<![^\W_])(?P<lead>(?:in|from|per|by|see|with|im|in|dans|en|nel|no)\b{_ARTICLE})$",
    re.IGNORECASE,
)
_STATES = re.compile(
    r"\s++(?:(?:also|clearly|further)\s)?(?:states?|says?|notes?|mentions?|reports?|explains?|shows?"
    r"|indicates?|confirms?|adds?|specif(?:y|ies)|besagt|dit|dice|afirma)"
    r"(?:\s++(?:that|que|che)\b|\s*+,\s*+dass\b|:)\s*+"
    r"|\s*+(?:によると|によれば|에 따르면)[、,]?\s*+",
    re.IGNORECASE,
)
_STARTS = re.compile(
    rf"(?:^|[\n.!?…:。！？।॥؟۔։።]|\n[^\S\n]*(?:{ITEM}))[\s*_>\"“(]*$", re.IGNORECASE
)
_LINE_START = re.compile(rf"\n[^\S\n]*(?:>[^\S\n]*)*(?:{ITEM})?[^\S\n]*[*_]*$")
_CODE_BEFORE = re.compile(
    r"(?:=\s*|\$|\w\(|(?<![\w.])[a-z]|[^\W_]+_\w*"
    r"|(?<![^\W_])(?:args?|argv|arr|array|lst|list|items|rows?|cols?|df|vec|buf|idx))$"
)
_CODE_AFTER = re.compile(r"\s*[-+*/%]?=[^>]|\.[a-z_]{2,}")
_RANGE_BEFORE = re.compile(
    r"(?:[∈∊]|\b(?:intervals?|ranges?|scale|between|domain|CI|CrI|HDI|IQR|Intervall|KI|intervalle"
    r"|intervalo|intervallo|IC)(?:\s+(?:of|from|is|was|in)|\s*[:=,])?|(?<![^\W_])[a-z]\s+in)\s*$"
)
_VALUES_BEFORE = re.compile(r"\b(?:vectors?|arrays?|lists?|tuples?|returns|prints|yields)\s*:?\s*$")
_BOUNDS_BEFORE = re.compile(r"\b(?:in|into|to|from|over|within|on)\s*$")
_POWER_BEFORE = re.compile(
    r"(?:[\d)\]]|(?<![^\W\d_])(?:[^\W\d_]|[kcmnµμd]m|ft|in|mi|yd|sin|cos|tan|log|ln|exp)"
    r"|met(?:er|re)s?|feet|foot|inch(?:es)?|yards?|miles?)$",
    re.IGNORECASE,
)
_YEARS = re.compile(r"[12]\d{3}[a-z]?(?:\s*[-–,;]\s*[12]\d{3}[a-z]?)*")
_RESEMBLES = re.compile(
    rf"(?!.*\d\.\d)(?:\^|[CPR]\d{{1,3}}$|[^\W\d_]{{1,20}}[ .:#_-]{{1,2}}\d{{1,3}}$"
    rf"|\d{{1,9}}(?!\d|[:/%])|{_LABEL}(?:.*(?<!\d)\d{{1,3}}(?!\d)|\s*[:#]))",
    re.IGNORECASE,
)


class _Mark(NamedTuple):
    """A marker in a text: its place and ranges, and whether the text behind begins a sentence."""

    start: int
    end: int
    ranges: list[Range]
    starts_sentence: bool = False


def _text_before(text: str, start: int) -> str:
    """Return the characters before a place; a line end stands for the beginning of the text."""
    low = start - _LOOK_BACK
    return text[low:start] if low > 0 else f"\n{text[:start]}"


def _stands_in_code(
    text: str, match: re.Match[str], ranges: Sequence[Range], index_end: int
) -> bool:
    """Tell whether a bracket is an index or an array of a program."""
    start, end = match.span()
    before = text[max(start - _LOOK_BACK, 0) : start]
    attached = before[-1:].isalnum() or before[-1:] in {"_", ")", "]", '"', "'"}
    has_zero = any(first == 0 for first, _ in ranges)
    is_index = attached and (start == index_end or has_zero or _CODE_AFTER.match(text, end))
    return bool(is_index or _CODE_BEFORE.search(before))


def _is_interval(before: str, ranges: Sequence[Range], n_sources: int | None) -> bool:
    """Tell whether numbers are bounds, as in "a share in [0, 1]", or values, as in "the list"."""
    numbers = [number for edge in ranges for number in dict.fromkeys(edge)]
    if len(numbers) > 1 and 0 in numbers:
        return True
    if 1 < len(numbers) == len(ranges) and _VALUES_BEFORE.search(before):
        return True
    if len(numbers) != 2 or numbers[0] >= numbers[1]:  # noqa: PLR2004 - a pair
        return False
    is_beyond = n_sources is not None and numbers[1] > n_sources and len(ranges) > 1
    return bool(_RANGE_BEFORE.search(before) or (is_beyond and _BOUNDS_BEFORE.search(before)))


def _read(
    text: str, match: re.Match[str], names: Names, n_sources: int | None
) -> tuple[list[Range] | None, bool]:
    """Return what a marker cites, None for no marker, and whether such a text resembles one."""
    before = text[max(match.start() - _LOOK_BACK, 0) : match.start()]
    ranges, resembles = None, True  # the private characters of a chat page
    if match["super"]:
        word = before.rstrip(" ")
        is_behind_word = word[-1:].isalpha() or word[-1:] in {*".,;:!?…\"'”’»)。！？।؟۔*"}
        digits, resembles = match["super"].translate(_DIGITS).replace("⸴", ","), False
        if is_behind_word and not _POWER_BEFORE.search(word):
            ranges = _parse(digits, names)
    elif match["bare"]:
        ranges, resembles = _parse(match["bare"], names), False
    elif match["round"]:
        ranges, resembles = _read_parenthesis(match["round"].strip(), before, names)
    elif match["html"]:
        resembles = match["tag"].lower() != "sup"
        if resembles or not _POWER_BEFORE.search(before):
            ranges = _parse(match["html"].strip(" []"), names)
    elif match["square"]:
        inside = match["square"].rstrip("\\").strip()
        ranges = _parse(inside, names)
        is_foreign = match["open"] == "【" and re.search(r"\d|†", inside)
        resembles = bool((is_foreign or _RESEMBLES.match(inside)) and not _YEARS.fullmatch(inside))
    if ranges is not None and _is_interval(before, ranges, n_sources):
        return None, False
    return ranges, resembles and ranges is None


def _read_parenthesis(inside: str, before: str, names: Names) -> tuple[list[Range] | None, bool]:
    """Read what stands in parentheses: markers in brackets, a name with a dot, or `Document 3`."""
    lead = _IN_PARENTHESES.match(inside)
    content = inside[lead.end() if lead else 0 :]
    is_bracket = content[:1] in {*"[【［"}
    is_labelled = is_bracket or _TAG.match(content) is not None
    plain = re.sub(r"[\[\]【】［］]", " ", content).strip()
    is_name = plain.casefold() in names and ("." in plain or "/" in plain)
    is_call = is_bracket and before[-1:].isalnum()
    if (is_labelled or is_name) and not is_call and (ranges := _parse(plain, names)):
        return ranges, False
    return None, is_labelled and _RESEMBLES.match(content) is not None


def _widen(text: str, match: re.Match[str], ranges: list[Range]) -> _Mark | None:
    """Take "According to ... ," before a marker and "... states that" behind it into the marker."""
    start, end = match.span()
    before = _text_before(text, start)
    lead = _LEADS.search(before) or (_WEAK_LEADS.search(before) if match["bare"] else None)
    words = before[: lead.start("lead")] if lead else before
    at = start - len(before) + len(words)
    starts = _STARTS.search(words) is not None
    states = _STATES.match(text, end) if starts or lead else None
    if lead and states and "に" not in states[0]:
        states = None
    if match["bare"] and not lead and not states:
        return None
    if states:
        return _Mark(at, states.end(), ranges, starts_sentence=True)
    if lead and starts:
        # The pattern of a comma may be empty, so it always matches.
        return _Mark(at, _COMMA.match(text, end).end(), ranges, starts_sentence=True)  # type: ignore[union-attr]
    if lead:
        comma = re.search(r"[,，、]?\s*$", text[max(at - 4, 0) : at])
        start = at - len(comma[0]) if comma else at
    return _Mark(start, end, ranges)


_COMMA = re.compile(r"[^\S\n]*+[,:，、]?[^\S\n]*+")
_BETWEEN = re.compile(rf"[^\S\n]*+(?:[,;]|\b(?:{_AND})\b)?[^\S\n]*+")
_BETWEEN_RANGE = re.compile(r"[^\S\n]*+[-‐‑‒–—][^\S\n]*+")


def _join(text: str, marks: Iterable[_Mark]) -> list[_Mark]:
    """Join neighbours such as `[1], [2]`, the range `[1]-[3]`, and the stars around `**[1]**`."""
    joined: list[_Mark] = []
    for mark in marks:
        last = joined[-1] if joined else mark
        gap, is_near = text[last.end : mark.start], mark.start - last.end <= _LOOK_BACK
        if last is mark or not is_near or mark.starts_sentence:
            joined.append(mark)
        elif _BETWEEN.fullmatch(gap):
            last.ranges.extend(mark.ranges)  # a sum of lists would take quadratic time
            joined[-1] = last._replace(end=mark.end)
        elif _BETWEEN_RANGE.fullmatch(gap) and mark.ranges[0][1] > last.ranges[-1][0]:
            last.ranges[-1:] = [(last.ranges[-1][0], mark.ranges[0][1]), *mark.ranges[1:]]
            joined[-1] = last._replace(end=mark.end)
        else:
            joined.append(mark)
    return [_strip_emphasis(text, mark) for mark in joined]


def _strip_emphasis(text: str, mark: _Mark) -> _Mark:
    start, end = mark.start, mark.end
    while start and end < len(text) and text[start - 1] in "*_^~" and text[start - 1] == text[end]:
        start, end = start - 1, end + 1
    return mark._replace(start=start, end=end)


# ---- A list of references at the end, which cites nothing and gives numbers their names

_HEAD = (
    r"(?:sources?|references?|bibliography|citations?|works cited|literature"
    r"|footnotes|further reading|einzelnachweise"
    r"|quellen(?:angaben|verzeichnis)?|literatur(?:verzeichnis)?|belege|références"
    r"|bibliographie|fuentes|referencias|bibliografía|fonti|riferimenti|bibliografia|referências"
    r"|fontes|источники|литература|ссылки|(?:参考|资料|引用|信息)?来源|來源|參考文獻"
    r"|参考(?:文献|资料|情報|元)?|参照元?|引用元?|情報源|出典|المصادر|المراجع"
    r"|स्रोत|संदर्भ|출처|참고문헌|kaynak(?:lar|ça)|bronnen|źródła|zdroje|källor|kilder)"
    r"(?: used| cited)?[*_ \t]*"
)
_HEADING = re.compile(rf"[^\w(（\[]{{0,12}}{_HEAD}(?:[:：][*_ \t]*(?P<rest>.*))?", re.IGNORECASE)
# a sentence in the midst of a line may also be such a heading with its list
_BREAK = re.compile(
    rf"\n|(?<=[.!?…。！？।॥)\]】])[ \t]{{1,3}}(?=[*_(]{{0,3}}{_HEAD}[:：])", re.IGNORECASE
)
_ENTRY = re.compile(
    rf"[^\S\n]*+(?:[-*+•‣]\s++)?(?:\\?[\[【［]\^?(?P<square>{_NUMBER})(?:†[^】]{{0,100}})?\\?[\]】］]"
    rf"|\(?(?P<dot>{_NUMBER})[.):]|(?P<super>[{_SUPER}]{{1,3}}))(?P<colon>:?)(?P<rest>.*)"
)
_ENTRY_START = re.compile(r"(?=[\[【［]\^?\d)")
_RULE = re.compile(r"\s*(?:-{3,}|\*{3,}|_{3,})")
_IDLE_LINE = re.compile(r"\s*+[-*+•‣]\s.*|[-*_=\s]*")
_ADDRESS = re.compile(r"https?://|www\.|\b[\w-]{1,80}\.[A-Za-z]\w{1,4}\b")
_WORD = re.compile(r"[^\s\[\]()<>\"'`*,;|]+")
_REST = re.compile(r"\s[-–—|]\s|[:,;(|\[]|\.\s")
_MOST_WORDS = 50


def _find_name(entry: str, names: Names) -> Sequence[int]:
    """Find the sources that an entry of a list of references names."""
    plain = entry.strip(" \t.,:;*_`\"'“”<>()[]-").casefold()
    parts = [plain, _REST.split(plain, maxsplit=1)[0].strip()]
    parts += [word.rstrip(".:") for word in _WORD.findall(plain)[:_MOST_WORDS]] if names else []
    return next((names[part] for part in parts if part in names), ())


def _is_reference(line: str, names: Names) -> bool:
    """Tell whether a line has a number in brackets at the beginning, an address or a name."""
    entry = _ENTRY.match(line)
    has_number = entry is not None and entry["dot"] is None
    return has_number or bool(_ADDRESS.search(line) or _find_name(line, names))


def _read_number(entry: re.Match[str]) -> int:
    return int(entry["square"] or entry["dot"] or entry["super"].translate(_DIGITS))


def _find_references(text: str, marks: Sequence[_Mark], names: Names) -> tuple[int, dict[int, int]]:
    """Find the list of references at the end of an answer."""
    edges = [0, *(match.end() for match in _BREAK.finditer(text)), len(text)]
    pieces = ((low, text[low:high].rstrip()) for low, high in itertools.pairwise(edges))
    lines = [(low, line) for low, line in pieces if line]
    begin = n = len(lines)
    entries: list[str] = []
    listed: list[str] = []
    for at in range(n - 1, -1, -1):
        line = lines[at][1]
        heading = _HEADING.fullmatch(line)
        entry_text = line if heading is None else heading["rest"] or ""
        if not entry_text:
            begin, listed = (at, entries) if entries else (n, [])
            break
        is_reference = _is_reference(entry_text, names)
        if not (is_reference or _ENTRY.match(line) or _IDLE_LINE.fullmatch(line)):
            break
        entries.append(entry_text)
        if heading and is_reference:
            begin, listed = at, [*entries]
    is_cited = begin < n and any(mark.start < lines[begin][0] for mark in marks)
    if not is_cited and not any(_is_reference(entry, names) for entry in listed):
        begin = _find_bare_list(text, lines, marks)
        listed = [line for _, line in lines[begin:]]
    if begin == n or not any(map(str.isalnum, text[: lines[begin][0]])):
        return len(text), {}
    while not any(map(str.isalnum, lines[begin - 1][1])):  # a rule above the list
        begin -= 1
    resolved: dict[int, int] = {}
    for piece in itertools.chain.from_iterable(map(_ENTRY_START.split, reversed(listed))):
        if (entry := _ENTRY.match(piece)) and (places := _find_name(entry["rest"], names)):
            number = _read_number(entry)
            resolved.setdefault(number, number if number in places else places[0])
    return lines[begin][0], resolved


def _find_bare_list(text: str, lines: Sequence[tuple[int, str]], marks: Sequence[_Mark]) -> int:
    """Return the first line of a list of references without a heading, else the number of lines."""
    begin, entries = len(lines), list[re.Match[str]]()
    while begin and (entry := _ENTRY.match(lines[begin - 1][1])) and not entry["dot"]:
        entries.append(entry)
        begin -= 1
    if not entries or all(entry["colon"] for entry in entries):
        return begin
    start, numbers = lines[begin][0], list(map(_read_number, entries))
    cited = bytearray(1000)
    for first, last in {span for mark in marks if mark.start < start for span in mark.ranges}:
        cited[first : last + 1] = b"\1" * (last + 1 - first)
    is_below_rule = begin > 0 and _RULE.fullmatch(lines[begin - 1][1]) is not None
    is_apart = text[:start].rstrip(" \t\r").endswith("\n\n") and all(
        map(cited.__getitem__, numbers)
    )
    is_list = (is_below_rule or is_apart) and len(set(numbers)) == len(numbers)
    return begin if is_list else len(lines)


# ---- The markers of a text

_HINT = re.compile(
    rf"[\[【［〔(（<\n\ue200{_SUPER}]|\b(?:sources?|quellen?):|{_TAGGED}{_NUMBER}", re.IGNORECASE
)
_BLANKS = re.compile(r"(?:[ \t]*:)?[ \t]*")
_OPENERS = "(“‘«「『"
_LIST_ABOVE = re.compile(rf"(?:^|\n)[^\S\n]*(?:(?:{ITEM})|[ \t])[^\n]*$")


class Marks(NamedTuple):
    """The markers of an answer: the text without them, and what they cite.

    `citations` are (segment, number) in order: the number of a segment from 0, or -1 in a text of
    markers alone, and the number of a source. `unread` are texts that resemble markers.
    """

    text: str
    citations: list[tuple[int, int]]
    unread: list[str]


def _scan(
    text: str, names: Names, n_sources: int | None, unread: list[tuple[int, str]]
) -> Iterator[_Mark]:
    """Yield the markers outside of code, and add texts that resemble markers to `unread`."""
    at, index_end, left = 0, -1, MOST_NUMBERS
    while match := _SCAN.search(text, at):
        at, start = match.end(), match.start()
        if match["indented"] and _LIST_ABOVE.search(text, max(start - _INSIDE, 0), start):
            at = start + 1
            continue
        if match["fence"] or match["indented"] or match["ticks"]:
            continue
        ranges, resembles = _read(text, match, names, n_sources)
        if ranges and match["square"] and _stands_in_code(text, match, ranges, index_end):
            index_end = match.end()
            continue
        mark = _widen(text, match, ranges) if ranges else None
        left -= sum(last - first for first, last in ranges or ())
        if mark is not None and left >= 0:
            yield mark
            at = mark.end
        elif mark or resembles or (match["bare"] and match[0][0].isupper()):
            unread.append((start, match[0]))
        elif not match["bare"]:
            at = start + 1


def remove_marks(text: str) -> str:
    """Take the markers and the list of references out of a text."""
    return read_marks(text).text


def read_marks(text: str, names: Names | None = None, n_sources: int | None = None) -> Marks:
    r"""Take the markers out of an answer, and read what they cite.

    A number that a segment repeats is returned once, so `[1][1]` is one citation. A marker at the
    beginning of a line supports the sentence behind it. Any other marker supports the segment
    around or before it. Code has no markers, and years, indexes and intervals are none.

    A list of references at the end is no citation. An entry that names a source of `names` gives
    its number to that source. Of a range, the numbers over `n_sources` count once, as its last one.

    Examples
    --------
    >>> text = "Terns fly far [1-3]. They eat fish. [1]\n\nSources:\n[1] fish.md\n[9] x.md"
    >>> read_marks(text, {"fish.md": [2]}, 2)
    Marks(text='Terns fly far. They eat fish.', citations=[(0, 2), (0, 3), (1, 2)], unread=[])
    """
    if not _HINT.search(text):
        return Marks(text, [], [])
    names, unread = names or {}, list[tuple[int, str]]()
    marks = _join(text, _scan(text, names, n_sources, unread))
    end, resolved = _find_references(text, marks, names)
    marks = [mark for mark in marks if mark.start < end]
    plain, places = _cut_out(text[:end], marks, is_whole=end == len(text))
    edges = segments(plain)
    starts, ends = [start for start, _ in edges], [end for _, end in edges]
    citations: dict[tuple[int, int], None] = {}
    for mark, (place, opens) in zip(marks, places, strict=True):
        after = min(bisect.bisect_right(ends, place), len(ends) - 1)
        around = max(bisect.bisect_left(starts, place) - 1, 0)
        segment = (after if opens else around) if edges else -1
        for first, last in mark.ranges:
            shown = last if n_sources is None else min(last, max(first, n_sources))
            for number in (*range(first, shown + 1), last):
                citations[segment, resolved.get(number, number)] = None
    return Marks(plain, list(citations), [marker for place, marker in unread if place < end])


def _cut_out(
    text: str, marks: Iterable[_Mark], *, is_whole: bool
) -> tuple[str, list[tuple[int, bool]]]:
    """Cut markers out of a text."""
    pieces: list[str] = []
    places: list[tuple[int, bool]] = []
    length = last = 0
    for mark in marks:
        following = text[mark.end : mark.end + _LOOK_BACK]
        opens_line = _LINE_START.search(_text_before(text, mark.start))
        opens = mark.starts_sentence or bool(opens_line and following.split("\n", 1)[0].strip())
        piece = text[last : mark.start]
        piece = piece if opens else piece.rstrip(" \t\u00a0")
        places.append((length + len(piece), opens))
        last = mark.end
        if mark.starts_sentence and text[last : last + 1].islower():
            piece, last = piece + text[last].upper(), last + 1
        elif opens:
            last = _BLANKS.match(text, last).end()  # type: ignore[union-attr]  # always matches
        elif following[:1].isalnum() or following[:1] in {*_OPENERS}:
            piece += " "
        pieces.append(piece)
        length += len(piece)
    return "".join([*pieces, text[last:] if is_whole else text[last:].rstrip()]), places
