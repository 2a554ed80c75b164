"""Which files make up a gold set: our own layout, BEIR, TREC topics, or recorded outputs with whatever gold lies beside them, told from what lies in the folder.

Belongs here: names of files and the choice among them. Reading them is `loading`.
"""

import dataclasses
from pathlib import Path
from typing import Literal

from rag_eval.corpus.raw_documents import is_query_id
from rag_eval.records.gold_set import Beir, GoldSetConfig, Recorded
from rag_eval.records.problems import InputError, Problem, quoted

Layout = Literal["own", "beir", "trec", "recorded"]
TOPICS_FILE = "topics.tsv"
_TREC_QRELS = ("qrels.tsv", "qrels.txt", "qrels")


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Which files of which layout make up the set; `outputs` are the recorded outputs, and the questions too where no `queries.jsonl` lies there."""

    layout: Layout
    folder: Path
    name: str
    version: str
    questions: Path
    qrels: Path | None
    answers: tuple[Path, ...]
    paraphrases: Path | None
    outputs: Path | None = None


def _plan(layout: Layout, folder: Path, name: str, version: str, qrels: Path | None) -> Plan:
    answers = tuple(
        path for path in (folder / "answers.jsonl", folder / "evidence.jsonl") if path.exists()
    )
    paraphrases = folder / "paraphrases.jsonl"
    questions = folder / (TOPICS_FILE if layout == "trec" else "queries.jsonl")
    return Plan(
        layout,
        folder,
        name,
        version,
        questions,
        qrels,
        answers,
        paraphrases if paraphrases.exists() else None,
    )


def beir_plan(folder: Path, split: str, name: str, version: str) -> Plan:
    """Plan of a BEIR folder: `queries.jsonl` and `qrels/<split>.tsv`.

    Raises
    ------
    InputError
        `bad_value` where the split is no file name, `missing_file` where it has no judgements.
    """
    if not is_query_id(split):
        raise InputError(
            Problem(
                "bad_value",
                "a split is the name of a file in qrels/",
                str(folder),
                None,
                "split",
                quoted(split),
                "a name without slashes",
            )
        )
    path = folder / "qrels" / f"{split}.tsv"
    if not path.exists():
        splits = sorted(item.stem for item in (folder / "qrels").glob("*.tsv"))
        raise InputError(
            Problem(
                "missing_file",
                "the split has no judgements",
                str(path),
                None,
                "split",
                quoted(split),
                ", ".join(splits) or "a file qrels/<split>.tsv",
            )
        )
    return _plan("beir", folder, name, version, path)


def _recorded_plan(folder: Path, config: GoldSetConfig, outputs: Path) -> Plan:
    """Plan of recorded outputs. Paraphrases are not for them: the system was asked in one wording."""
    qrels = next((folder / item for item in _TREC_QRELS if (folder / item).is_file()), None)
    plan = _plan("recorded", folder, config.name, str(config.version), qrels)
    return dataclasses.replace(
        plan,
        questions=plan.questions if plan.questions.exists() else outputs,
        paraphrases=None,
        outputs=outputs,
    )


def choose(folder: Path, config: GoldSetConfig | None) -> Plan:
    """Tell the layout from what lies in the folder and what the configuration says.

    Raises
    ------
    InputError
        Those of `beir_plan`, and `missing_split` where the folder has several splits, or none, and none was chosen.
    """
    name = config.name if config else folder.resolve().name
    version = str(config.version) if config else "1"
    if config is not None and isinstance(config.corpus, Recorded):
        return _recorded_plan(folder, config, folder / config.corpus.path)
    if config is not None and config.split is not None:
        data = folder
        if not (folder / "queries.jsonl").exists() and isinstance(config.corpus, Beir):
            data = folder / config.corpus.path
        return beir_plan(data, config.split, name, version)
    if (folder / TOPICS_FILE).exists():
        present = [folder / item for item in _TREC_QRELS if (folder / item).is_file()]
        return _plan(
            "trec", folder, name, version, present[0] if present else folder / _TREC_QRELS[0]
        )
    if (folder / "qrels").is_dir() and not (folder / "qrels.tsv").exists():
        splits = sorted(path.stem for path in (folder / "qrels").glob("*.tsv"))
        if len(splits) == 1:
            return beir_plan(folder, splits[0], name, version)
        raise InputError(
            Problem(
                "missing_split",
                "the folder has several splits, or none, and none was chosen",
                str(folder / "qrels"),
                None,
                "split",
                None,
                ", ".join(splits) or "a file qrels/<split>.tsv",
            )
        )
    qrels = folder / "qrels.tsv"
    return _plan("own", folder, name, version, qrels if qrels.exists() else None)
