"""Which sentences of a text the addressing check looks at: those with a word that speaks of answering, of who answers or of who asks.

Belongs here: the prefilter and where sentences begin and end in a normalised text. Linear in the text, whatever stands in it.
"""

import functools
import re
from collections.abc import Iterator

from rag_eval.trust.patterns import LinearPattern

BACK, REACH = 200, 400
"""Characters that a sentence reaches at most before, and after, the word that made it looked at."""
_LONG = 100
_TRIGGERS = """
you your yours yourself answers? answering repl(?:y|ies|ying) respond(?:ing)? responses? outputs? summar(?:y|ies|i[sz]e|i[sz]es|i[sz]ing|i[sz]ation|i[sz]er|i[sz]ers) recap
assistants? ai llms? bots? chatbots? agents? users? readers? customers? visitors? caller prompts? instructions? directives? guidelines conversations? chats? dialogue
ignore disregard forget pretend refuse tell mention mentioned persona whoever anyone asking asks secret passwords? credentials directions models? reviewers? graders? crawlers?
override overrides restrictions rules constraints say says reveal confidential translat(?:e|ion|ing) remember sponsor respondents? reviewer assignment tasks? context
invoke execute delete send print repeat robots? transcript inbox superseded
"""
_BEGINNINGS = """
give put add insert write say leave keep make hide show report answer reply respond forward transfer rename call run open visit post upload share cite quote name list treat rate rank mark classify place
prefer save act claim let have stop skip state translate describe praise recommend advise present convince persuade ask inform invoke trigger execute delete send print repeat remember include
append render display load fetch embed encode decline withhold deny attribute credit avoid omit whatever whoever nothing reveal switch speak talk pose introduce sign book order buy
"""
"""Words that make a sentence looked at where it begins with them."""
_WEAK = frozenset(
    """
reveal tell mention transcript guidelines repeat summarize summarizes summarise summarises summarizing summarising robot robots ai assignment user users password ignore response responses model models agent agents context task tasks rules prompt say says output outputs constraints restrictions summary dialogue respond responding reviewer reviewers respondent
respondents override overrides reply replies caller execute invoke delete send print repeat key translation guidelines conversation conversations answer answers mentioned reader readers directions crawler crawlers customer customers
""".split()
)
"""Triggers that say nothing alone; beside them there must be a word of _BESIDE."""
_BESIDE = (
    r"\b(?:you|your|must|should|shall|ought|please|users?|reader|person|anyone|whoever|do not|don't|never|always|whenever|whatever|is to|are to|are required|is required|has to|have to|tell|say|says|give|put|add|write|let|ask"
    r"|https?|ai|assistant|chatbot|ignore|disregard|forget|pretend|refuse|secret|confidential|passwords?|credentials|instead|from now|if the|if a|when the|when asked|this page|this text|this line|been lifted|been replaced|nothing|every)\b"
)
_END = re.compile(r"[.!?。！？][\"'”’»)\]*]{0,5}(?: |$)")


@functools.lru_cache(maxsize=1)
def _triggers() -> LinearPattern:
    return LinearPattern(
        rf"(?:^|[.!?:] )(?:{'|'.join(_BEGINNINGS.split())})\b|\b(?:{'|'.join(_TRIGGERS.split())})\b"
    )


@functools.lru_cache(maxsize=1)
def _beside() -> LinearPattern:
    return LinearPattern(_BESIDE)


def sentences_looked_at(text: str) -> Iterator[tuple[int, int]]:
    """Characters of each sentence that has a trigger, in order and without overlap.

    Parameters
    ----------
    text
        Normalised, as `views.View.text` is.
    """
    last = 0
    data = text.encode(
        "ascii", "replace"
    )  # one byte for each character, so that places in both are the same; what is looked for is ASCII
    for start, end in _triggers().spans(data):
        # a match that was drawn out to the end of its window stands for all that may be in it
        stops = (end - 1,) if end - start < _LONG else range(start, end, REACH // 2)
        for stop in stops:
            if stop < last:
                continue
            low = max(last, stop - BACK)
            for match in _END.finditer(text, low, stop):
                low = match.end()
            ended = _END.search(text, stop, min(len(text), stop + REACH))
            last = ended.end() if ended else min(len(text), stop + REACH)
            if text[start:end] not in _WEAK or _beside().found_in(data, low, last):
                yield low, last
