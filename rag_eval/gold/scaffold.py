"""A first gold set from a folder of documents, for a person to edit: `rag-eval init NAME --docs DIR`.

Belongs here: what a new gold set's files say. Lint refuses the set until every draft has been edited.
"""

import collections
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rag_eval.corpus import markdown, masking, sections
from rag_eval.corpus.raw_documents import is_query_id
from rag_eval.gold.configuration import CONFIG_FILE
from rag_eval.gold.lint import DRAFT
from rag_eval.gold.rows import is_name
from rag_eval.records.configuration_parts import NAME
from rag_eval.records.gold_set import Folder
from rag_eval.records.problems import InputError, Problem, quoted
from rag_eval.storage.atomic import write_text

MAX_DRAFTS = 24
MAX_DOCUMENTS = 500
MAX_DOCUMENT_BYTES = 2_000_000
_MARKDOWN = {".md", ".markdown"}

_CONFIG = """\
# What is evaluated and how. Unknown keys and impossible values are refused with their line.
name: {name}                    # the folder's name
version: 1                      # raise it when the questions change their meaning; it is part of the gold hash
description: ""                 # one line for the report

corpus:
  loader: folder                # folder | package_docs | beir | hf_datasets
  path: {path}   # relative to this file
  chunker:
    kind: markdown              # markdown | text | numpydoc | sentence | whole
    max_tokens: 256             # words in a chunk, at most
  mask_pii: true                # e-mail addresses, keys and the like are masked before anything is indexed

k: [1, 3, 5, 10]                # cut-offs of the measures, rising
depth: 50                       # chunks retrieved for each wording; at least the largest k
seeds: [13, 29]                 # each wording is retrieved once for each seed
level: document                 # level of the headline figures: document | section | span

strategies:                     # all are run on the same questions and compared
  - {{name: bm25, kind: bm25}}
  - {{name: vector, kind: vector, embedding: {{model: lsa-64}}}}      # lsa-<dimensions>, all-MiniLM-L6-v2, chroma:<function>
  - {{name: hybrid, kind: hybrid, alpha: 0.5, beta: 0.5, embedding: {{model: lsa-64}}}}
answers: {{mode: deterministic}}  # sentences of the documents, cited; leave it out to evaluate retrieval alone
primary: hybrid                 # its figures stand at the top of the report

acceptance: {{}}                  # floors, in quotes: {{recall_at_10: ">= 0.60"}}
gates:
  required: [poisoning]         # these end the run with exit status 2, for example [poisoning, acceptance]
  advisory: [acceptance, regression, trust, stability]
  min_queries: 50               # fewer questions than this are insufficient evidence
trust: {{}}                       # whom to trust: {{domains: [docs.example.org], authors: [...], keys: {{...}}}}; docs/trust.md
nightly: false                  # true: the nightly job runs this gold set
"""

_README = """\
# Gold set {name}

Draft questions, one for a heading of the documents. They are only a start: a question that repeats its heading is found by any retriever.
`rag-eval lint {name}` lists what is left to do; a run is refused until nothing is.

1. `queries.jsonl`: rewrite each `text` as a user would ask it, in the user's words. Then remove the tag `{draft}`. Delete questions
   that nobody asks. Add some that the documents do not answer, with `"answerable": false` and no target.
2. `qrels.tsv`: the documents or sections that answer each question, with a grade from 1 (0 = looks right and is not). A section is written
   `document#heading`.
3. `answers.jsonl`: quote the sentence that answers, word for word, under `anchors`: `[{{"quote": "..."}}]`. It must stand in the document
   once. A `decoy` names a document or section that looks right and is not: `{{"doc_id": "..."}}`.
4. `paraphrases.jsonl`: two or more other wordings of each question, as other people would put it:
   `{{"query_id": "q001", "paraphrase_id": "p1", "text": "...", "source": "..."}}`. Without them stability cannot be measured.
5. `gold_set.yaml`: the corpus, the strategies and the gates. Fifty questions are the least from which a gate decides.
"""


def _documents(docs: Path) -> list[Path]:
    suffixes = tuple(
        pattern.removeprefix("**/*") for pattern in Folder.model_fields["pattern"].default
    )
    found: list[Path] = []
    for folder, folders, files in os.walk(docs):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        paths = (
            Path(folder) / name
            for name in sorted(files)
            if name.lower().endswith(suffixes) and not name.startswith(".")
        )
        found.extend(
            path
            for path in paths
            if path.is_file() and 0 < path.stat().st_size <= MAX_DOCUMENT_BYTES
        )
        if len(found) >= MAX_DOCUMENTS:
            break
    return found[:MAX_DOCUMENTS]


def _printable(heading: str) -> str:
    """Replace control characters and the like, which lint would object to, by spaces."""
    return " ".join(
        "".join(character if character.isprintable() else " " for character in heading).split()
    )


def _headings(path: Path, doc: str) -> list[tuple[int, str, str]]:
    """(level, heading, section id) of a Markdown document's headings, masked and named as the corpus stage does it."""
    text = path.read_bytes().decode("utf-8-sig", errors="replace")
    _, body_start = markdown.front_matter(text)
    text, _ = masking.mask(text)
    heads = markdown.headings(text, body_start)
    its = sections.of_markdown(doc, "", text, body_start)[-len(heads) :] if heads else []
    return [
        (head.level, _printable(head.title), section.section_id)
        for head, section in zip(heads, its, strict=True)
    ]


def _topics(path: Path, doc: str) -> list[tuple[str, str]]:
    """(heading, target) of a document: the headings that it has once, below its title where there are any; else its file name."""
    headings = _headings(path, doc) if path.suffix.lower() in _MARKDOWN else []
    uses = collections.Counter(sections.slug(heading) for _, heading, _ in headings)
    top = min((level for level, _, _ in headings), default=0)
    single = [
        head
        for head in headings
        if uses[sections.slug(head[1])] == 1 and any(map(str.isalnum, head[1]))
    ]
    below = [(heading, target) for level, heading, target in single if level > top] or [
        (heading, target) for _, heading, target in single
    ]
    return [topic for topic in below if is_name(topic[1])] or [
        (path.stem.replace("_", " ").replace("-", " "), doc)
    ]


def _question(heading: str) -> str:
    """Ask about a heading; one that is a question is asked as it stands."""
    asked = heading.rstrip("?\uff1f ")
    return f"What do the documents say about {asked}?" if asked == heading else f"{asked}?"


def _round_robin(topics: list[list[tuple[str, str]]]) -> Iterator[tuple[str, str]]:
    """Take the first of every document, then the second of every document: no document fills the drafts alone."""
    for place in range(max(map(len, topics))):
        yield from (of_document[place] for of_document in topics if place < len(of_document))


def _drafts(docs: Path) -> list[tuple[str, str, str]]:
    """(query id, question, target) of at most `MAX_DRAFTS` drafts."""
    paths = [(path, path.relative_to(docs).as_posix()) for path in _documents(docs)]
    topics = [_topics(path, doc) for path, doc in paths if is_name(doc)]
    if not topics:
        raise InputError(
            Problem(
                "no_documents",
                "the folder holds no document to ask about",
                str(docs),
                None,
                "--docs",
                None,
                f"files {', '.join(Folder.model_fields['pattern'].default)}",
            )
        )
    chosen = [topic for topic, _ in zip(_round_robin(topics), range(MAX_DRAFTS), strict=False)]
    return [
        (f"q{number:03}", _question(heading), target)
        for number, (heading, target) in enumerate(chosen, 1)
    ]


def _relative(docs: Path, target: Path) -> str:
    try:
        return Path(os.path.relpath(docs.resolve(), target.resolve())).as_posix()
    except ValueError:  # another drive on Windows
        return docs.resolve().as_posix()


def _write(folder: Path, name: str, path: str, drafts: list[tuple[str, str, str]]) -> None:
    queries = [
        {"query_id": query_id, "text": text, "answerable": True, "tags": [DRAFT]}
        for query_id, text, _ in drafts
    ]
    answers = [
        {
            "query_id": query_id,
            "doc_id": target.partition("#")[0],
            **({"section_id": target} if "#" in target else {}),
            "anchors": [],
        }
        for query_id, _, target in drafts
    ]
    for file, rows in (
        ("queries.jsonl", queries),
        ("answers.jsonl", answers),
        ("paraphrases.jsonl", []),
    ):
        write_text(
            folder / file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        )
    write_text(
        folder / "qrels.tsv",
        "query-id\tcorpus-id\tscore\n"
        + "".join(f"{query_id}\t{target}\t1\n" for query_id, _, target in drafts),
    )
    write_text(
        folder / CONFIG_FILE,
        _CONFIG.format(name=json.dumps(name), path=json.dumps(path, ensure_ascii=False)),
    )
    write_text(folder / "README.md", _README.format(name=name, draft=DRAFT))


def init_gold_set(target: Path, docs: Path) -> tuple[Path, ...]:
    """Write a new gold set: configuration, draft questions from the headings of the documents, their targets, and what to edit.

    The folder appears whole or not at all, and nothing that exists is written over.

    Parameters
    ----------
    target
        The folder to make; its name is the gold set's.
    docs
        Folder of Markdown and text files; at most 500 files of at most 2 MB are looked at, at most 24 drafts are made.

    Returns
    -------
    tuple of Path
        The files written, sorted.

    Raises
    ------
    InputError
        `bad_name`, `target_exists`, `missing_folder`, `no_documents`, `unwritable_folder`.
    """
    name = target.resolve().name
    if not re.fullmatch(NAME, name) or not is_query_id(name):
        raise InputError(
            Problem(
                "bad_name",
                "this cannot be the name of a gold set",
                None,
                None,
                "NAME",
                quoted(name),
                NAME,
            )
        )
    if target.exists() or target.is_symlink():
        raise InputError(
            Problem(
                "target_exists",
                "there is something already; nothing was written",
                str(target),
                accepted="a name that is not in use",
            )
        )
    if not docs.is_dir():
        raise InputError(
            Problem(
                "missing_folder",
                "the folder of documents does not exist",
                str(docs),
                None,
                "--docs",
                None,
                "a folder of Markdown or text files",
            )
        )
    drafts = _drafts(docs)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=target.parent, prefix=".partial-"))
        try:
            _write(partial, name, _relative(docs, target), drafts)
            partial.chmod(0o755)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise InputError(
            Problem(
                "unwritable_folder",
                f"the gold set cannot be written: {quoted(str(error))}",
                str(target),
            )
        ) from error
    return tuple(sorted(target.iterdir()))
