"""Fit the weights of the addressing check and write rag_eval/trust/addressing.json.

The data of the fit are attacks, variants of the attacks, and harmless look-alikes. Attacks and
look-alikes were written for this project (`addressing_attacks.jsonl`,
`addressing_lookalikes.jsonl`). Clean data are the sentences of public documents and installed
packages that the check would look at. The fit never reads BIPIA, PurpleLlama, the paragraphs of
XQuAD, SciFact, the packages in LEFT_OUT and this project's gold sets.

The model is a logistic regression on words and pairs of words. L1 chooses them, L2 weighs them.
"held_out" has the figures of fits without whole types of attacks, look-alikes and packages.
"""

import ast
import hashlib
import importlib.metadata
import importlib.util
import itertools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import planting
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression
from timing import data_folder, emit, json_lines, skipped, write_coefficients

from rag_eval.trust.sentences import (
    FILE,
    AddressingWeights,
    features_of,
    scale_of,
    sentences_looked_at,
    with_neighbours,
)
from rag_eval.trust.spelling import normalise

HERE = Path(__file__).parent
PACKAGES = (
    "numpy scipy sklearn requests pydantic click rich sqlalchemy jinja2 httpx dagster chromadb"
    " hypothesis networkx"
).split()
LLM_PACKAGES = (
    "openai langchain langchain_core langchain_community langchain_openai langgraph langsmith"
    " mlflow"
).split()
LEFT_OUT = ("instructor", "pandas", "ragas")
"""Packages that are only measured."""
MOST_DOCSTRINGS, PIECE, SHORTEST = 1_500, 1_000, 40
LEAST_SENTENCES, DIGITS, FOLDS = 4, 1, 5
CHOOSING, STRENGTH = 1.2, 1.0
"""Inverse strengths of the L1 penalty that chooses features, and of the L2 penalty."""
WEIGHTS = {"attack": 0.5, "variant": 0.125, "lookalike": 3.0, "prose": 3.0, "questions": 10.0}
"""Weights of sentences by kind, 1 by default. Look-alikes, clean prose and questions are scarce."""
ORDINARY, SHARES = ("prose", "software", "licences"), (0.003, 0.015)
"""Most clean documents above the threshold: ordinary, and about language models."""


# ---- Other wordings of an attack, by rules

_LEADS = planting.SENTENCES["leads"].strip().splitlines()
MOST_VARIANTS = 3


def _swapped(text: str, number: int) -> str:
    for words in planting.SENTENCES["alike"]:
        for word in words:
            other = words[(number + words.index(word)) % len(words)]
            found = re.search(rf"\b{re.escape(word)}(?=s?\b)", text)
            if found:
                text = text[: found.start()] + other + text[found.end() :]
                break
    return text


def variants(text: str) -> list[str]:
    """Rewrite an attack in at most MOST_VARIANTS ways; equal texts give equal variants."""
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
    found = [_swapped(text, number % 7 + 1)]
    for step in (0, 5):
        lead = _LEADS[(number // 7 + step) % len(_LEADS)]
        keeps_case = lead.startswith("{") or lead[-4:-2] == ": "
        found.append(lead.format(text if keeps_case else text[:1].lower() + text[1:]))
    return [other for other in dict.fromkeys(found) if other != text][:MOST_VARIANTS]


# ---- Documents without attacks


def _pieces(text: str) -> Iterator[str]:
    """Yield runs of paragraphs of about PIECE characters, like the chunks of an index."""
    piece = ""
    for paragraph in re.split(r"\n\s*\n", text):
        if piece and len(piece) + len(paragraph) > PIECE:
            yield piece
            piece = ""
        piece += paragraph + "\n\n"
    yield piece


def _docstrings(package: str) -> list[str]:
    """Return at most MOST_DOCSTRINGS docstrings from the sources of an installed package."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return []
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = {
        ast.get_docstring(node) or ""
        for folder in spec.submodule_search_locations
        for path in Path(folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, documented)
    }
    return sorted(found)[:: len(found) // MOST_DOCSTRINGS + 1]


def _descriptions() -> Iterator[tuple[str, str, str]]:
    """Yield (kind, source, text) of the descriptions and licences of installed packages."""
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"].lower().replace("-", "_")
        if name.startswith((*LEFT_OUT, "rag")):
            continue
        kind = "llm" if name.startswith(tuple(LLM_PACKAGES)) else "software"
        body = distribution.metadata.get_payload() or distribution.metadata.get("Description") or ""
        yield kind, f"readme {name}", str(body)
        for path in distribution.files or ():
            if ".dist-info" in str(path) and path.name.upper().startswith(("LICENSE", "LICENCE")):
                yield "licences", f"licence {name}", path.read_text(encoding="utf-8")


def clean_documents(folder: Path) -> list[tuple[str, str, str]]:
    """Return (kind, source, text) of documents without attacks, each text once."""
    corpora = planting.corpora(folder)
    found = [
        ("prose", f"{name} {at % 7}", text)
        for name in ("distractors", "clapnq")
        for at, text in enumerate(corpora[name])
    ]
    for path in sorted((folder / "clapnq").glob("clapnq_dev_*.jsonl")):
        found += [("questions", "questions clapnq", row["input"]) for row in json_lines(path)]
    quotes = json_lines(folder / "quotesum" / "dev.jsonl")
    found += [("questions", "questions quotesum", row["question"]) for row in quotes]
    quoted = {str(row[key]) for row in quotes for key in row if key.startswith("source")}
    found += [("prose", "quotesum", text) for text in sorted(quoted - {"", "None"})]
    experts = {
        row["question"]: row
        for part in ("rand_test", "rand_val")
        for row in json_lines(folder / "expertqa" / f"{part}.jsonl")
    }
    for place, question in enumerate(sorted(experts)):
        found.append(("questions", f"questions {place % 7}", question))
        answers = experts[question]["answers"].values()
        found += [("prose", f"expertqa {place % 7}", answer["answer_string"]) for answer in answers]
    for kind, packages in (("software", PACKAGES), ("llm", LLM_PACKAGES)):
        for package in packages:
            found += [(kind, f"docs {package}", text) for text in _docstrings(package)]
    found += sorted(_descriptions())
    pieces = {
        piece: (kind, source)
        for kind, source, text in found
        for piece in _pieces(text)
        if len(piece) > SHORTEST
    }
    return [(kind, source, piece) for piece, (kind, source) in pieces.items()]


# ---- The model


def fold_of(name: str) -> int:
    return hashlib.sha256(name.encode()).digest()[0] % FOLDS


def matrix(features: list[set[str]], names: list[str]) -> csr_matrix:
    places = {name: at for at, name in enumerate(names)}
    found = [sorted(places[name] for name in its if name in places) for its in features]
    ends = np.cumsum([0, *map(len, found)])
    columns = np.fromiter(itertools.chain.from_iterable(found), np.int64, count=int(ends[-1]))
    scales = np.repeat([scale_of(its) for its in features], np.diff(ends))
    return csr_matrix((scales, columns, ends), shape=(len(features), len(names)))


def fitted(rows: pd.DataFrame, mask: np.ndarray) -> AddressingWeights:
    features, kinds = rows["features"][mask].tolist(), rows["kind"][mask]
    often = Counter(itertools.chain.from_iterable(features))
    names = sorted(name for name, count in often.items() if count >= LEAST_SENTENCES)
    x, is_attack = matrix(features, names), kinds.isin(("attack", "variant")).to_numpy()
    weight = kinds.map(WEIGHTS).fillna(1.0).to_numpy()

    def fit(columns: np.ndarray, penalty: dict[str, float], tolerance: float) -> LogisticRegression:
        model = LogisticRegression(
            **penalty, solver="liblinear", max_iter=2_000, tol=tolerance, random_state=0
        )
        return model.fit(x[:, columns], is_attack, sample_weight=weight)

    chosen = fit(np.arange(len(names)), {"C": CHOOSING, "l1_ratio": 1.0}, 1e-3).coef_[0]
    kept = np.flatnonzero(chosen)
    model = fit(kept, {"C": STRENGTH, "l1_ratio": 0.0}, 1e-6)
    rounded = zip(kept.tolist(), np.round(model.coef_[0], DIGITS).tolist(), strict=True)
    weights = {names[at]: value for at, value in rounded if value}
    return AddressingWeights(weights, round(float(model.intercept_[0]), DIGITS), 0.0)


def highest(rows: pd.DataFrame, model: AddressingWeights, documents: int) -> np.ndarray:
    """Return the highest score of a sentence in each document; -99 without a sentence."""
    scores = rows["features"].map(model.score).tolist()
    result = np.full(documents, -99.0)
    np.maximum.at(result, rows["document"], with_neighbours(scores, rows["beside"].tolist()))
    return result


def gathered(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame, str]:
    """Return all sentences, the kind and group of each document, and a hash of the sentences.

    The columns are the features of a sentence, whether it adjoins the previous one (beside), its
    document, kind and group.
    """
    rows, documents, seen = [], [], hashlib.sha256()

    def add(kind: str, group: str, text: str) -> None:
        shown, last = normalise(text), -1
        for start, end in sentences_looked_at(shown):
            its = features_of(shown[start:end])
            rows.append((its, last == start, len(documents), kind, group))
            seen.update("\0".join([kind, group, *sorted(its)]).encode("utf-8", "replace"))
            last = end
        documents.append((kind, group))

    for row in json_lines(HERE / "addressing_attacks.jsonl"):
        add("attack", f"attack {row['type']}", row["text"])
        for text in variants(row["text"]):
            add("variant", f"attack {row['type']}", text)
    for row in json_lines(HERE / "addressing_lookalikes.jsonl"):
        add("lookalike", f"lookalike {row['type']}", row["text"])
    for kind, group, text in clean_documents(folder):
        add(kind, group, text)
    columns = ["features", "beside", "document", "kind", "group"]
    table = pd.DataFrame(documents, columns=["kind", "group"])
    return pd.DataFrame(rows, columns=columns), table, seen.hexdigest()


def held_out(rows: pd.DataFrame, documents: pd.DataFrame) -> np.ndarray:
    """Score each document with weights that were fitted without its group."""
    folds = rows["group"].map(fold_of).to_numpy()
    document_folds = documents["group"].map(fold_of).to_numpy()
    scores = np.full(len(documents), -99.0)
    for fold in range(FOLDS):
        its = highest(rows[folds == fold], fitted(rows, folds != fold), len(documents))
        scores[document_folds == fold] = its[document_folds == fold]
    return scores


def main() -> None:
    folder = data_folder()
    if folder is None:
        skipped("fit_addressing", "the public data is not there; set RAG_EVAL_TEST_DATA")
        return
    rows, documents, seen = gathered(folder)
    kinds = documents["kind"]
    apart = held_out(rows, documents)
    clean = (kinds.isin(ORDINARY), kinds == "llm")
    limits = (np.quantile(apart[its], 1 - s) for its, s in zip(clean, SHARES, strict=True))
    limit = round(float(max(limits)), 2)
    model = fitted(rows, np.ones(len(rows), dtype=bool))
    found = pd.Series(apart > limit)
    figures = {
        kind: {"texts": len(its), "share found": round(float(its.mean()), 4)}
        for kind, its in found.groupby(kinds)
    }
    document: dict[str, object] = {
        "schema_version": 1,
        "provenance": {
            "fitted_by": "benchmarks/fit_addressing.py",
            "sentences_sha256": seen,
            "sentences": rows["kind"].value_counts().to_dict(),
            "held_out": figures,
            "sets": "attacks and look-alikes written for this project; SQuAD paragraphs (CC BY-SA"
            " 4.0), CLAPnq dev (Apache-2.0), ExpertQA (MIT), QuoteSum (CC BY-SA 4.0), docstrings,"
            " descriptions and licences of installed packages; only these numbers are kept of them",
            "threshold": f"of clean documents left out of the fit at most {SHARES[0]:.1%} exceed"
            f" it, of documents about language models at most {SHARES[1]:.1%}",
        },
        "threshold": limit,
        "bias": model.bias,
        "weights": model.weights,
    }
    write_coefficients("trust", FILE, document)
    emit("fit_addressing", terms=len(model.weights), threshold=limit, **figures)


if __name__ == "__main__":
    main()
