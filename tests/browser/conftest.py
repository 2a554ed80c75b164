"""A real Chromium, pages opened in it with everything written down that they do, and the two evaluated projects whose pages are opened."""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import hostile_project
import pytest
from evaluated import NIGHTS, Evaluated
from serving import Viewer
from visits import Visit

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
REQUIRED = os.environ.get("RAG_EVAL_REQUIRE_BROWSER") == "1"
"""Read before any test changes the environment: what is absent fails instead of skipping."""
NAMED = os.environ.get("RAG_EVAL_CHROMIUM")
SCREENSHOTS = os.environ.get("RAG_EVAL_SCREENSHOTS")
AXE = Path(__file__).parent / "node_modules" / "axe-core" / "axe.min.js"


def absent(why: str) -> None:
    """Skip, or fail where the browser tests must run."""
    if REQUIRED:
        pytest.fail(why)
    pytest.skip(why)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the browser: RAG_EVAL_CHROMIUM, else the first of BROWSERS on the path."""
    found = NAMED or next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None or not Path(found).is_file():
        absent(
            f"no browser: {NAMED or ', '.join(BROWSERS)} not found; install chromium or name one in RAG_EVAL_CHROMIUM"
        )
    return str(found)


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[object]:
    """One browser for a file of tests.

    Not for the session: while Playwright runs, its event loop is the thread's own, and a later file of the same worker could start none.
    """
    from playwright.sync_api import sync_playwright

    # root may not use the sandbox; the resolver answers nothing, so that a page that asked for something far away could not get it
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
    """Open an address or a file in a context of its own; what was opened is closed after the test."""
    opened: list[Visit] = []

    def go(address: str | Path, **options: object) -> Visit:
        made = Visit(browser, address, **options)
        opened.append(made)
        return made

    yield go
    for made in opened:
        made.close()


LOOKS = {
    f"{'390' if narrow else '1440'}-{'dark' if dark else 'light'}": {"narrow": narrow, "dark": dark}
    for narrow in (False, True)
    for dark in (False, True)
}


@pytest.fixture(params=LOOKS)
def look(request) -> dict[str, bool]:
    """Options of a visit: on a desk and on a phone, light and dark."""
    return LOOKS[request.param]


@pytest.fixture(scope="session")
def looks() -> list[dict[str, bool]]:
    """All four in one test, where what is looked at takes long to make."""
    return list(LOOKS.values())


@pytest.fixture
def picture() -> Callable[[Visit, str], None]:
    """Keep a picture of the whole page in RAG_EVAL_SCREENSHOTS, where that is set; it is never kept in the project."""

    def take(seen: Visit, name: str) -> None:
        if SCREENSHOTS:
            look = next(
                label
                for label, options in LOOKS.items()
                if options == {"narrow": seen.narrow, "dark": seen.dark}
            )
            Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
            seen.page.screenshot(path=Path(SCREENSHOTS) / f"{name}-{look}.png", full_page=True)

    return take


@pytest.fixture(scope="session")
def axe() -> str:
    """Source of axe-core, which `make test-all` brings from npm."""
    if not AXE.is_file():
        absent(
            "axe-core is not installed: npm ci --ignore-scripts in tests/browser, or make test-all"
        )
    return AXE.read_text(encoding="utf-8")


def _evaluated(factory: pytest.TempPathFactory, name: str) -> Evaluated:
    """Evaluate a project for its nights, once for all workers of a session; whoever comes second waits for the first."""
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    root = shared / f"evaluated-{name}"
    with (shared / f"evaluated-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (root / "done").exists():
            shutil.rmtree(root, ignore_errors=True)
            for number, write in enumerate(NIGHTS[name]):
                write(root / "gold_sets")
                ran = hostile_project.command(root, "run", name)
                assert ran.returncode in {0, 2}, (
                    f"night {number} of {name}: exit {ran.returncode}\n{ran.stdout[-3000:]}\n{ran.stderr[-6000:]}"
                )
                assert "Traceback" not in ran.stdout + ran.stderr
            (root / "done").touch()
    return Evaluated(root, name)


@pytest.fixture(scope="session")
def hostile(tmp_path_factory) -> Evaluated:
    """The hostile project after two nights."""
    return _evaluated(tmp_path_factory, "hostile")


@pytest.fixture(scope="session")
def pandas_api(tmp_path_factory) -> Evaluated:
    """The shipped gold set after two nights, of which the first had worse parameters."""
    return _evaluated(tmp_path_factory, "pandas_api")


@pytest.fixture(scope="session", params=["pandas_api", "hostile"])
def evaluated(request) -> Evaluated:
    """Each of the two."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def serve(tmp_path) -> Iterator[Callable[..., Viewer]]:
    """Start `rag-eval view` over a copy of an evaluated project, which tests may write to; it is ended after the test."""
    started: list[Viewer] = []

    def start(evaluated: Evaluated, *options: str) -> Viewer:
        made = Viewer(evaluated, tmp_path / f"viewed-{len(started)}", *options)
        started.append(made)
        return made

    yield start
    for made in started:
        made.end()
