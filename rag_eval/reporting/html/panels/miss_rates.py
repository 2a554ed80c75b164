"""Calibrated miss rates: how often each strategy finds nothing, how well that was predicted, and under which status it may be believed."""

from markupsafe import Markup

from rag_eval.reporting.html.page import Page, Panel
from rag_eval.reporting.html.panels import miss_rate_conformal as conformal
from rag_eval.reporting.html.panels import miss_rate_more as more
from rag_eval.reporting.html.panels import miss_rate_pictures as pictures
from rag_eval.reporting.html.panels import miss_rate_tables as tables
from rag_eval.reporting.html.panels import miss_rate_watch as watch
from rag_eval.reporting.html.panels.parts import (
    alike,
    by_strategy,
    in_words,
    reason_of,
    rows_in_words,
)
from rag_eval.reporting.html.tables import Table

OPEN_DIAGRAMS = 6
"""Further reliability diagrams stand behind a summary."""


def _diagrams(page: Page) -> tuple[Markup, Markup, int]:
    """Reliability diagrams that stand open, the others, and how many these are; the primary strategy's is the first."""
    strategies = page.report["calibration"]["strategies"]
    ordered = sorted(
        (name for name in page.strategies if name in strategies),
        key=lambda name: name != page.primary,
    )
    drawn = [
        picture
        for name in ordered
        if (picture := pictures.reliability(page, name, strategies[name])) is not None
    ]
    rest = drawn[OPEN_DIAGRAMS:]
    return Markup().join(drawn[:OPEN_DIAGRAMS]), Markup().join(rest), len(rest)


def _pictures(page: Page) -> Markup:
    comparison = page.report["calibration"].get("comparison")
    uncertainty, calibration = (
        page.report["uncertainty"]["strategies"],
        page.report["calibration"]["strategies"],
    )
    drawn = [
        pictures.against(page, uncertainty),
        None if comparison is None else pictures.three(page, comparison),
        pictures.learning(page, calibration),
    ]
    return Markup().join(picture for picture in drawn if picture is not None)


def panel(page: Page) -> Panel:
    """Make the panel."""
    if page.report.get("uncertainty") is None or page.report.get("calibration") is None:
        return Panel(
            "Calibrated miss rates",
            "miss_rates.html",
            {
                "there": False,
                "why": reason_of(page.report["calibration"])
                if "calibration" in page.report
                else "this report holds no miss rates",
            },
        )
    calibration = page.report["calibration"]
    comparison = calibration.get("comparison")
    shown: dict[str, Table | None] = {
        "status": tables.status(page),
        "rates": tables.rates(page),
        "quality": tables.quality(page),
        "conformal": conformal.conformal(page),
        "covered": conformal.coverage(page),
        "compared": None if comparison is None else more.compared(page, comparison),
        "observed": None
        if comparison is None
        else more.differences(
            page,
            comparison,
            ["observed"],
            "miss-rate-differences",
            f"Paired differences in observed misses, on the same questions, {more.FIRST}",
        ),
        "others": None
        if comparison is None
        else more.differences(
            page,
            comparison,
            [key for key in more.MEASURES if key != "observed"],
            "miss-rate-differences-more",
            f"Paired differences in the other figures, on the same questions, {more.FIRST}",
        ),
        "leakage": more.leakage(page),
        "wordings": more.wordings(page),
        "drift": watch.drift(page),
        "promotions": watch.promotions(page),
        "iterative": watch.iterative(page),
        "feedback": watch.feedback(page),
        "feedback_watch": watch.feedback_watch(page),
        "feedback_earlier": watch.feedback_earlier(page),
        "conditions": tables.conditions(page),
        "coefficients": more.coefficients(page),
        "riskiest": more.riskiest(page),
    }
    diagrams, further, n_further = _diagrams(page)
    entries = by_strategy(page, calibration["strategies"])
    context = {
        "there": True,
        "tables": shown,
        "counts": {
            name: rows_in_words(len(table.rows))
            for name, table in shown.items()
            if table is not None
        },
        "diagrams": diagrams,
        "further": further,
        "n_further": in_words(n_further),
        "pictures": _pictures(page),
        "coverage": pictures.coverage(page, calibration["strategies"]),
        "about": page.report["uncertainty"],
        "calibration": calibration,
        "unfitted": alike(
            page,
            [
                (name, reason_of(entry["validation"]))
                for name, entry in entries
                if entry["validation"].value is None
            ],
        ),
        "refused": alike(
            page,
            [
                (name, entry["refused"])
                for name, entry in entries
                if entry["refused"].value is not None
            ],
        ),
        "unstated": alike(
            page,
            [
                (name, entry["reason"])
                for name, entry in by_strategy(page, page.report["uncertainty"]["strategies"])
                if "reason" in entry
            ],
        ),
        "unbranched": alike(
            page,
            [
                (name, reason_of(entry["other_wordings"]))
                for name, entry in entries
                if entry["other_wordings"].value is None
            ],
        ),
        "uncompared": reason_of(calibration["comparison"])
        if comparison is None and "comparison" in calibration
        else "this report holds none",
        "watched": any(entry["drift"]["n"].value for _, entry in entries),
        "rules": [(name, rule["text"]) for name, entry in entries for rule in entry["conformal"]],
        "without_k": conformal.without_k(page),
        "left_out": conformal.left_out(page),
        "accounts": []
        if page.report["uncertainty"].get("iterative") is None
        else page.report["uncertainty"]["iterative"].items(),
        "unpowered": None
        if comparison is None
        else next(
            (
                reason_of(entry["powered"])
                for entry in comparison["strategies"]
                if entry["powered"].value is None
            ),
            None,
        ),
        "known_feedback": any("feedback" in entry for _, entry in entries),
    }
    return Panel(
        "Calibrated miss rates",
        "miss_rates.html",
        context,
        tuple(table for table in shown.values() if table is not None),
    )
