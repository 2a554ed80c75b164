"""The verdict as GitHub-flavoured Markdown, for a job summary or a comment.

Texts of the report stand in code spans, where nothing is a link, a mention, an issue or HTML; the characters that could end a span or a
table's cell, or mean something to a reader that knows no code spans, are written as their number.
"""

import re

from rag_eval.reporting.verdict_rows import GateRow, VerdictRows

FILE_NAME = "gate-verdict.md"
SIGNS = {
    "pass": "✅ pass",
    "failure": "❌ fails the run",
    "warning": "⚠️ advisory",
    "note": "➖ advisory",
}

MAX_LINES = 200
"""A job summary holds at most a megabyte; required failures come first."""

_ACTIVE = re.compile(r"[|`\r\n]|\\(?=$)|<(?=[A-Za-z/!?])|@(?=\w)")


def code(text: str) -> str:
    r"""A text of the report as a code span that it cannot leave.

    Examples
    --------
    >>> print(code("a|b`c <b>@team"))
    `a\u007cb\u0060c \u003cb>\u0040team`
    """
    escaped = _ACTIVE.sub(lambda match: f"\\u{ord(match.group()):04x}", text).strip()
    return f"`{escaped or '-'}`"


def markdown(verdict: VerdictRows) -> str:
    """Write the verdict as a heading, a sentence and a table."""
    lines = [
        f"## {'✅' if verdict.passed else '❌'} Gates of {code(verdict.gold_set)}",
        "",
        f"{verdict.headline}. Run {code(verdict.run_id)} of {code(verdict.timestamp)}, content hash {code(verdict.content_hash[:16])}.",
    ]
    if verdict.rows:
        lines += [
            "",
            "| gate | severity | required | status | reason | evidence |",
            "|---|---|---|---|---|---|",
            *map(_line, verdict.rows[:MAX_LINES]),
        ]
    if len(verdict.rows) > MAX_LINES:
        lines += ["", f"{len(verdict.rows) - MAX_LINES} more gates are not shown."]
    return "\n".join(lines) + "\n"


def _line(row: GateRow) -> str:
    status = (
        SIGNS[row.outcome] if row.outcome == "pass" else f"{SIGNS[row.outcome]}: {code(row.status)}"
    )
    cells = (
        code(row.id),
        code(row.severity),
        "yes" if row.required else "no",
        status,
        code(row.reason_code),
        code(row.evidence),
    )
    return f"| {' | '.join(cells)} |"
