"""HTML stage: the page of a finished report and the tables of its panels as files.

Belongs here: what is written where. What the page shows is `rag_eval.reporting.html`, the data of its questions `explorer_steps`.
"""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rag_eval.evaluation.explorer_slim import slim
from rag_eval.evaluation.explorer_steps import explorer_bundle
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.evaluation.report_steps import PAGE as FILE_NAME
from rag_eval.evaluation.report_steps import TABLES, load_run
from rag_eval.reporting.html.page import Built, build
from rag_eval.reporting.metrics_report import dumps
from rag_eval.storage.artifacts import Artifact
from rag_eval.storage.atomic import write_text

SUMMARY = "summary.json.gz"
MAX_QUESTIONS = 5000
"""MLflow's page reads the whole table."""
BYTES_PER_1000 = 3_000_000
"""What a page may take for each 1,000 questions; a smaller gold set may have as much."""


def page_limit(n_queries: int) -> int:
    """Bytes that the page of so many questions may take."""
    return BYTES_PER_1000 * max(1000, n_queries) // 1000


def built_page(report: Mapping[str, Any], bundle: Artifact | None) -> Built:
    """Build the page of a report, with the questions of a stored bundle; the same page of a report that was just made as of one that was read."""
    limit = page_limit(report["gold"]["n_queries"])
    return build(
        json.loads(dumps(report)),
        None if bundle is None else lambda left: slim(bundle, left),
        limit,
    )


def bundle_of(runs: Runs, report: Mapping[str, Any]) -> Artifact | None:
    """Questions as the run of this report kept them, None where they were removed from the home since.

    They are not made again for a page that is written later: by then this very run, or a newer one, would be taken for the one before it.
    """
    kept = load_run(runs.evaluation.settings.home, report["run_id"])
    return (
        explorer_bundle(runs)
        if kept is None
        else runs.evaluation.store.get("explorer", kept["artifacts"].get("explorer", ""))
    )


def per_question(runs: Runs, report: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Columns of the per-question table that MLflow shows: id, wording, and by strategy recall and stated miss rate; the first MAX_QUESTIONS questions."""
    bundle = bundle_of(runs, report)
    if bundle is None:
        return {}
    summary = json.loads(gzip.decompress(bundle.path(SUMMARY).read_bytes()))
    questions, measure = summary["questions"], summary["measure"]
    found: dict[str, list[Any]] = {"query_id": questions["id"], "text": questions["text"]}
    for at, name in enumerate(summary["strategies"]):
        found |= {
            f"{name}: {measure}": questions["value"][at],
            f"{name}: miss rate": questions["miss"][at],
        }
    return {name: values[:MAX_QUESTIONS] for name, values in found.items()}


def html_report(runs: Runs, report: Mapping[str, Any]) -> Path | None:
    """Write index.html and tables/*.csv and *.tex into the gold set's folder of reports; return the page's path, None where the settings want no page."""
    evaluation = runs.evaluation
    if not evaluation.settings.html_report:
        return None
    with evaluation.progress.step("Writing the HTML report"):
        built = built_page(report, bundle_of(runs, report))
        folder = evaluation.reports / TABLES
        folder.mkdir(parents=True, exist_ok=True)
        files = {
            f"{table.name}.{form}": text
            for table in built.tables
            for form, text in (("csv", table.csv()), ("tex", table.tex()))
        }
        for stale in [*folder.glob("*.csv"), *folder.glob("*.tex")]:
            if stale.name not in files:  # a table of an earlier run must not stand beside this page
                stale.unlink()
        for name, text in files.items():
            write_text(folder / name, text)
        write_text(evaluation.reports / FILE_NAME, built.html)
    return evaluation.reports / FILE_NAME
