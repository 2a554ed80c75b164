"""Start a real Chromium, and evaluate the hostile project whose pages the tests open."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import hostile_project
import pytest
from evaluated import Evaluated
from requirements import report_missing
from serving import Viewer
from visits import Visit

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
NAMED = os.environ.get("RAG_EVAL_CHROMIUM")
SCREENSHOTS = os.environ.get("RAG_EVAL_SCREENSHOTS")
AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"


@pytest.fixture(scope="session")
def chromium() -> str:
    """Return the browser's path: RAG_EVAL_CHROMIUM, else the first of BROWSERS on the path."""
    found = NAMED or next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None or not Path(found).is_file():
        report_missing(
            "browser",
            f"no browser: {NAMED or ', '.join(BROWSERS)} not found; install chromium or name "
            "one in RAG_EVAL_CHROMIUM",
        )
    return str(found)


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[object]:
    """Start a browser for a file of tests.

    A running Playwright owns the event loop of its thread. With the scope `session`, a later
    file of the same worker could not start a loop.
    """
    from playwright.sync_api import sync_playwright

    # Chromium refuses its sandbox to root. The resolver finds no host, so no page reaches a host.
    arguments = [
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
        *(["--no-sandbox"] if os.geteuid() == 0 else []),
    ]
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=arguments)
        yield started
        started.close()


@pytest.fixture
def visit(browser) -> Iterator[Callable[..., Visit]]:
    """Open an address or a file in a context of its own, and close it after the test."""
    opened: list[Visit] = []

    def go(address: str | Path, **options: object) -> Visit:
        made = Visit(browser, address, **options)
        opened.append(made)
        return made

    yield go
    for made in opened:
        made.close()


LOOKS = {
    "1440-light": {"narrow": False, "dark": False},
    "390-dark": {"narrow": True, "dark": True},
}
"""Options of a visit: each width and each theme once.

Width and theme have separate rules in the style sheet, so two of the four pairs suffice.
"""


@pytest.fixture(params=LOOKS)
def look(request) -> dict[str, bool]:
    """Return the options of one of LOOKS: a light desktop or a dark phone."""
    return LOOKS[request.param]


@pytest.fixture(scope="session")
def looks() -> list[dict[str, bool]]:
    """Return all LOOKS for a single test over a page that takes long to make."""
    return list(LOOKS.values())


@pytest.fixture
def picture() -> Callable[[Visit, str], None]:
    """Save a picture of the whole page in the folder RAG_EVAL_SCREENSHOTS, if that is set."""

    def take(seen: Visit, name: str) -> None:
        if SCREENSHOTS:
            look = f"{390 if seen.narrow else 1440}-{'dark' if seen.dark else 'light'}"
            Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
            seen.page.screenshot(path=Path(SCREENSHOTS) / f"{name}-{look}.png", full_page=True)

    return take


@pytest.fixture(scope="session")
def axe() -> str:
    """Return the source of axe-core, which `make test-all` installs from npm."""
    if not AXE.is_file():
        report_missing(
            "browser",
            "axe-core is not installed: npm ci --ignore-scripts in tests/browser, or make test-all",
        )
    return AXE.read_text(encoding="utf-8")


@pytest.fixture(scope="session")
def hostile(tmp_path_factory) -> Evaluated:
    """Return the hostile project, evaluated once for all workers of a session."""
    base, name = tmp_path_factory.getbasetemp(), "hostile"
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    root = shared / f"evaluated-{name}"
    with (shared / f"evaluated-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "done").exists():
            shutil.rmtree(root, ignore_errors=True)
            hostile_project.write(root / "gold_sets")
            ran = hostile_project.command(root, "run", name)
            assert ran.returncode in {0, 2}, f"{ran.stdout[-3000:]}\n{ran.stderr[-6000:]}"
            assert "Traceback" not in ran.stdout + ran.stderr
            (root / "done").touch()
    return Evaluated(root, name)


@pytest.fixture
def serve(tmp_path) -> Iterator[Callable[..., Viewer]]:
    """Start `rag-eval view` over a writable copy of an evaluated project; end it after the test."""
    started: list[Viewer] = []

    def start(evaluated: Evaluated) -> Viewer:
        made = Viewer(evaluated, tmp_path / f"viewed-{len(started)}")
        started.append(made)
        return made

    yield start
    for made in started:
        made.end()
