"""Renew the generated parts of README.md and docs/commands.md.

The generated parts are the output of a real run of the bundled gold set, the picture of its report
and the list of commands. `python docs/make_readme.py` writes them. `--check` compares them with a
fresh run, and ignores times.
"""

import argparse
import io
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README, COMMANDS = ROOT / "README.md", ROOT / "docs" / "commands.md"
WIDTH = 100
SCREEN = (1180, 1000)
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
TIMES = re.compile(
    r"evaluated in .*|\(content_hash .*|latency_p95_ms.*|\d+\.\d[ \t]*$|[ \t─]+", re.MULTILINE
)
NUMBER = re.compile(r"[+-]?\d+\.\d+")
TOLERANCE = 0.02
"""Largest accepted difference of a figure.

Another processor's linear algebra differs in the last bits, which can swap two neighbours.
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


def same(a: str, b: str) -> bool:
    """Compare two READMEs without times, hashes, white space and the last digit of figures."""
    left, right = TIMES.sub(" ", a), TIMES.sub(" ", b)
    figures = [[float(figure) for figure in NUMBER.findall(text)] for text in (left, right)]
    counted = [re.sub(r"\b\d+/\d+\b", "n/n", NUMBER.sub("x", text)) for text in (left, right)]
    return (
        counted[0] == counted[1]
        and len(figures[0]) == len(figures[1])
        and all(abs(x - y) <= TOLERANCE for x, y in zip(*figures, strict=True))
    )


def commands() -> str:
    """List every command with the first line of its help."""
    import typer.main

    from rag_eval.cli.app import app

    group = typer.main.get_command(app)
    rows = [
        f"| `rag-eval {name}` | {(command.help or '').splitlines()[0]} |"
        for name, command in group.commands.items()
    ]
    return "\n".join(["| command | what it does |", "|---|---|", *rows]) + "\n"


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


def evaluate(*, picture: bool) -> tuple[str, bytes]:
    """Run the bundled gold set in a fresh home; return the terminal output and the picture.

    Without `picture` the second value is empty.
    """
    from rich.console import Console

    from rag_eval.core.settings import Settings, telemetry_off

    telemetry_off()
    from rag_eval.pipeline.evaluation import open_gold_set
    from rag_eval.pipeline.run import evaluate_all
    from rag_eval.reporting.terminal import show_outcome

    with tempfile.TemporaryDirectory() as scratch:
        settings = Settings.model_validate(
            {"home": Path(scratch) / "home", "reports": Path(scratch) / "reports"}
        )
        (outcome,) = evaluate_all(
            [open_gold_set(ROOT / "gold_sets" / settings.primary_gold_set, settings)], settings
        )
        console = Console(file=io.StringIO(), width=WIDTH, highlight=False, no_color=True)
        show_outcome(
            console,
            outcome.report,
            Path("reports") / settings.primary_gold_set,
            outcome.seconds,
            ".venv/bin/rag-eval",
        )
        text = "\n".join(line.rstrip() for line in console.file.getvalue().strip().splitlines())
        return f"```text\n{text}\n```\n", screenshot(
            outcome.folder / "index.html"
        ) if picture else b""


def main() -> int:
    """Renew or check the README, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    readme, listed = (path.read_text(encoding="utf-8") for path in (README, COMMANDS))
    output, picture = evaluate(picture=not check)
    new, new_listed = replace(readme, "output", output), replace(listed, "commands", commands())
    if not check:
        README.write_text(new, encoding="utf-8", newline="\n")
        COMMANDS.write_text(new_listed, encoding="utf-8", newline="\n")
        (ROOT / "docs" / "report.png").write_bytes(picture)
        return 0
    if not same(new, readme) or new_listed != listed:
        sys.stderr.write(
            "README.md or docs/commands.md is not what a fresh run gives; run `make docs`\n"
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
