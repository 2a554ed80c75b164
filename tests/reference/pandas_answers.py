"""Answers of the deterministic mode to pandas_api, by the stage and with the shipped settings."""

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import yaml
from answer_sets import auroc

from rag_eval.core.settings import Settings
from rag_eval.pipeline.answers import AnswerSet
from rag_eval.pipeline.corpus import GoldVariants
from rag_eval.pipeline.opening import open_gold_set
from rag_eval.pipeline.stages import open_runner


@dataclasses.dataclass(frozen=True)
class PandasAnswers:
    """Answers, and the gold: which questions are answerable, and their relevant documents."""

    made: AnswerSet
    is_answerable: np.ndarray
    relevant: list[frozenset[str]]


def answer_pandas(root: Path, home: Path) -> PandasAnswers:
    """Answer the questions from the hybrid retrieval with MiniLM; other strategies are left out."""
    folder = home / "gold_sets" / "pandas_api"
    shutil.copytree(root / "gold_sets" / "pandas_api", folder)
    given = yaml.safe_load((folder / "gold_set.yaml").read_text(encoding="utf-8"))
    given["strategies"] = [one for one in given["strategies"] if one["name"] == "hybrid"]
    (folder / "gold_set.yaml").write_text(yaml.safe_dump(given), encoding="utf-8")
    settings = Settings(
        home=home, reports=home / "reports", gold_sets=folder.parent, tracking_uri="refused://"
    )
    runner = open_runner(open_gold_set(folder, settings))
    gold, made = runner.get(GoldVariants), runner.get(AnswerSet)
    qrels = gold.qrels_document.query("gain > 0")
    documents = qrels.groupby("query_id")["item_id"].agg(frozenset)
    relevant = [documents.get(one.query_id, frozenset()) for one in made.answers]
    return PandasAnswers(made, gold.queries["answerable"].to_numpy(dtype=bool), relevant)


def figures(found: PandasAnswers) -> dict[str, float]:
    """Return the shares that the goals are about, and the number of questions of each."""
    answers, is_answerable = found.made.answers, found.is_answerable
    is_answered = np.array([one.outcome == "answered" for one in answers])
    cites_gold = np.array(
        [
            any(span.doc_id in documents for span in one.citations)
            for one, documents in zip(answers, found.relevant, strict=True)
        ]
    )
    signal = np.array([one.signal or 0.0 for one in answers])
    both = is_answered & is_answerable
    return {
        "answered": is_answered[is_answerable].mean(),
        "n_answered": int(is_answerable.sum()),
        "gold_document_cited": cites_gold[both].mean(),
        "n_gold_document_cited": int(both.sum()),
        "abstained": 1 - is_answered[~is_answerable].mean(),
        "n_abstained": int((~is_answerable).sum()),
        "auroc": auroc(is_answerable, signal),
        "n_auroc": len(answers),
    }
