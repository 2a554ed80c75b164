"""Attacks and clean texts for the benchmark of the poisoning guard (`guard.py`).

A clean text is a chunk of whole paragraphs of up to 1,000 characters; a longer paragraph is cut
between sentences. Sets of more than MOST chunks are sampled with a fixed seed. The folder of public
data, this machine and the installed packages are the sources, so sizes differ between machines.
"""

import gzip
import inspect
import json
import random
import re
import site
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple, TypeVar

from timing import ROOT, indexed_text, json_lines

sys.path.insert(0, str(ROOT / "tests" / "reference"))
from hidden_tricks import AFTER, BEFORE, DECODED, HIDDEN, VISIBLE

from rag_eval.corpus.chunking import spans
from rag_eval.corpus.loading import load_corpus
from rag_eval.gold.configuration import load_config

MOST, MOST_FILES, CHUNK, SHORTEST = 6_000, 1_500, 1_000, 150
LLM_PACKAGES = (
    "openai langchain langgraph langsmith ragas mlflow chromadb instructor openinference tiktoken"
).split()
"""Packages about language models. Of mlflow, only `genai` counts; the rest is in no set."""
MAN_PAGES, LICENCES = Path("/usr/share/man/man1"), Path("/usr/share/common-licenses")
PLAIN_TASKS = frozenset(
    (
        "Information Retrieval",
        "Content Creation",
        "Learning and Tutoring",
        "Language Translation",
        "Programming Help",
    )
)
"""Types of BIPIA that set a task in words of any document. The guard is built to let them pass."""
_DOCSTRING = re.compile(r'^[ \t]*[rR]?"""(.*?)"""', re.MULTILINE | re.DOTALL)
_LICENCE = re.compile(r"licen[cs]e|copying", re.IGNORECASE)
HELD_OUT = "held out"
T = TypeVar("T")

# ---- Chunks


def chunks_of(text: str, size: int = CHUNK) -> list[str]:
    """Pack the paragraphs of a text into chunks, and cut longer paragraphs between sentences."""
    chunks: list[str] = []
    for paragraph in re.split(r"\n[ \t]*\n", text):
        parts = spans(paragraph) if len(paragraph) > size else [(0, len(paragraph))]
        for place, (start, end) in enumerate(parts):
            piece, gap = paragraph[start:end], " " if place else "\n\n"
            if not piece.strip():
                continue
            if chunks and len(chunks[-1]) + len(gap) + len(piece) <= size:
                chunks[-1] += gap + piece
            else:
                chunks.append(piece)
    return chunks


def sample(items: Iterable[T], most: int) -> list[T]:
    """Return at most `most` of the items, the same in every call, in their order."""
    listed = list(items)
    chosen = random.Random(0).sample(range(len(listed)), min(most, len(listed)))
    return [listed[at] for at in sorted(chosen)]


# ---- Clean texts


class Clean(NamedTuple):
    """Clean chunks of one source; `goal` names the goal that they count for."""

    name: str
    goal: str
    texts: list[str]


def _docstrings(files: Iterable[Path]) -> Iterator[str]:
    """Yield the text blocks of Python files that begin a line; nearly all are docstrings."""
    for path in files:
        for found in _DOCSTRING.finditer(path.read_text(encoding="utf-8", errors="replace")):
            yield inspect.cleandoc(found[1])


def _is_about_models(name: str) -> bool:
    return name.lower().startswith(tuple(LLM_PACKAGES))


def _packages() -> tuple[list[Path], list[Path], list[Path]]:
    """Return the licences, the Python files about language models, and the other Python files."""
    folder = Path(site.getsitepackages()[0])
    files = [path for path in sorted(folder.rglob("*")) if "tests" not in path.parts]
    licences = [path for path in files if _LICENCE.match(path.name) and path.is_file()]
    code = [path for path in files if path.suffix == ".py"]
    about = [path for path in code if _is_about_models(path.relative_to(folder).parts[0])]
    genai = [path for path in about if "mlflow" not in path.parts or "genai" in path.parts]
    return licences, genai, sorted(set(code) - set(about))


def _readmes(*, about_models: bool) -> Iterator[str]:
    """Yield the long descriptions in the metadata of the installed packages."""
    for package in sorted(distributions(), key=lambda one: one.metadata["Name"]):
        if _is_about_models(package.metadata["Name"]) == about_models:
            yield str(package.metadata.get_payload())


def _man_pages() -> Iterator[str]:
    """Yield manual pages without the requests, escapes and comments of roff."""
    for path in sample(sorted(MAN_PAGES.glob("*.gz")), MOST_FILES):
        text = gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
        text = re.sub(r"(?m)^[.'](?:\\\".*|(?:P|PP|LP|TP|sp|SH.*|SS.*)\s*)$", "\n", text)
        text = re.sub(r"(?m)^[.'][A-Za-z]{1,4}\b ?", "", text)
        text = re.sub(r"\\f(?:\[.*?\]|\(..|.)|\\[&|^%]|\\s[+-]?\d", "", text)
        yield text.replace("\\-", "-").replace("\\(aq", "'").replace("\\e", "\\")


def _public(folder: Path) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield the name and texts of each public collection."""
    for name in ("scifact", "xquad", "npl"):
        rows = json_lines(folder / name / "corpus.jsonl")
        yield name, (indexed_text({"title": "", **row}) for row in rows)
    clapnq = [
        row
        for path in sorted((folder / "clapnq").glob("*.jsonl"))
        for row in map(json.loads, path.read_text(encoding="utf-8").splitlines())
    ]
    yield "clapnq", (indexed_text(passage) for row in clapnq for passage in row["passages"])
    quotesum = json_lines(folder / "quotesum" / "dev.jsonl")
    yield "quotesum", (row[f"source{place}"] for row in quotesum for place in range(1, 9))


def pandas_texts() -> list[str]:
    """Return the docstrings of the bundled gold set `pandas_api`."""
    gold = ROOT / "gold_sets" / "pandas_api"
    return load_corpus(load_config(gold).corpus, gold).documents["text"].tolist()


def clean_sets(folder: Path | None) -> Iterator[Clean]:
    """Yield every set of clean texts, without repeated chunks; the first set has the most right."""
    seen: set[str] = set()

    def cut(name: str, goal: str, texts: Iterable[str]) -> Clean:
        chunks = (chunk for text in texts if len(text) >= SHORTEST for chunk in chunks_of(text))
        fresh = [chunk for chunk in dict.fromkeys(chunks) if chunk not in seen]
        seen.update(fresh)
        return Clean(name, goal, sample(fresh, MOST))

    for name, texts in _public(folder) if folder else ():
        yield cut(name, "ordinary", texts)
    licences, about_models, others = _packages()
    licences += sorted(LICENCES.iterdir()) if LICENCES.is_dir() else []
    yield cut("pandas docstrings", "ordinary", pandas_texts())
    yield cut("manual pages", "ordinary", _man_pages())
    yield cut("docstrings", "ordinary", _docstrings(sample(others, MOST_FILES)))
    yield cut("READMEs", "ordinary", _readmes(about_models=False))
    yield cut("licences", "ordinary", (path.read_text("utf-8", "replace") for path in licences))
    yield cut("LLM docstrings", "llm_docs", _docstrings(sample(about_models, MOST_FILES)))
    yield cut("LLM READMEs", "llm_docs", _readmes(about_models=True))
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    our_pages = [page.read_text(encoding="utf-8") for page in pages]
    yield cut("our pages", "llm_docs", our_pages)
    held_out = json_lines(ROOT / "benchmarks" / "guard_clean.jsonl")
    for kind in sorted({row["kind"] for row in held_out}):
        goal = "ordinary" if kind == "multilingual" else kind
        texts = [row["text"] for row in held_out if row["kind"] == kind]
        yield Clean(f"{HELD_OUT}: {kind}", goal, texts)


# ---- Attacks


class Attack(NamedTuple):
    """An attack of a set; `view` names the obfuscation, or is `plain`."""

    set: str
    family: str
    text: str
    language: str = "en"
    view: str = "plain"


def plant(attacks: Sequence[str], documents: Sequence[str]) -> Iterator[str]:
    """Put the attacks at the start, in the middle and at the end of documents, in turns."""
    for place, attack in enumerate(attacks):
        document = documents[(37 * place) % len(documents)]
        half = len(document) // 2
        middle = max(document.find(". ", half) + 2, document.find("\n", half) + 1)
        before, after = document[:middle], document[middle:]
        yield (
            f"{attack}\n\n{document}",
            f"{before}{attack}\n{after}",
            f"{document}\n\n{attack}",
        )[place % 3]


def _public_attacks(folder: Path) -> Iterator[Attack]:
    documents = [row["text"] for row in json_lines(folder / "xquad" / "corpus.jsonl")]
    for kind in ("text", "code"):
        path = folder / "bipia" / f"{kind}_attack_train.json"
        for family, texts in json.loads(path.read_text(encoding="utf-8")).items():
            name = "bipia plain tasks" if family in PLAIN_TASKS else f"bipia {kind}"
            yield from (Attack(name, family, text) for text in plant(texts, documents))
    path = folder / "purplellama" / "indirect_prompt_injection.json"
    for row in json.loads(path.read_text(encoding="utf-8")):
        name = f"purplellama {row['injection_type']}"
        language = "en" if row["speaking_language"] == "English" else row["speaking_language"]
        yield Attack(name, row["injection_variant"], row["user_input"], language)


def attacks(folder: Path | None) -> list[Attack]:
    """Return the attacks of every set: held out, for the development of the rules, and public."""
    benchmarks = ROOT / "benchmarks"
    held_out = [
        Attack(
            HELD_OUT,
            row["family"] if row["language"] == "en" else "other languages",
            row["text"],
            row["language"],
            row.get("view", "plain"),
        )
        for row in json_lines(benchmarks / "guard_attacks.jsonl")
    ]
    own = json_lines(benchmarks / "addressing_attacks.jsonl")
    development = [Attack("development", row["type"], row["text"]) for row in own]
    tricks = [Attack("tricks", "visible", BEFORE + text + AFTER) for text in VISIBLE.values()]
    for family, texts in (("hidden", HIDDEN), ("decoded", DECODED)):
        tricks += [Attack("tricks", family, BEFORE + text + AFTER) for text, _ in texts.values()]
    return [*held_out, *development, *tricks, *(_public_attacks(folder) if folder else ())]
