"""100,000 traces into SQLite, against pandas.DataFrame.to_sql of the same rows.

Ours is `write_traces`: records to rows, lists to JSON, the rows of the last try deleted, one transaction into a table with two indexes, as a
second run of the same run_id does it. The reference starts from a frame whose lists are JSON text already and writes a table without indexes
in place of the last one. The time of the log lines stands beside it, and of both on PostgreSQL where its programs are installed. Prints one JSON line for each database.
"""

import contextlib
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from timing import ROOT, alternate, report, skipped

from rag_eval.citations.traces import RAG_TRACES, Trace, row, write_log, write_traces
from rag_eval.storage.sql import SqlStore

COUNT, REPEATS, BAR = 100_000, 3, 1.5


def made() -> list[Trace]:
    rng = random.Random(13)
    return [
        Trace(
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
            citations=tuple(
                f"pandas.name{rng.randrange(9999)}:{line}-{line + 3}" for line in range(3)
            ),
            scores=tuple(rng.random() for _ in range(3)),
            kpos=(1, 2, 3),
            kfinal=(3, 1, 2),
            run_id="20260131T020000123Z-abcdef12",
            strategy="hybrid",
            paraphrase_id="original",
            seed=13,
        )
        for number in range(COUNT)
    ]


def compare(name: str, address: str, traces: list[Trace], folder: Path) -> None:
    import sqlalchemy

    store = SqlStore(address)
    rows = [
        [json.dumps(value) if isinstance(value, tuple) else value for value in row(trace)]
        for trace in traces
    ]
    frame = pd.DataFrame(rows, columns=list(RAG_TRACES.column_names))
    engine = sqlalchemy.create_engine(
        address.replace("postgresql://", "postgresql+psycopg://").replace("store.db", "pandas.db"),
        poolclass=sqlalchemy.NullPool,
    )
    runs = {
        "ours": lambda: write_traces(store, traces),
        "pandas": lambda: frame.to_sql("by_pandas", engine, if_exists="replace", index=False),
        "log": lambda: write_log(folder / "traces.log", traces),
    }
    seconds = alternate(runs, REPEATS)
    report(
        name,
        seconds["ours"],
        seconds["pandas"],
        BAR,
        traces=COUNT,
        log_lines_s=round(seconds["log"], 3),
    )


@contextlib.contextmanager
def postgres() -> Iterator[str | None]:
    sys.path.insert(0, str(ROOT / "tests" / "reference"))
    import postgres_server

    if postgres_server.binary("initdb") is None:
        yield None
        return
    with postgres_server.running() as address:
        yield address


def main() -> None:
    traces = made()
    with tempfile.TemporaryDirectory() as folder:
        compare("traces to SQLite", f"sqlite:///{folder}/store.db", traces, Path(folder))
        with postgres() as address:
            if address is None:
                skipped("traces to PostgreSQL", "its programs are not installed")
            else:
                compare("traces to PostgreSQL", address, traces, Path(folder))


if __name__ == "__main__":
    main()
