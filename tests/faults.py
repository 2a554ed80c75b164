"""Apply deliberate faults to a copy of the checkout and print those that no test catches.

`faults.toml` lists the faults. A fault names the code to replace, but no file. Code is compared as
a syntax tree, so a fault survives a move and a reformatting.

    python tests/faults.py                   all faults
    python tests/faults.py --check-anchors   only look up each fault's code and tests
    python tests/faults.py --room gates -n 2
"""

import argparse
import ast
import itertools
import multiprocessing
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FAULTS = Path(__file__).with_suffix(".toml")
PACKAGE = "rag_eval"
TIMEOUT_S = 300
PRELOADED = (
    "numpy pandas pyarrow.parquet scipy.stats sklearn.linear_model pydantic_settings sqlalchemy "
    "jinja2 dagster httpx starlette.testclient typer.testing"
).split()
"""Libraries that are imported once for all faults: importing them takes longer than most tests."""
TESTS_FAILED = 1  # pytest's exit code; 2 and above mean that no test judged the fault
SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_CLOCK = itertools.count(1_000_000_000)
"""Modification times. Python recompiles a source only when its time or its size changes."""


class FaultError(Exception):
    """A fault that cannot be applied or judged."""


@dataclass(frozen=True)
class Fault:
    """One deliberate fault.

    `old` is an expression or statements that follow each other. `function` narrows the search to a
    function, a class or `Class.method`.
    """

    name: str
    room: str
    old: str
    new: str
    tests: tuple[str, ...]
    function: str = ""


class Place(NamedTuple):
    """File and byte range that a fault replaces, and the new text."""

    path: Path
    start: int
    end: int
    new: str


class Verdict(NamedTuple):
    """The verdict of the tests on a fault: caught, SURVIVED or error."""

    fault: Fault
    status: str
    detail: str
    seconds: float


class Module:
    """One file of the package as a syntax tree, each node with its dump and enclosing scopes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.source = path.read_bytes()
        self.tree = ast.parse(self.source)
        lengths = [len(line) for line in self.source.splitlines(keepends=True)]
        self.line_starts = [0, *itertools.accumulate(lengths)]

    @cached_property
    def nodes(self) -> list[tuple[ast.AST, str]]:
        """Every node of the file with the name of its scope."""
        return list(_scoped_nodes(self.tree, ""))

    @cached_property
    def expressions(self) -> list[tuple[ast.expr, str, str]]:
        """Every expression of the file with the name of its scope and its dump."""
        found = [(node, scope) for node, scope in self.nodes if isinstance(node, ast.expr)]
        return [(node, scope, ast.dump(node)) for node, scope in found]

    def span(self, first: ast.AST, last: ast.AST) -> tuple[int, int]:
        """Return the byte range (start, end) from node `first` to node `last`."""
        a: Any = first
        b: Any = last
        lines = self.line_starts
        return lines[a.lineno - 1] + a.col_offset, lines[b.end_lineno - 1] + b.end_col_offset


def _scoped_nodes(node: ast.AST, scope: str) -> Iterator[tuple[ast.AST, str]]:
    """Yield each node below `node` with its scope; parts of f-strings have no positions in 3.11."""
    for child in ast.iter_child_nodes(node):
        yield child, scope
        if not isinstance(child, ast.JoinedStr):
            inner = f"{scope}.{child.name}" if isinstance(child, SCOPES) else scope
            yield from _scoped_nodes(child, inner)


def read_faults() -> list[Fault]:
    """Read all faults from `faults.toml`."""
    entries = tomllib.loads(FAULTS.read_text(encoding="utf-8"))["fault"]
    return [Fault(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def read_package(root: Path) -> list[Module]:
    """Parse every module of the package."""
    return [Module(path) for path in sorted((root / PACKAGE).rglob("*.py"))]


def find_place(fault: Fault, root: Path, modules: list[Module]) -> Place:
    """Locate the code that a fault replaces.

    Raises
    ------
    FaultError
        If the code does not occur, or occurs more than once.
    """
    places = list(_places(fault, modules))
    if len(places) != 1:
        files = ", ".join(str(place.path.relative_to(root)) for place in places) or "no file"
        raise FaultError(f"found {len(places)} times, expected once ({files})")
    return places[0]


def _places(fault: Fault, modules: list[Module]) -> Iterator[Place]:
    wanted = ast.parse(fault.old).body
    ast.parse(fault.new)
    if len(wanted) == 1 and isinstance(wanted[0], ast.Expr):
        dump = ast.dump(wanted[0].value)
        for module in modules:
            for node, scope, text in module.expressions:
                if text == dump and _is_within(scope, fault.function):
                    yield Place(module.path, *module.span(node, node), f"({fault.new})")
        return
    dumps = [ast.dump(statement) for statement in wanted]
    for module in modules:
        for node, scope in [(module.tree, ""), *module.nodes]:
            inner = f"{scope}.{node.name}" if isinstance(node, SCOPES) else scope
            if _is_within(inner, fault.function):
                yield from _statement_places(fault, module, node, dumps)


def _statement_places(
    fault: Fault, module: Module, node: ast.AST, dumps: list[str]
) -> Iterator[Place]:
    for field in ("body", "orelse", "finalbody"):
        body = getattr(node, field, None)
        if not isinstance(body, list):
            continue
        for at in range(len(body) - len(dumps) + 1):
            part = body[at : at + len(dumps)]
            if [ast.dump(statement) for statement in part] == dumps:
                new = ("\n" + " " * part[0].col_offset).join(fault.new.splitlines())
                yield Place(module.path, *module.span(part[0], part[-1]), new)


def _is_within(scope: str, function: str) -> bool:
    return not function or f".{function}." in f"{scope}."


def check_anchors(faults: list[Fault]) -> list[str]:
    """List the problems of the faults without running a test."""
    modules = read_package(ROOT)
    problems = [
        f"{name}: this name is used {n} times"
        for name, n in Counter(fault.name for fault in faults).items()
        if n > 1
    ]
    for fault in faults:
        try:
            find_place(fault, ROOT, modules)
        except (FaultError, SyntaxError) as error:
            problems.append(f"{fault.name}: {error}")
        problems += [
            f"{fault.name}: no test file {test}"
            for test in fault.tests
            if not (ROOT / test.partition("::")[0]).exists()
        ]
    return problems


def copy_checkout(folder: Path) -> Path:
    """Copy every file that git knows or would add."""
    command = ["git", "ls-files", "-coz", "--exclude-standard"]
    listed = subprocess.check_output(command, cwd=ROOT, text=True)
    for name in listed.split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def write(path: Path, content: bytes) -> None:
    """Write a source file so that Python compiles it again."""
    path.write_bytes(content)
    moment = next(_CLOCK)
    os.utime(path, (moment, moment))


def _test_process(copy: str, arguments: list[str], output: str) -> None:
    """Run pytest over a copy, in a fork of a process that imported only the libraries."""
    data = os.environ.get("RAG_EVAL_TEST_DATA", str(ROOT.parent / "shared" / "data"))
    os.environ |= {"PYTHONPATH": copy, "RAG_EVAL_TEST_DATA": data}
    os.chdir(copy)
    here = {str(ROOT), str(Path(__file__).parent)}
    sys.path[:] = [copy, *(folder for folder in sys.path if folder not in here)]
    with Path(output).open("w", encoding="utf-8") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    import pytest

    code = int(pytest.main(arguments))
    sys.stdout.flush()
    os._exit(code)


def run_tests(copy: Path, tests: tuple[str, ...]) -> tuple[int | None, str]:
    """Run tests over a copy until one fails.

    Returns pytest's exit code and output. The exit code is None when the tests ran too long.
    """
    quiet = "-q -x -p no:cacheprovider --tb=no -W ignore::pytest.PytestAssertRewriteWarning"
    arguments = [*quiet.split(), *tests]
    output = copy.parent / f"{copy.name}.log"
    process = multiprocessing.get_context("forkserver").Process(
        target=_test_process, args=(str(copy), arguments, str(output))
    )
    process.start()
    process.join(TIMEOUT_S)
    if process.exitcode is None:
        process.kill()
        process.join()
        return None, ""
    return process.exitcode, output.read_text(encoding="utf-8")


def judge(fault: Fault, copy: Path, modules: list[Module]) -> Verdict:
    """Apply one fault to a copy, run its tests, and restore the copy."""
    started = time.monotonic()
    try:
        place = find_place(fault, copy, modules)
        whole = place.path.read_bytes()
        try:
            write(place.path, whole[: place.start] + place.new.encode() + whole[place.end :])
            status, detail = read_outcome(*run_tests(copy, fault.tests))
        finally:
            write(place.path, whole)
        if status == "caught" and run_tests(copy, (detail.partition("[")[0],))[0] != 0:
            status, detail = "error", f"fails without the fault too: {detail}"
    except (FaultError, SyntaxError) as error:
        status, detail = "error", str(error)
    return Verdict(fault, status, detail, time.monotonic() - started)


def read_outcome(code: int | None, output: str) -> tuple[str, str]:
    """Tell what pytest's exit code and last lines say of a fault."""
    if code is None:
        return "error", f"its tests ran for more than {TIMEOUT_S} s"
    lines = output.strip().splitlines() or ["no output"]
    failed = [
        line.split(" - ")[0].partition(" ")[2]
        for line in lines
        if line.startswith(("FAILED ", "ERROR "))
    ]
    if code == TESTS_FAILED and failed:
        return "caught", failed[0]
    if code == 0 and re.search(r"\d+ passed", lines[-1]):
        return "SURVIVED", lines[-1]
    return "error", f"pytest exit code {code}: {lines[-1]}"


def judge_all(faults: list[Fault], jobs: int) -> Iterator[Verdict]:
    """Judge the faults, each job on its own copy, and yield verdicts as they come."""
    with tempfile.TemporaryDirectory(prefix="faults-") as scratch:
        copies: queue.Queue[tuple[Path, list[Module]]] = queue.Queue()
        for number in range(jobs):
            copy = copy_checkout(Path(scratch) / str(number))
            copies.put((copy, read_package(copy)))

        def judge_next(fault: Fault) -> Verdict:
            copy, modules = copies.get()
            try:
                return judge(fault, copy, modules)
            finally:
                copies.put((copy, modules))

        with ThreadPoolExecutor(jobs) as pool:
            yield from pool.map(judge_next, faults)


def main() -> int:
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=layout)
    parser.add_argument("--room", action="append", help="only this room; may be given again")
    parser.add_argument("--name", action="append", help="only this fault; may be given again")
    parser.add_argument("-n", "--jobs", type=int, default=1, help="faults judged at the same time")
    parser.add_argument("--check-anchors", action="store_true", help="run no test")
    asked = parser.parse_args()
    faults = [
        fault
        for fault in read_faults()
        if (not asked.room or fault.room in asked.room)
        and (not asked.name or fault.name in asked.name)
    ]
    problems = check_anchors(faults)
    if not faults:
        problems.append("no fault has this room and name")
    print(*problems, sep="\n", end="\n" if problems else "")
    if problems or asked.check_anchors:
        print(f"{len(faults)} faults, {len(problems)} problems")
        return 1 if problems else 0
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(PRELOADED))
    counts: Counter[str] = Counter()
    for verdict in judge_all(faults, asked.jobs):
        counts[verdict.status] += 1
        name = f"{verdict.fault.room}/{verdict.fault.name}"
        print(f"{verdict.status:8} {verdict.seconds:5.1f} s  {name}  {verdict.detail}", flush=True)
    shown = ", ".join(f"{counts[status]} {status}" for status in ("caught", "SURVIVED", "error"))
    print(f"{len(faults)} faults: {shown}")
    return 0 if counts["caught"] == len(faults) else 1


if __name__ == "__main__":
    sys.exit(main())
