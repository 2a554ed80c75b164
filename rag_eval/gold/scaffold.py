"""A first gold set from a folder of documents, for a person to edit: `rag-eval init NAME`.

Lint refuses the set until every draft has been edited.
"""

import collections
import itertools
import json
import os
import shutil
import stat
import tempfile
from pathlib import Path

import tomlkit

from rag_eval.core.errors import InputError, quoted
from rag_eval.corpus.chunking import front_matter, headings, markdown_sections, slug
from rag_eval.corpus.loaders.folder import PATTERN
from rag_eval.corpus.masking import mask
from rag_eval.corpus.source import is_doc_id
from rag_eval.gold.configuration import CONFIG_FILE
from rag_eval.gold.lint import DRAFT
from rag_eval.storage.artifacts import write_text

MAX_DRAFTS = 24
MAX_DOCUMENTS = 500
MAX_DOCUMENT_BYTES = 2_000_000
_MARKDOWN = {".md", ".markdown"}

_CONFIG = """\
# Docs: docs/gold-sets.md. Unknown keys and impossible values are refused with their line.
name: {name}
version: 1                      # raise it when the questions change; it is part of the gold hash
corpus:
  loader: folder
  path: {path}   # relative; outside this folder only below `corpus_roots` of settings.toml
  chunker: {{kind: markdown, max_tokens: 256}}
k: [1, 3, 5, 10]                # cut-offs of the measures, rising
depth: 50                       # chunks retrieved for each wording; at least the largest k
strategies:                     # all are run on the same questions and compared
  - {{name: bm25, kind: bm25}}
  - {{name: vector, kind: vector, embedding: {{model: all-MiniLM-L6-v2}}}}
  - {{name: hybrid, kind: hybrid, alpha: 0.5, beta: 0.5}}
answers: {{mode: deterministic}}  # cited sentences; leave it out to evaluate retrieval alone
primary: hybrid                 # its figures stand at the top of the report
acceptance: {{}}                  # floors, in quotes: {{recall_at_10: ">= 0.60"}}
gates:
  required: [poisoning]         # these end the run with exit status 2, for example acceptance
  advisory: [acceptance, regression, trust, stability]
nightly: false                  # true: the nightly job runs this gold set
"""

_README = """\
# Gold set {name}

Draft questions, one for a heading of the documents. They are only a start: a question that repeats
its heading is found by any retriever. `rag-eval lint {name}` lists what is left to do; a run is
refused until nothing is.

1. `queries.jsonl`: rewrite each `text` as a user would ask it, then remove the tag `{draft}`. Add
   some that the documents do not answer, with `"answerable": false` and no target.
2. `qrels.tsv`: the documents or sections (`document#heading`) that answer each question, with a
   grade from 1 (0 = looks right and is not).
3. `answers.jsonl`: quote the sentence that answers, word for word, under `anchors`:
   `[{{"quote": "..."}}]`. A `decoy` names what looks right and is not: `{{"doc_id": "..."}}`.
4. `paraphrases.jsonl`: two or more other wordings of each question:
   `{{"query_id": "q001", "paraphrase_id": "p1", "text": "..."}}`.
5. `gold_set.yaml`: the corpus, the strategies and the gates. Fifty questions are the least from
   which a gate decides.
"""


def _find_documents(docs: Path) -> list[Path]:
    found = sorted({path for pattern in PATTERN for path in docs.glob(pattern)})
    return [
        path
        for path in found
        if not any(part.startswith(".") for part in path.relative_to(docs).parts)
        and path.is_file()
        and 0 < path.stat().st_size <= MAX_DOCUMENT_BYTES
    ][:MAX_DOCUMENTS]


def _make_printable(heading: str) -> str:
    """Replace unprintable characters by spaces, because lint reports them."""
    shown = (character if character.isprintable() else " " for character in heading)
    return " ".join("".join(shown).split())


def _list_topics(path: Path, doc: str) -> list[tuple[str, str]]:
    """Return heading and target of each unrepeated heading; without one, the file name.

    Headings are masked, as in the corpus stage. The title is a topic only if the document has no
    heading below the title.
    """
    named = [(path.stem.replace("_", " ").replace("-", " "), doc)]
    if path.suffix.lower() not in _MARKDOWN:
        return named
    text = path.read_bytes().decode("utf-8-sig", errors="replace")
    _, body_start = front_matter(text)
    text, _ = mask(text)
    heads = headings(text, body_start)
    sections = markdown_sections(doc, "", text, body_start)[-len(heads) :] if heads else []
    uses = collections.Counter(slug(_make_printable(head.title)) for head in heads)
    top = min((head.level for head in heads), default=0)
    single = [
        (head.level > top, _make_printable(head.title), section.section_id)
        for head, section in zip(heads, sections, strict=True)
        if uses[slug(_make_printable(head.title))] == 1 and any(map(str.isalnum, head.title))
    ]
    chosen = [topic for topic in single if topic[0]] or single
    return [(title, target) for _, title, target in chosen if is_doc_id(target)] or named


def _ask(heading: str) -> str:
    """Ask about a heading; a heading that is a question stays unchanged."""
    asked = heading.rstrip("?\uff1f ")
    return f"What do the documents say about {asked}?" if asked == heading else f"{asked}?"


def _make_drafts(docs: Path) -> list[tuple[str, str, str]]:
    """Return query id, question and target of at most `MAX_DRAFTS` drafts."""
    paths = [(path, path.relative_to(docs).as_posix()) for path in _find_documents(docs)]
    topics = [_list_topics(path, doc) for path, doc in paths if is_doc_id(doc)]
    if not topics:
        message, accepted = "the folder holds no document to ask about", ", ".join(PATTERN)
        raise InputError.of("no_documents", message, docs, field="--docs", accepted=accepted)
    # Take the first topic of every document, then the second, so that no document fills the drafts.
    turns = itertools.zip_longest(*topics)
    chosen = [topic for turn in turns for topic in turn if topic is not None][:MAX_DRAFTS]
    return [
        (f"q{number:03}", _ask(heading), target)
        for number, (heading, target) in enumerate(chosen, 1)
    ]


def _write(folder: Path, name: str, path: str, drafts: list[tuple[str, str, str]]) -> None:
    queries = [
        {"query_id": query_id, "text": text, "answerable": True, "tags": [DRAFT]}
        for query_id, text, _ in drafts
    ]
    answers = [
        {"query_id": query_id, "doc_id": target.partition("#")[0], "anchors": []}
        | ({"section_id": target} if "#" in target else {})
        for query_id, _, target in drafts
    ]
    qrels = [f"{query_id}\t{target}\t1" for query_id, _, target in drafts]
    files = {
        "queries.jsonl": "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in queries),
        "answers.jsonl": "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in answers),
        "paraphrases.jsonl": "",
        "qrels.tsv": "\n".join(["query-id\tcorpus-id\tscore", *qrels, ""]),
        CONFIG_FILE: _CONFIG.format(
            name=json.dumps(name), path=json.dumps(path, ensure_ascii=False)
        ),
        "README.md": _README.format(name=name, draft=DRAFT),
    }
    for file, text in files.items():
        write_text(folder / file, text)


def init_gold_set(target: Path, docs: Path) -> None:
    """Write a new gold set: configuration, draft questions from headings, and their targets.

    The gold set has the name of the folder `target`. The folder appears whole or not at all, and no
    existing file is overwritten. Of `docs`, 500 files of at most 2 MB are read. Raises InputError:
    `target_exists`, `missing_folder`, `no_documents`, `unwritable_folder`.
    """
    if target.exists() or target.is_symlink():
        message, accepted = "there is something already", "a name that is not in use"
        raise InputError.of("target_exists", message, target, accepted=accepted)
    if not docs.is_dir():
        message, accepted = "the folder of documents does not exist", "a folder of documents"
        raise InputError.of("missing_folder", message, docs, field="--docs", accepted=accepted)
    drafts = _make_drafts(docs)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(dir=target.parent, prefix=".partial-"))
        try:
            path = os.path.relpath(docs.resolve(), target.resolve())
            _write(partial, target.name, path, drafts)
            partial.chmod(0o755)
            partial.rename(target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        message = f"the gold set cannot be written: {quoted(str(error))}"
        raise InputError.of("unwritable_folder", message, target) from error


def list_corpus_root(settings_file: Path, root: Path) -> None:
    """Add a folder to `corpus_roots` in settings.toml, and keep the rest of the file unchanged.

    Raises InputError (`unwritable_settings`) where the file cannot be read or written.
    """
    target = settings_file.resolve()  # write through a symbolic link instead of replacing it
    try:
        document = tomlkit.parse(target.read_text(encoding="utf-8") if target.exists() else "")
        roots = document.setdefault("corpus_roots", tomlkit.array())
        roots.append(str(root.resolve()))
        mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o644
        write_text(target, tomlkit.dumps(document), mode)
    except (OSError, ValueError) as error:  # tomlkit's errors are subclasses of ValueError
        message = f"the folder of documents could not be listed: {quoted(str(error))}"
        accepted = f"corpus_roots = [{json.dumps(str(root.resolve()))}] in this file"
        raise InputError.of(
            "unwritable_settings", message, target, field="corpus_roots", accepted=accepted
        ) from error
