"""Public data sets that mark the sentences that answer a question, in one format.

The tests and the benchmarks of the extractive answerer use them.
"""

import dataclasses
import functools
import hashlib
import json
from pathlib import Path

import numpy as np

from rag_eval.answers.extractive import Passage, Pool
from rag_eval.corpus.analyzer import Analyzer
from rag_eval.retrieval.embedding.embedders import LsaEmbedder, fit_lsa
from rag_eval.retrieval.lexical import Bm25s

POOL = 10
"""Number of paragraphs that open retrieval gives an XQuAD question."""


@dataclasses.dataclass(frozen=True)
class AnswerSet:
    """Questions, their evidence, and the spans of the evidence that answer.

    `gold` holds (passage, start, end) in the question's passages. It is empty where the evidence
    does not answer. `held_out` marks the questions that no fit has used. `background` is the corpus
    of the passages. `carried` marks the questions that the publisher calls answerable. Such a
    question can lack gold: one of the 300 questions of CLAPnq has no selected sentence.
    """

    name: str
    questions: list[str]
    passages: list[list[Passage]]
    gold: list[list[tuple[int, int, int]]]
    held_out: np.ndarray
    background: list[str]
    carried: np.ndarray | None = None

    @functools.cached_property
    def answerable(self) -> np.ndarray:
        return np.array([bool(spans) for spans in self.gold])

    def every(self, step: int) -> "AnswerSet":
        """Return every n-th question, for a slow embedding."""
        names = ("questions", "passages", "gold", "held_out", "carried")
        values = {name: getattr(self, name) for name in names}
        thinned = {name: value[::step] for name, value in values.items() if value is not None}
        return dataclasses.replace(self, **thinned)


def second_half(key: str) -> bool:
    """Return whether a key is in the second half of a split by hash."""
    return hashlib.sha256(key.encode()).digest()[-1] % 2 == 1


def _lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _indexed(row: dict) -> str:
    return f"{row['title']} {row['text']}".strip()


def clapnq(data: Path) -> AnswerSet:
    """Return 300 answerable and then 300 unanswerable questions, each with one passage.

    The gold is every sentence that any annotator selected.
    """
    rows = [
        row
        for part in ("answerable", "unanswerable")
        for row in _lines(data / "clapnq" / f"clapnq_dev_{part}.jsonl")
    ]
    gold, passages = [], []
    for row in rows:
        source = row["passages"][0]
        chosen = {sentence for output in row["output"] for sentence in output["selected_sentences"]}
        at, spans = 0, []
        for sentence in source["sentences"]:
            start = source["text"].index(sentence, at)
            at = start + len(sentence)
            if sentence in chosen:
                spans.append((0, start, at))
        gold.append(spans)
        passages.append([Passage(source["text"], source["title"])])
    held_out = np.array([second_half(row["id"]) for row in rows])
    return AnswerSet(
        "clapnq",
        [row["input"] for row in rows],
        passages,
        gold,
        held_out,
        [_indexed(row["passages"][0]) for row in rows],
        np.arange(len(rows)) < len(rows) // 2,
    )


def clapnq_open(data: Path) -> AnswerSet:
    """Return the questions of `clapnq`, each with the ten passages that BM25 ranks first.

    The passage of another question counts as a passage without evidence.
    """
    given = clapnq(data)
    own = [listed[0] for listed in given.passages]
    distinct = list(dict.fromkeys(own))
    place = {passage: row for row, passage in enumerate(distinct)}
    background = [f"{passage.title} {passage.text}".strip() for passage in distinct]
    rows = [[row for row in ranked if row >= 0] for ranked in _bm25(background, given.questions)]
    gold = [
        [(ranked.index(place[passage]), *span[1:]) for span in spans]
        if place[passage] in ranked
        else []
        for passage, spans, ranked in zip(own, given.gold, rows, strict=True)
    ]
    passages = [
        [dataclasses.replace(distinct[row], rank=rank) for rank, row in enumerate(ranked, 1)]
        for ranked in rows
    ]
    return dataclasses.replace(
        given, name="clapnq_open", passages=passages, gold=gold, background=background
    )


def scifact_evidence(data: Path) -> AnswerSet:
    """Return the SciFact claims with one gold abstract each; the validation split is held out."""
    corpus = {row["_id"]: row for row in _lines(data / "scifact" / "corpus.jsonl")}
    claims = {row["_id"]: row["text"] for row in _lines(data / "scifact" / "queries.jsonl")}
    spans: dict[tuple[str, str, str], list[tuple[int, int, int]]] = {}
    for row in _lines(data / "scifact" / "evidence.jsonl"):
        spans.setdefault((row["split"], row["query_id"], row["doc_id"]), []).extend(
            (0, span["start"], span["end"]) for span in row["spans"]
        )
    return AnswerSet(
        "scifact",
        [claims[claim] for _, claim, _ in spans],
        [[Passage(corpus[doc]["text"], corpus[doc]["title"])] for _, _, doc in spans],
        list(spans.values()),
        np.array([split != "train" for split, _, _ in spans]),
        [_indexed(row) for row in corpus.values()],
    )


def scifact_open(data: Path) -> AnswerSet:
    """Return each claim of `scifact_evidence` once, with the ten abstracts that BM25 ranks first.

    An abstract without a judgement counts as an abstract without evidence.
    """
    corpus = _lines(data / "scifact" / "corpus.jsonl")
    place = {row["_id"]: i for i, row in enumerate(corpus)}
    claims = {row["_id"]: row["text"] for row in _lines(data / "scifact" / "queries.jsonl")}
    spans: dict[str, dict[int, list[tuple[int, int]]]] = {}
    splits: dict[str, str] = {}
    for row in _lines(data / "scifact" / "evidence.jsonl"):
        splits[row["query_id"]] = row["split"]
        spans.setdefault(row["query_id"], {}).setdefault(place[row["doc_id"]], []).extend(
            (span["start"], span["end"]) for span in row["spans"]
        )
    background = [_indexed(row) for row in corpus]
    ranked = _bm25(background, [claims[claim] for claim in spans])
    passages = [
        [
            Passage(corpus[row]["text"], corpus[row]["title"], rank)
            for rank, row in enumerate(rows, start=1)
            if row >= 0
        ]
        for rows in ranked
    ]
    gold = [
        [(at, *span) for at, row in enumerate(rows) for span in its.get(row, [])]
        for rows, its in zip(ranked, spans.values(), strict=True)
    ]
    held_out = np.array([splits[claim] != "train" for claim in spans])
    return AnswerSet(
        "scifact_open", [claims[claim] for claim in spans], passages, gold, held_out, background
    )


def _bm25(background: list[str], questions: list[str]) -> list[list[int]]:
    """Return the rows of the first texts for each question, -1 where a text is missing."""
    analyzer = Analyzer()
    engine = Bm25s(analyzer.index(background), len(analyzer.vocabulary), k1=0.9, b=0.4)
    return engine.search(analyzer.index(questions), POOL).rows.tolist()


def xquad(data: Path) -> dict[str, AnswerSet]:
    """Return four sets of the English questions, which differ in their evidence.

    The evidence is the right paragraph, the nearest wrong paragraph, ten retrieved paragraphs, or
    the retrieved paragraphs without the right paragraph.
    """
    corpus = [
        row
        for part in ("corpus", "distractors")
        for row in _lines(data / "xquad" / f"{part}.jsonl")
    ]
    place = {row["_id"]: i for i, row in enumerate(corpus)}
    questions = {row["_id"]: row["text"] for row in _lines(data / "xquad" / "queries.jsonl")}
    answers = _lines(data / "xquad" / "answers.jsonl")
    asked = [questions[row["query_id"]] for row in answers]
    right = [place[row["doc_id"]] for row in answers]
    background = [_indexed(row) for row in corpus]
    ranked = [[row for row in rows if row >= 0] for rows in _bm25(background, asked)]

    def passages(rows: list[int]) -> list[Passage]:
        return [
            Passage(corpus[row]["text"], corpus[row]["title"], rank)
            for rank, row in enumerate(rows, start=1)
        ]

    def gold(rows: list[list[int]]) -> list[list[tuple[int, int, int]]]:
        return [
            [(its.index(doc), answer["start"], answer["end"]) for answer in row["answers"]]
            if doc in its
            else []
            for its, doc, row in zip(rows, right, answers, strict=True)
        ]

    readings = {
        "xquad": [[doc] for doc in right],
        "xquad_wrong": [
            [next(row for row in its if row != doc)] for its, doc in zip(ranked, right, strict=True)
        ],
        "xquad_open": ranked,
        "xquad_open_wrong": [
            [row for row in its if row != doc] for its, doc in zip(ranked, right, strict=True)
        ],
    }
    held_out = np.array([second_half(row["doc_id"]) for row in answers])
    return {
        name: AnswerSet(
            name,
            asked,
            [passages(its) for its in rows],
            gold(rows),
            held_out,
            background,
        )
        for name, rows in readings.items()
    }


def is_right(start: int, end: int, spans: list[tuple[int, int]]) -> bool:
    """Return whether a cited span overlaps a gold span by at least half of the shorter span."""
    return any(
        2 * (min(end, high) - max(start, low)) >= min(end - start, high - low)
        for low, high in spans
    )


def candidate_labels(pool: Pool, gold: list[list[tuple[int, int, int]]]) -> np.ndarray:
    """Return whether each candidate of a pool is right."""
    passage = pool.passage_of_pair[pool.pair_of]
    rows = zip(
        pool.question_of.tolist(),
        passage.tolist(),
        pool.starts.tolist(),
        pool.ends.tolist(),
        strict=True,
    )
    return np.array(
        [
            is_right(
                start, end, [(low, high) for place, low, high in gold[question] if place == at]
            )
            for question, at, start, end in rows
        ],
        dtype=bool,
    )


def precision_recall(
    extracts: list, gold: list[list[tuple[int, int, int]]]
) -> tuple[np.ndarray, np.ndarray]:
    """Return two shares per question; NaN without gold.

    The first is the share of cited sentences that are right. The second is the share of gold spans
    that a cited sentence matches.
    """
    precision, recall = np.full(len(gold), np.nan), np.full(len(gold), np.nan)
    for i, (extract, spans) in enumerate(zip(extracts, gold, strict=True)):
        if not spans:
            continue
        cited = [(its.passage, its.start, its.end) for its in extract.sentences]
        right = [
            is_right(start, end, [(low, high) for place, low, high in spans if place == at])
            for at, start, end in cited
        ]
        matched = [
            is_right(low, high, [(start, end) for place, start, end in cited if place == at])
            for at, low, high in spans
        ]
        precision[i], recall[i] = (np.mean(right) if right else 0.0), np.mean(matched)
    return precision, recall


def open_figures(its: AnswerSet, extracts: list) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return three shares per question, 0 where the evidence lacks the gold.

    They are whether the first sentence is right, precision and recall of the cited sentences.
    """
    first = [dataclasses.replace(one, sentences=one.sentences[:1]) for one in extracts]
    best, _ = precision_recall(first, its.gold)
    found = best, *precision_recall(extracts, its.gold)
    return tuple(np.nan_to_num(values) for values in found)


def lsa_embed(background: list[str], dimensions: int = 256):
    """Return the default embedding, which is LSA fitted on the corpus `background`."""
    analyzer = Analyzer()
    rows = analyzer.index(background)
    return LsaEmbedder(
        fit_lsa(rows, list(analyzer.vocabulary), dimensions), "reference", dimensions
    ).embed


def minilm_embed():
    """Return MiniLM that embeds each text once, or None when the machine lacks the model."""
    from chromadb.utils.embedding_functions.onnx_mini_lm_l6_v2 import ONNXMiniLM_L6_V2

    from rag_eval.retrieval.embedding.embedders import MiniLmEmbedder

    folder = Path(ONNXMiniLM_L6_V2.DOWNLOAD_PATH) / ONNXMiniLM_L6_V2.EXTRACTED_FOLDER_NAME
    if not (folder / "model.onnx").is_file():
        return None
    model = MiniLmEmbedder(folder)
    known: dict[str, np.ndarray] = {}

    def embed(texts):
        new = list(dict.fromkeys(text for text in texts if text not in known))
        known.update(zip(new, model.embed(new), strict=True))
        return np.stack([known[text] for text in texts])

    return embed


def auroc(positive: np.ndarray, score: np.ndarray) -> float:
    """Compute the area under the ROC curve."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(positive, score))


def auroc_interval(
    positive: np.ndarray, score: np.ndarray, resamples: int = 2000
) -> tuple[float, float]:
    """Return the 95 % interval of the AUROC by a percentile bootstrap over questions.

    Positive and negative questions are drawn separately.
    """
    rng = np.random.default_rng(13)
    high, low = score[positive], score[~positive]
    labels = np.repeat([True, False], [len(high), len(low)])
    drawn = [
        auroc(labels, np.concatenate([rng.choice(high, len(high)), rng.choice(low, len(low))]))
        for _ in range(resamples)
    ]
    return tuple(float(value) for value in np.quantile(drawn, (0.025, 0.975)))
