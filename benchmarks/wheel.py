"""Install the wheel alone in an empty environment, and evaluate SciFact there.

Two BM25 runs of SciFact's test questions are made here, with bm25s. The empty environment has the
wheel and its dependencies, no extra. Printed are sizes, the CPU time of `import rag_eval` and
of the first call, figures, and what the command `rag-eval` says without its extra.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import bm25s
from timing import ROOT, data_folder, emit, indexed_text, json_lines, skipped

IN_THE_WHEEL = """
import json, sys, time
before = time.process_time()
import rag_eval
imported = time.process_time() - before
rag_eval.evaluate({"q": {"d": 1.0}}, {"q": {"d": 1}})
first = time.process_time() - before
rounded = lambda column: {" ".join(key): round(value, 4) for key, value in column.items()}
runs = {"bm25": sys.argv[1], "title": sys.argv[2]}
result = rag_eval.evaluate(runs, sys.argv[3])
found = rag_eval.compare(runs, sys.argv[3])
model = rag_eval.miss_rates(sys.argv[1], sys.argv[3])
print(json.dumps({
    "import_cpu_s": round(imported, 4),
    "first_evaluate_cpu_s": round(first, 2),
    "modules_of_extra": sorted({"dagster", "mlflow", "chromadb", "typer"} & set(sys.modules)),
    "values": rounded(result.table["value"]),
    "difference": rounded(found.table["difference"]),
    "miss_rates": repr(model),
}))
"""


def make_runs(data: Path, folder: Path) -> list[Path]:
    """Write TREC runs of whole documents and of titles alone."""
    documents = json_lines(data / "corpus.jsonl")
    queries = json_lines(data / "queries.jsonl")
    texts = {"whole": map(indexed_text, documents), "title": (one["title"] for one in documents)}
    paths = []
    for name, corpus in texts.items():
        index = bm25s.BM25()
        index.index(bm25s.tokenize(list(corpus), show_progress=False), show_progress=False)
        asked = bm25s.tokenize([one["text"] for one in queries], show_progress=False)
        found = index.retrieve(asked, k=100, show_progress=False)
        lines = (
            f"{query['_id']} Q0 {documents[row]['_id']} {rank} {score:.6f} {name}\n"
            for query, rows, scores in zip(queries, found.documents, found.scores, strict=True)
            for rank, (row, score) in enumerate(zip(rows, scores, strict=True), 1)
        )
        paths.append(folder / f"{name}.trec")
        paths[-1].write_text("".join(lines), encoding="utf-8")
    return paths


def main() -> None:
    data, uv = data_folder(), shutil.which("uv", path=str(Path(sys.executable).parent))
    if data is None or uv is None:
        skipped("wheel", "needs RAG_EVAL_TEST_DATA, and uv beside this Python")
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", scratch]
        subprocess.run(build, check=True, cwd=ROOT, capture_output=True)
        (wheel,) = folder.glob("*.whl")
        python = folder / "venv" / "bin" / "python"
        subprocess.run(
            [uv, "venv", "--quiet", "--python", sys.executable, folder / "venv"], check=True
        )
        subprocess.run([uv, "pip", "install", "--quiet", "--python", python, wheel], check=True)
        (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
        size = sum(path.stat().st_size for path in packages.rglob("*") if path.is_file())
        files = [*make_runs(data / "scifact", folder), data / "scifact" / "qrels" / "test.tsv"]
        alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        how = {"capture_output": True, "text": True, "cwd": folder, "env": alone}
        script = [python, "-c", IN_THE_WHEEL, *files]
        subprocess.run(script, check=True, **how)  # compiles the bytecode
        done = subprocess.run(script, check=True, **how)
        command = subprocess.run([python.with_name("rag-eval"), "run"], check=False, **how)
        emit(
            "wheel",
            wheel_mb=round(wheel.stat().st_size / 1e6, 2),
            installed_mb=round(size / 1e6),
            packages=len(list(packages.glob("*.dist-info"))),
            **json.loads(done.stdout),
            command=command.stderr.strip(),
            command_exit=command.returncode,
        )


if __name__ == "__main__":
    main()
