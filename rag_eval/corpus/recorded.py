"""Recorded outputs of the user's own system (JSONL), and loader `recorded`: their contexts as the documents of a corpus.

Belongs here: the file, and what is known of documents from passages alone: of authors and dates nothing, since neither layout has them. One row is `recorded_rows`; answers made of rows are `rag_eval.answers.recorded`.
"""

import math
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rag_eval.corpus.json_lines import lines, object_of
from rag_eval.corpus.raw_documents import Problems, RawCorpus, RawDocument, missing, resolve
from rag_eval.corpus.recorded_rows import Context, RecordedOutput, output_of
from rag_eval.records.gold_set import Recorded
from rag_eval.records.problems import InputError, Problem, quoted
from rag_eval.storage.hashing import digest, file_hash

MAX_FILE_BYTES = 2 * 1024**3
MAX_LINE_BYTES = 16 * 1024 * 1024
BETWEEN_PASSAGES = "\n\n"
ACCEPTED_LINE = '{"query_id": "…", "answer": "…" or null, "contexts": […], "citations": […]}, or a ragas sample with "user_input"'
_PASSAGE_DIGITS = 12


class Ranked(NamedTuple):
    """One place of a recorded ranking: the document's id, the recorded score (NaN where none was recorded), and the passage."""

    id: str
    score: float
    text: str


def read_outputs(path: Path, shown: str | None = None) -> list[RecordedOutput]:
    """Read recorded outputs, one JSON object a line, in the order of the file. A byte-order mark and blank lines are passed over.

    Parameters
    ----------
    path
        The file.
    shown
        Its name in messages; default: the path.

    Raises
    ------
    InputError
        `missing_file`, `file_too_large`, `empty_file`, and every line that cannot be used (`too_long`, `not_utf8`, `bad_json`, `missing_key`,
        `wrong_type`, `bad_id`, `duplicate_id`, `unknown_key`, ...) with line, field, found and accepted; the first hundred are listed.
    """
    file = shown if shown is not None else str(path)
    if not path.is_file():
        raise InputError(
            Problem(
                "missing_file",
                "there is no such file of recorded outputs",
                file=file,
                accepted=f"a .jsonl file, one {ACCEPTED_LINE} a line",
            )
        )
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise InputError(
            Problem(
                "file_too_large",
                "the file is too large",
                file=file,
                found=f"{size} bytes",
                accepted=f"at most {MAX_FILE_BYTES} bytes",
            )
        )
    problems = Problems()
    outputs: list[RecordedOutput] = []
    first: dict[str, int] = {}
    with path.open("rb") as stream:
        for line, data in lines(stream, MAX_LINE_BYTES):
            if data is not None and not data.strip():
                continue
            values = object_of(data, strict=True)
            if isinstance(values, tuple):
                accepted = (
                    f"at most {MAX_LINE_BYTES} bytes" if values[0] == "too_long" else ACCEPTED_LINE
                )
                problems.add(Problem(values[0], values[1], file, line, accepted=accepted))
                continue
            output = output_of(values, file, line, problems)
            if output is None:
                continue
            if first.setdefault(output.query_id, line) != line:
                message = f"this question has an output in line {first[output.query_id]} already"
                problems.add(
                    Problem(
                        "duplicate_id",
                        message,
                        file,
                        line,
                        "query_id",
                        quoted(output.query_id),
                        "one output for each question",
                    )
                )
                continue
            outputs.append(output)
    if not outputs and not problems.listed:
        problems.add(
            Problem(
                "empty_file",
                "the file holds no output",
                file,
                1,
                accepted=f"one {ACCEPTED_LINE} a line",
            )
        )
    problems.raise_if_any()
    return outputs


def rankings(outputs: Sequence[RecordedOutput]) -> dict[str, list[Ranked]]:
    """Ranking of each question, best first as recorded, by query_id; an empty list where no context was recorded.

    The order is the system's; scores are only shown. The same passage twice keeps its
    first place.
    """
    found: dict[str, list[Ranked]] = {}
    for output in outputs:
        seen: set[tuple[str, str]] = set()
        ranking = found.setdefault(output.query_id, [])
        for context in output.contexts:
            if (context.document, context.text) not in seen:
                seen.add((context.document, context.text))
                ranking.append(
                    Ranked(
                        context.document,
                        math.nan if context.score is None else context.score,
                        context.text,
                    )
                )
    return found


def _documents(outputs: Sequence[RecordedOutput]) -> dict[str, list[tuple[Context, int]]]:
    """Distinct passages of each document with the line each was first seen in."""
    found: dict[str, dict[str, tuple[Context, int]]] = {}
    for output in outputs:
        for context in output.contexts:
            found.setdefault(context.document, {}).setdefault(context.text, (context, output.line))
    return {document: list(passages.values()) for document, passages in found.items()}


def _source(title: str, text: str) -> bytes:
    """Bytes of a document that has no file of its own."""
    return f"{title}\n{text}".encode("utf-8", "surrogatepass")


def _document(
    doc_id: str, passages: list[tuple[Context, int]], file: str, taken: set[str]
) -> RawDocument:
    """Join the passages, sorted so that neither the order of the questions nor that of the ranking changes the document."""
    line = min(line for _, line in passages)
    # where a person can look: the system's own address of the document, else the file of outputs
    url = min(
        (context.url for context, _ in passages if context.url),
        default=f"{Path(file).name}#{urllib.parse.quote(doc_id, safe='')}",
    )
    texts = sorted({context.text: context for context, _ in passages if context.text}.items())
    if len(texts) <= 1:
        text = texts[0][0] if texts else ""
        return RawDocument(
            doc_id, "", text, url, "text", file=file, line=line, source=_source("", text)
        )
    marks: list[tuple[str, int, int]] = []
    at = 0
    for text, context in texts:
        section = (
            context.snippet
            if context.snippet and context.snippet not in taken
            else f"{doc_id}#passage-{digest(text, _PASSAGE_DIGITS)}"
        )
        taken.add(section)
        marks.append((section, at, at + len(text)))
        at += len(text) + len(BETWEEN_PASSAGES)
    whole = BETWEEN_PASSAGES.join(text for text, _ in texts)
    return RawDocument(
        doc_id,
        "",
        whole,
        url,
        "passages",
        passages=tuple(marks),
        file=file,
        line=line,
        source=_source("", whole),
    )


def _path(spec: Recorded, base: Path) -> Path:
    path = resolve(spec.path, base)
    if not path.is_file():
        raise missing(spec.path, "a .jsonl file of recorded outputs")
    return path


def identity(spec: Recorded, base: Path) -> list[str]:
    """Content hash of the file."""
    return [spec.path, file_hash(_path(spec, base))]


def load(spec: Recorded, base: Path) -> RawCorpus:
    """Make a document of each distinct context: its id (else its content hash), an empty title, the text exactly as recorded, its url.

    Where one id came with several texts, these are passages of one document, each a section, joined by blank lines.

    Raises
    ------
    InputError
        Those of `read_outputs`; `empty_corpus` where no output has any context.
    """
    outputs = read_outputs(_path(spec, base), spec.path)
    grouped = _documents(outputs)
    if not any(context.text for passages in grouped.values() for context, _ in passages):
        raise InputError(
            Problem(
                "empty_corpus",
                "no output has a context with a text, so there is no document",
                spec.path,
                field="contexts",
                accepted='contexts: ["…"] in at least one output',
            )
        )
    taken = set(grouped)
    return RawCorpus(
        [
            _document(doc_id, passages, spec.path, taken)
            for doc_id, passages in sorted(grouped.items())
        ]
    )
