"""The report on a terminal: tables with intervals and denominators, the gates, and where to look next.

Texts from gold sets and corpora go through `quoted`, and rich markup in them is never interpreted.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rag_eval.records.problems import Problem, quoted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

SHOWN = ("R@10", "RR", "nDCG@10")
STATUS_STYLE = {"pass": "green", "fail": "red", "insufficient_evidence": "yellow"}


def interval(value: float | None, low: float | None, high: float | None) -> str:
    """Write a figure with its interval; a dash where nothing was scored."""
    if value is None:
        return "-"
    return f"{value:.3f}" if low is None or high is None else f"{value:.3f} [{low:.2f}, {high:.2f}]"


def cell(value: object) -> "Text":
    """Text of a cell, with what a terminal would act on shown as escapes."""
    from rich.text import Text

    return Text(quoted(str(value)))


def new_table(title: str, columns: Sequence[tuple[str, str]]) -> "Table":
    """Make an empty table; each column has a name and left or right."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=Text(title),
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for name, justify in columns:
        table.add_column(
            name, justify="right" if justify == "right" else "left", no_wrap=justify == "right"
        )
    return table


def headline(report: Mapping[str, Any]) -> list[str]:
    """Name what was measured on what."""
    gold, index = report["gold"], report["index"]
    unanswerable = gold["n_queries"] - gold["n_answerable"]
    masking = "" if index["masked"] is not None else "; masking of personal data is OFF"
    questions = f"{gold['n_queries']} questions ({unanswerable} unanswerable), {gold['n_paraphrases']} paraphrases, {gold['n_groups']} independent groups"
    return [
        f"{quoted(gold['name'])} version {quoted(str(gold['version']))}: {questions}, seeds {', '.join(quoted(str(seed)) for seed in gold['seeds'])}",
        f"corpus {quoted(index['rev'])}: {index['n_documents']:,} documents, {index['n_chunks']:,} chunks; gold hash {quoted(gold['hash'][:12])}{masking}",
    ]


def measures_table(report: Mapping[str, Any]) -> "Table":
    """Headline measures by strategy, with 95 % intervals over groups and the number of scored questions."""
    level = report["evaluation"]["level"]
    table = new_table(
        f"Retrieval, {level} level (95 % intervals over groups of questions)",
        [
            ("strategy", "left"),
            *((label, "right") for label in SHOWN),
            ("scored", "right"),
            ("p95 ms", "right"),
        ],
    )
    for entry in report["strategies"]:
        by_label = {
            record["label"]: record for record in entry["measures"] if record["level"] == level
        }
        first = by_label[SHOWN[0]]
        failed = f" ({first['n_failed']} failed)" if first["n_failed"] else ""
        table.add_row(
            cell(entry["name"] + (" *" if entry["name"] == report["strategy"] else "")),
            *(
                interval(
                    by_label[label]["value"], by_label[label]["ci_low"], by_label[label]["ci_high"]
                )
                for label in SHOWN
            ),
            f"{first['n_scored']}/{first['n_attempted']}{failed}",
            "-" if entry["latency_ms"]["p95"] is None else f"{entry['latency_ms']['p95']:.1f}",
        )
    return table


def strategy_lines(report: Mapping[str, Any]) -> list[str]:
    """Say which retrievals failed and why, what was not measured at this level, and what else must be known to read the table."""
    level, lines = report["evaluation"]["level"], []
    for entry in report["strategies"]:
        name = quoted(entry["name"])
        if entry["n_failed"]:
            codes = ", ".join(
                f"{quoted(code)} {n}" for code, n in sorted(entry.get("failures", {}).items())
            )
            first = quoted(entry["first_failure"] or "", 300)
            lines.append(
                f"{name}: {entry['n_failed']} of {entry['n_runs']} retrievals FAILED and score 0{f' ({codes})' if codes else ''}; first: {first}"
            )
        here = entry.get("levels", {}).get(level, {"measured": True})
        lines += (
            [f"{name}: not measured at the {level} level: {quoted(here['reason'], 300)}"]
            if not here["measured"]
            else []
        )
        lines += [f"{name}: {quoted(note, 300)}" for note in entry.get("notes", [])]
    return lines


def comparisons_table(rows: Sequence[Mapping[str, Any]], title: str) -> "Table":
    """Paired differences with interval, adjusted p, questions better and worse, and what the gold set could have detected."""
    table = new_table(
        title,
        [
            ("a - b", "left"),
            ("measure", "left"),
            ("difference", "right"),
            ("p (Holm)", "right"),
            ("better/worse", "right"),
            ("detectable", "right"),
        ],
    )
    for row in rows:
        detectable = (
            "-" if row["minimum_detectable"] is None else f"{row['minimum_detectable']:.3f}"
        )
        p = "-" if row["p_adjusted"] is None else f"{row['p_adjusted']:.4f}"
        bounds = (
            ""
            if row["ci_low"] is None or row["ci_high"] is None
            else f" [{row['ci_low']:+.2f}, {row['ci_high']:+.2f}]"
        )
        delta = "-" if row["delta"] is None else f"{row['delta']:+.3f}{bounds}"
        table.add_row(
            cell(f"{row['a']} - {row['b']}"),
            row["measure"],
            delta,
            p,
            f"{row['n_better']}/{row['n_worse']}",
            detectable,
        )
    return table


def stability_lines(report: Mapping[str, Any]) -> list[str]:
    """Say how much the wording and the seed change for the primary strategy."""
    entry = report["stability"]["strategies"][report["strategy"]]
    flips = entry["hit_changes_with_wording"]["hit_at_10"]
    together, distance = entry["convergent_and_hit"], entry["delta_s"]
    if not flips["n_scored"]:
        changes = [
            "no question has a second wording, so nothing is known about how the hit depends on it"
        ]
    else:
        changes = [
            f"hit@10 changes with the wording for a share {interval(flips['value'], flips['ci_low'], flips['ci_high'])} of {flips['n_scored']} questions",
            f"convergent and always hit: a share {interval(together['value'], together['ci_low'], together['ci_high'])} of {together['n_scored']} questions",
        ]
    lines = [
        *changes,
        f"delta_s {interval(distance['value'], distance['ci_low'], distance['ci_high'])} (target {distance['target']}), measured with {quoted(report['stability']['embedding'])}",
    ]
    if entry["seeds_change_nothing"]:
        lines.append(f"seeds change nothing for {quoted(report['strategy'])}")
    return lines


ANSWER_ROWS = (
    "citation_precision",
    "citation_recall",
    "citation_match_rate",
    "citation_validity_rate",
    "coverage",
    "groundedness",
    "abstention_rate",
    "refused_answerable",
    "failure_rate",
)


def answers_table(report: Mapping[str, Any]) -> "Table":
    """Measures of answers and citations with 95 % intervals, what each is counted over, and the target where the field has one."""
    part = report["answers"]
    table = new_table(
        f"Answers ({', '.join(part['modes'])}; evidence from {quoted(part['strategy'])})",
        [
            ("measure", "left"),
            ("value", "right"),
            ("target", "left"),
            ("over", "right"),
            ("questions", "left"),
        ],
    )
    by_name = {
        record["name"]: record for record in [*part["measures"], *report["citations"]["measures"]]
    }
    for name in ANSWER_ROWS:
        record = by_name.get(name)
        if record is not None and record["value"] is None:
            table.add_row(
                name, "-", record.get("target", ""), "", cell(record.get("value_reason", ""))
            )
        elif record is not None:
            unit = {
                "citation_precision": "citations",
                "citation_validity_rate": "citations",
                "citation_match_rate": "due",
                "citation_recall": "gold spans",
            }.get(name, "questions")
            table.add_row(
                name,
                interval(record["value"], record["ci_low"], record["ci_high"]),
                record.get("target", ""),
                f"{record['n_units']} {unit}",
                f"{record['n_scored']}/{record['n_attempted']}",
            )
    return table


def answer_lines(report: Mapping[str, Any]) -> list[str]:
    """Say how the questions ended, which codes there were, and how many answers leave what was retrieved unused."""
    part, citations = report["answers"], report["citations"]
    ended = ", ".join(
        f"{count} {name.replace('_', ' ')}"
        for name, count in sorted(part["outcomes"].items(), key=lambda entry: -entry[1])
    )
    lines = [f"{part['n_questions']} questions: {ended}"]
    if part["codes"]:
        lines.append(
            "contract broken: "
            + ", ".join(
                f"{count} {quoted(code)}"
                for code, count in sorted(part["codes"].items(), key=lambda entry: -entry[1])
            )
        )
    bad = {code: count for code, count in citations["codes"].items() if code != "ok"}
    if bad:
        lines.append(
            f"citations that do not validate, of {citations['n_citations']}: "
            + ", ".join(f"{count} {code}" for code, count in bad.items())
        )
    if part["usage"]:
        usage = part["usage"]
        lines.append(
            f"{quoted(str(part['model']))}: {usage['requests']} requests, {usage['retries']} retries, {usage['cached']} replies from the cache; {usage['cost_per_1k']:.2f} for 1,000 questions at the configured prices"
        )
    gap = part["gap"]
    if gap["n_flagged"]:
        lines.append(
            f"{gap['code']} (warning): {gap['n_flagged']} of {gap['n_checked']} answers leave what was retrieved unused, for example {quoted(gap['flagged'][0]['query_id'])}"
        )
    return lines


def trust_lines(report: Mapping[str, Any]) -> list[str]:
    """Say what the guard held back, what got through, and how far sources are trusted."""
    part = report["trust"]
    guard, own = part["poisoning"], part["retrieved"][report["strategy"]]["avg_trust"]
    found = f"{guard['n_blocked']} of {guard['n_chunks']:,} chunks blocked" + (
        "" if guard["quarantine"] else " but indexed, as quarantine is off"
    )
    lines = [
        f"screening (rules {quoted(guard['rules_version'])}): {found}, {guard['n_warned']} warned, {guard['n_allowed']} allowed by a person"
    ]
    if guard["reasons"]:
        common = sorted(guard["reasons"].items(), key=lambda entry: (-entry[1], entry[0]))[:5]
        lines.append(
            "reasons: "
            + ", ".join(f"{quoted(code)} {count}" for code, count in common)
            + "; rag-eval trust list shows the chunks"
        )
    if guard["at_retrieval"]["n_blocked_pairs"]:
        lines.append(
            f"left out at retrieval, as they restate a question: {guard['at_retrieval']['n_blocked_chunks']} chunks"
        )
    lines += [quoted(note, 300) for note in part["notes"]]
    through = {
        name: entry["n_blocked"] for name, entry in part["retrieved"].items() if entry["n_blocked"]
    }
    if through:
        lines.append(
            "BLOCKED CHUNKS WERE RETRIEVED: "
            + ", ".join(
                f"{quoted(name)} {count} of {part['retrieved'][name]['n_retrieved']:,}"
                for name, count in through.items()
            )
        )
    if own["value"] is None:
        lines.append(f"source trust: {own['value_reason']}")
    else:
        lines.append(
            f"source trust of the first ten of {quoted(report['strategy'])}: {interval(own['value'], own['ci_low'], own['ci_high'])} over {own['n_scored']} questions"
        )
        told = "; ".join(
            f"{name.removesuffix('_state')} "
            + ", ".join(f"{state.replace('_', ' ')} {count:,}" for state, count in counts.items())
            for name, counts in part["states"].items()
        )
        lines.append(f"trust factors over {guard['n_chunks']:,} chunks: {told}")
    lines += [
        f"trust filter at {part['filter']['threshold']:g}, {quoted(row['strategy'])}: {row['measure']} {interval(row['with_filter']['value'], None, None)} with, {interval(row['without_filter']['value'], None, None)} without"
        f" (difference {interval(row['delta'], row['ci_low'], row['ci_high'])}, {row['n_groups']} groups)"
        for row in part["filter"].get("rows", ())
        if row["measure"] == SHOWN[0]
    ]
    return lines


def drift_lines(report: Mapping[str, Any]) -> list[str]:
    """Say what changed since the accepted baseline."""
    part = report["drift"]
    if "baseline" not in part:
        return []
    corpus = part["corpus"]
    counts = ", ".join(f"{corpus[kind]['n']} {kind}" for kind in ("new", "changed", "removed"))
    lines = [
        f"since the baseline {quoted(part['baseline']['run_id'])}: documents {counts}; targets of {part['gold']['targets_changed']['n']} questions changed"
    ]
    return [*lines, *(quoted(note, 400) for note in part["notes"])]


def previous_lines(report: Mapping[str, Any]) -> list[str]:
    """Say whether this run may be compared with the one before it, or why not."""
    part = report.get("previous")
    if part is None:
        return []
    codes = ", ".join(code.replace("_", " ") for code in part["reason_codes"])
    against = ("comparable" if part["comparable"] else "not comparable") + (
        f" ({codes})" if codes else ""
    )
    return [f"previous run {quoted(part['run_id'])}: {against}"]


def _fallen(evidence: Mapping[str, Any]) -> str:
    """Write what a regression gate found: the relative drop, which is what is accepted or not, and the paired difference."""
    bounds = (
        ""
        if evidence["ci_low"] is None or evidence["ci_high"] is None
        else f" [{evidence['ci_low']:+.2f}, {evidence['ci_high']:+.2f}]"
    )
    difference = f"diff. {evidence['value']:+.3f}{bounds}"
    return (
        f"drop {evidence['relative_drop']:.3f}\n{difference}"
        if "relative_drop" in evidence
        else difference
    )  # two lines, so that a narrow terminal keeps the other columns


def regression_lines(report: Mapping[str, Any]) -> list[str]:
    """Say which run the regression gates hold this one against, and what else differs between the two."""
    held = [gate["evidence"] for gate in report["gates"] if "baseline_run" in gate["evidence"]]
    evidence = next(
        (evidence for evidence in held if "value" in evidence), held[0] if held else None
    )
    if evidence is None:
        return []
    against = f"regression against the accepted baseline {quoted(evidence['baseline_run'])}"
    if "value" not in evidence and "reason" in evidence:
        return [f"{against}: {quoted(evidence['reason'], 300)}"]
    different = ", ".join(
        f"another {quoted(name)} ({quoted(part['before'])} before, {quoted(part['now'])} now)"
        for name, part in evidence.get("different", {}).items()
    )
    return [f"{against}: {different or 'nothing else differs'}"]


def gates_table(report: Mapping[str, Any]) -> "Table":
    """Gates with what was asked, what was found and why."""
    table = new_table(
        "Gates",
        [
            ("gate", "left"),
            ("status", "left"),
            ("found", "right"),
            ("accepted", "left"),
            ("reason", "left"),
        ],
    )
    table.columns[0].no_wrap = True  # a gate is looked up by its whole name
    from rich.text import Text

    for gate in report["gates"]:
        evidence = gate["evidence"]
        found = (
            _fallen(evidence)
            if "baseline_run" in evidence and "value" in evidence
            else interval(evidence.get("value"), evidence.get("ci_low"), evidence.get("ci_high"))
        )
        name = gate["id"] + (" (required)" if gate["required"] else "")
        status = Text(gate["status"].replace("_", " "), style=STATUS_STYLE[gate["status"]])
        table.add_row(
            cell(name), status, found, cell(evidence.get("accepted", "")), cell(gate["reason_code"])
        )
    return table


def primary_comparisons(report: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Comparisons that involve the primary strategy, on R@10; the report holds all of them."""
    return [
        row
        for row in report["comparisons"]
        if report["strategy"] in {row["a"], row["b"]} and row["measure"] == SHOWN[0]
    ]


def show_report(console: "Console", report: Mapping[str, Any]) -> None:
    """Print a report: what was measured, the measures, comparisons with the primary strategy, stability, gates."""
    for line in headline(report):
        console.print(line, markup=False)
    if report["gold"]["warnings"]:
        first = Problem(**report["gold"]["warnings"][0])
        console.print(
            f"{len(report['gold']['warnings'])} warnings about the gold set, for example: {first}",
            markup=False,
            soft_wrap=True,
        )
    console.print(measures_table(report))
    for line in strategy_lines(report):
        console.print(line, markup=False, soft_wrap=True)
    if report["comparisons"]:
        title = f"Paired differences in {SHOWN[0]} (* {quoted(report['strategy'])} against the others; all pairs are in the report)"
        console.print(comparisons_table(primary_comparisons(report), title))
    for line in stability_lines(report):
        console.print(line, markup=False)
    if "outcomes" in report["answers"]:
        console.print(answers_table(report))
        for line in answer_lines(report):
            console.print(line, markup=False)
    from rag_eval.reporting.miss_rate_lines import miss_rate_lines, miss_rates_table

    console.print(miss_rates_table(report))
    for line in (
        *miss_rate_lines(report),
        *trust_lines(report),
        *previous_lines(report),
        *drift_lines(report),
        *regression_lines(report),
    ):
        console.print(line, markup=False, soft_wrap=True)
    if report["gates"]:
        console.print(gates_table(report))


def show_outcome(
    console: "Console",
    report: Mapping[str, Any],
    folder: Path,
    seconds: float,
    command: str = "rag-eval",
    *,
    page: bool = True,
) -> None:
    """Print a fresh report, where its files are, and what to type next; `command` is how this person starts the command line, `page` whether the run wrote one."""
    console.print()
    show_report(console, report)
    cache = report["cacheHitRate"]
    reuse = (
        ""
        if cache is None
        else f"; {report['embeddings']['embedded']:,} of {report['embeddings']['needed']:,} texts had to be embedded"
    )
    console.print(f"evaluated in {seconds:.1f} s{reuse}", markup=False)
    if page:
        console.print(
            f"page    {folder / 'index.html'}  (one file, opens from disk; over all kept runs: {command} view)",
            markup=False,
            soft_wrap=True,
        )
    console.print(
        f"report  {folder / 'retrieval-metrics.json'}  (content_hash {report['content_hash'][:16]}, run {report['run_id']})",
        markup=False,
        soft_wrap=True,
    )
    console.print(
        f"tables  {folder / 'measures.csv'}, {folder / 'per-query.parquet'}, {folder}/run-*.trec",
        markup=False,
        soft_wrap=True,
    )
    if "outcomes" in report["answers"]:
        console.print(
            f"answers {folder / 'answers.jsonl'}, citations.jsonl, traces.log; one of them: {command} explain QUERY_ID",
            markup=False,
            soft_wrap=True,
        )
    console.print(f"look    {command} ui", markup=False, soft_wrap=True)
    console.print(
        f"try     {command} init NAME --docs DIR    (your own documents)",
        markup=False,
        soft_wrap=True,
    )
