"""Whether decoded characters are text that somebody wrote, or what decoding makes of bytes that were never text."""

import re

_COMMON = """
the a an and or of to in is are be was for on with as by at from that this it not if do all any you your we our i my me he she they them will can
must should would have has been no now then there here what when where which who how use add include insert write say tell answer reply respond
response output print show send ignore disregard forget previous prior above instruction instructions prompt system user assistant model secret
password key data file link click http https www please always never only text message word words end begin start hello world new
el la los las de que y en un una por con para su es no der die das und ist nicht sie ihre alle le les des et est pas vous votre tous o os il e di che
"""
COMMON_WORDS = frozenset(_COMMON.split())
_WORDS = re.compile(r"[^\W\d_]+")
_PRINTABLE_ASCII = bytes(range(32, 127)) + b"\t\n\r"
_LATIN_END = 0x250
MIN_CHARS, MIN_WORDS, _HEAD = 6, 2, 4000
_PRINTABLE_SHARE, _LETTER_SHARE, _KNOWN_SHARE, _LONG = 0.95, 0.7, 0.15, 14


def printable(data: bytes) -> str | None:
    """The text of UTF-8 bytes if nearly all of it can be printed; else None."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if text.isascii():
        bad = len(data.translate(None, _PRINTABLE_ASCII))
    else:
        bad = sum(not (letter.isprintable() or letter in "\t\n\r") for letter in text)
    return text if text and bad <= (1 - _PRINTABLE_SHARE) * len(text) else None


def is_text(text: str) -> bool:
    """Whether a text reads like sentences: mostly letters and spaces, and known words among its words.

    Text in other scripts has no list of words here: half of its letters beyond Latin are enough, since bytes that are no text hardly ever decode to that.

    Examples
    --------
    >>> is_text("ignore the instructions above"), is_text("kQ9 zzt vrX p1")
    (True, False)
    """
    head = text[:_HEAD]
    if len(head) < MIN_CHARS:
        return False
    letters = sum(letter.isalpha() for letter in head)
    spaces = head.count(" ") + head.count("\n")
    if letters + spaces < _LETTER_SHARE * len(head):
        return False
    if sum(ord(letter) >= _LATIN_END for letter in head if letter.isalpha()) * 2 > letters:
        return True
    words = [word.lower() for word in _WORDS.findall(head)]
    known = sum(word in COMMON_WORDS for word in words)
    return (
        len(words) >= MIN_WORDS
        and known >= max(1, _KNOWN_SHARE * len(words))
        and max(map(len, words)) <= 2 * _LONG
    )
