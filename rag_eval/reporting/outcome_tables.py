"""Outcomes, claims and draws on a terminal. All text that came from outside goes through `quoted` or `shown`.

Belongs here: tables with their denominators. What stands in them is decided elsewhere.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pandas as pd

from rag_eval.corpus.outgoing import shown
from rag_eval.records.problems import quoted
from rag_eval.reporting.terminal import cell, new_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

SHORT_ID, SHORT_CELL, MAX_CELL = 12, 40, 80
_MISSED = {1.0: "missed", 0.0: "hit"}


def _share(value: float | None) -> str:
    return "-" if value is None or value != value else f"{value:.4g}"  # noqa: PLR0124 - NaN is the value that differs from itself


def _moment(at: str | None) -> str:
    return "-" if not at else f"{at[:10]} {at[11:16]}"


def _told(row: Mapping[Any, Any]) -> "Text":
    """What was missed and what somebody noted; each masked and cut."""
    return cell(
        "; ".join(shown(row[name], MAX_CELL) for name in ("missed_content", "note") if row[name])
    )


def show_outcomes(console: "Console", frame: pd.DataFrame, limit: int) -> None:
    """Print the newest outcomes, one a row, and what all of them come to."""
    names = (
        "question",
        "strategy",
        "target",
        "judged",
        "gold (drawn with)",
        "shown",
        "what was missed, note",
    )
    table = new_table(
        "",
        [
            ("at (UTC)", "right"),
            ("outcome", "right"),
            *(
                (name, "right" if name in {"target", "gold (drawn with)"} else "left")
                for name in names
            ),
        ],
    )
    for row in frame.tail(limit).iloc[::-1].to_dict("records"):
        stated = (
            "-"
            if row["shown_value"] != row["shown_value"]
            else f"{row['shown_value']:.2f} {row['shown_status']}"
        )
        judged = _MISSED.get(row["missed"], row["feedback"].replace("_", " ") or "taken back")
        table.add_row(
            _moment(row["at"]),
            row["outcome_id"][:SHORT_ID],
            cell(shown(row["query_id"], SHORT_CELL)),
            cell(shown(row["strategy"], SHORT_CELL)),
            f"{row['target']}@{row['k']}",
            judged,
            f"{row['gold_source']} ({_share(row['inclusion_probability'])})",
            stated,
            _told(row),
        )
    console.print(table)
    judged = frame["missed"].notna()
    groups = frame.loc[judged, "group_id"].nunique()
    fit = int(
        (
            judged
            & frame["inclusion_probability"].notna()
            & (frame["gold_source"] != "user_feedback")
        ).sum()
    )
    console.print(
        f"{min(limit, len(frame))} of {len(frame):,} outcomes; judged {int(judged.sum()):,} in {groups:,} groups, missed {int((frame['missed'] == 1).sum()):,}; {fit:,} with a known probability can fit a calibrator",
        markup=False,
        soft_wrap=True,
    )


def show_claims(console: "Console", rows: Sequence[Mapping[str, Any]], limit: int) -> None:
    """Print the newest claims and how many each strategy has."""
    table = new_table(
        "",
        [
            ("at (UTC)", "left"),
            ("claim", "left"),
            ("question", "left"),
            ("strategy", "left"),
            ("retrieved", "right"),
            ("k", "right"),
            ("miss rate", "right"),
        ],
    )
    for row in list(rows)[-limit:][::-1]:
        table.add_row(
            _moment(row["at"]),
            row["claim_id"][:SHORT_ID],
            cell(shown(row["query"], MAX_CELL)),
            cell(shown(row["strategy"], MAX_CELL)),
            str(len(row["retrieved"])),
            str(row["k"]),
            _share(row["miss_rate"]),
        )
    console.print(table)
    counts: dict[tuple[str, str], int] = {}
    for row in rows:
        counts[row["strategy"], row["strategy_fingerprint"]] = (
            counts.get((row["strategy"], row["strategy_fingerprint"]), 0) + 1
        )
    for (strategy, fingerprint), count in sorted(counts.items()):
        console.print(
            f"{count:,} claims of {quoted(strategy, MAX_CELL)}, fingerprint {quoted(fingerprint, MAX_CELL)}",
            markup=False,
            soft_wrap=True,
        )
    console.print(
        f"{min(limit, len(rows))} of {len(rows):,} claims in {len({row['group_id'] for row in rows}):,} groups",
        markup=False,
        soft_wrap=True,
    )


def show_draws(
    console: "Console", frames: Sequence[Mapping[str, Any]], judged: Mapping[str, int]
) -> None:
    """Print every draw, with how many of its claims were judged."""
    table = new_table(
        "",
        [
            ("at (UTC)", "left"),
            ("draw", "left"),
            ("strategy", "left"),
            ("target", "left"),
            ("drawn", "right"),
            ("of claims", "right"),
            ("strata", "right"),
            ("depth", "right"),
            ("seed", "right"),
            ("judged", "right"),
        ],
    )
    for row in frames:
        strata = str(sum(1 for size in row["strata"]["sizes"] if size))
        done = f"{judged.get(row['draw_id'], 0)}/{row['n']}"
        table.add_row(
            _moment(row["at"]),
            row["draw_id"],
            cell(shown(row["strategy"], MAX_CELL)),
            row["target"],
            f"{row['n']:,}",
            f"{row['population']:,}",
            strata,
            str(row["depth"]),
            str(row["seed"]),
            done,
        )
    console.print(table)
    console.print(
        f"{len(frames)} draws. A draw that is judged in part only stands for all claims if what was left unjudged was left by chance.",
        markup=False,
        soft_wrap=True,
    )


def show_feedback(console: "Console", frame: pd.DataFrame, limit: int) -> None:
    """Print claims whose users said something and that nobody has audited."""
    table = new_table(
        "",
        [
            ("at (UTC)", "left"),
            ("claim", "left"),
            ("question", "left"),
            ("strategy", "left"),
            ("feedback", "left"),
            ("what was missed, note", "left"),
        ],
    )
    for row in frame.head(limit).to_dict("records"):
        feedback = row["feedback"].replace("_", " ")
        table.add_row(
            _moment(row["at"]),
            row["claim_id"],
            cell(shown(row["query_id"], MAX_CELL)),
            cell(shown(row["strategy"], MAX_CELL)),
            feedback,
            _told(row),
        )
    console.print(table)
    console.print(
        f"{min(limit, len(frame))} of {len(frame):,} claims with feedback and no audit. Feedback is mostly complaints: it calls for audits and never fits a calibrator.",
        markup=False,
        soft_wrap=True,
    )
