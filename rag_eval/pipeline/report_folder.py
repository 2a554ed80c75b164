"""The report as a result of its stage, and its files in the folder of reports."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from rag_eval.pipeline.evaluation import Evaluation
from rag_eval.pipeline.runner import Result, json_part
from rag_eval.reporting.metrics_report import REPORT_FILE
from rag_eval.reporting.report import Report
from rag_eval.storage.files import atomic_path

# ---- The report.

PAGE, TABLES = "index.html", "tables"
EVIDENCE_FILE = "evidence-trust.jsonl"


class MetricsReport(Result):
    """The report of a run. Only `content_hash` is part of the identity: equal inputs repeat it.

    Attributes
    ----------
    explorer
        Key of the explorer's parts.
    trace_error
        Reason why the traces were not written; empty when they were.
    folder
        Folder of the report and its files.
    """

    shown = ()
    content_hash: str = json_part()
    report: Report = json_part(volatile=True)
    explorer: str = json_part(volatile=True)
    trace_error: str = json_part(volatile=True)
    folder: str = json_part(volatile=True)

    def describe(self) -> dict[str, object]:
        """Show also the headline figures, the gates and the comparisons."""
        names = "run_id strategy recallAt10 mrr cacheHitRate gates comparisons look_first".split()
        report = self.report.dump()
        return super().describe() | {name: report.get(name) or "none" for name in names}


def publish(evaluation: Evaluation, files: Iterable[Path], *, alone: bool = False) -> None:
    """Share the files, and copy those of the primary gold set to the top of the reports."""
    evaluation.home.share(evaluation.shared_reports, evaluation.reports, files, alone=alone)
    if not evaluation.is_primary:
        return
    top = evaluation.settings.reports
    # Neither may stand beside the report of another run.
    for name in (PAGE, EVIDENCE_FILE):
        (top / name).unlink(missing_ok=True)
    for name in (REPORT_FILE, PAGE, EVIDENCE_FILE):
        if (evaluation.reports / name).is_file():
            with atomic_path(top / name) as partial:
                shutil.copy2(evaluation.reports / name, partial)  # an equal file has an equal time
