"""A folder of gold files -> one `GoldSet`: which files make up a set, checked against each other, hashed.

Belongs here: putting the files together. Which files there are is in `layouts`; reading single files is in `files`, `qrels` and `answers`; what the targets
are in a given corpus is in `resolving`; whether the questions are fit for use is in `lint`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from rag_eval.gold.answers import Evidence, read_answers
from rag_eval.gold.configuration import CONFIG_FILE, load_config
from rag_eval.gold.files import Questions, drop_unknown, read_paraphrases, read_queries, read_topics
from rag_eval.gold.frames import JUDGEMENTS, PARAPHRASES, REFERENCE_ANSWERS, make_frame
from rag_eval.gold.groups import group_ids
from rag_eval.gold.layouts import Layout, Plan, beir_plan, choose
from rag_eval.gold.overrides import report_unmet
from rag_eval.gold.problem_list import ProblemList
from rag_eval.gold.qrels import read_qrels
from rag_eval.gold.recorded import OutputQuestions, questions_of_outputs, report_unmatched
from rag_eval.records.answer_settings import AnswerOverride
from rag_eval.records.gold_set import GoldSetConfig
from rag_eval.records.problems import InputError, Problem
from rag_eval.storage.hashing import digest, file_hash


@dataclasses.dataclass(frozen=True, slots=True)
class GoldSet:
    """Everything a gold set says, before any corpus is looked at.

    Parameters
    ----------
    name, version, layout
        Identity, and which rules apply (`beir` and `trec` files carry no `answerable` flag and no paraphrases of ours; of `recorded`
        outputs only what the system retrieved is known, so a target that is not there was missed, and a question need not be judged).
    queries
        QUERIES schema, in the order of the file.
    paraphrases, judgements, anchors, decoys, references, places
        The schemas of `rag_eval.gold.frames`; `places` has the line of each query, row by row as `queries`.
    gold_hash
        Hash of the bytes of the gold files, of name and version; not of the strategies. 32 hex digits.
    files
        The files read, in reading order.
    problems
        What was wrong with the files; `load_gold` raises the errors among them, `read_gold` hands them to lint.
    overrides
        query_id -> what its row says otherwise than `answers` of the configuration; most questions have none.
    """

    name: str
    version: str
    layout: Layout
    queries: pd.DataFrame
    paraphrases: pd.DataFrame
    judgements: pd.DataFrame
    anchors: pd.DataFrame
    decoys: pd.DataFrame
    references: pd.DataFrame
    places: pd.DataFrame
    gold_hash: str
    files: tuple[Path, ...]
    problems: tuple[Problem, ...]
    overrides: Mapping[str, AnswerOverride] = dataclasses.field(default_factory=dict)


def document_part(target: str) -> str:
    """Name of the document of a target as far as it can be told without the corpus: what stands before the first `#`."""
    return target.partition("#")[0] or target


def _hash(plan: Plan, files: Sequence[Path], asked: OutputQuestions | None) -> str:
    contents = {
        path.relative_to(plan.folder).as_posix(): file_hash(path)
        for path in files
        if path.is_file() and path != plan.outputs
    }
    return digest(
        {
            "name": plan.name,
            "version": plan.version,
            "files": contents,
            **({} if asked is None else {"questions": asked.identity}),
        }
    )


def _of_split(questions: Questions, judgements: pd.DataFrame) -> Questions:
    """Only the queries that the judgements name."""
    kept = questions.queries["query_id"].isin(judgements["query_id"]).to_numpy()
    return Questions(
        questions.queries[kept].reset_index(drop=True),
        questions.places[kept].reset_index(drop=True),
        questions.overrides,
    )


def _within(frame: pd.DataFrame, queries: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["query_id"].isin(queries["query_id"])].reset_index(drop=True)


def _read(plan: Plan) -> GoldSet:
    problems = ProblemList()
    asked = (
        questions_of_outputs(plan.outputs, problems)
        if plan.outputs is not None and plan.questions == plan.outputs
        else None
    )
    questions = (
        asked.questions
        if asked is not None
        else (read_topics if plan.layout == "trec" else read_queries)(plan.questions, problems)
    )
    if plan.outputs is not None and asked is None:
        report_unmatched(questions, plan.outputs, problems)
    known = pd.Index(questions.queries["query_id"])
    qrels = read_qrels(plan.qrels, problems) if plan.qrels else make_frame(JUDGEMENTS, [])
    evidence = read_answers(plan.answers, problems)
    paraphrases = (
        read_paraphrases(plan.paraphrases, problems)
        if plan.paraphrases
        else make_frame(PARAPHRASES, [])
    )
    qrels, paraphrases = (drop_unknown(frame, known, problems) for frame in (qrels, paraphrases))
    implied, decoys = (
        drop_unknown(frame, known, problems) for frame in (evidence.judgements, evidence.decoys)
    )
    evidence = Evidence(
        _within(evidence.anchors, questions.queries),
        decoys,
        _within(evidence.references, questions.queries),
        implied,
    )
    if plan.layout == "beir":
        questions = _of_split(questions, qrels)
        if questions.queries.empty and not problems.n_errors:
            problems.add(
                "nothing_judged",
                "the split judges no question",
                file=str(plan.qrels),
                line=1,
                accepted="query-id<TAB>corpus-id<TAB>score for at least one question",
            )
    # the judgements of a BEIR or TREC set are its qrels: evidence adds spans to them, never further documents
    judgements = (
        pd.concat([qrels, evidence.judgements], ignore_index=True)
        if plan.layout in {"own", "recorded"}
        else qrels
    )
    judgements = _within(judgements, questions.queries)
    relevant = judgements[judgements["gain"] > 0]
    queries = questions.queries.copy()
    groups = group_ids(
        queries["query_id"].tolist(),
        relevant["query_id"].tolist(),
        [document_part(target) for target in relevant["target"]],
    )
    queries["group_id"] = pd.Series(groups, index=queries.index, dtype="str")
    references = pd.concat(
        [
            evidence.references,
            asked.references if asked is not None else make_frame(REFERENCE_ANSWERS, []),
        ],
        ignore_index=True,
    )
    files = [
        path
        for path in (plan.questions, plan.paraphrases, plan.qrels, *plan.answers)
        if path is not None
    ]
    return GoldSet(
        plan.name,
        plan.version,
        plan.layout,
        queries,
        paraphrases=_within(paraphrases, queries),
        judgements=judgements,
        anchors=_within(evidence.anchors, queries),
        decoys=_within(evidence.decoys, queries),
        references=_within(references, queries),
        places=questions.places,
        gold_hash=_hash(plan, files, asked),
        files=tuple(files),
        problems=problems.listed(),
        overrides={
            query_id: override
            for query_id, override in questions.overrides.items()
            if query_id in set(queries["query_id"])
        },
    )


def _strict(gold: GoldSet) -> GoldSet:
    if any(problem.severity == "error" for problem in gold.problems):
        raise InputError(gold.problems)
    return gold


def read_gold(folder: Path, config: GoldSetConfig | None = None) -> GoldSet:
    """Read a gold set and keep what is wrong with its files in `problems`; rows with a fault are left out. For lint.

    Raises
    ------
    InputError
        The configuration cannot be used, or it cannot be told which files make up the set.
    """
    if config is None and (folder / CONFIG_FILE).exists():
        config = load_config(folder)
    gold = _read(choose(folder, config))
    if config is None or not gold.overrides:
        return gold
    unmet = ProblemList()
    report_unmet(gold.overrides, gold.places, config.answers, unmet)
    return dataclasses.replace(gold, problems=(*gold.problems, *unmet.listed()))


def load_gold(folder: Path, config: GoldSetConfig | None = None) -> GoldSet:
    """Read a gold set for use.

    Parameters
    ----------
    folder
        The folder of `gold_set.yaml`. Its layout is told from what lies there: `queries.jsonl` with optional `paraphrases.jsonl`, `qrels.tsv`,
        `answers.jsonl` (our own); the same with `qrels/<split>.tsv` (BEIR; the configuration's `split`, and the folder of its BEIR
        corpus where the gold set has no questions of its own); `topics.tsv` with `qrels.tsv` or `qrels.txt` (TREC).
    config
        The configuration; read from the folder when left out, and not needed for plain data folders.

    Raises
    ------
    InputError
        With every fault of every file, at most 100 listed and the rest counted.
    """
    return _strict(read_gold(folder, config))


def load_beir_gold(folder: Path, split: str) -> GoldSet:
    """Read the gold of a plain BEIR folder: `queries.jsonl` and `qrels/<split>.tsv`, only the queries with judgements in that split.

    `answers.jsonl`, `evidence.jsonl` and `paraphrases.jsonl` are used when present. Every query counts as answerable unless its row says
    otherwise. Name: the folder's; version: the split's.

    Raises
    ------
    InputError
        With every fault of every file.
    """
    return _strict(_read(beir_plan(folder, split, folder.resolve().name, split)))
