"""Section of `miss_rate.py` on answers: does a discount by the miss rate improve confidence?

SciFact, deterministic answers over the first ten abstracts of bm25, vector (MiniLM) and hybrid. An
answer is right when a span that it cites matches a rationale.

The project's synthesis confidence of a deterministic answer is its groundedness. It is 1 for
quotations, so any discount improves it. The figures therefore also cover the answerer's own signal.
`miss_rate_less_base_rate_of_misses` compares with a discount by the base rate of misses.
"""

from typing import Any

import numpy as np
from answer_sets_path import answer_sets
from miss_rate_data import STRATEGIES, Judged, collection, folder, judged
from miss_rate_lines import Bar, emit, progress
from timing import json_lines

from rag_eval.answers.extractive import Extract, Extractive, Passage
from rag_eval.citations.matching import Spans, match_citations
from rag_eval.corpus.analyzer import count_documents
from rag_eval.measures.groundedness import comparable, groundedness
from rag_eval.measures.paired import paired_comparison
from rag_eval.uncertainty.estimator import cross_validate, heuristic_v0

REPEATS, SEED, K = 20, 0, 10


def _right(extracts: list[Extract], rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return whether each answer cites a rationale, and whether its claim has any: bool [n]."""
    its = collection("scifact")
    documents = sorted(
        document["_id"] for document in json_lines(folder() / "scifact" / "corpus.jsonl")
    )
    row = {document: i for i, document in enumerate(documents)}
    place = {query: i for i, query in enumerate(its.ids)}
    lines: list[Any] = [*json_lines(folder() / "scifact" / "evidence.jsonl")]
    gold = [
        (place[line["query_id"]], row[line["doc_id"]], span["start"], span["end"])
        for line in lines
        if line["query_id"] in place
        for span in line["spans"]
    ]
    cited = [
        (i, rows[i, chosen.passage], chosen.start, chosen.end)
        for i, extract in enumerate(extracts)
        for chosen in extract.sentences
    ]
    found = match_citations(
        Spans(*np.array(cited).T),
        np.ones(len(cited), dtype=bool),
        Spans(*np.array(gold).T),
        len(extracts),
        np.ones(len(extracts), dtype=bool),
    )
    return found.n_correct > 0, found.n_gold > 0


def _leave_group_out(values: np.ndarray, counted: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Compute for each question the mean of the counted values in other groups, [n]."""
    total, n = np.bincount(group, values * counted), np.bincount(group, counted)
    share: np.ndarray = (total.sum() - total) / np.maximum(n.sum() - n, 1)
    return share[group]


def _difference(a: np.ndarray, b: np.ndarray, group: np.ndarray) -> dict[str, float]:
    """Compute the mean of a - b with its interval over groups."""
    change = paired_comparison(a, b, group, SEED, higher_is_better=False)
    return {
        "value": float(change.delta[0]),
        "low": float(change.ci_low[0]),
        "high": float(change.ci_high[0]),
    }


def _compared(
    about: dict[str, object],
    data: Judged,
    kept: np.ndarray,
    right: np.ndarray,
    *,
    synthesis: np.ndarray,
    miss: np.ndarray,
    held: bool,
) -> None:
    group, missed = data.collection.group, data.missed(K)
    c0 = _leave_group_out(right, missed & kept, group)
    shown = {
        "c": synthesis[None, :],
        "c (1 - heuristic_v0)": (synthesis * (1 - heuristic_v0(data.batch, K)))[None, :],
        "c (1 - base rate of misses)": (
            synthesis * (1 - _leave_group_out(missed, np.ones(len(missed), dtype=bool), group))
        )[None, :],
        "c (1 - m)": synthesis * (1 - miss),
        "c (1 - m) + c0 m": synthesis * (1 - miss) + c0 * miss,
        "base rate of right answers": _leave_group_out(right, kept, group)[None, :],
    }
    errors = {name: ((values - right) ** 2).mean(axis=0)[kept] for name, values in shown.items()}
    figures = {
        **about,
        "answers": int(kept.sum()),
        "right": float(right[kept].mean()),
        "missed": float(missed[kept].mean()),
        "right_when_missed": float(right[kept & missed].mean()),
        "mean_c": float(synthesis[kept].mean()),
    }
    figures["brier"] = {name: float(its.mean()) for name, its in errors.items()}
    figures["less_c"] = {
        name: _difference(its, errors["c"], group[kept])
        for name, its in errors.items()
        if name != "c"
    }
    figures["miss_rate_less_base_rate_of_misses"] = _difference(
        errors["c (1 - m)"], errors["c (1 - base rate of misses)"], group[kept]
    )
    figures["difference_high"] = figures["less_c"]["c (1 - m)"]["high"]
    figures["difference_high_with_c0"] = figures["less_c"]["c (1 - m) + c0 m"]["high"]
    below = Bar(most=-1e-12)
    emit(
        "answers",
        figures,
        {"difference_high": below, "difference_high_with_c0": below} if held else None,
    )


def answers() -> None:
    its = collection("scifact")
    documents = sorted(
        json_lines(folder() / "scifact" / "corpus.jsonl"), key=lambda document: document["_id"]
    )
    answerer = Extractive(
        answer_sets.lsa_embed(its.texts),
        embedding="lsa",
        frequencies=count_documents(its.texts),
    )
    frequencies = count_documents([comparable(document["text"]) for document in documents])
    for strategy in STRATEGIES:
        data = judged("scifact", strategy, "minilm")
        rows = data.batch.rows[:, :K]
        passages = [
            [
                Passage(documents[row]["text"], documents[row]["title"], rank)
                for rank, row in enumerate(found, start=1)
                if row >= 0
            ]
            for found in rows.tolist()
        ]
        extracts = answerer.answer(its.queries, passages)
        progress(f"answers {strategy}: answered")
        texts = [
            " ".join(
                given[chosen.passage].text[chosen.start : chosen.end]
                for chosen in extract.sentences
            )
            for extract, given in zip(extracts, passages, strict=True)
        ]
        grounded = groundedness(
            texts, [[passage.text for passage in given] for given in passages], frequencies
        ).value
        progress(f"answers {strategy}: groundedness")
        right, has_rationale = _right(extracts, rows)
        said = np.array([extract.answered for extract in extracts]) & ~np.isnan(grounded)
        miss = cross_validate(data.labelled(K), prior=None, repeats=REPEATS, seed=SEED)
        signal = np.array([extract.signal for extract in extracts])
        for which, kept in (
            ("with a rationale", said & has_rationale),
            ("all, those without a rationale are wrong", said),
        ):
            bases = {"groundedness": np.nan_to_num(grounded), "signal of the answerer": signal}
            for basis, synthesis in bases.items():
                about = {"strategy": strategy, "synthesis_confidence": basis, "claims": which}
                held = basis == "groundedness"
                _compared(about, data, kept, right, synthesis=synthesis, miss=miss, held=held)
        progress(f"answers {strategy}: compared")
