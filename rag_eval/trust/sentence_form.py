"""The form of a sentence: does it ask, does it order, does it speak to its reader.

Belongs here: what can be told by closed word classes and by word order, for English; in other languages only question marks are seen. What a
sentence is about, and whether its form is unusual where it stands, is no business of this file.
"""

import re
from typing import NamedTuple

_CLOSED = """
a about above across after against all almost along already also although always am among amongst an and another any are around as at away
be because been before behind being below beneath beside besides between beyond both but by can cannot could despite did do does during each
either else enough even ever every except few for from had has have he hence her here hers herself him himself his how however i if in
indeed inside instead into is it its itself just last least less like many may maybe me might mine more most much must my myself near
neither never next no none nor not nothing now of off often on once one only onto or other others otherwise our ours out outside over own
past per perhaps quite rather round same second several shall she should since so some something sometimes soon still such than that the
their theirs them then there therefore these they third this those though through throughout thus till to today together tomorrow too toward
towards under underneath unless unlike until unto up upon us very via was we were what whatever when whenever where whereas wherever whether
which whichever while whilst who whoever whom whose why will with within without would yes yesterday yet you your yours yourself yourselves
amid given aside ago apart due prior subsequent contrary similar likewise alongside likely later earlier well young old new first two three four five six seven eight nine ten half twice part number
january february march april may june july august september october november december monday tuesday wednesday thursday friday saturday sunday
don doesn didn isn aren wasn weren won wouldn couldn shouldn hasn haven hadn ll ve re
"""
CLOSED_CLASS: frozenset[str] = frozenset(_CLOSED.split())
"""Words that say nothing of a subject, and with which no order begins."""

_TASKS = """
accept access achieve acquire act add address adjust advise aim allow analyze analyse answer append apply argue arrange ask assemble assess
assign assume attach avoid bake begin boil bring build buy calculate call cancel categorize change check choose cite clarify classify clean
clear click close collect combine come compare complete compose compute conclude connect consider construct contact continue contrast convert
cook copy correct count create debate decide decode define delete deliver demonstrate derive describe design determine develop diagnose disable
discuss display distinguish divide do download draft draw edit elaborate eliminate email embed employ emphasize enable encode encourage enhance
ensure enter enumerate estimate evaluate examine execute expand explain explore express extend extract fetch fill find finish fix follow forget
format formulate forward generate get give go group guess guide help highlight hide identify ignore illustrate imagine implement improve include
incorporate increase inform insert inspect install integrate interpret introduce invent invite investigate join justify keep learn leave let
list listen load locate look make mention merge modify move multiply name narrate offer open organize outline paint paraphrase pay perform pick
plan play please predict prepare present pretend print produce promote proofread propose prove provide publish put quote rank rate read rearrange
recall recite recommend reduce refer refrain register reject remember remind remove rename rephrase replace reply report reproduce request
research resolve respond restart return reveal review revise rewrite run save say search select sell send separate set share show shorten sign
simplify simulate sing sketch skip solve sort speak specify spell split start state stop store submit subscribe subtract suggest sum summarize
summarise supply support swap take talk teach tell test think transcribe transform translate treat try turn type uninstall unscramble update
upgrade upload use utilize verify visit vote wait warn watch wear weigh write
"""
TASK_VERBS: frozenset[str] = frozenset(_TASKS.split())

_ASKING = frozenset(
    "what what's whats who who's whom whose which when when's where where's why why's how how's".split()
)
_INVERTED = frozenset(
    "is are was were am do does did can could will would shall should may might must has have had isn't aren't wasn't weren't don't doesn't didn't can't couldn't won't wouldn't shouldn't hasn't haven't".split()
)
_AUXILIARY = _INVERTED | {"'s", "be"}
_AFTER_INVERSION = frozenset(
    "i you he she it we they the a an this that these those there my your his her its our their any anyone someone everyone".split()
)
_OBJECT = frozenset(
    "the a an your my our his her its their this that these those me us him them it all any some each every both how what why which whether".split()
)
_NOUNS_TOO = frozenset(
    """
access act address aim increase answer approach ask attach avoid bake build call cancel cause change check cite clean clear click close collect contact contrast cook copy
correct count cut debate delete design display divide download draft draw edit email estimate express extract find finish fix format forward function get go group guess guide
help highlight insert install invite join keep list listen load look merge move name offer open order outline paint pay perform pick plan play present print produce project
promote prompt question quote rank rate read record refrain register reject report request research restart return review run save say search select sell send separate set
share show sign sketch skip solve sort speak spell split start state stop store submit sum supply support swap talk teach tell test think transfer transform treat turn
type update upgrade upload visit vote wait warn watch wear write
""".split()
)
_ADJECTIVES_TOO = frozenset(
    "clean clear complete correct double dry free open present separate slow".split()
)
_PREPOSITIONS = frozenset(
    "against at between by during for from in into on over through to toward towards under with within".split()
)
_TAKES_PREPOSITION = frozenset(
    "act answer ask check click get go guess join listen look move play register reply report search sort speak start stop switch talk tell think turn vote wait watch write".split()
)
_PARTICLES = frozenset("about away back down in into off on out over through up".split())
_FINITE = _AUXILIARY | {
    "cannot",
    "not",
    "also",
    "began",
    "became",
    "came",
    "went",
    "made",
    "took",
    "gave",
    "found",
    "led",
    "held",
    "saw",
    "won",
    "lost",
}
_OPENING = frozenset(
    "please kindly now then next finally also so and but first second third lastly just always never simply quickly briefly step task question note important hello hi hey ok okay dear".split()
)
_NEGATED = frozenset("don't dont never".split())
_LETS = frozenset({"let", "let's", "lets"})
_NO_OBJECT = frozenset({"of", "and", "or", ":", "=", "(", ")", ","})
_ADDRESS = frozenset("you your yours yourself me my".split())
_QUESTION_WORDS = _ASKING | _INVERTED
_ASKED_OF_READER = frozenset({"can", "could", "would", "will"})
_BROKEN = frozenset(".,;)]}>")
_NO_BASE_FORM = tuple(
    "ing ed ly tion sion ment ness ity ism ist ous ful ship ance ence ian ese ical ology".split()
)
_TOKEN = re.compile(r"[^\W_]+(?:['’-][^\W_]+)*|[?？¿,:;=()]")
_PHRASE = 20
_OPENINGS = 8
_SUBJECT = 5
_READ = 600
_BEGINNING, _SHORT, _MARKS = 8, 14, 12
_ENDS_ASKING = re.compile(r"[?？؟][\"'”’»)\]\s!.…]*\Z")


class Form(NamedTuple):
    """Marks of a sentence's form; several may hold."""

    asks: bool
    orders: bool
    addresses: bool


def _task_orders(words: list[str], lowered: list[str]) -> bool:
    """Whether a sentence that begins with a task's verb is an order and not about a noun or adjective of the same letters."""
    first, following = lowered[0], lowered[1] if len(lowered) > 1 else ""
    if following in _OBJECT or (first not in _NOUNS_TOO and first not in _ADJECTIVES_TOO):
        return True
    if first in _ADJECTIVES_TOO or (following in _PREPOSITIONS and first not in _TAKES_PREPOSITION):
        return False
    # "Research groups have", "State Route 41 ends": a subject of several words, and its verb
    named = len(words) > 1 and words[1][:1].isupper() and words[1] != "I"
    return not named and not any(
        word in _FINITE or word.endswith("ed") for word in lowered[1 : 1 + _SUBJECT]
    )


def _base_form(word: str) -> bool:
    """Whether a word may be a verb's base form by its letters: of no closed class, without an ending of other classes."""
    plural = word.endswith("s") and not word.endswith("ss")
    return (
        word not in CLOSED_CLASS
        and word.isalpha()
        and not plural
        and not word.endswith(_NO_BASE_FORM)
    )


def _orders(words: list[str], lowered: list[str]) -> bool:
    """Whether words, openings removed, begin like an order."""
    first, following, third = (*lowered[:3], "", "")[:3]
    if first in _NEGATED:
        return following in TASK_VERBS or (bool(third) and _base_form(following))
    if first in _LETS or (first == "do" and following == "not"):
        return following != "alone"
    # an acronym or a letter is a name; "state is", "use of" speak of a thing
    if words[0].isupper() or len(first) < 2 or following in _AUXILIARY or following in _NO_OBJECT:  # noqa: PLR2004 - one letter
        return False
    if first in TASK_VERBS:
        return _task_orders(words, lowered)
    return (third if following in _PARTICLES and third else following) in _OBJECT and _base_form(
        first
    )  # "break down the", "look up what"


def _asks(sentence: str, words: list[str], lowered: list[str]) -> bool:
    """Whether words, openings removed, ask: a question's mark and order, or the order alone."""
    begins = lowered[:_BEGINNING]
    if _ENDS_ASKING.search(sentence[-_MARKS:]):
        # a statement that ends with somebody's question is none; without any English word only the mark can be seen
        return (
            len(words) <= _SHORT
            or not _QUESTION_WORDS.isdisjoint(begins)
            or CLOSED_CLASS.isdisjoint(begins)
        )
    if len(lowered) < 3 or not words[0][:1].isupper():  # noqa: PLR2004 - asking word, verb, subject
        return False
    if lowered[0] in _ASKING:
        return lowered[1] in _AUXILIARY and lowered[2] in _AFTER_INVERSION
    return lowered[0] in _ASKED_OF_READER and lowered[1] in {"you", "we"}


def form_of(sentence: str) -> Form:
    """Tell the form of one sentence by its first words, its last mark and its pronouns.

    Examples
    --------
    >>> form_of("How deep is the lake?")
    Form(asks=True, orders=False, addresses=False)
    >>> form_of("Please list three of your favourite rivers.")
    Form(asks=False, orders=True, addresses=True)
    >>> form_of("In 1901 the lake was deep.")
    Form(asks=False, orders=False, addresses=False)
    """
    words = [match[0].replace("’", "'") for match in _TOKEN.finditer(sentence[:_READ])]
    lowered = [word.lower() for word in words]
    addresses = not _ADDRESS.isdisjoint(lowered)
    at, limit = 0, min(len(words) - 1, _OPENINGS)
    while at < limit and (lowered[at] in _OPENING or lowered[at] in {",", ":"}):
        at += 1
    # "In your answer, name ...": a phrase that speaks to the reader, then the order
    if (
        at < len(words)
        and lowered[at]
        in {
            "in",
            "with",
            "for",
            "using",
            "at",
            "to",
            "as",
            "before",
            "after",
            "when",
            "if",
            "within",
        }
        and "," in lowered[at : at + _PHRASE]
    ):
        comma = lowered.index(",", at)
        after = comma + 1
        while after < len(words) - 1 and lowered[after] in _OPENING:
            after += 1
        if after < len(words) and not _ADDRESS.isdisjoint(
            [*lowered[at:comma], *lowered[after : after + 3]]
        ):
            at = after
    rest, small = words[at:], lowered[at:]
    if not rest:
        return Form(asks=False, orders=False, addresses=addresses)
    asks = _asks(sentence, rest, small)
    # a sentence that begins with a mark is the rest of one
    return Form(asks, not asks and sentence[:1] not in _BROKEN and _orders(rest, small), addresses)
