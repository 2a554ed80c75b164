"""Scripts and styles of the page never make markup, run data as code or use a network."""

import re
from importlib.resources import files

import pytest

ASSETS = files("rag_eval.reporting") / "assets"
FORBIDDEN = {
    "markup from text": (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|"
        r"createContextualFragment|srcdoc|setHTML"
    ),
    "code from text": (
        r"(?<![\w-])eval\b|new Function|\bFunction\(|import\("
        r"|setTimeout\(\s*['\"`]|setInterval"
    ),
    "styles of elements": r"\.style\b|['\"]style['\"]|cssText|insertRule|adoptedStyleSheets",
    "addresses": r"https?://|//cdn|\bwss?:",
    "other ways out": (
        r"XMLHttpRequest|WebSocket|EventSource|sendBeacon|localStorage|sessionStorage|"
        r"document\.cookie|postMessage|window\.open"
    ),
    "ends of a script element": r"</script|<!--",
    "attributes that run": r"['\"]on[a-z]+['\"]\s*[:,]\s*['\"`]",
    "imports and exports": r"^\s*(?:import|export)\s",
}


CODE = (ASSETS / "explorer.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("what", FORBIDDEN)
def test_nothing_turns_data_into_markup_or_code(what):
    assert re.findall(FORBIDDEN[what], CODE, re.MULTILINE) == []


def test_the_explorer_fetches_from_its_own_server_only_and_links_tell_nothing():
    assert re.findall(r"fetch\(([^,]+),", CODE) == [
        "root.dataset.base + 'explorer/' + name + '.json'",
    ]
    assert CODE.count("href: address") == 1
    assert "href: address, target: '_blank', rel: 'noopener noreferrer nofollow'" in CODE
