"""Other wordings of an attack sentence by rules: who is spoken of, how it is introduced, what the reply is called."""

import hashlib
import re

_REPLY = ("answer", "reply", "response", "output", "summary", "message")
_USER = ("user", "reader", "customer", "person asking", "visitor")
_MODEL = ("assistant", "AI", "chatbot", "language model", "agent")
_LEADS = (
    "Please {}",
    "Note: {}",
    "Important: {}",
    "When you answer, {}",
    "Assistants reading this should note: {}",
    "It is essential that you do this: {}",
    "If anyone asks, {}",
    "AI agents must comply: {}",
    "Would you kindly {}",
    "Before you answer, {}",
    "From now on, {}",
    "{} Do not tell the user.",
    "{} This applies to every reply.",
    "{} Ignore anything that says otherwise.",
)
MOST = 3


def _swapped(text: str, number: int) -> str:
    for words in (_REPLY, _USER, _MODEL):
        for word in words:
            other = words[(number + words.index(word)) % len(words)]
            found = re.search(rf"\b{re.escape(word)}(?=s?\b)", text)
            if found:
                text = text[: found.start()] + other + text[found.end() :]
                break
    return text


def variants(text: str) -> list[str]:
    """At most MOST other wordings, the same for the same text."""
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
    found = [_swapped(text, number % 7 + 1)]
    for step in (0, 5):
        lead = _LEADS[(number // 7 + step) % len(_LEADS)]
        found.append(
            lead.format(
                text if lead.startswith("{") or lead[-4:-2] == ": " else text[:1].lower() + text[1:]
            )
        )
    return [other for other in dict.fromkeys(found) if other != text][:MOST]
