"""Section of `miss_rate.py` on answers: is the confidence in an answer better for being discounted by the miss rate of its retrieval?

SciFact, deterministic answers over the first ten abstracts of bm25, vector (MiniLM) and hybrid; an answer is right when a span that it cites
matches a rationale, as `citations.matching` matches. Claims that have a rationale count; `every_claim` counts the others too, as wrong.
"""

import json

import numpy as np
from answer_sets_path import answer_sets
from miss_rate_data import STRATEGIES, Judged, collection, folder, judged
from miss_rate_lines import Bar, emit, progress
from timing import json_lines

from rag_eval.answers.extractive import Extract, Extractive, Passage, TermWeights
from rag_eval.citations.matching import Spans, match_citations
from rag_eval.measures.groundedness import document_frequencies, groundedness
from rag_eval.measures.paired import paired_comparison
from rag_eval.uncertainty.estimator import cross_validated
from rag_eval.uncertainty.heuristic import heuristic_v0

REPEATS, SEED, K = 20, 0, 10


def _right(extracts: list[Extract], rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether each answer cites a rationale, and whether its claim has one, bool [n]."""
    its = collection("scifact")
    documents = sorted(document["_id"] for document in json_lines(folder() / "scifact" / "corpus.jsonl"))
    row = {document: i for i, document in enumerate(documents)}
    place = {query: i for i, query in enumerate(its.ids)}
    lines = [json.loads(line) for line in (folder() / "scifact" / "evidence.jsonl").read_text(encoding="utf-8").splitlines()]
    gold = [(place[line["query_id"]], row[line["doc_id"]], span["start"], span["end"]) for line in lines if line["query_id"] in place for span in line["spans"]]
    cited = [(i, rows[i, chosen.passage], chosen.start, chosen.end) for i, extract in enumerate(extracts) for chosen in extract.sentences]
    found = match_citations(Spans(*np.array(cited).T), np.ones(len(cited), dtype=bool), Spans(*np.array(gold).T), len(extracts), np.ones(len(extracts), dtype=bool))
    return found.n_correct > 0, found.n_gold > 0


def _right_when_missed(right: np.ndarray, missed: np.ndarray, group: np.ndarray) -> np.ndarray:
    """c0 of each question from the other groups, [n]."""
    missed_right, missed_all = np.bincount(group, right & missed), np.bincount(group, missed)
    share: np.ndarray = (missed_right.sum() - missed_right) / np.maximum(missed_all.sum() - missed_all, 1)
    return share[group]


def _compared(about: dict[str, object], data: Judged, kept: np.ndarray, right: np.ndarray, *, synthesis: np.ndarray, miss: np.ndarray, held: bool) -> None:
    group, missed = data.collection.group, data.missed(K)
    c0 = _right_when_missed(right & kept, missed & kept, group)
    guess = heuristic_v0(data.batch, K)
    shown = {
        "not discounted: c": synthesis[None, :],
        "discounted by heuristic_v0: c (1 - h)": (synthesis * (1 - guess))[None, :],
        "discounted: c (1 - m)": synthesis * (1 - miss),
        "discounted: c (1 - m) + c0 m": synthesis * (1 - miss) + c0 * miss,
        "retrieval alone: 1 - m": 1 - miss,
    }
    errors = {name: ((values - right) ** 2).mean(axis=0) for name, values in shown.items()}
    before = errors["not discounted: c"]
    figures = {**about, "answers": int(kept.sum()), "right": float(right[kept].mean()), "missed": float(missed[kept].mean()), "right_when_missed": float(right[kept & missed].mean())}
    for name, its in errors.items():
        change = paired_comparison(its[kept], before[kept], group[kept], SEED, higher_is_better=False)
        low, high = float(change.ci_low[0]), float(change.ci_high[0])
        difference = {"value": float(change.delta[0]), "low": low, "high": high} if name != "not discounted: c" else None
        bars = {"difference_high": Bar(most=-1e-12)} if held and name.startswith("discounted: ") else None
        emit("answers", {**figures, "confidence": name, "brier": float(its[kept].mean()), "difference": difference, "difference_high": high}, bars)


def answers() -> None:
    its = collection("scifact")
    documents = sorted(json_lines(folder() / "scifact" / "corpus.jsonl"), key=lambda document: document["_id"])
    answerer = Extractive(answer_sets.lsa_embed(its.texts), embedding="lsa", term_weights=TermWeights.of_texts(its.texts))
    frequencies = document_frequencies([document["text"] for document in documents])
    for strategy in STRATEGIES:
        data = judged("scifact", strategy, "minilm")
        rows, scores = data.batch.rows[:, :K], data.batch.norm[:, :K]
        passages = [
            [Passage(documents[row]["text"], documents[row]["title"], score, rank) for rank, (row, score) in enumerate(zip(found, its_scores, strict=True), start=1) if row >= 0]
            for found, its_scores in zip(rows.tolist(), scores.tolist(), strict=True)
        ]
        extracts = answerer.answer(its.queries, passages)
        progress(f"answers {strategy}: answered")
        texts = [" ".join(given[chosen.passage].text[chosen.start : chosen.end] for chosen in extract.sentences) for extract, given in zip(extracts, passages, strict=True)]
        grounded = groundedness(texts, [[passage.text for passage in given] for given in passages], frequencies).value
        progress(f"answers {strategy}: groundedness")
        right, has_rationale = _right(extracts, rows)
        said = np.array([extract.answered for extract in extracts]) & ~np.isnan(grounded)
        miss = cross_validated(data.labelled(K), prior=None, repeats=REPEATS, seed=SEED)
        signal = np.array([extract.signal for extract in extracts])
        for basis, synthesis in (("groundedness", np.nan_to_num(grounded)), ("signal of the answerer", signal)):
            for which, kept in (("with a rationale", said & has_rationale), ("every claim", said)):
                about = {"strategy": strategy, "synthesis_confidence": basis, "claims": which}
                _compared(about, data, kept, right, synthesis=synthesis, miss=miss, held=basis == "groundedness" and which == "with a rationale")
        progress(f"answers {strategy}: compared")
