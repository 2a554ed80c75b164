"""Choose, check and hash the files of a folder, and combine them to a `GoldSet`.

`rag_eval.gold.files` reads single files. `rag_eval.gold.resolving` finds the targets in a corpus.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from rag_eval.core.config import AnswerOverride, Answers, GoldSetConfig
from rag_eval.core.errors import InputError, Problem, ProblemList, quoted
from rag_eval.core.frames import QUERIES, VARIANTS, make_frame
from rag_eval.corpus.loaders.recorded import RecordedOutput, read_outputs
from rag_eval.corpus.source import is_query_id
from rag_eval.gold.configuration import CONFIG_FILE, load_config
from rag_eval.gold.files import (
    JUDGEMENTS,
    ORIGINAL,
    PARAPHRASES,
    QUERY_PLACES,
    REFERENCE_ANSWERS,
    Questions,
    drop_unknown,
    read_answers,
    read_paraphrases,
    read_qrels,
    read_queries,
    report_row,
    rows_of,
)
from rag_eval.storage.hashing import digest, file_hash

# ---- The layout of a gold set, recognised from the files in the folder

Layout = Literal["own", "beir", "trec", "recorded"]
TOPICS_FILE = "topics.tsv"
_TREC_QRELS = ("qrels.tsv", "qrels.txt", "qrels")


class _Plan:
    """The files of a set: questions, judgements, and optional evidence and paraphrases.

    `outputs` is the file of recorded outputs. Without a file of questions, it holds the questions.
    """

    def __init__(
        self, layout: Layout, folder: Path, name: str, version: str, qrels: Path | None
    ) -> None:
        self.layout, self.folder, self.name, self.version = layout, folder, name, version
        self.questions = folder / (TOPICS_FILE if layout == "trec" else "queries.jsonl")
        self.qrels = qrels
        answers = (folder / "answers.jsonl", folder / "evidence.jsonl")
        self.answers = tuple(path for path in answers if path.exists())
        paraphrases = folder / "paraphrases.jsonl"
        # ignore paraphrases: recorded outputs answer only one wording of each question
        has_paraphrases = layout != "recorded" and paraphrases.exists()
        self.paraphrases = paraphrases if has_paraphrases else None
        self.outputs: Path | None = None

    @property
    def files(self) -> tuple[Path, ...]:
        """Existing files of the plan, in reading order."""
        files = (self.questions, self.paraphrases, self.qrels, *self.answers)
        return tuple(path for path in files if path is not None)


def _beir_plan(folder: Path, split: str, name: str, version: str) -> _Plan:
    """Plan a BEIR folder: `queries.jsonl` and `qrels/<split>.tsv`.

    Raises InputError: `bad_value` if the split is not a file name, `missing_file` if the split has
    no judgements.
    """
    if not is_query_id(split):
        message, accepted = "a split is the name of a file in qrels/", "a name without slashes"
        found = quoted(split)
        raise InputError.of(
            "bad_value", message, folder, field="split", found=found, accepted=accepted
        )
    path = folder / "qrels" / f"{split}.tsv"
    if not path.exists():
        splits = sorted(item.stem for item in (folder / "qrels").glob("*.tsv"))
        accepted, found = ", ".join(splits) or "a file qrels/<split>.tsv", quoted(split)
        message = "the split has no judgements"
        raise InputError.of(
            "missing_file", message, path, field="split", found=found, accepted=accepted
        )
    return _Plan("beir", folder, name, version, path)


def _choose(folder: Path, config: GoldSetConfig | None) -> _Plan:
    """Recognise the layout from the files in the folder and from the configuration.

    Raises InputError: those of `_beir_plan`, and `missing_split` where the folder has several
    splits or none, and none was chosen.
    """
    name = config.name if config else folder.resolve().name
    version = str(config.version) if config else "1"
    trec = [folder / item for item in _TREC_QRELS if (folder / item).is_file()]
    if config is not None and not config.corpus.has_whole_documents:
        plan = _Plan("recorded", folder, name, version, trec[0] if trec else None)
        plan.outputs = folder / config.corpus.files()["path",]
        if not plan.questions.exists():
            plan.questions = plan.outputs
        return plan
    if config is not None and config.split is not None:
        has_questions = (folder / "queries.jsonl").exists()
        data = None if has_questions else config.corpus.gold_folder(folder)
        return _beir_plan(data or folder, config.split, name, version)
    if (folder / TOPICS_FILE).exists():
        return _Plan("trec", folder, name, version, trec[0] if trec else folder / _TREC_QRELS[0])
    qrels = folder / "qrels.tsv"
    if (folder / "qrels").is_dir() and not qrels.exists():
        splits = sorted(path.stem for path in (folder / "qrels").glob("*.tsv"))
        if len(splits) == 1:
            return _beir_plan(folder, splits[0], name, version)
        message = "the folder has several splits, or none, and none was chosen"
        accepted = ", ".join(splits) or "a file qrels/<split>.tsv"
        file = folder / "qrels"
        raise InputError.of("missing_split", message, file, field="split", accepted=accepted)
    return _Plan("own", folder, name, version, qrels if qrels.exists() else None)


# ---- Questions of recorded outputs, and how outputs and questions match.


def _read_outputs(path: Path, problems: ProblemList) -> list[RecordedOutput]:
    try:
        return read_outputs(path)
    except InputError as error:
        problems.extend(error.problems)
        return []


def _make_questions(outputs: Sequence[RecordedOutput], file: str) -> Questions:
    """Take the questions from recorded outputs; a question without text gets its id as text.

    The outputs do not say whether a question is answerable. It counts as answerable, without flag.
    """
    queries: list[tuple[Any, ...]] = []
    places: list[tuple[Any, ...]] = []
    for output in outputs:
        query_id = output.query_id
        wording = output.question if output.question.strip() else query_id
        queries.append((query_id, wording, True, [], query_id))
        places.append((query_id, False, file, output.line))
    return Questions(make_frame(QUERIES, queries), make_frame(QUERY_PLACES, places))


def _report_unmatched(
    questions: Questions, outputs: Sequence[RecordedOutput], path: Path, problems: ProblemList
) -> None:
    """Warn of outputs without a question (`unknown_query`), and of questions without an output."""
    known = set(questions.queries["query_id"])
    for output in outputs:
        if output.query_id not in known:
            problems.add(
                "unknown_query",
                "no question has this id; its output is left out",
                file=str(path),
                line=output.line,
                field="query_id",
                found=quoted(output.query_id),
                accepted="an id of queries.jsonl",
                severity="warning",
            )
    answered = {output.query_id for output in outputs}
    for place in rows_of(questions.places):
        if outputs and place.query_id not in answered:
            question = f"question {quoted(place.query_id)}"
            message = f"{question} has no recorded output: it counts as failed"
            more = {"field": "query_id", "severity": "warning"}
            report_row(problems, place, "missing_output", message, **more)


# ---- The gold set.


@dataclasses.dataclass(frozen=True, slots=True)
class GoldSet:
    """Content of all files of a gold set, before the targets are looked up in a corpus."""

    name: str
    version: str
    layout: Layout
    """Layout of the files. With `recorded`, only the retrieved parts of documents are known."""
    queries: pd.DataFrame
    """QUERIES, in the order of the file."""
    paraphrases: pd.DataFrame
    judgements: pd.DataFrame
    anchors: pd.DataFrame
    decoys: pd.DataFrame
    references: pd.DataFrame
    places: pd.DataFrame
    """File and line of each query, in the row order of `queries`."""
    gold_hash: str
    """Hash of the gold files, the name and the version, without the strategies."""
    files: tuple[Path, ...]
    problems: tuple[Problem, ...]
    overrides: Mapping[str, AnswerOverride] = dataclasses.field(default_factory=dict)
    """Overrides of the configuration's `answers`, by query_id."""


def document_part(target: str) -> str:
    """Return the document name of a target: the text before the first `#`."""
    return target.partition("#")[0] or target


def group_ids(
    query_ids: Sequence[str], pair_queries: Sequence[str], pair_documents: Sequence[str]
) -> list[str]:
    """Name the group of each query: the smallest query id of its connected component.

    Two queries are connected when they share a gold document. The pairs are (query, gold
    document); pairs of other queries are left out.

    Examples
    --------
    >>> group_ids(["b", "a", "c"], ["a", "b", "c"], ["x", "x", "y"])
    ['a', 'a', 'c']
    """
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    names = np.asarray(query_ids, dtype=object)
    n = len(names)
    if n == 0:
        return []
    rows = pd.Index(names).get_indexer(pd.Index(np.asarray(pair_queries, dtype=object)))
    known = rows >= 0
    documents, _ = pd.factorize(np.asarray(pair_documents, dtype=object)[known])
    size = n + (int(documents.max()) + 1 if len(documents) else 0)
    graph = coo_matrix(
        (np.ones(len(documents), dtype=np.int8), (rows[known], documents + n)), shape=(size, size)
    )
    _, labels = connected_components(graph, directed=False)
    labels = labels[:n]
    order = np.argsort(names.astype(str), kind="stable")
    first = pd.Series(names[order], dtype=object).groupby(labels[order], sort=False).first()
    return [str(name) for name in first.loc[labels]]


def group_queries(
    queries: pd.DataFrame, relevant_queries: Sequence[str], documents: Sequence[str]
) -> pd.DataFrame:
    """Return the queries with their `group_id` by these pairs of query and relevant document."""
    groups = group_ids(queries["query_id"].tolist(), relevant_queries, documents)
    return queries.assign(group_id=pd.Series(groups, index=queries.index, dtype="str"))


def _keep_queries(frame: pd.DataFrame, ids: pd.Series) -> pd.DataFrame:
    return frame[frame["query_id"].isin(ids)].reset_index(drop=True)


def _read(plan: _Plan) -> GoldSet:
    problems = ProblemList()
    outputs = [] if plan.outputs is None else _read_outputs(plan.outputs, problems)
    contents = {
        path.relative_to(plan.folder).as_posix(): file_hash(path)
        for path in plan.files
        if path.is_file() and path != plan.outputs
    }
    identity: dict[str, object] = {"name": plan.name, "version": plan.version, "files": contents}
    recorded_references = make_frame(REFERENCE_ANSWERS, [])
    if plan.outputs is not None and plan.questions == plan.outputs:
        questions = _make_questions(outputs, str(plan.outputs))
        recorded_references = make_frame(
            REFERENCE_ANSWERS,
            [(output.query_id, output.reference) for output in outputs if output.reference],
        )
        # leave out answers and contexts, so that the outputs of two systems give one gold hash
        asked = ([output.query_id, output.question, output.reference] for output in outputs)
        identity["questions"] = digest(sorted(asked))
    else:
        questions = read_queries(plan.questions, problems, topics=plan.layout == "trec")
        if plan.outputs is not None:
            _report_unmatched(questions, outputs, plan.outputs, problems)
    known = {*questions.queries["query_id"], *questions.refused}
    qrels = read_qrels(plan.qrels, problems) if plan.qrels else make_frame(JUDGEMENTS, [])
    evidence = read_answers(plan.answers, problems)
    paraphrases = (
        read_paraphrases(plan.paraphrases, problems)
        if plan.paraphrases
        else make_frame(PARAPHRASES, [])
    )
    qrels, paraphrases, implied, decoys = (
        drop_unknown(frame, known, problems)
        for frame in (qrels, paraphrases, evidence.judgements, evidence.decoys)
    )
    queries, places = questions.queries, questions.places
    if plan.layout == "beir":
        judged = queries["query_id"].isin(qrels["query_id"]).to_numpy()
        queries, places = (
            frame[judged].reset_index(drop=True) for frame in (questions.queries, questions.places)
        )
        if queries.empty and not problems.n_errors:
            accepted = "query-id<TAB>corpus-id<TAB>score for at least one question"
            message, file = "the split judges no question", str(plan.qrels)
            problems.add("nothing_judged", message, file=file, line=1, accepted=accepted)
    # the judgements of a BEIR or TREC set are its qrels, so evidence adds spans but no documents
    judgements = qrels
    if plan.layout in {"own", "recorded"}:
        judgements = pd.concat([qrels, implied], ignore_index=True)
    ids = queries["query_id"]
    judgements = _keep_queries(judgements, ids)
    relevant = judgements[judgements["gain"] > 0]
    references = pd.concat([evidence.references, recorded_references], ignore_index=True)
    return GoldSet(
        plan.name,
        plan.version,
        plan.layout,
        group_queries(
            queries, relevant["query_id"].tolist(), list(map(document_part, relevant["target"]))
        ),
        _keep_queries(paraphrases, ids),
        judgements,
        _keep_queries(evidence.anchors, ids),
        _keep_queries(decoys, ids),
        _keep_queries(references, ids),
        places,
        digest(identity),
        plan.files,
        problems.listed(),
        {key: value for key, value in questions.overrides.items() if key in set(ids)},
    )


_NEEDS = {"llm": "endpoint", "recorded": "recorded"}
"""Key of `answers` that each mode of answering needs."""


def _report_unmet(gold: GoldSet, answers: Answers | None, problems: ProblemList) -> None:
    """Report overrides that need a missing part of the configuration (`unmet_override`)."""
    for place in rows_of(gold.places[gold.places["query_id"].isin(list(gold.overrides))]):
        override = gold.overrides[place.query_id]
        given = override.model_dump(mode="json", exclude_none=True)
        needed = _NEEDS.get(override.answer_mode or "")
        if answers is None:
            field = next(iter(given))
            accepted = "answers: {mode: ...} in gold_set.yaml, or no such key"
        elif needed and getattr(answers, needed) is None:
            field = "answer_mode"
            accepted = f"answers: {{{needed}: ...}} in gold_set.yaml, or another mode"
        else:
            continue
        message = f"question {quoted(place.query_id)} asks for what the configuration lacks"
        more = {"field": field, "found": quoted(json.dumps(given[field])), "accepted": accepted}
        severity = "warning" if answers is None else "error"
        report_row(problems, place, "unmet_override", message, severity=severity, **more)


def read_gold(folder: Path, config: GoldSetConfig | None = None) -> GoldSet:
    """Read a gold set; keep faults of its files in `problems`, and leave out rows with a fault.

    Raises InputError if the configuration cannot be used, or if the layout is unclear.
    """
    if config is None and (folder / CONFIG_FILE).exists():
        config = load_config(folder)
    gold = _read(_choose(folder, config))
    if config is None:
        return gold
    unmet = ProblemList()
    _report_unmet(gold, config.answers, unmet)
    return dataclasses.replace(gold, problems=(*gold.problems, *unmet.listed()))


def _require_no_errors(gold: GoldSet) -> GoldSet:
    if any(problem.severity == "error" for problem in gold.problems):
        raise InputError(gold.problems)
    return gold


def load_gold(folder: Path, config: GoldSetConfig | None = None) -> GoldSet:
    """Read a gold set for use.

    The files of the folder decide the layout: `queries.jsonl` with optional
    `paraphrases.jsonl`, `qrels.tsv` and `answers.jsonl` (our own); the same with
    `qrels/<split>.tsv` (BEIR); `topics.tsv` with `qrels.tsv` or `qrels.txt` (TREC). Without
    `config`, the configuration is read from the folder; plain data folders need none.

    Raises InputError with every fault of every file, at most 100 listed and the rest counted.
    """
    return _require_no_errors(read_gold(folder, config))


def load_beir_gold(folder: Path, split: str) -> GoldSet:
    """Read the gold of a plain BEIR folder: the queries that `qrels/<split>.tsv` judges.

    Every query counts as answerable unless its row says otherwise. The version is the split's name.

    Raises InputError with every fault of every file.
    """
    return _require_no_errors(_read(_beir_plan(folder, split, folder.resolve().name, split)))


def variants(gold: GoldSet) -> pd.DataFrame:
    """List wordings (VARIANTS): the `original` of each query, then paraphrases by paraphrase_id.

    RUN.variant holds row numbers of this frame, so the order is part of the contract.
    """
    queries = gold.queries
    others = gold.paraphrases[["query_id", "paraphrase_id", "text"]]
    row = pd.Index(queries["query_id"]).get_indexer(pd.Index(others["query_id"]))
    others, row = others[row >= 0], row[row >= 0]
    originals = pd.DataFrame(
        {
            "query_id": queries["query_id"],
            "paraphrase_id": pd.Series(ORIGINAL, index=queries.index, dtype="str"),
            "text": queries["text"],
        }
    )
    both = pd.concat([originals, others], ignore_index=True)
    both["row"] = np.concatenate([np.arange(len(queries)), row])
    both["later"] = np.concatenate(
        [np.zeros(len(queries), dtype=bool), np.ones(len(others), dtype=bool)]
    )
    both = both.sort_values(["row", "later", "paraphrase_id"], kind="stable", ignore_index=True)
    both["group_id"] = queries["group_id"].to_numpy()[both["row"]]
    both["answerable"] = queries["answerable"].to_numpy()[both["row"]]
    return VARIANTS.check(both.drop(columns=["row", "later"]))
