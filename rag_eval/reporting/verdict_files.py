"""Every file of a verdict, written beside its report."""

from pathlib import Path

from rag_eval.reporting import verdict_junit, verdict_markdown, verdict_sarif
from rag_eval.reporting.verdict_rows import VerdictRows
from rag_eval.storage.atomic import write_bytes, write_text

VERDICT_FILES = tuple(
    module.FILE_NAME for module in (verdict_junit, verdict_markdown, verdict_sarif)
)
"""Names of the files."""


def write_verdict(verdict: VerdictRows, folder: Path) -> tuple[Path, ...]:
    """Write JUnit XML, Markdown and SARIF, each atomically; returns where they are."""
    xml, markdown, sarif = (folder / name for name in VERDICT_FILES)
    write_bytes(xml, verdict_junit.junit_xml(verdict))
    write_text(markdown, verdict_markdown.markdown(verdict))
    write_text(sarif, verdict_sarif.sarif(verdict))
    return xml, markdown, sarif
