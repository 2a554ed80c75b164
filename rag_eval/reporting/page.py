"""The page: the panels of the run, and one HTML file with all panels, scripts, styles and data."""

import base64
import hashlib
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from typing import Any, Final

from markupsafe import Markup

from rag_eval.answers.replies import CODES as CONTRACT
from rag_eval.core.types import FIXES
from rag_eval.gates.gate import count_gates
from rag_eval.reporting import retrieval_panels
from rag_eval.reporting.elements import Page, Panel, environment
from rag_eval.reporting.retrieval_panels import PAIRED
from rag_eval.reporting.tables import Cursor, Table, panel_words

UNKNOWN: Final = "not described in this version"
"""Meaning of a code or state that `words.toml` does not list."""

# ---- Verdict: does the run pass, on which gates, and what changed since the run before it.

STATES: Final = {
    "pass": "pass",
    "fail": "fail",
    "insufficient_evidence": "not enough evidence",
    "not_applicable": "not applicable",
}


def _verdict(page: Page) -> Panel:
    """Make the panel of the verdict."""
    report, gates = page.report, list(page.report["gates"])
    required = [gate for gate in gates if gate["required"].value]
    regressions = [gate["evidence"] for gate in gates if "baseline_run" in gate["evidence"]]
    measures = page.measures_of_answers()
    deltas = report.get("previous", "deltas")
    context = {
        "counts": count_gates((gate["required"].value, gate["status"].value) for gate in gates),
        "required": required,
        "failed": [g for g in required if g["status"].value in {"fail", "insufficient_evidence"}],
        "unmet": {
            words: [gate for gate in gates if gate["status"].value == status]
            for status, words in STATES.items()
            if status != "pass"
        },
        "previous": report.get("previous"),
        "baseline": next((each for each in regressions if "value" in each), None),
        "changed": deltas and deltas.where(strategy=page.primary, measure="R@10"),
        "rates": report["uncertainty"]["strategies"][page.primary],
        "misses": report.get("misses", page.primary),
        "lost": _lost_steps(page),
        "questions": list(report.get("look_first") or ()),
        "grounded": measures.get("groundedness"),
        "refused": measures.get("refused_answerable"),
        "right": measures.get("citation_precision"),
        "trusted": report["trust"]["retrieved"][page.primary]["avg_trust"],
        "guard": report["trust"]["poisoning"],
        "latency": page.strategy(page.primary)["latency_ms"],
    }
    rows = [
        {
            "gate": gate,
            "required": "required" if gate["required"].value else "advisory",
            "found": gate["evidence"] if {"value", "delta"} & gate["evidence"].value.keys() else "",
            "evidence": gate["evidence"],
        }
        for gate in gates
    ]
    tables = {
        "gates": Table.of(
            "gates",
            "Gates: what was asked, and what was found",
            """gate = gate.id | status = gate.status | required | severity = gate.severity | found
                | relative drop = evidence.relative_drop | accepted = evidence.accepted
                | reason = gate.reason_code | effective = evidence.n_effective :1
                | catches a drop of = evidence.catches_drop""",
            rows,
        ),
        "deltas": Table.of(
            "previous-differences",
            "Differences from the previous run, on the same questions",
            f"strategy | measure | before | after | {PAIRED}",
            deltas or (),
        ),
    }
    return Panel("Verdict", "verdict.html", context, tables)


def _lost_steps(page: Page) -> list[tuple[str, Cursor]]:
    """Return (words, number of questions) of each step that lost gold, the most frequent first."""
    lost, words = page.report.get("misses", page.primary, "lost"), panel_words()["lost"]
    steps = [(words[step], lost[step]) for step in words if lost and lost.value.get(step)]
    return sorted(steps, key=lambda pair: -pair[1].value)


def _explorer(page: Page) -> Panel:
    """Make the panel of the explorer; a script draws it from data in the page."""
    return Panel("Questions", "explorer.html", {"has_questions": page.has_questions})


# ---- Answers: outcomes, citations, groundedness.


def _answers(page: Page) -> Panel:
    """Make the panel of citations and groundedness."""
    title, report, words = "Answers", page.report, panel_words()
    part, citations = report["answers"], report["citations"]
    if "strategy" not in part or "measures" not in citations:
        return Panel(title, "citations.html", {"answers": None})
    records, confidence = page.measures_of_answers(), report["uncertainty"]["answers"]
    context = {"answers": part, "citations": citations, "records": records, "gap": part["gap"]}
    accepted = {
        gate["evidence"].value.get("measure"): gate
        for gate in report["gates"]
        if gate["gate"].value == "acceptance"
    }
    measures: list[dict[str, Any]] = []
    for name, record in records.items():
        (label, meaning), gate = words["answer_measures"].get(name, (name, "")), accepted.get(name)
        row = {"measure": label, "record": record, "meaning": meaning}
        row["target"] = record.get("target") or "none"
        row["gate"] = "none" if gate is None else gate["evidence"].get("accepted") or ""
        row["status"] = "" if gate is None else gate["status"]
        measures.append(row)
    gaps = [
        {"row": row, "meaning": words["gaps"].get(row.value["reason"], UNKNOWN)}
        for row in part["gap"]["flagged"]
    ]
    confidences = [
        {"confidence": label, "mean": confidence.down(name), "meaning": meaning}
        for name, (label, meaning) in words["confidences"].items()
        if "final_confidence" in confidence
    ]
    tables = {
        "measures": Table.of(
            "answer-measures",
            "Measures of answers and citations",
            """measure | value = record | target | scored = record.n_scored
                | attempted = record.n_attempted | failed = record.n_failed
                | units = record.n_units | effective = record.n_effective :1 | gate | status
                | what it is = meaning""",
            measures,
        ),
        "outcomes": _codes(
            "answer-outcomes", "How the questions ended", part["outcomes"], words["outcomes"]
        ),
        "codes": _codes(
            "citation-codes",
            "Citations by the rules that they break",
            citations["codes"],
            words["citation_codes"],
            FIXES,
        ),
        "contract": _codes(
            "contract-codes",
            "Answers that broke their contract, by code",
            part["codes"],
            {code: CONTRACT[code].meaning for code in CONTRACT},
            {code: CONTRACT[code].fix for code in CONTRACT},
        ),
        "unsupported": Table.of(
            "unsupported",
            "Sentences that their citations do not support",
            """question = query_id | sentence | cites = citations | score :2
                | best passage = passage | conflict | lacks""",
            citations["unsupported"],
        ),
        "flagged": Table.of(
            "retrieval-gap",
            "Answers that neither cite nor use their retrieved evidence",
            "question = row.query_id | reason = row.reason | meaning | answer = row.answer",
            gaps,
        ),
        "confidences": Table.of(
            "answer-confidence",
            "Mean confidence of the answers",
            "confidence | mean = mean :3n | what it is = meaning",
            confidences,
        ),
        "usage": _settings("answer-usage", "Use of models", part.get("usage") or Cursor({})),
        "ragas": Table.of(
            "ragas",
            "Measures of ragas that need no model, beside ours",
            """measure = name | ragas = . | scored = n_scored | effective = n_effective :1
                | our measure = ours | ours = ours_value | difference""",
            report.get("ragas") or (),
        ),
    }
    return Panel(title, "citations.html", context, tables)


def _codes(
    name: str,
    caption: str,
    counts: Cursor,
    meanings: Mapping[str, str],
    fixes: Mapping[str, str] | None = None,
) -> Table:
    """Make a table of counted codes, the most frequent first, with what they mean."""
    rows = [
        {
            "code": code,
            "n": n,
            "meaning": meanings.get(code, UNKNOWN),
            "fix": (fixes or {}).get(code, ""),
        }
        for code, n in sorted(counts.items(), key=lambda item: (-item[1].value, item[0]))
    ]
    return Table.of(name, caption, f"code | n | meaning{' | fix' if fixes else ''}", rows)


def _settings(name: str, caption: str, *parts: Cursor) -> Table:
    """Make a table of the values in parts of the report, each under its dotted name."""
    rows = [
        {"setting": setting, "value": value}
        for part in parts
        for setting, value in _leaves(part, ".".join(map(str, part.path)))
    ]
    return Table.of(name, caption, "setting | value :5", rows)


def _leaves(cursor: Cursor, name: str) -> Iterator[tuple[str, Cursor]]:
    """Yield (dotted name, place) of each value in a part of the report."""
    if isinstance(cursor.value, dict):
        for key, inside in cursor.items():
            yield from _leaves(inside, f"{name}.{key}")
    elif isinstance(cursor.value, list) and cursor.value:
        for at, inside in enumerate(cursor):
            yield from _leaves(inside, f"{name}[{at}]")
    else:
        yield name, cursor


# ---- Trust and poisoning.


def _trust(page: Page) -> Panel:
    """Make the panel of trust and poisoning."""
    part, words = page.report["trust"], panel_words()
    guard = part["poisoning"]
    context = {
        "trust": part,
        "guard": guard,
        "manifest": guard["manifest"],
        "quarantine": words["quarantine"][str(guard["quarantine"].value)],
        "primary": part["retrieved"][page.primary]["avg_trust"],
    }
    states = [
        {
            "factor": meaning,
            "state": state,
            "chunks": count,
            "meaning": words["trust_states"][factor].get(state, UNKNOWN),
        }
        for factor, meaning in words["trust_factors"].items()
        for state, count in part["states"][factor].items()
    ]
    checks = {
        code: words["trust_checks"].get(code.partition(".")[0], UNKNOWN)
        for code in guard["reasons"].value
    }
    blocked = [
        {"strategy": name, "row": row}
        for name, entry in page.by_strategy("trust", "retrieved")
        for row in entry.get("blocked") or ()
    ]
    tables = {
        "retrieved": Table.of(
            "trust-retrieved",
            "Trust of what each strategy retrieved",
            """strategy | trust = entry.avg_trust | scored = entry.avg_trust.n_scored
                | effective = entry.avg_trust.n_effective :1 | retrieved = entry.n_retrieved
                | blocked = entry.n_blocked | warned = entry.n_warned""",
            page.rows("trust", "retrieved"),
        ),
        "states": Table.of(
            "trust-states",
            "Factors of the chunks' trust",
            "factor | state | chunks | meaning",
            states,
        ),
        "reasons": _codes(
            "trust-reasons", "Blocked and warned chunks by reason", guard["reasons"], checks
        ),
        "quarantined": Table.of(
            "quarantined",
            "Chunks that are left out, or without quarantine the blocked ones",
            "document = doc_id | chunk = chunk_id | source = source_url | reasons",
            guard["quarantined"],
        ),
        "through": Table.of(
            "blocked-retrieved",
            "Blocked chunks that strategies retrieved",
            """strategy | document = row.doc_id | chunk = row.chunk_id | question = row.query_id
                | rank = row.rank | times = row.n | reasons = row.reasons""",
            blocked,
        ),
        "filtered": Table.of(
            "trust-filter",
            "Recall with and without the trust filter",
            f"""strategy | measure | with the filter = with_filter | without = without_filter
                | n = with_filter.n_scored | {PAIRED} | p (Holm) = p_adjusted :4
                | detectable = minimum_detectable""",
            part["filter"].get("rows") or (),
        ),
    }
    return Panel("Trust", "trust.html", context, tables)


# ---- Cost and latency: how long a query takes, what a thousand cost, what the caches saved.


def _cost(page: Page) -> Panel:
    """Make the panel of cost and latency."""
    context = {
        "embeddings": page.report["embeddings"],
        "answers_cost": page.report.get("answers", "usage", "cost_per_1k"),
    }
    entries = [(name, page.strategy(name)) for name in page.strategies]
    rows = [
        {
            "strategy": name,
            "entry": entry,
            "run": "reused" if page.report.get("reused", "runs", name) else "new",
        }
        for name, entry in entries
    ]
    approximate = [
        {"strategy": name, "seed": seed, "measure": measure, "figure": figure}
        for name, entry in entries
        for seed, figures in (entry.get("ann_recall", "by_seed") or Cursor({})).items()
        for measure, figure in figures.items()
    ]
    tables = {
        "cost": Table.of(
            "latency-cost",
            "Latency and cost of retrieval",
            """strategy | p50 ms = entry.latency_ms.p50 :2 | p95 ms = entry.latency_ms.p95 :2
                | p99 ms = entry.latency_ms.p99 :2 | calls = entry.latency_ms.n
                | measured at = entry.latency_ms.measured_at
                | cost of a thousand = entry.cost_per_1k :4 | retrieved = run""",
            rows,
        ),
        "approximate": Table.of(
            "approximate-search",
            "Recall of exact search by approximate search",
            """strategy | measure | seed | value = figure | scored = figure.n_scored
                | effective = figure.n_effective :1""",
            approximate,
        ),
    }
    return Panel("Cost", "cost.html", context, tables)


# ---- Methods: definitions, and the configuration of the run.


def _methods(page: Page) -> Panel:
    """Make the panel of methods."""
    report = page.report
    names = ("version", "content_hash", "code", "features", "evaluation", "index")
    parts = [report[name] for name in names]
    parts += [report["gold"][name] for name in ("hash", "version", "seeds")]
    for entry in report["strategies"]:
        parts += [entry["name"], entry["configuration"]]
    table = _settings("configuration", "Configuration, hashes and versions of this run", *parts)
    context = {"parts": panel_words()["methods"]}
    return Panel("Methods", "methods.html", context, {"configuration": table})


# ---- The page.

SECTIONS: Final = (
    "verdict",
    "explorer",
    "measures",
    "miss-rates",
    "citations",
    "stability",
    "slices",
    "trust",
    "cost",
    "methods",
)
"""Ids of the sections, in the order of the page."""
PANELS: Final[Mapping[str, Callable[[Page], Panel]]] = {
    "verdict": _verdict,
    "explorer": _explorer,
    "citations": _answers,
    "trust": _trust,
    "cost": _cost,
    "methods": _methods,
    **retrieval_panels.PANELS,
}
"""Functions that make the panels, by section id."""
FOLDED: Final = frozenset(SECTIONS[SECTIONS.index("citations") :])
"""Panels that a reader unfolds: all after the first that is no answer to the first questions."""
FRAME_BYTES: Final = 20_000
"""Bytes reserved for the page around its panels, scripts and data."""
SCRIPT: Final = "explorer.js"
STYLES: Final = ("page.css", "explorer.css")


def asset(name: str) -> str:
    """Read a script or a style sheet of the page."""
    path = resources.files("rag_eval.reporting").joinpath("assets", name)
    return path.read_text(encoding="utf-8")


def _policy(script: str, style: str) -> str:
    """Write the Content-Security-Policy: only this script, this style, and inline pictures."""
    allowed = [
        "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"
        for text in (script, style)
    ]
    return (
        f"default-src 'none'; script-src {allowed[0]}; style-src {allowed[1]}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _block(name: str, content: bytes) -> Markup:
    """Write gzip bytes as base64 data in a script element that browsers do not run."""
    return Markup(
        '<script type="application/octet-stream+base64" id="bundle-{}">{}</script>'
    ).format(name, base64.b64encode(content).decode("ascii"))


def build(
    report: Mapping[str, Any],
    bundle: Callable[[int], Mapping[str, bytes]] | None = None,
    limit: int = 0,
) -> str:
    """Build the page of a report, as `retrieval-metrics.json` holds it: one HTML document.

    `bundle` gets a number of bytes and makes the explorer's parts by file name (`summary.json.gz`,
    ...) within this size. With None the page says that the explorer is left out. `limit` is the
    largest size of the page in bytes. The explorer gets the bytes that the panels leave.
    """
    page = Page(Cursor(dict(report)), has_questions=bundle is not None)
    script = asset(SCRIPT)
    style = "\n".join(asset(name) for name in STYLES)
    sections = list[dict[str, Any]]()
    for name in SECTIONS:
        panel, body = _render_panel(name, page)
        sections.append({"id": name, "title": panel.title, "body": body, "folded": name in FOLDED})
    blocks = dict[str, bytes]()
    if bundle is not None:
        texts = [script, style, *(section["body"] for section in sections)]
        taken = sum(len(text.encode()) for text in texts)
        parts = bundle(limit - taken - FRAME_BYTES)
        blocks = {name.removesuffix(".json.gz"): part for name, part in parts.items()}
    context = {
        "page": page,
        "report": page.report,
        "sections": sections,
        "policy": _policy(script, style),
        "script": Markup(script),  # noqa: S704 - our own files
        "style": Markup(style),  # noqa: S704 - our own files
        "blocks": Markup("\n").join(_block(*block) for block in blocks.items()),
    }
    return environment().get_template("page.html").render(context)


def page_tables(report: Mapping[str, Any]) -> list[Table]:
    """Make the tables of all panels that have rows, in the order of the page."""
    page = Page(Cursor(dict(report)))
    return [table for name in SECTIONS for table in PANELS[name](page).tables.values() if table]


def _render_panel(name: str, page: Page) -> tuple[Panel, Markup]:
    """Make the section of one panel, and its tables."""
    panel = PANELS[name](page)
    context = {"page": page, "report": page.report, "tables": panel.tables, **panel.context}
    body = environment().get_template(panel.template).render(**context)
    return panel, Markup(body)  # noqa: S704 - escaped by the environment
