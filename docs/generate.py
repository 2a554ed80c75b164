"""Renew what is generated in README.md and docs/.

`python docs/generate.py` renews everything: the reference pages, the output of real runs and of the
notebook, and the picture of a report. `--pages` renews only the reference pages, in seconds.
`--check` compares the outputs with fresh ones and ignores times.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import notebook
import reference_pages

ROOT = Path(__file__).resolve().parents[1]
README, DOCS = ROOT / "README.md", ROOT / "docs"
PAGES: dict[str, Callable[[], str]] = {
    "commands": reference_pages.commands,
    "configuration": reference_pages.configuration,
    "settings": reference_pages.settings,
    "trust": reference_pages.guard_figures,
}
"""Pages of docs/ whose part between the markers of the same name is generated."""
RUNS = (
    (README, "output", "pandas_api"),
    (DOCS / "first-run.md", "output", "smoke"),
)
"""Pages with the output of a run: page, markers, gold set."""
WIDTH = 100
SCREEN = (1180, 1000)
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
TIMES = re.compile(
    r"evaluated in .*|\(content_hash .*|latency_p95_ms.*|\d+\.\d[ \t]*$|\b[0-9a-f]{12,}\b|[ \t─]+",
    re.MULTILINE,
)
"""Times, hashes and white space.

The revision of the small gold set is that of this repository, so it changes with every commit.
"""
NUMBER = re.compile(r"[+-]?\d+\.\d+|\d+(?:,\d{3})+")
"""Decimals, and counts from a thousand on."""
TOLERANCE = 0.02
"""Largest accepted difference of a figure, relative above 1.

Another processor's linear algebra differs in the last bits, which can swap two neighbours, and an
approximate index, built by several threads, finds other chunks in each run.
"""


def block(text: str, name: str) -> str:
    """Return the text between the markers of a generated part."""
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", text, re.DOTALL)
    if found is None:
        raise SystemExit(f"the document has no generated part {name}")
    return found[1]


def replace(text: str, name: str, new: str) -> str:
    """Put new text between the markers."""
    old = block(text, name)
    return text.replace(f"<!-- {name} -->\n{old}", f"<!-- {name} -->\n{new}")


def renewed_pages() -> dict[Path, str]:
    """Return each reference page as it should be."""
    pages = {}
    for name, write in PAGES.items():
        path = DOCS / f"{name}.md"
        pages[path] = replace(path.read_text(encoding="utf-8"), name, write())
    return pages


def same(a: str, b: str) -> bool:
    """Compare two READMEs without times, hashes, white space and the last digit of figures."""
    left, right = TIMES.sub(" ", a), TIMES.sub(" ", b)
    figures = [
        [float(figure.replace(",", "")) for figure in NUMBER.findall(text)]
        for text in (left, right)
    ]
    counted = [re.sub(r"\b\d+/\d+\b", "n/n", NUMBER.sub("x", text)) for text in (left, right)]
    return (
        counted[0] == counted[1]
        and len(figures[0]) == len(figures[1])
        and all(abs(x - y) <= TOLERANCE * max(1, x, y) for x, y in zip(*figures, strict=True))
    )


def screenshot(page: Path) -> bytes:
    """Take a picture of the top of a report with headless Chromium."""
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("RAG_EVAL_CHROMIUM") or next(
        filter(None, map(shutil.which, CHROMIUM)), None
    )
    if chromium is None:
        raise SystemExit(
            f"the picture of the README needs Chromium on the PATH ({', '.join(CHROMIUM)}) "
            "or its place in RAG_EVAL_CHROMIUM"
        )
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        shown = browser.new_page(
            viewport={"width": SCREEN[0], "height": SCREEN[1]},
            color_scheme="light",
            device_scale_factor=1.5,
        )
        shown.goto(page.resolve().as_uri())
        taken = shown.screenshot()
        browser.close()
    return bytes(taken)


def evaluate(gold_set: str, folder: Path) -> str:
    """Run a gold set in an empty folder, as a user does; return what the terminal shows."""
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "gold_sets").symlink_to(ROOT / "gold_sets")
    # Settings of this machine, such as a run without its page, must not reach the documents.
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAG_EVAL_")}
    done = subprocess.run(  # noqa: S603 - the program of this environment, and a name of ours
        [".venv/bin/rag-eval", "run", gold_set],
        cwd=folder,
        env={**own, "PYTHONPATH": str(ROOT), "COLUMNS": str(WIDTH)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    shown = "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())
    return f"```text\n{shown}\n```\n"


def renewed_runs(*, picture: bool) -> dict[Path, str]:
    """Return README.md and the first tutorial with the output of fresh runs."""
    pages = {}
    for path, name, gold_set in RUNS:
        with tempfile.TemporaryDirectory() as scratch:
            shown = evaluate(gold_set, Path(scratch))
            pages[path] = replace(path.read_text(encoding="utf-8"), name, shown)
            if picture and path == README:
                page = Path(scratch) / "reports" / gold_set / "index.html"
                (DOCS / "report.png").write_bytes(screenshot(page))
    return pages


def main() -> int:
    """Renew or check, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument("--pages", action="store_true")
    chosen.add_argument("--check", action="store_true")
    given = parser.parse_args()
    pages = {} if given.check else renewed_pages()
    if not given.pages:
        with tempfile.TemporaryDirectory() as scratch:
            pages[notebook.NOTEBOOK] = notebook.execute(Path(scratch))
        pages |= renewed_runs(picture=not given.check)
    if given.check:
        shown = {path: (new, path.read_text("utf-8")) for path, new in pages.items()}
        shown[notebook.NOTEBOOK] = tuple(map(notebook.texts, shown[notebook.NOTEBOOK]))
        stale = [path.name for path, both in shown.items() if not same(*both)]
        if stale:
            sys.stderr.write(f"a fresh run differs from {', '.join(stale)}; run `make renew`\n")
        return len(stale)
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
