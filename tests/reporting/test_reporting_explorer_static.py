"""Scripts and styles of the page never make markup, run data as code or use a network."""

import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

ASSETS = files("rag_eval.reporting.html") / "assets"
SCRIPTS = ("explorer.js",)
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


def source(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("what", FORBIDDEN)
def test_nothing_turns_data_into_markup_or_code(name: str, what: str) -> None:
    assert re.findall(FORBIDDEN[what], source(name), re.MULTILINE) == []


def test_the_explorer_fetches_from_its_own_server_only_and_links_tell_nothing() -> None:
    code = source("explorer.js")
    assert re.findall(r"fetch\(([^,]+),", code) == [
        "root.dataset.base + 'explorer/' + name + '.json'",
    ]
    assert code.count("href: address") == 1
    assert "href: address, target: '_blank', rel: 'noopener noreferrer nofollow'" in code


@pytest.mark.parametrize("name", ["explorer.css"])
def test_styles_ask_for_no_file(name: str) -> None:
    assert re.findall(r"url\(|@import|@font-face|expression\(|</style", source(name)) == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_parse(name: str, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the script is not parsed here")
    script = tmp_path / name
    script.write_text(source(name), encoding="utf-8")
    done = subprocess.run(
        [node, "--check", str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
