"""Choose, check and hash the files of a folder, and combine them to a `GoldSet`.

`rag_eval.gold.files` reads single files. `rag_eval.gold.resolving` finds the targets in a corpus.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from rag_eval.core.arrays import IntArray
from rag_eval.core.config import AnswerOverride, Answers, GoldSetConfig
from rag_eval.core.errors import InputError, Place, Problem, ProblemList, quoted
from rag_eval.core.fields import decode_id
from rag_eval.core.frames import QUERIES, VARIANTS, make_frame
from rag_eval.core.rows import ending_of, find_file
from rag_eval.corpus.loaders.recorded import RecordedOutput, read_outputs
from rag_eval.gold.configuration import CONFIG_FILE, load_config
from rag_eval.gold.files import (
    JUDGEMENTS,
    ORIGINAL,
    QUERY_PLACES,
    GoldEvidence,
    Questions,
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


class _Plan(NamedTuple):
    """The files of a set; recorded outputs hold the questions if no file of questions exists."""

    layout: Layout
    folder: Path
    qrels: Path | None
    questions: Path
    paraphrases: list[Path]
    """Recorded outputs answer only one wording, so they have none."""
    answers: list[Path]
    outputs: Path | None

    @property
    def files(self) -> tuple[Path, ...]:
        """Files of the set, in reading order."""
        qrels = [] if self.qrels is None else [self.qrels]
        return (self.questions, *self.paraphrases, *qrels, *self.answers)


def _plan(folder: Path, config: GoldSetConfig | None, split: str | None) -> _Plan:
    """Recognise the layout from the files in the folder and from the configuration."""
    layout: Layout = "own"
    outputs, questions = None, "queries.jsonl"
    tables = [find_file(folder / name) for name in ("qrels.tsv", "qrels.txt")]
    qrels = next((path for path in tables if path.exists()), None)
    if config is not None and not config.corpus.has_whole_documents:
        layout, outputs = "recorded", folder / config.corpus.files()["path",]
    elif split is None and find_file(folder / TOPICS_FILE).exists():
        layout, questions, qrels = "trec", TOPICS_FILE, qrels or tables[0]
    elif split is not None or (qrels is None and (folder / "qrels").is_dir()):
        if config is not None and not find_file(folder / questions).exists():
            folder = config.corpus.gold_folder(folder) or folder
        layout, qrels = "beir", _choose_split(folder / "qrels", split)

    def existing(*names: str) -> list[Path]:
        return [path for name in names if (path := find_file(folder / name)).exists()]

    asked = existing(questions) or [outputs or find_file(folder / questions)]
    paraphrases = [] if layout == "recorded" else existing("paraphrases.jsonl")
    answers = existing("answers.jsonl", "evidence.jsonl")
    return _Plan(layout, folder, qrels, asked[0], paraphrases, answers, outputs)


def _choose_split(folder: Path, split: str | None) -> Path:
    """Return the judgements of a split of a BEIR folder; default: the only split."""
    files = (path for path in folder.glob("*.tsv*") if ending_of(path) == ".tsv")
    splits = {path.name.partition(".tsv")[0]: path for path in sorted(files)}
    more: Place = {"field": "split"}
    more["accepted"] = ", ".join(splits) or "a file qrels/<split>.tsv"
    if split is None and len(splits) != 1:
        message = "the folder has several splits, or none, and none was chosen"
        raise InputError.of("missing_split", message, folder, **more)
    split = next(iter(splits)) if split is None else split
    if split not in splits:
        more["found"] = quoted(split)
        message = "the split has no judgements"
        raise InputError.of("missing_file", message, folder / f"{split}.tsv", **more)
    return splits[split]


# ---- Questions of recorded outputs, and how outputs and questions match


def _make_questions(outputs: Sequence[RecordedOutput], file: str) -> Questions:
    """Take the questions from recorded outputs; a question without text gets its id as text."""
    queries: list[tuple[Any, ...]] = []
    for output in outputs:
        name, text = output.query_id, output.question
        queries.append((name, text if text.strip() else name, True, [], name))
    places = [(output.query_id, False, file, output.line) for output in outputs]
    frames = (make_frame(QUERIES, queries), make_frame(QUERY_PLACES, places))
    return Questions(*frames, {}, frozenset())


def _read_questions(plan: _Plan, problems: ProblemList, identity: dict[str, object]) -> Questions:
    """Read the questions; those that recorded outputs hold become a part of the gold's identity."""
    if plan.outputs is None:
        return read_queries(plan.questions, problems, topics=plan.layout == "trec")
    try:
        outputs = read_outputs(plan.outputs, problems)
    except InputError as error:
        problems.extend(error.problems)
        outputs = []
    if plan.questions == plan.outputs:
        # leave out answers and contexts, so that the outputs of two systems give one gold hash
        asked = ([output.query_id, output.question, output.reference] for output in outputs)
        identity["questions"] = digest(sorted(asked))
        return _make_questions(outputs, str(plan.outputs))
    questions = read_queries(plan.questions, problems)
    query_ids = set(questions.queries["query_id"])
    answered = {output.query_id for output in outputs}
    more: Place = {"field": "query_id", "severity": "warning"}
    for output in outputs:
        if output.query_id not in query_ids:
            message = f"no question has the id {quoted(output.query_id)}; its output is left out"
            more["line"] = output.line
            problems.add("unknown_query", message, plan.outputs, **more)
    for place in rows_of(questions.places):
        if outputs and place.query_id not in answered:
            question = f"question {quoted(place.query_id)}"
            message = f"{question} has no recorded output: it counts as failed"
            report_row(problems, place, "missing_output", message, **more)
    return questions


def _drop_unknown(frame: pd.DataFrame, query_ids: set[str], problems: ProblemList) -> pd.DataFrame:
    """Keep the rows of known queries; report each other row as `unknown_query`."""
    names = [name if name in query_ids else decode_id(name) for name in frame["query_id"]]
    frame = frame.assign(query_id=pd.Series(names, frame.index, dtype="str"))
    exists = frame["query_id"].isin(query_ids)
    for row in rows_of(frame[~exists]):
        more: Place = {"field": "query_id", "found": quoted(row.query_id)}
        more["accepted"] = "an id of the questions file"
        report_row(problems, row, "unknown_query", "no question has this id", **more)
    return frame[exists].reset_index(drop=True)


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


def _name_components(
    query_ids: npt.NDArray[np.object_], size: int, rows: IntArray, columns: IntArray
) -> list[str]:
    """Name the component of each query in a graph by its smallest query id."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(rows), dtype=np.int8), (rows, columns)), shape=(size, size))
    _, labels = connected_components(graph, directed=False)
    names = pd.Series(query_ids.astype(str), dtype=object)
    return names.groupby(labels[: len(names)]).transform("min").tolist()


def _match_pairs(
    query_ids: Sequence[str], pair_queries: Sequence[str], pair_documents: Sequence[str]
) -> tuple[npt.NDArray[np.object_], IntArray, IntArray]:
    """Return the query ids, and the query and document of each distinct pair as numbers."""
    names = np.asarray(query_ids, dtype=object)
    pairs = pd.DataFrame({"query": pair_queries, "document": pair_documents}, dtype=object)
    pairs = pairs.drop_duplicates()
    rows = pd.Index(names).get_indexer(pd.Index(pairs["query"]))
    documents, _ = pd.factorize(pairs["document"][rows >= 0])
    return names, rows[rows >= 0], documents


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
    names, rows, documents = _match_pairs(query_ids, pair_queries, pair_documents)
    size = len(names) + int(documents.max(initial=-1)) + 1
    return _name_components(names, size, rows, documents + len(names))


SHARES: Final = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Cosines of the gold of two queries from which the queries may count as one group."""
ENOUGH_GROUPS: Final = 25
"""Number of equally large groups that suffice for folds and for a provisional miss rate."""


def gold_groups(
    query_ids: Sequence[str], pair_queries: Sequence[str], pair_documents: Sequence[str]
) -> list[str]:
    """Name the group of each query as `group_ids` does, unless one chain holds most queries.

    Where queries have many gold documents, chains of shared documents join nearly all of them,
    although queries that are only chained are no more alike than others. There, two queries are
    connected when the cosine of their gold is at least the least of SHARES that leaves
    ENOUGH_GROUPS groups, in equally large ones.
    """
    from scipy.sparse import coo_array

    groups = group_ids(query_ids, pair_queries, pair_documents)
    n, counts = len(groups), Counter(groups)
    if n < ENOUGH_GROUPS or max(counts.values()) <= n / 2:
        return groups
    names, rows, documents = _match_pairs(query_ids, pair_queries, pair_documents)
    share = 1 / np.sqrt(np.bincount(rows, minlength=n)[rows])
    gold = coo_array((share, (rows, documents)), shape=(n, documents.max() + 1)).tocsr()
    cosine = (gold @ gold.T).tocoo()
    for least in SHARES:
        joined = cosine.data >= least
        groups = _name_components(names, n, cosine.row[joined], cosine.col[joined])
        if n**2 >= ENOUGH_GROUPS * sum(count**2 for count in Counter(groups).values()):
            break
    return groups


def group_queries(
    queries: pd.DataFrame, relevant_queries: Sequence[str], documents: Sequence[str]
) -> pd.DataFrame:
    """Return the queries with their `group_id` by these pairs of query and relevant document."""
    groups = gold_groups(queries["query_id"].tolist(), relevant_queries, documents)
    return queries.assign(group_id=pd.Series(groups, index=queries.index, dtype="str"))


_NEEDS = {"llm": "endpoint", "recorded": "recorded"}
"""Key of `answers` that each mode of answering needs."""


def _report_unmet(questions: Questions, answers: Answers | None, problems: ProblemList) -> None:
    """Report overrides that need a missing part of the configuration (`unmet_override`)."""
    for place in rows_of(questions.places):
        override = questions.overrides.get(place.query_id)
        needed = _NEEDS.get(override.answer_mode or "") if override else None
        if override is None or (answers is not None and getattr(answers, needed or "mode")):
            continue
        changes = override.model_dump(mode="json", exclude_none=True)
        field = next(iter(changes)) if answers is None else "answer_mode"
        message = f"question {quoted(place.query_id)} asks for what the configuration lacks"
        more: Place = {"field": field, "found": quoted(json.dumps(changes[field]))}
        more["accepted"] = f"answers: {{{needed or 'mode'}: ...}} in gold_set.yaml, or no such key"
        more["severity"] = "warning" if answers is None else "error"
        report_row(problems, place, "unmet_override", message, **more)


def read_gold(
    folder: Path, config: GoldSetConfig | None = None, split: str | None = None
) -> GoldSet:
    """Read a gold set; keep faults of its files in `problems`, and leave out rows with a fault.

    With `split`, the folder is a plain BEIR folder: its configuration is not read, and its version
    is the split's name. Raises InputError if the configuration cannot be used, or if the layout is
    unclear.
    """
    if split is not None:
        config = None
    elif config is None and (folder / CONFIG_FILE).exists():
        config = load_config(folder)
    if config is not None:
        split = config.split
    plan, problems = _plan(folder, config, split), ProblemList()
    name = config.name if config else folder.resolve().name
    version = str(config.version) if config else split or "1"
    contents = {
        path.relative_to(plan.folder).as_posix(): file_hash(path)
        for path in plan.files
        if path.is_file() and path != plan.outputs
    }
    identity: dict[str, object] = {"name": name, "version": version, "files": contents}
    questions = _read_questions(plan, problems, identity)
    query_ids = {*questions.queries["query_id"], *questions.refused}
    evidence = GoldEvidence.read(plan.answers, problems)
    judgements, others, implied, decoys = (
        _drop_unknown(frame, query_ids, problems)
        for frame in (
            read_qrels(plan.qrels, problems) if plan.qrels else make_frame(JUDGEMENTS, []),
            read_paraphrases(plan.paraphrases, problems),
            evidence.judgements,
            evidence.decoys,
        )
    )
    queries, places = questions.queries, questions.places
    if plan.layout == "beir":
        has_judgement = queries["query_id"].isin(judgements["query_id"])
        queries = queries[has_judgement].reset_index(drop=True)
        places = places[has_judgement].reset_index(drop=True)
        if queries.empty and not problems.n_errors:
            accepted = "query-id<TAB>corpus-id<TAB>score for at least one question"
            message = "the split judges no question"
            problems.add("nothing_judged", message, plan.qrels, line=1, accepted=accepted)
    # the judgements of a BEIR or TREC set are its qrels, so evidence adds spans but no documents
    if plan.layout in {"own", "recorded"}:
        judgements = pd.concat([judgements, implied], ignore_index=True)
    judgements, others, anchors, decoys = (
        frame[frame["query_id"].isin(queries["query_id"])].reset_index(drop=True)
        for frame in (judgements, others, evidence.anchors, decoys)
    )
    if config is not None:
        _report_unmet(questions, config.answers, problems)
    relevant = judgements[judgements["gain"] > 0]
    documents = list(map(document_part, relevant["target"]))
    return GoldSet(
        name,
        version,
        plan.layout,
        group_queries(queries, relevant["query_id"].tolist(), documents),
        others,
        judgements,
        anchors,
        decoys,
        places,
        digest(identity),
        plan.files,
        problems.listed(),
        {key: it for key, it in questions.overrides.items() if key in set(queries["query_id"])},
    )


def load_gold(
    folder: Path, config: GoldSetConfig | None = None, split: str | None = None
) -> GoldSet:
    """Read a gold set for use.

    The files of the folder decide the layout: `queries.jsonl` with optional
    `paraphrases.jsonl`, `qrels.tsv` and `answers.jsonl` (our own); the same with
    `qrels/<split>.tsv` (BEIR); `topics.tsv` with `qrels.tsv` or `qrels.txt` (TREC). Without
    `config`, the configuration is read from the folder; plain data folders need none.

    Raises InputError with every fault of every file, at most 100 listed and the rest counted.
    """
    gold = read_gold(folder, config, split)
    if any(problem.severity == "error" for problem in gold.problems):
        raise InputError(gold.problems)
    return gold


def variants(gold: GoldSet) -> pd.DataFrame:
    """List wordings (VARIANTS): the `original` of each query, then paraphrases by paraphrase_id.

    RUN.variant holds row numbers of this frame, so the order is part of the contract.
    """
    queries, columns = gold.queries, ["query_id", "paraphrase_id", "text"]
    originals = queries.assign(paraphrase_id=pd.Series(ORIGINAL, index=queries.index, dtype="str"))
    both = pd.concat([originals[columns], gold.paraphrases[columns]], ignore_index=True)
    row = pd.Index(queries["query_id"]).get_indexer(pd.Index(both["query_id"]))
    both = both.assign(row=row, later=both.index >= len(queries))[row >= 0]
    both = both.sort_values(["row", "later", "paraphrase_id"], kind="stable", ignore_index=True)
    both["group_id"] = queries["group_id"].to_numpy()[both["row"]]
    both["answerable"] = queries["answerable"].to_numpy()[both["row"]]
    return VARIANTS.check(both.drop(columns=["row", "later"]))
