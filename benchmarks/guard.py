"""Measure the poisoning guard: attacks found, clean texts stopped, and its time.

    guard.py            print the figures
    guard.py --write    record those of texts in `guard_figures.jsonl`, which docs/trust.md shows
                        after `docs/generate.py --pages`

The verdict of a text comes from its own findings alone. An attack is found if its verdict is
`warning` or `blocked`. Shares have Wilson's 95 % bounds. A clean text is a chunk of whole
paragraphs of up to 1,000 characters; a longer paragraph is cut between sentences. Sets of more than
MOST chunks are sampled with a fixed seed. The folder of public data, this machine and the installed
packages are the sources, so sizes differ between machines.
"""

import argparse
import gzip
import inspect
import json
import random
import re
import site
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import distributions
from pathlib import Path
from typing import TypeVar

import numpy as np
from timing import ROOT, alternate, data_folder, emit, indexed_text, json_lines, report, skipped

from rag_eval.corpus.analyzer import Analyzer
from rag_eval.corpus.chunking import spans
from rag_eval.corpus.loading import load_corpus
from rag_eval.gold.configuration import load_config
from rag_eval.measures.overlap import wilson
from rag_eval.trust import guard
from rag_eval.trust.rules import RuleSet

sys.path.insert(0, str(ROOT / "tests" / "reference"))
from hidden_tricks import AFTER, BEFORE, DECODED, HIDDEN, VISIBLE

Row = dict[str, object]
Texts = Iterable[tuple[str, str]]
"""Pairs of the name of a set and a text."""
BENCHMARKS = ROOT / "benchmarks"
RECORD = BENCHMARKS / "guard_figures.jsonl"
GOALS = {"ordinary": (0.2, 5), "llm_docs": (1, 20), "about_injection": (5, None)}
"""Most texts of 1,000 that may be blocked, and that may have a warning."""
SPEED_BAR, SPEED_TEXTS, REPEATS = 1.0, 2_000, 7
Z = statistics.NormalDist().inv_cdf(0.975)
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
T = TypeVar("T")

# ---- Attacks


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


def attacks(folder: Path | None) -> Texts:
    """Yield the attacks: held out, for the development of the rules, and public."""
    yield from (("held out", row["text"]) for row in json_lines(BENCHMARKS / "guard_attacks.jsonl"))
    development = json_lines(BENCHMARKS / "addressing_attacks.jsonl")
    yield from (("development", row["text"]) for row in development)
    tricks = [*VISIBLE.values(), *(text for text, _ in (*HIDDEN.values(), *DECODED.values()))]
    yield from (("tricks", BEFORE + text + AFTER) for text in tricks)
    if folder is None:
        return
    documents = [row["text"] for row in json_lines(folder / "xquad" / "corpus.jsonl")]
    for kind in ("text", "code"):
        path = folder / "bipia" / f"{kind}_attack_train.json"
        for family, texts in json.loads(path.read_text(encoding="utf-8")).items():
            name = "bipia plain tasks" if family in PLAIN_TASKS else f"bipia {kind}"
            yield from ((name, text) for text in plant(texts, documents))
    path = folder / "purplellama" / "indirect_prompt_injection.json"
    for row in json.loads(path.read_text(encoding="utf-8")):
        yield f"purplellama {row['injection_type']}", row["user_input"]


# ---- Clean texts


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


def _docstrings(files: Iterable[Path]) -> Iterator[str]:
    """Yield the text blocks of Python files that begin a line; nearly all are docstrings."""
    for path in files:
        for match in _DOCSTRING.finditer(path.read_text(encoding="utf-8", errors="replace")):
            yield inspect.cleandoc(match[1])


def _is_about_models(name: str) -> bool:
    return name.lower().startswith(tuple(LLM_PACKAGES))


def _packages() -> tuple[list[Path], list[Path], list[Path]]:
    """Return the licences, the Python files about language models, and the other Python files."""
    folder = Path(site.getsitepackages()[0])
    files = [path for path in sorted(folder.rglob("*")) if "tests" not in path.parts]
    licences = [path for path in files if _LICENCE.match(path.name) and path.is_file()]
    code = [path for path in files if path.suffix == ".py"]
    models = [path for path in code if _is_about_models(path.relative_to(folder).parts[0])]
    genai = [path for path in models if "mlflow" not in path.parts or "genai" in path.parts]
    return licences, genai, sorted(set(code) - set(models))


def _readmes(*, about_models: bool) -> Iterator[str]:
    """Yield the long descriptions in the metadata of the installed packages."""
    for package in sorted(distributions(), key=lambda package: package.metadata["Name"]):
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


def _public(folder: Path) -> Iterator[Iterable[str]]:
    """Yield the texts of each public collection."""
    for name in ("scifact", "xquad", "npl"):
        rows = json_lines(folder / name / "corpus.jsonl")
        yield (indexed_text({"title": "", **row}) for row in rows)
    clapnq = [
        row for path in sorted((folder / "clapnq").glob("*.jsonl")) for row in json_lines(path)
    ]
    yield (indexed_text(passage) for row in clapnq for passage in row["passages"])
    quotesum = json_lines(folder / "quotesum" / "dev.jsonl")
    yield (row[f"source{place}"] for row in quotesum for place in range(1, 9))


def pandas_texts() -> list[str]:
    """Return the docstrings of the bundled gold set `pandas_api`."""
    gold = ROOT / "gold_sets" / "pandas_api"
    return load_corpus(load_config(gold).corpus, gold).documents["text"].tolist()


def clean_texts(folder: Path | None) -> Texts:
    """Yield pairs of a goal, or the name of a held-out set, and a chunk; none is repeated."""
    licences, about_models, others = _packages()
    licences += sorted(LICENCES.iterdir()) if LICENCES.is_dir() else []
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    sources: list[tuple[str, Iterable[str]]] = [
        *(("ordinary", texts) for texts in (_public(folder) if folder else ())),
        ("ordinary", pandas_texts()),
        ("ordinary", _man_pages()),
        ("ordinary", _docstrings(sample(others, MOST_FILES))),
        ("ordinary", _readmes(about_models=False)),
        ("ordinary", (path.read_text("utf-8", "replace") for path in licences)),
        ("llm_docs", _docstrings(sample(about_models, MOST_FILES))),
        ("llm_docs", _readmes(about_models=True)),
        ("llm_docs", (page.read_text(encoding="utf-8") for page in pages)),
    ]
    seen: set[str] = set()
    for goal, texts in sources:
        chunks = (chunk for text in texts if len(text) >= SHORTEST for chunk in chunks_of(text))
        fresh = [chunk for chunk in dict.fromkeys(chunks) if chunk not in seen]
        seen.update(fresh)
        yield from ((f"all of {goal}", chunk) for chunk in sample(fresh, MOST))
    for row in json_lines(BENCHMARKS / "guard_clean.jsonl"):
        yield f"held out: {row['kind']}", row["text"]


# ---- Figures


def with_bounds(count: float, n: int, scale: int = 1) -> list[float]:
    """Return the share of `count` in `n` and its 95 % bounds, times `scale`."""
    share = np.array([count / n])
    low, high = wilson(share, np.array([float(n)]), Z)
    return [abs(round(float(value[0]) * scale, 3)) for value in (share, low, high)]


def verdicts_by_set(texts: Texts) -> dict[str, list[str]]:
    """Judge each text alone, and return the verdicts of each set."""
    pairs, by_set = list(texts), dict[str, list[str]]()
    findings = guard.screen([text for _, text in pairs])
    ranks, _ = guard.rank_findings(findings, len(pairs))
    for (name, _), rank in zip(pairs, ranks, strict=True):
        by_set.setdefault(name, []).append(guard.VERDICTS[rank])
    return by_set


def measure_texts() -> Iterator[Row]:
    """Yield the attacks found of each set, and the clean texts stopped with the goals."""
    for name, verdicts in verdicts_by_set(attacks(data_folder())).items():
        n, blocked = len(verdicts), verdicts.count("blocked")
        counts = {"found": blocked + verdicts.count("warning"), "blocked": blocked}
        shares = {f"{key}_share": with_bounds(count, n) for key, count in counts.items()}
        yield {"set": name, "by": "set", "value": name, "n": n, **counts, **shares}
    for name, verdicts in sorted(verdicts_by_set(clean_texts(data_folder())).items()):
        n, goal = len(verdicts), name.split()[-1]
        counts = {"blocked": verdicts.count("blocked"), "warned": verdicts.count("warning")}
        rates = {f"{key}_of_1000": with_bounds(count, n, 1_000) for key, count in counts.items()}
        goals = GOALS.get(goal, GOALS["ordinary"])  # a held-out set of several languages
        yield {"set": name, "n": n, **counts, **rates, "goals": goals}


def measure_speed() -> None:
    """Time the guard against tokenising the same texts, in processor seconds."""
    rules, folder = RuleSet.load(), data_folder()
    corpora = {"pandas": pandas_texts()}
    if folder:
        documents = json_lines(folder / "scifact" / "corpus.jsonl")
        corpora["scifact"] = sample(map(indexed_text, documents), SPEED_TEXTS)
    else:
        skipped("guard_speed", "the public data is not there; set RAG_EVAL_TEST_DATA")
    for name, texts in corpora.items():
        runs = {
            "ours": lambda texts=texts: guard.screen(texts, rules),
            "reference": lambda texts=texts: Analyzer().index(texts),
        }
        seconds = alternate(runs, REPEATS, time.process_time)
        report("guard_speed", seconds, SPEED_BAR, corpus=name, texts=len(texts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="record the figures of texts")
    is_written = parser.parse_args().write
    if is_written and data_folder() is None:
        parser.error("--write needs the public data; set RAG_EVAL_TEST_DATA")
    rows = list(measure_texts())
    for row in rows:
        emit("guard", **row)
    if is_written:
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        RECORD.write_text("".join(lines), encoding="utf-8", newline="\n")
    else:
        measure_speed()


if __name__ == "__main__":
    main()
