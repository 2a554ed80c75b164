"""Write 100,000 traces into SQLite, against pandas.DataFrame.to_sql of the same rows.

Ours is `write_traces`: lists become JSON, rows of an earlier try are deleted, and one transaction
fills a table with two indexes. The reference starts from rows whose lists are JSON text already and
replaces a table without indexes. `log_lines_s` is the time of the log lines. Prints one JSON line.
"""

import json
import random
import tempfile
from pathlib import Path

import pandas as pd
import sqlalchemy
from timing import alternate, report

from rag_eval.citations.traces import RAG_TRACES, Trace, make_row, write_log, write_traces
from rag_eval.storage.sql import SqlStore

COUNT, REPEATS, BAR = 100_000, 3, 1.5


def make_trace(number: int, rng: random.Random) -> Trace:
    """Make one trace of four segments a question, with three citations."""
    first = rng.randrange(9999)
    return Trace(
        ts="2026-01-31T02:00:00.123Z",
        qid=f"q{number // 4:05}",
        seg=number % 4,
        delta_s=rng.random(),
        lambda_state="convergent",
        k=10,
        store="chroma",
        index_hash="bm25s:0123456789abcdef0123456789abcdef",
        embed_model="lsa-256@fbe5d52ef58ce172",
        analyzer="porter-1",
        section_id="pandas.DataFrame#parameters",
        rev="3.1.1",
        citations=tuple(f"pandas.name{first}:{line}-{line + 3}" for line in range(3)),
        scores=tuple(rng.random() for _ in range(3)),
        kpos=(1, 2, 3),
        kfinal=(3, 1, 2),
        run_id="20260131T020000123Z-abcdef12",
        strategy="hybrid",
        paraphrase_id="original",
        seed=13,
    )


def main() -> None:
    rng = random.Random(13)
    traces = [make_trace(number, rng) for number in range(COUNT)]
    rows = [
        [json.dumps(v) if isinstance(v, tuple) else v for v in make_row(trace)] for trace in traces
    ]
    frame = pd.DataFrame(rows, columns=list(RAG_TRACES.column_names))
    with tempfile.TemporaryDirectory() as folder:
        store = SqlStore(f"sqlite:///{folder}/store.db")
        engine = sqlalchemy.create_engine(
            f"sqlite:///{folder}/pandas.db", poolclass=sqlalchemy.NullPool
        )
        runs = {
            "ours": lambda: write_traces(store, traces),
            "pandas": lambda: frame.to_sql("by_pandas", engine, if_exists="replace", index=False),
            "log": lambda: write_log(Path(folder) / "traces.log", traces),
        }
        seconds = alternate(runs, REPEATS)
    report(
        "traces to SQLite",
        seconds["ours"],
        seconds["pandas"],
        BAR,
        traces=COUNT,
        log_lines_s=round(seconds["log"], 3),
    )


if __name__ == "__main__":
    main()
