"""Panels of answers (outcomes, citations, groundedness) and of trust and poisoning."""

from rag_eval.answers.codes import CODES as CONTRACT
from rag_eval.core.types import CODES, FIXES
from rag_eval.reporting import report_tables as tables
from rag_eval.reporting.report_tables import Page, Panel
from rag_eval.reporting.tables import Cursor, Table, panel_words


def answer_panel(page: Page) -> Panel:
    """Make the panel of citations and groundedness."""
    title, report = "Answers", page.report
    answers, citations = report["answers"], report["citations"]
    if "strategy" not in answers or "measures" not in citations:
        return Panel(title, "citations.html", {"answers": None})
    context = {
        "answers": answers,
        "citations": citations,
        "records": _answer_records(page),
        "unseen": [code for code in CODES if code not in citations["codes"].value],
        "gap": answers["gap"],
        "no_confidences": report.get("uncertainty", "answers", "reason"),
    }
    shown = {
        "measures": _answer_measures_table(page),
        "outcomes": _answer_outcomes_table(page),
        "codes": _citation_codes_table(page),
        "contract": _contract_codes_table(page),
        "unsupported": _unsupported_table(page),
        "flagged": _unused_evidence_table(page),
        "confidences": _answer_confidences_table(page),
        "usage": _usage_table(page),
        "ragas": _ragas_table(page),
    }
    return Panel(title, "citations.html", context, shown)


# ---- Tables that only this panel shows.


def _unsupported_table(page: Page) -> Table:
    """Show sentences that their citations do not support."""
    columns = """question = query_id | sentence | cites = citations | score :2
        | best passage = passage | conflict | lacks"""
    rows = page.report["citations"]["unsupported"]
    caption = "Sentences that their citations do not support"
    return page.table("unsupported", caption, columns, rows)


def _unused_evidence_table(page: Page) -> Table:
    """Show answers that neither cite nor use their retrieved evidence."""
    rows = [
        {"row": row, "meaning": panel_words()["gaps"].get(row.value["reason"], tables.UNKNOWN)}
        for row in page.report["answers"]["gap"]["flagged"]
    ]
    columns = "question = row.query_id | reason = row.reason | meaning | answer = row.answer"
    caption = "Answers that neither cite nor use their retrieved evidence"
    return page.table("retrieval-gap", caption, columns, rows)


def trust_panel(page: Page) -> Panel:
    """Make the panel of trust and poisoning."""
    part = page.report["trust"]
    guard = part["poisoning"]
    context = {
        "trust": part,
        "guard": guard,
        "manifest": guard["manifest"],
        "quarantine": panel_words()["quarantine"][str(guard["quarantine"].value)],
        "primary": page.report.get("trust", "retrieved", page.primary, "avg_trust"),
    }
    shown = {
        "retrieved": _retrieved_trust_table(page),
        "states": _trust_states_table(page),
        "reasons": _guard_reasons_table(page),
        "quarantined": _quarantined_table(page),
        "through": _blocked_retrieved_table(page),
        "filtered": _trust_filter_table(page),
    }
    return Panel("Trust", "trust.html", context, shown)


# ---- Tables that only this panel shows.


def _trust_states_table(page: Page) -> Table:
    """Show the state of each factor."""
    words = panel_words()
    rows = [
        {
            "factor": meaning,
            "state": state,
            "chunks": count,
            "meaning": words["trust_states"][factor].get(state, tables.UNKNOWN),
        }
        for factor, meaning in words["trust_factors"].items()
        for state, count in page.report["trust"]["states"][factor].items()
    ]
    columns = "factor | state | chunks | meaning"
    return page.table("trust-states", "Factors of the chunks' trust", columns, rows)


def _quarantined_table(page: Page) -> Table:
    """Show the chunks that are left out, or without quarantine the blocked ones."""
    columns = "document = doc_id | chunk = chunk_id | source = source_url | reasons"
    caption = "Chunks that are left out, or without quarantine the blocked ones"
    rows = page.report["trust"]["poisoning"]["quarantined"]
    return page.table("quarantined", caption, columns, rows)


def _blocked_retrieved_table(page: Page) -> Table:
    """Show the blocked chunks that strategies retrieved."""
    rows = [
        {"strategy": name, "row": row}
        for name, entry in page.by_strategy("trust", "retrieved")
        for row in entry.get("blocked") or ()
    ]
    columns = """strategy | document = row.doc_id | chunk = row.chunk_id
        | question = row.query_id | rank = row.rank | times = row.n | reasons = row.reasons"""
    caption = "Blocked chunks that strategies retrieved"
    return page.table("blocked-retrieved", caption, columns, rows)


def _answer_measures_table(page: Page) -> Table:
    """Show the measures of answers and citations."""
    gate_of = {
        gate.value["evidence"].get("measure"): gate
        for gate in page.report["gates"]
        if gate.value["gate"] == "acceptance"
    }
    rows = []
    for name, record in _answer_records(page).items():
        words, gate = panel_words()["answer_measures"].get(name, [name, ""]), gate_of.get(name)
        rows.append(
            {
                "measure": words[0],
                "record": record,
                "target": record.get("target") or "none",
                "gate": "none" if gate is None else gate["evidence"].get("accepted") or "",
                "status": "" if gate is None else gate["status"],
                "meaning": words[1],
            }
        )
    columns = """measure | value = record | target | scored = record.n_scored
        | attempted = record.n_attempted | failed = record.n_failed | units = record.n_units
        | effective = record.n_effective :1 | gate | status | what it is = meaning"""
    return page.table("answer-measures", "Measures of answers and citations", columns, rows)


def _answer_outcomes_table(page: Page) -> Table:
    """Show how the questions ended."""
    words = panel_words()["outcomes"]
    rows = [
        {"outcome": name, "questions": count, "meaning": words.get(name, tables.UNKNOWN)}
        for name, count in page.report["answers"]["outcomes"].items()
    ]
    columns = "outcome | questions | meaning"
    return page.table("answer-outcomes", "How the questions ended", columns, rows)


def _citation_codes_table(page: Page) -> Table:
    """Show citations by the rules that they break, in the order of the rules."""
    counts, meanings = page.report["citations"]["codes"], panel_words()["citation_codes"]
    codes = [code for code in CODES if code in counts]
    codes += [code for code in counts.value if code not in CODES]
    rows = [
        {
            "code": code,
            "n": counts[code],
            "meaning": meanings.get(code, tables.UNKNOWN),
            "fix": FIXES.get(code, "" if code == "ok" else tables.UNKNOWN),
        }
        for code in codes
    ]
    caption = "Citations by the rules that they break"
    return page.table("citation-codes", caption, "code | n | meaning | fix", rows)


def _contract_codes_table(page: Page) -> Table:
    """Show answers that broke their contract, by code."""
    rows = [
        {
            "code": code,
            "n": count,
            "meaning": CONTRACT[code].meaning if code in CONTRACT else tables.UNKNOWN,
            "fix": CONTRACT[code].fix if code in CONTRACT else tables.UNKNOWN,
        }
        for code, count in page.report["answers"]["codes"].items()
    ]
    caption = "Answers that broke their contract, by code"
    return page.table("contract-codes", caption, "code | n | meaning | fix", rows)


def _answer_confidences_table(page: Page) -> Table:
    """Show what the answers are worth, mean over answers."""
    part = page.report.get("uncertainty", "answers")
    rows = []
    if part is not None and "final_confidence" in part:
        for name, (words, meaning) in panel_words()["confidences"].items():
            rows.append({"confidence": words, "mean": part.down(name), "meaning": meaning})
    columns = "confidence | mean = mean :3n | what it is = meaning"
    return page.table("answer-confidence", "Mean confidence of the answers", columns, rows)


def _usage_table(page: Page) -> Table:
    """Show the use of models for the answers."""
    words = panel_words()["usage"]
    rows = [
        {"what": words.get(name, name), "value": figure}
        for name, figure in (page.report["answers"].get("usage") or Cursor({})).items()
        if isinstance(figure.value, int | float | None) and not isinstance(figure.value, bool)
    ]
    caption = "Use of models for the answers of this run"
    return page.table("answer-usage", caption, "what | value :6", rows)


def _ragas_table(page: Page) -> Table:
    """Show measures of ragas beside ours."""
    columns = """measure = name | ragas = . | scored = n_scored | effective = n_effective :1
        | our measure = ours | ours = ours_value | difference"""
    caption = "Measures of ragas that need no model, beside ours"
    return page.table("ragas", caption, columns, page.report.get("ragas") or ())


def _retrieved_trust_table(page: Page) -> Table:
    """Show the trust of what each strategy retrieved."""
    columns = """strategy | trust = entry.avg_trust | scored = entry.avg_trust.n_scored
        | effective = entry.avg_trust.n_effective :1 | retrieved = entry.n_retrieved
        | blocked = entry.n_blocked | warned = entry.n_warned"""
    rows = page.rows_by_strategy("trust", "retrieved")
    return page.table("trust-retrieved", "Trust of what each strategy retrieved", columns, rows)


def _guard_reasons_table(page: Page) -> Table:
    """Show blocked and warned chunks by reason code, the most frequent first."""
    words, counts = panel_words()["trust_checks"], page.report["trust"]["poisoning"]["reasons"]
    rows = [
        {"code": code, "n": n, "check": words.get(code.split(".", 1)[0], tables.UNKNOWN)}
        for code, n in sorted(counts.items(), key=lambda item: (-item[1].value, item[0]))
    ]
    columns = "reason code = code | chunks = n | what the check looks for = check"
    return page.table("trust-reasons", "Blocked and warned chunks by reason", columns, rows)


def _trust_filter_table(page: Page) -> Table:
    """Show recall with and without the trust filter."""
    columns = f"""strategy | measure | with the filter = with_filter | without = without_filter
        | n = with_filter.n_scored | {tables.PAIRED} | p (Holm) = p_adjusted :4
        | detectable = minimum_detectable"""
    rows = page.report["trust"]["filter"].get("rows") or ()
    return page.table("trust-filter", "Recall with and without the trust filter", columns, rows)


def _answer_records(page: Page) -> dict[str, Cursor]:
    """Return the measures by name, without failure rates, which the table of codes shows."""
    return {
        record.value["name"]: record
        for part in ("citations", "answers")
        for record in page.report.get(part, "measures") or ()
        if not record.value["name"].startswith("failure_rate_")
    }
