"""Fit the weights of the addressing check and write rag_eval/trust/addressing.json.

The data of the fit are attacks, variants of the attacks, and harmless look-alikes. Attacks and
look-alikes were written for this project (`addressing_attacks.jsonl`,
`addressing_lookalikes.jsonl`). Clean data
are the sentences of public documents and installed packages that the check would look at. The fit
never reads BIPIA, the paragraphs of XQuAD, SciFact, the documentation of pandas and this project's
gold sets.

The model is a logistic regression on the words, pairs and classes that a chi-square test keeps.
"held_out" has the figures of fits without whole types of attacks, look-alikes and packages.
"""

import hashlib
import importlib.metadata
import itertools
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import planting
from scipy.sparse import csr_matrix
from sklearn.feature_selection import chi2
from sklearn.linear_model import LogisticRegression
from timing import data_folder, emit, json_lines, skipped, write_coefficients

from rag_eval.trust.sentences import (
    FILE,
    features_of,
    sentences_looked_at,
    tokens_of,
    with_neighbours,
)
from rag_eval.trust.spelling import normalise

HERE = Path(__file__).parent
PACKAGES = (
    "numpy scipy sklearn requests pydantic click rich sqlalchemy jinja2 httpx dagster chromadb"
    " mlflow hypothesis networkx"
).split()
LEFT_OUT = ("ragas", "langchain", "openai", "instructor", "pandas")
"""Packages left out of the fit: their texts are prompts, and pandas is only measured."""
MOST_TERMS, LEAST_ATTACKS, DIGITS, FOLDS = 6_000, 2, 3, 5
STRENGTH = 1.0
ATTACK, VARIANT, LOOKALIKE, CLEAN = 1.0, 0.25, 3.0, 1.0
CLEAN_SHARE, LOOKALIKE_SHARE = 0.0015, 0.16


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


# ---- What is fitted on


def fold_of(name: str) -> int:
    return hashlib.sha256(name.encode()).digest()[0] % FOLDS


def _readmes() -> list[tuple[str, str]]:
    """Return (source, paragraph) of the descriptions of installed packages."""
    found = []
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name.lower().startswith(LEFT_OUT) or name.lower().startswith("rag"):
            continue
        body = distribution.metadata.get_payload() or distribution.metadata.get("Description") or ""
        parts = re.split(r"\n\s*\n", str(body))
        found += [(f"readme {name.lower()}", part) for part in parts if len(part) > 40]
    return sorted(set(found))


def clean_documents(folder: Path) -> list[tuple[str, str]]:
    """Return (source, text) of documents without attacks."""
    found = [(f"docs {package}", text) for package in PACKAGES for text in _installed(package)]
    found += _readmes()
    corpora = planting.corpora(folder)
    for name in ("distractors", "clapnq"):
        found += [(f"{name} {at % 7}", text) for at, text in enumerate(corpora[name])]
    quotes = json_lines(folder / "quotesum" / "dev.jsonl")
    quoted = {str(row[key]) for row in quotes for key in row if key.startswith("source")}
    found += [("quotesum", text) for text in sorted(quoted - {"", "None"})]
    experts = {
        row["question"]: row
        for part in ("rand_test", "rand_val")
        for row in json_lines(folder / "expertqa" / f"{part}.jsonl")
    }
    for place, question in enumerate(sorted(experts)):
        answers = experts[question]["answers"].values()
        found += [(f"expertqa {place % 7}", answer["answer_string"]) for answer in answers]
    return found


def _installed(package: str) -> list[str]:
    try:
        return planting.docstrings(package)
    except Exception as error:  # noqa: BLE001 - packages raise anything
        emit("fit_addressing", package=package, skipped=str(error)[:200])
        return []


def chosen(rows: pd.DataFrame, mask: np.ndarray) -> list[str]:
    """Choose the at most MOST_TERMS features with the highest chi-square statistic."""
    kinds, features = rows["kind"].to_numpy(), rows["features"].tolist()

    def count(wanted: tuple[str, ...]) -> Counter[str]:
        use = np.flatnonzero(mask & np.isin(kinds, wanted))
        return Counter(feature for at in use for feature in features[at])

    often = {name for name, n in count(("attack",)).items() if n >= LEAST_ATTACKS}
    benign = count(("lookalike", "clean"))
    known = sorted(often | {name for name, n in benign.items() if n >= 4 * LEAST_ATTACKS})
    use = np.flatnonzero(mask & (kinds != "variant"))
    x = matrix([features[at] for at in use], known)
    scores = np.nan_to_num(chi2(x, kinds[use] == "attack")[0])
    return [known[at] for at in np.sort(np.argsort(-scores, kind="stable")[:MOST_TERMS])]


def matrix(features: list[set[str]], names: list[str]) -> csr_matrix:
    places = {name: at for at, name in enumerate(names)}
    found = [sorted(places[name] for name in its if name in places) for its in features]
    ends = np.cumsum([0, *map(len, found)])
    columns = np.fromiter(itertools.chain.from_iterable(found), np.int64, count=int(ends[-1]))
    return csr_matrix((np.ones(ends[-1]), columns, ends), shape=(len(features), len(names)))


def fitted(rows: pd.DataFrame, mask: np.ndarray) -> tuple[dict[str, float], float]:
    names = chosen(rows, mask)
    used = rows[mask]
    kinds = used["kind"].to_numpy()
    named = [kinds == kind for kind in ("attack", "variant", "lookalike")]
    weight = np.select(named, [ATTACK, VARIANT, LOOKALIKE], CLEAN)
    x = matrix(used["features"].tolist(), names)
    model = LogisticRegression(
        C=STRENGTH, solver="liblinear", l1_ratio=0.0, max_iter=2_000, tol=1e-6, random_state=0
    )
    model.fit(x, np.isin(kinds, ("attack", "variant")), sample_weight=weight)
    rounded = zip(names, np.round(model.coef_[0], DIGITS).tolist(), strict=True)
    weights = {name: value for name, value in rounded if value}
    return weights, round(float(model.intercept_[0]), DIGITS)


def highest(
    rows: pd.DataFrame, weights: dict[str, float], bias: float, documents: int
) -> np.ndarray:
    """Return the highest score of a sentence in each document; -99 without a sentence."""
    scores = [bias + sum(weights.get(name, 0.0) for name in its) for its in rows["features"]]
    result = np.full(documents, -99.0)
    np.maximum.at(result, rows["document"], with_neighbours(scores, rows["beside"].tolist()))
    return result


def gathered(folder: Path) -> tuple[pd.DataFrame, list[tuple[str, str]], str]:
    """Return all sentences, kind and group of each document, and a hash of the sentences.

    The columns are the features of a sentence, whether it adjoins the previous one (beside), its
    document, kind and group.
    """
    rows, documents, seen = [], [], hashlib.sha256()

    def add(kind: str, group: str, text: str) -> None:
        shown, last = normalise(text), -1
        for start, end in sentences_looked_at(shown):
            its = features_of(tokens_of(shown[start:end]))
            rows.append((its, last == start, len(documents), kind, group))
            seen.update("\0".join([kind, group, *sorted(its)]).encode("utf-8", "replace"))
            last = end
        documents.append((kind, group))

    for row in json_lines(HERE / "addressing_attacks.jsonl"):
        for kind, texts in (("attack", [row["text"]]), ("variant", variants(row["text"]))):
            for text in texts:
                add(kind, f"attack {row['type']}", text)
    for row in json_lines(HERE / "addressing_lookalikes.jsonl"):
        add("lookalike", f"lookalike {row['type']}", row["text"])
    for group, text in clean_documents(folder):
        add("clean", group, text)
    columns = ["features", "beside", "document", "kind", "group"]
    return pd.DataFrame(rows, columns=columns), documents, seen.hexdigest()


def limit_of(documents: list[tuple[str, str]], scores: np.ndarray) -> float:
    """Return the threshold: at most CLEAN_SHARE and LOOKALIKE_SHARE of documents exceed it."""
    kinds = np.array([kind for kind, _ in documents])
    shares = {"clean": CLEAN_SHARE, "lookalike": LOOKALIKE_SHARE}
    limits = (np.quantile(scores[kinds == kind], 1 - share) for kind, share in shares.items())
    return float(max(limits))


def held_out(rows: pd.DataFrame, documents: list[tuple[str, str]]) -> np.ndarray:
    """Score each document with weights that were fitted without its group."""
    folds = rows["group"].map(fold_of).to_numpy()
    document_folds = np.array([fold_of(group) for _, group in documents])
    scores = np.full(len(documents), -99.0)
    for fold in range(FOLDS):
        weights, bias = fitted(rows, folds != fold)
        its = highest(rows[folds == fold], weights, bias, len(documents))
        scores[document_folds == fold] = its[document_folds == fold]
    return scores


def figures_of(texts: np.ndarray, found: np.ndarray) -> dict[str, float]:
    share = round(float(found[texts].mean()), 4)
    return {"texts": int(texts.sum()), "share found": share}


def main() -> None:
    folder = data_folder()
    if folder is None:
        skipped("fit_addressing", "the public data is not there; set RAG_EVAL_TEST_DATA")
        return
    rows, documents, seen = gathered(folder)
    kinds = np.array([kind for kind, _ in documents])
    readmes = np.array([group.startswith("readme") for _, group in documents])
    apart = held_out(rows, documents)
    limit = round(limit_of(documents, apart), 2)
    weights, bias = fitted(rows, np.ones(len(rows), dtype=bool))
    figures = {
        kind: figures_of(kinds == kind, apart > limit) for kind in ("attack", "lookalike", "clean")
    }
    figures["readme paragraphs"] = figures_of(readmes, apart > limit)
    document: dict[str, object] = {
        "schema_version": 1,
        "provenance": {
            "fitted_by": "benchmarks/fit_addressing.py",
            "sentences_sha256": seen,
            "sentences": rows["kind"].value_counts().to_dict(),
            "held_out": figures,
            "sets": "attacks and look-alikes written for this project; SQuAD paragraphs (CC BY-SA"
            " 4.0), CLAPnq dev (Apache-2.0), ExpertQA (MIT), QuoteSum (CC BY-SA 4.0), docstrings"
            " and descriptions of installed packages; only these numbers are kept of them",
            "threshold": f"of clean documents left out of the fitting at most {CLEAN_SHARE:.2%}"
            f" exceed it, of look-alikes at most {LOOKALIKE_SHARE:.0%}",
        },
        "threshold": limit,
        "bias": bias,
        "weights": weights,
    }
    write_coefficients("trust", FILE, document)
    emit("fit_addressing", terms=len(weights), threshold=limit, **figures)


if __name__ == "__main__":
    main()
