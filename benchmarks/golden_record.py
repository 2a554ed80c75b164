"""Record what the program puts out, and compare the records of two commits.

    golden_record.py record OUT.json [--only smoke,graph] [--checkout FOLDER]
    golden_record.py compare OLD.json NEW.json [--only smoke,graph]

A record maps a path to a value, for each part. `smoke`, `pandas_api`, `scifact` and `recorded` are
two runs of `rag-eval run` in a new home. `graph` is the asset graph.
`compare` prints one line for each difference and exits with 1 if there are any. Numbers are equal
if they differ by at most 1e-9 (absolute, or relative to the larger number).

Only the command line, the files it writes and `rag_eval.definitions` are used, so modules inside
the package can move.
"""

import argparse
import contextlib
import csv
import fnmatch
import functools
import hashlib
import json
import math
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from timing import ROOT, data_folder

TOLERANCE = 1e-9
Values = dict[str, object]

# Patterns of paths that are not compared, each with its reason.
VOLATILE = {
    "*/report/*latency*": "times of this machine",
    "*/files/*latency*/*": "times of this machine",
    "*/mlflow/*latency*": "times of this machine",
    "*/files/*_ms": "times of this machine",
    "*/files/*seconds*": "times of this machine",
    "*/report/code/version": "a hash of the source code",
}
# Text inside values that differs between two runs of the same code.
REPLACED = (
    (re.compile(r"\d{8}T\d{9}Z-[0-9a-f]{8}"), "<run>"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?"), "<time>"),
)
# Keys that identify the elements of a list, tried in this order. Their fallback is the position.
IDENTITIES = [
    keys.split()
    for keys in (
        "name, id, strategy, label level, name level, name status, method level, kind name, "
        "a b, a b measure level, strategy measure"
    ).split(",")
]
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "ORT_NUM_THREADS")
FIXED = dict.fromkeys(THREADS, "1") | {
    "PYTHONHASHSEED": "0",
    "RAG_EVAL_TRUST_AS_OF": "2026-11-01",
    "COLUMNS": "160",
    "TERM": "dumb",
    "NO_COLOR": "1",
    "TZ": "UTC",
}
RECORDED_QUESTIONS = 60
GRAPH_SCRIPT = """
import json
from dagster import DagsterInstance
from rag_eval.definitions import defs
found, nights = defs(), DagsterInstance.ephemeral()
graph = found.resolve_asset_graph()
repository = found.get_repository_def()
values = {}
for spec in found.resolve_all_asset_specs():
    path = "assets/" + spec.key.to_user_string()
    values[path + "/deps"] = sorted(dep.asset_key.to_user_string() for dep in spec.deps)
    values[path + "/group"] = spec.group_name
    partitions = spec.partitions_def
    values[path + "/partitions"] = (
        partitions.get_partition_keys(dynamic_partitions_store=nights) if partitions else None
    )
for key in graph.asset_check_keys:
    values["checks/" + key.asset_key.to_user_string() + "/" + key.name] = True
for job in found.resolve_all_job_defs():
    keys = job.asset_layer.selected_asset_keys
    values["jobs/" + job.name] = sorted(key.to_user_string() for key in keys)
for schedule in repository.schedule_defs:
    values["schedules/" + schedule.name + "/cron"] = schedule.cron_schedule
    values["schedules/" + schedule.name + "/status"] = schedule.default_status.value
print(json.dumps(values))
"""


class Checkout:
    """A checkout of the project and a scratch folder in which its command line runs."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self.folder = folder.resolve()
        self.scratch = scratch
        project = tomllib.loads((self.folder / "pyproject.toml").read_text(encoding="utf-8"))
        self.module, self.function = project["project"]["scripts"]["rag-eval"].split(":")
        kept = {key: value for key, value in os.environ.items() if not key.startswith("RAG_EVAL_")}
        self.environment = {**kept, **FIXED, "PYTHONPATH": str(self.folder)}

    def python(self, cwd: Path, code: str, *arguments: str) -> str:
        """Run Python code on this checkout and return its standard output."""
        command = [sys.executable, "-c", code, *arguments]
        options = {"cwd": cwd, "env": self.environment, "capture_output": True, "text": True}
        done = subprocess.run(command, check=False, **options)
        if done.returncode not in {0, 2}:  # exit code 2: a required gate did not pass
            sys.exit(f"{arguments} exited with {done.returncode}:\n{done.stderr[-3000:]}")
        return done.stdout

    def command(self, cwd: Path, *arguments: str) -> str:
        """Run `rag-eval` as its entry point in pyproject.toml says."""
        start = f"import sys; sys.argv[0] = 'rag-eval'; from {self.module} import {self.function}"
        return self.python(cwd, f"{start}; {self.function}()", *arguments)

    def neutral(self, value: Any) -> Any:
        """Replace the run ids, times and folders of this machine in a value."""
        if not isinstance(value, str):
            return value
        data = data_folder()
        folders = {"<scratch>": self.scratch, "<checkout>": self.folder, "<data>": data}
        for name, folder in folders.items():
            value = value.replace(str(folder), name) if folder else value
        for pattern, name in REPLACED:
            value = pattern.sub(name, value)
        return value


def flatten(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield (path, value) for every leaf of JSON; list elements are named by their identity."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from flatten(item, f"{path}/{key}")
    elif isinstance(value, list) and value:
        for name, item in zip(element_names(value), value, strict=True):
            yield from flatten(item, f"{path}/{name}")
    else:
        yield path, value


def element_names(items: list[Any]) -> list[str]:
    """Name the elements by the first identity that is unique in the list, else by position."""
    if all(isinstance(item, dict) for item in items):
        for keys in IDENTITIES:
            names = ["|".join(str(item.get(key)) for key in keys) for item in items]
            if all(key in item for item in items for key in keys) and len(set(names)) == len(names):
                return names
    return [str(position) for position in range(len(items))]


def table_rows(path: Path) -> Iterable[Any]:
    """Read the rows of a data file."""
    if path.suffix == ".parquet":
        import pandas as pd

        return json.loads(pd.read_parquet(path).to_json(orient="records"))
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".csv":
        return csv.DictReader(text.splitlines(keepends=True))
    if path.suffix == ".trec":
        return [dict(enumerate(line.split())) for line in text.splitlines()]
    return map(json.loads, text.splitlines())


def canonical(value: Any) -> str:
    """Write a value so that 1, 1.0 and "1" are the same; numbers have nine digits."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    with contextlib.suppress(ValueError, TypeError):
        return f"{float(value) + 0.0:.9g}"
    return json.dumps(value, sort_keys=True)


def file_values(checkout: Checkout, path: Path, name: str) -> Values:
    """Record that a file exists; for each column of a data file: number and hash of its values."""
    values: Values = {name: "file"}
    columns: dict[str, list[str]] = {}
    is_data = path.suffix in {".csv", ".parquet", ".jsonl", ".trec"}
    for row in table_rows(path) if is_data else ():
        for column, value in flatten(row, ""):
            plain = re.sub(r"/\d+(?=/|$)", "/*", column) if path.suffix == ".jsonl" else column
            columns.setdefault(plain, []).append(canonical(checkout.neutral(value)))
    for column, entries in columns.items():
        digest = hashlib.sha256("\n".join(entries).encode()).hexdigest()[:16]
        values[f"{name}{column}"] = f"{len(entries)} values, {digest}"
    return values


def mlflow_values(database: Path) -> Values:
    """Read the metrics and parameters of the newest run out of MLflow's SQLite file."""
    with contextlib.closing(sqlite3.connect(database)) as store:
        (run,) = store.execute("select run_uuid from runs order by start_time desc").fetchone()
        query = "select key, value from {} where run_uuid = ?"
        return {
            f"mlflow/{table}/{key}": value
            for table in ("latest_metrics", "params")
            for key, value in store.execute(query.format(table), (run,))
        }


def run_values(checkout: Checkout, folder: Path, *arguments: str) -> Values:
    """Evaluate twice in one new home; record both runs."""
    values: Values = {}
    hashes = []
    for turn in ("first", "second"):
        checkout.command(folder, "run", *arguments)
        reports = folder / "reports"
        found: Values = {}
        for path in sorted(path for path in reports.rglob("*") if path.is_file()):
            name = path.relative_to(reports).as_posix()
            found.update(file_values(checkout, path, f"files/{name}"))
        (report_path,) = reports.glob("*/retrieval-metrics.json")
        report = json.loads(report_path.read_text(encoding="utf-8"))
        found.update(flatten(report, "report"))
        found.update(mlflow_values(folder / ".rag_eval" / "mlflow.db"))
        values.update({f"{turn}/{path}": value for path, value in found.items()})
        hashes.append(report.get("content_hash"))
    values["content_hash_equal"] = hashes[0] == hashes[1]
    return values


def gold_set_part(checkout: Checkout, folder: Path, name: str) -> Values:
    """Run a bundled gold set from a copy outside of version control."""
    shutil.copytree(checkout.folder / "gold_sets", folder / "gold_sets")
    return run_values(checkout, folder, name)


def scifact_part(checkout: Checkout, folder: Path) -> Values:
    """Run the BEIR command of the README with the MiniLM vectors."""
    data = data_folder() or ROOT
    vectors = str(data / "embeddings" / "all-MiniLM-L6-v2.npz")
    options = ("--beir", str(data / "scifact"), "--split", "test", "--vectors", vectors)
    return run_values(checkout, folder, *options)


def recorded_part(checkout: Checkout, folder: Path) -> Values:
    """Run human answers with quoted spans (QuoteSum) as the recorded outputs of a system."""
    source = (data_folder() or ROOT) / "quotesum" / "dev.jsonl"
    outputs = []
    for line in source.read_text(encoding="utf-8").splitlines()[:RECORDED_QUESTIONS]:
        row = json.loads(line)
        numbers = [number for number in range(1, 9) if row.get(f"source{number}")]
        contexts = [{"doc_id": row[f"title{n}"], "text": row[f"source{n}"]} for n in numbers]
        answer = re.sub(r"\[ (\d+) (.+?) \]", r"\2 [\1]", row["summary"])
        names = {"query_id": row["unique_id"], "question": row["question"]}
        outputs.append({**names, "answer": answer, "contexts": contexts})
    path = folder / "quotes" / "outputs.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps(output) + "\n" for output in outputs), encoding="utf-8")
    return run_values(checkout, folder, "--recorded", str(path.parent))


def graph_part(checkout: Checkout, folder: Path) -> Values:
    """Record assets with dependencies, checks, jobs and schedules of `rag_eval.definitions`."""
    shutil.copytree(checkout.folder / "gold_sets", folder / "gold_sets")
    return dict(json.loads(checkout.python(folder, GRAPH_SCRIPT).splitlines()[-1]))


PARTS: dict[str, Callable[[Checkout, Path], Values]] = {
    "smoke": functools.partial(gold_set_part, name="smoke"),
    "graph": graph_part,
    "recorded": recorded_part,
    "scifact": scifact_part,
    "pandas_api": functools.partial(gold_set_part, name="pandas_api"),
}
NEEDS_DATA = {"recorded", "scifact"}


def record(folder: Path, names: list[str]) -> dict[str, object]:
    """Record the named parts of a checkout."""
    git = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12"]
    commit = subprocess.run(git, check=True, capture_output=True, text=True).stdout.strip()
    parts: dict[str, Values] = {}
    for name in names or PARTS:
        if name in NEEDS_DATA and data_folder() is None:
            print(f"{name}: skipped, no public data; set RAG_EVAL_TEST_DATA", file=sys.stderr)
            continue
        started = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="golden-") as scratch:
            checkout = Checkout(folder, Path(scratch).resolve())
            found = PARTS[name](checkout, checkout.scratch)
            kept = {f"{name}/{path}": checkout.neutral(value) for path, value in found.items()}
        parts[name] = dict(sorted(kept.items()))
        seconds = time.perf_counter() - started
        print(f"{name}: {len(parts[name])} values, {seconds:.0f} s", file=sys.stderr)
    return {"commit": commit, "python": sys.version.split()[0], "parts": parts}


def is_equal(old: Any, new: Any) -> bool:
    kinds = {type(old), type(new)}
    if kinds <= {int, float}:
        return math.isclose(old, new, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
    return len(kinds) == 1 and old == new


def differences(old: Values, new: Values) -> list[str]:
    """List the added, removed and changed paths, one line each."""
    lines = []
    for path in sorted(old.keys() | new.keys()):
        if any(fnmatch.fnmatchcase(path, pattern) for pattern in VOLATILE):
            continue
        values = [shown(part[path]) for part in (old, new) if path in part]
        if path not in old or path not in new:
            lines.append(f"{'removed ' if path in old else 'added   '} {path}: {values[0]}")
        elif not is_equal(old[path], new[path]):
            lines.append(f"changed  {path}: {' -> '.join(values)}")
    return lines


def shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}... ({len(text)} characters)"


def print_differences(old: dict[str, Any], new: dict[str, Any], names: list[str]) -> int:
    """Print all differences of the named parts and return the exit code."""
    lines = []
    for name in names or sorted(old["parts"].keys() | new["parts"].keys()):
        if name in old["parts"] and name in new["parts"]:
            lines += differences(old["parts"][name], new["parts"][name])
        else:
            lines.append(f"missing  {name}: not in both records")
    print("\n".join([*lines, f"{len(lines)} differences"]))
    return 1 if lines else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("action", choices=("record", "compare"))
    parser.add_argument("arguments", nargs="+", help="OUT.json | OLD.json NEW.json")
    parser.add_argument("--only", default="", help=f"some of {','.join(PARTS)}")
    parser.add_argument("--checkout", type=Path, default=ROOT, help="what `record` records")
    options = parser.parse_args()
    names = [name for name in options.only.split(",") if name]
    unknown = set(names) - PARTS.keys()
    if unknown or len(options.arguments) != (2 if options.action == "compare" else 1):
        parser.error("unknown part or wrong number of arguments; see --help")
    if options.action == "compare":
        old, new = (json.loads(Path(path).read_text()) for path in options.arguments)
        return print_differences(old, new, names)
    found = record(options.checkout, names)
    Path(options.arguments[0]).write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
