"""Look into kept runs: files for other tools, one question, and a file of citations."""

import dataclasses
import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from rag_eval.answers.abstention import abstention
from rag_eval.answers.contract import unmarked_segment
from rag_eval.answers.evidence import with_units
from rag_eval.answers.replies import has_content
from rag_eval.citations.payload import LiveIndex, Verdicts, validate
from rag_eval.core.errors import InputError, Problem, ProblemList, quoted
from rag_eval.core.rows import read_objects
from rag_eval.core.strategy import Identity
from rag_eval.core.types import AUDITABLE_FIELDS, CODES, FIXES, LIVE_CODES, PAYLOAD_FIELDS
from rag_eval.corpus.markers import read_marks
from rag_eval.corpus.masking import mask_snippet, masked_text
from rag_eval.pipeline.answer_stages import AnswerMeasures, AnswerSet, CitationSet
from rag_eval.pipeline.corpus import GoldVariants
from rag_eval.pipeline.history import KeptRun, open_run
from rag_eval.reporting.exchange import RAGAS_FILE, ragas_samples
from rag_eval.reporting.miss_rates import MissRateTables
from rag_eval.reporting.outgoing import CitationVerdict, Explanation, GoldSpan
from rag_eval.reporting.page import page_tables
from rag_eval.reporting.tables import csv_text
from rag_eval.storage.home import Home, write_bytes, write_text
from rag_eval.uncertainty.misses import describe_miss

# ---- The files of a kept run for other tools.


def export_run(
    home: Home, gold_set: str, folder: Path, form: Literal["files", "csv", "tables", "ragas"]
) -> list[str]:
    """Write a gold set's newest run for other tools, and return the names of the files.

    `form`: `files` are the files that the run left beside its report, `csv` its tables for
    spreadsheets, `tables` the tables of its page as CSV and LaTeX, and `ragas` its answers with
    whole contexts. Raises InputError if there is no such run, or if it made no answers for ragas.
    """
    run = open_run(home, "latest", gold_set)
    exports, texts = run.stored("exports"), dict[str, str]()
    paths = [exports.path(name) for name in sorted(exports.files)]
    folder.mkdir(parents=True, exist_ok=True)
    if form == "files":
        for path in paths:
            write_bytes(folder / path.name, path.read_bytes())
        return [path.name for path in paths]
    if form == "ragas":
        texts[RAGAS_FILE] = _ragas_samples(run)
    elif form == "tables":
        report = run.report()
        texts |= MissRateTables([report]).files()
        for table in page_tables(report.dump()):
            texts |= {f"{table.name}.csv": table.csv(), f"{table.name}.tex": table.tex()}
    else:
        tables = [path for path in paths if path.suffix == ".parquet"]
        texts |= {f"{path.stem}.csv": csv_text(pd.read_parquet(path)) for path in tables}
    for name, text in texts.items():
        write_text(folder / name, text)
    return sorted(texts)


def _ragas_samples(run: KeptRun) -> str:
    gold, corpus = run.stored("gold_variants"), run.stored("corpus_snapshot")
    answers = AnswerSet.stored(run.stored("answers")).answers
    texts = corpus.frame("documents").set_index("doc_id")["text"]
    spans = gold.frame("spans")
    places = zip(spans["doc_id"], spans["start"], spans["end"], strict=True)
    spans = spans.assign(text=[texts[doc_id][start:end] for doc_id, start, end in places])
    return ragas_samples(answers, gold.frame("queries"), gold.frame("qrels_document"), spans)


# ---- One question of a kept run, assembled from the stored results.


def explanation(home: Home, query_id: str, *, run: str = "latest") -> Explanation:
    """Look a question up in a kept run.

    Raises InputError if there is no such run, the run has no answers, or no such question.
    """
    stored = open_run(home, run)
    if "answers" not in stored.artifacts:
        raise InputError.of(
            "nothing_to_explain",
            "the run made no answers",
            file=stored.file,
            found=stored.run_id,
            accepted="a run of a gold set with answers",
        )
    answer_set = AnswerSet.stored(stored.stored("answers"))
    measured = AnswerMeasures.stored(stored.stored("answer_measures"))
    gold = GoldVariants.stored(stored.stored("gold_variants"))
    queries = gold.queries.set_index("query_id")
    if query_id not in queries.index:
        near = difflib.get_close_matches(query_id, queries.index.tolist(), 3, 0.3)
        raise InputError.of(
            "unknown_query",
            f"{stored.gold_set} has no such question",
            field="QUERY_ID",
            found=query_id,
            accepted=", ".join(near) or f"one of {len(queries)} ids of its queries.jsonl",
        )

    def of_question(frame: pd.DataFrame) -> pd.DataFrame:
        return frame[frame["query_id"] == query_id]

    verdicts = of_question(CitationSet.stored(stored.stored("citations")).citations)
    qrels = of_question(gold.qrels_document).query("gain > 0")
    qrels = qrels.sort_values("gain", ascending=False, kind="stable")
    answer = next(answer for answer in answer_set.answers if answer.query_id == query_id)
    trust = stored.stored("evidence_trust").frame("trust", ["chunk_id", "verdict", "reasons"])
    used = trust["chunk_id"].isin({item.chunk.snippet_id for item in answer.evidence})
    doubtful = trust[used & (trust["verdict"] != "clean")]
    missed = of_question(stored.stored("missed_questions").frame("missed"))
    figures = measured.per_question.set_index("query_id").loc[query_id]
    names = ("coverage", "groundedness", "supported", "gap_reason")
    documents = stored.stored("corpus_snapshot").frame("documents")
    return Explanation(
        run_id=stored.run_id,
        gold_set=stored.gold_set,
        strategy=answer_set.about.strategy,
        question=str(queries.loc[query_id, "text"]),
        answerable=bool(queries.loc[query_id, "answerable"]),
        answer=answer,
        verdicts=tuple(
            CitationVerdict(row["code"], row["field"], bool(row["correct"]))
            for row in verdicts.to_dict("records")
        ),
        targets=tuple(qrels["item_id"]),
        spans=tuple(_gold_spans(documents, of_question(gold.spans), verdicts[verdicts["correct"]])),
        measures={name: None if pd.isna(figures[name]) else figures[name] for name in names},
        rejected=tuple(
            dataclasses.asdict(row) for row in answer_set.rejected if row.query_id == query_id
        ),
        misses=tuple((row["strategy"], describe_miss(row)) for row in missed.to_dict("records")),
        unsupported=tuple(measured.unsupported.get(query_id, ())),
        threshold=answer_set.about.abstain_below,
        blocked=tuple(
            f"{quoted(document.doc_id)} ({document.n_blocked} of {document.n_chunks} chunks)"
            for document in gold.blocked.documents
            if document.doc_id in set(qrels["item_id"])
        ),
        findings={
            row["chunk_id"]: f"{row['verdict']}: {', '.join(row['reasons'])}"
            for row in doubtful.to_dict("records")
        },
    )


def _gold_spans(
    documents: pd.DataFrame, spans: pd.DataFrame, right: pd.DataFrame
) -> Iterator[GoldSpan]:
    """Describe the gold evidence of a question, and whether a correct citation overlaps it."""
    owners = documents.set_index("doc_id")[["text", "source_url"]]
    for doc_id, start, end in spans[["doc_id", "start", "end"]].itertuples(index=False):
        overlaps = (right["doc_id"] == doc_id) & (right["start"] < end) & (right["end"] > start)
        text, url = owners.loc[doc_id] if doc_id in owners.index else ("", "")
        # Mask the whole document, because the words before a span may mark a secret.
        quote = masked_text(text)[start:end]
        yield GoldSpan(doc_id, int(start), int(end), quote, bool(overlaps.any()), url)


# ---- The validate command: check a file of citations against the newest run of a home.

MAX_OFFENDERS = 20
"""Largest number of offending lines in the output."""
Row = tuple[int, Mapping[str, object]]
"""Line number and record of a citation."""


@dataclasses.dataclass(frozen=True)
class FileVerdicts:
    """The result of validating a file: the citations, the verdict on each, and other faults."""

    path: Path
    rows: Sequence[Row]
    verdicts: Verdicts
    problems: tuple[Problem, ...]
    has_index: bool

    @property
    def passed(self) -> bool:
        """Whether the file was read completely, has a citation, and all citations are ok."""
        return self.verdicts.passed and not self.problems

    def lines(self) -> list[str]:
        """Write for a terminal: counts by code, the first offenders, and skipped checks."""
        verdicts, n = self.verdicts, len(self.rows)
        lines = list(map(str, self.problems))
        if lines and not n:
            return lines
        unit = "citation" if n == 1 else "citations"
        refusals = f", refusals: {verdicts.n_refusals:,}" if verdicts.n_refusals else ""
        path, n_ok = quoted(str(self.path), 400), verdicts.counts["ok"]
        lines.append(f"{path}: {n:,} {unit}, {n_ok:,} ok{refusals}")
        lines += [
            f"  {code:<24} {verdicts.counts[code]:>7,} of {n:,}   fix: {FIXES[code]}"
            for code in CODES[:-1]
            if verdicts.counts[code]
        ]
        if verdicts.counts["analyzer_mismatch"]:
            lines.append("analyzer_mismatch ends the run: align the analyzers before all else")
        offenders = [place for place, failures in enumerate(verdicts.failures) if failures]
        if offenders:
            n_shown = min(len(offenders), MAX_OFFENDERS)
            lines.append(f"first offenders ({n_shown} of {len(offenders):,}):")
        for place in offenders[:MAX_OFFENDERS]:
            (code, field), (number, record) = verdicts.failures[place][0], self.rows[place]
            codes = [code + (f" [{field}]" if field else "") + _quote_field(record, field)]
            codes += [other for other, _ in verdicts.failures[place][1:]]
            lines.append(f"  line {number}: {'; also '.join(codes)}")
        if not self.has_index:
            names = ", ".join(LIVE_CODES)
            lines.append(
                f"not tried without a live index (--index HOME): {names}, and the ends of offsets"
            )
        # A terminal cannot print lone surrogates.
        return [line.encode("utf-8", "backslashreplace").decode("utf-8") for line in lines]

    def json_lines(self) -> list[str]:
        """Write {error, field, tip} of each failing record and each fault of the file, else OK."""
        faults = [
            {
                "error": problem.code,
                "field": problem.field or "",
                "tip": f"line {problem.line or 0}: {problem.message}; accepted: {problem.accepted}",
            }
            for problem in self.problems
        ]
        if not (self.rows or self.verdicts.n_refusals or faults):
            faults = [{"error": "empty_citations", "field": "", "tip": FIXES["empty_citations"]}]
        for (line, record), failures in zip(self.rows, self.verdicts.failures, strict=True):
            if failures:
                code, field = failures[0]
                quote = _quote_field(record, field)
                tip = f"line {line}: {FIXES[code]}{quote and f';{quote}'}"
                faults.append({"error": code, "field": field, "tip": tip})
        return list(map(json.dumps, faults)) or ["OK"]


def validate_file(
    path: Path, live: LiveIndex | None = None, *, allow_cross_section: bool = False
) -> FileVerdicts:
    """Validate a JSONL file with the citation records of one run, or with answers that cite.

    Without `live`, only the records themselves are checked, and a citation of the auditable block
    is a problem, because the index completes it. Raises InputError if the file does not exist.
    """
    if not path.is_file():
        message = "there is no such file of citations"
        raise InputError.of("not_a_file", message, path, accepted="a .jsonl file")
    problems, rows, n_refusals = ProblemList(), list[Row](), 0
    for line, row in read_objects(path, problems):
        if _is_refusal(row):
            n_refusals += 1
            continue
        for rank, record in _list_records(line, row, path, problems):
            is_auditable = _is_auditable(record)
            if live is None and is_auditable:
                if not any(problem.code == "no_index" for problem in problems.listed()):
                    problems.add(
                        "no_index",
                        "a citation of the auditable block needs the index that it cites",
                        path,
                        line=line,
                        field="--index",
                        found=f"only {', '.join(key for key in record if key in AUDITABLE_FIELDS)}",
                        accepted="--index HOME, the home of a run over the cited corpus",
                    )
            else:
                rows.append(
                    (line, live.complete(record, rank) if live and is_auditable else record)
                )
    pairs = None if allow_cross_section else ()
    verdicts = validate([record for _, record in rows], live, pairs, n_refusals)
    return FileVerdicts(path, rows, verdicts, problems.listed(), live is not None)


def _is_refusal(row: Mapping[str, object]) -> bool:
    """Tell whether a line is `{error, fix}`, or an answer that refuses and cites nothing."""
    error, fix, text = row.get("error"), row.get("fix"), row.get("answer")
    if "answer" not in row:
        return all(isinstance(value, str) and has_content(value) for value in (error, fix))
    cites = row.get("citations") not in (None, [])
    return isinstance(text, str) and not cites and abstention(text) is not None


def _is_auditable(record: Mapping[str, object]) -> bool:
    """Tell whether a record has fields of the auditable block and no other payload field."""
    fields = record.keys() & set(PAYLOAD_FIELDS)
    return bool(fields) and fields <= set(AUDITABLE_FIELDS)


def _list_records(
    line: int, row: Mapping[str, object], path: Path, problems: ProblemList
) -> Iterator[Row]:
    """Yield the records of a line, each with its place in the list of citations, from 1.

    A line is a record, or the block `{citations, answer}`. A citation without a segment supports
    the sentences with its marker `[n]`, without a marker the only sentence, and else the whole
    answer. Citations behind the answer are marked, because the answer was not made from them.
    """
    cited, text, segments = row.get("citations"), row.get("answer"), row.get("segments")
    if not isinstance(cited, list) or not cited:
        yield 1, row
        return
    marks: list[tuple[int, int]] = []
    plain = text if isinstance(text, str) else ""
    if segments is None:
        plain, marks, _ = read_marks(plain, n_sources=len(cited))
        segments = [None] * len(cited)
    elif not isinstance(segments, list) or len(segments) != len(cited):
        problems.add(
            "wrong_length",
            "citations and segments do not pair",
            path,
            line=line,
            field="segments",
            found=quoted(segments),
            accepted=f"a list of {len(cited)} segments",
        )
        return
    keys = list(row)
    is_late = "answer" in row and keys.index("answer") < keys.index("citations")
    for number, (citation, segment) in enumerate(zip(cited, segments, strict=True), start=1):
        record = {"query_id": row.get("query_id", f"line {line}"), "segment": segment}
        record |= citation if isinstance(citation, Mapping) else {}
        record |= {"cited_before_answer": False} if is_late else {}
        chosen = [record["segment"]]
        if chosen == [None]:
            marked = dict.fromkeys(sentence for sentence, source in marks if source == number)
            chosen = list(marked) or [unmarked_segment(plain)]
        yield from ((number, {**record, "segment": each}) for each in chosen)


def live_index(home: Home, gold_set: str | None = None) -> tuple[LiveIndex, str]:
    """Open the index of the newest run of a home, or of one gold set in it, with a label of it.

    Raises InputError if no run is stored there, or if its corpus is no longer in the home.
    """
    run = open_run(home, "latest", gold_set)
    corpus, chunks = run.stored("corpus_snapshot"), run.stored("admitted_chunks")
    frame = chunks.frame("chunks")
    for name in run.strategies:
        ranking = run.stored(f"run {name}")
        if "units.parquet" in ranking.files:  # only runs of external retrievers have units
            frame = with_units(frame, ranking.frame("units"))
    indexes = (
        Identity(strategy.index_hash, strategy.embed_model) for strategy in run.report().strategies
    )
    models = {strategy.index_hash: strategy.stated_model for strategy in indexes}
    documents, sections = corpus.frame("documents"), corpus.frame("sections")
    live = LiveIndex(documents, sections, frame, models, run.analyzer)
    return live, f"run {quoted(run.run_id)} of gold set {quoted(run.gold_set)}"


def _quote_field(record: Mapping[str, object], field: str) -> str:
    value: Any = record
    for part in field.split(".") if field else ():
        value = value.get(part) if isinstance(value, dict) else None
    if not field or value is None:
        return ""
    return f" found {mask_snippet(value if isinstance(value, str) else repr(value), 60)}"
