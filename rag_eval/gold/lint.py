"""List all faults of a gold set at once, with file and line.

Errors block a run, warnings are shown.
"""

import re
import unicodedata
from collections.abc import Iterator, Sequence

import pandas as pd

from rag_eval.core.errors import Problem, ProblemList, quoted
from rag_eval.core.report import BlockedGold, BlockedGoldDocument
from rag_eval.gold.files import report_row, rows_of
from rag_eval.gold.loading import GoldSet
from rag_eval.gold.resolving import Placed, place

DRAFT = "draft"
"""Tag of a draft question that no person has edited."""
MIN_QUERIES = 2

_NOT_WORD = re.compile(r"[\W_]+")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def _fold(text: str) -> str:
    """Return a text without case, punctuation and white space, to find equal wordings."""
    folded = _NOT_WORD.sub(" ", unicodedata.normalize("NFKC", text).casefold())
    return folded.strip() or text.strip()


def _check_questions(gold: GoldSet, problems: ProblemList) -> None:
    """Report faults of single questions: flag, text, draft tag."""
    for query, row in zip(rows_of(gold.queries), rows_of(gold.places), strict=True):
        question = f"question {quoted(query.query_id)}"
        if gold.layout == "own" and not row.has_flag:
            message = f"{question} does not say whether the corpus answers it"
            more = {"field": "answerable", "accepted": "true, false"}
            report_row(problems, row, "missing_answerable", message, **more)
        if not query.text.strip():
            more = {"field": "text", "accepted": "a question"}
            report_row(problems, row, "empty_text", f"{question} has no text", **more)
        elif control := _CONTROL.search(query.text):
            more = {"field": "text", "found": f"U+{ord(control.group()):04X}"}
            message = f"{question} holds a control character"
            report_row(problems, row, "control_character", message, **more, severity="warning")
        if DRAFT in query.tags:
            message = f"{question} is a draft: edit it, then remove the tag"
            more = {"field": "tags", "found": DRAFT, "accepted": f"no tag {DRAFT}"}
            report_row(problems, row, "draft_question", message, **more)


def _check_targets(gold: GoldSet, placed: Placed, problems: ProblemList) -> None:
    """Report flags and targets that disagree. A target that the corpus lacks still counts."""
    relevant = {
        *gold.judgements.loc[gold.judgements["gain"] > 0, "query_id"],
        *gold.anchors["query_id"],
    }
    for row, answerable in zip(rows_of(gold.places), gold.queries["answerable"], strict=True):
        question, is_relevant = f"question {quoted(row.query_id)}", row.query_id in relevant
        if answerable and not is_relevant and gold.layout != "recorded":
            message = f"{question} is answerable but nothing is judged relevant"
            accepted = "a judgement above 0, an anchor, or answerable: false"
            more = {"field": "query_id", "accepted": accepted}
            report_row(problems, row, "answerable_without_target", message, **more)
        if not answerable and is_relevant:
            message = f"{question} is not answerable but something is judged relevant"
            accepted = "true, or no judgement above 0 and no anchor"
            more = {"field": "answerable", "found": "false", "accepted": accepted}
            report_row(problems, row, "unanswerable_with_target", message, **more)
    judged = placed.judgements[placed.judgements["gain"] > 0]
    documents = set(zip(judged["query_id"], judged["document"], strict=True))
    sections = set(zip(judged["query_id"], judged["section"], strict=True))
    places = zip(placed.found_decoys.document, placed.found_decoys.section, strict=True)
    for row, (document, section) in zip(rows_of(placed.decoys), places, strict=True):
        is_section = section >= 0
        if (row.query_id, section if is_section else document) in (
            sections if is_section else documents
        ):
            message = f"the decoy of question {quoted(row.query_id)} is judged relevant too"
            accepted = "a document or section that does not answer"
            more = {"field": "decoy", "found": quoted(row.target), "accepted": accepted}
            report_row(problems, row, "decoy_is_target", message, **more)


def _check_contradictions(gold: GoldSet, placed: Placed, problems: ProblemList) -> None:
    """Report anchors in a document that the same question judges as not relevant."""
    judged = placed.judgements
    zero = judged[(judged["gain"] == 0) & (judged["section"] < 0)]
    zero = zero[["query_id", "document", "line"]].rename(columns={"line": "judged_line"})
    rows = gold.anchors.iloc[placed.located.anchor][["query_id", "doc", "file", "line"]]
    rows = rows.assign(document=placed.located.document)
    for row in rows_of(rows.merge(zero, on=["query_id", "document"])):
        message = (
            f"question {quoted(row.query_id)} has an anchor in a document that it judges 0 "
            f"in line {row.judged_line} of the judgements"
        )
        more = {"field": "anchors", "found": quoted(row.doc)}
        report_row(problems, row, "contradicting_judgement", message, **more)


def _check_wordings(gold: GoldSet, problems: ProblemList) -> None:
    """Report paraphrases that are empty or say nothing new.

    Paraphrases of a BEIR or TREC set are not ours to correct, so repeated texts give one warning.
    """
    original = gold.queries[["query_id", "text"]].assign(
        paraphrase_id="", file=gold.places["file"], line=gold.places["line"]
    )
    both = pd.concat([original, gold.paraphrases[list(original.columns)]], ignore_index=True)
    both["folded"] = [_fold(text) for text in both["text"]]
    groups = both.groupby(["query_id", "folded"], sort=False)
    both["first"] = groups["paraphrase_id"].transform("first")
    for row in rows_of(both[(both["folded"] == "") & (both["paraphrase_id"] != "")]):
        wording = f"paraphrase {quoted(row.paraphrase_id)} of question {quoted(row.query_id)}"
        more = {"field": "text", "accepted": "another wording"}
        report_row(problems, row, "empty_text", f"{wording} has no text", **more)
    same = both[both.duplicated(["query_id", "folded"]) & (both["folded"] != "")]
    if gold.layout != "own":
        for row in rows_of(same.head(1)):
            message = (
                f"{len(same)} of {len(gold.paraphrases)} paraphrases equal their question or an "
                "earlier paraphrase but for case and punctuation"
            )
            code = "paraphrase_equals_question"
            report_row(problems, row, code, message, field="text", severity="warning")
        return
    for row in rows_of(same):
        code, other = "paraphrase_equals_question", "the question"
        if row.first:
            code, other = "paraphrases_equal", f"paraphrase {quoted(row.first)}"
        wording = f"paraphrase {quoted(row.paraphrase_id)} of question {quoted(row.query_id)}"
        message = f"{wording} equals {other} but for case and punctuation"
        more = {"field": "text", "found": quoted(row.text), "accepted": "another wording"}
        report_row(problems, row, code, message, **more)


def _check_paraphrases(gold: GoldSet, problems: ProblemList) -> None:
    """Warn of questions without a paraphrase; give a BEIR or TREC set one warning."""
    without = ~gold.queries["query_id"].isin(gold.paraphrases["query_id"]).to_numpy()
    lacking, code = gold.places[without], "missing_paraphrases"
    if gold.layout != "own":
        for row in rows_of(lacking.head(1)):
            message = (
                f"{len(lacking)} of {len(gold.queries)} questions have no paraphrase: "
                "stability cannot be measured on them"
            )
            report_row(problems, row, code, message, severity="warning")
        return
    for row in rows_of(lacking):
        question = f"question {quoted(row.query_id)}"
        message = f"{question} has no paraphrase: stability cannot be measured on it"
        more = {"field": "query_id", "accepted": "rows in paraphrases.jsonl"}
        report_row(problems, row, code, message, **more, severity="warning")


def lint(gold: GoldSet, documents: pd.DataFrame, sections: pd.DataFrame) -> list[Problem]:
    """List every problem of a gold set on one revision of its corpus, in the order of the checks.

    At most 100 errors and 100 warnings are listed; `more_problems` counts the rest.
    """
    problems = ProblemList()
    problems.extend(gold.problems)
    if len(gold.queries) < MIN_QUERIES:
        file = str(gold.files[0]) if gold.files else None
        problems.add(
            "few_queries",
            "nothing can be estimated from so few questions",
            file=file,
            line=1,
            found=str(len(gold.queries)),
            accepted=f"at least {MIN_QUERIES}, better 50",
            severity="warning",
        )
    _check_questions(gold, problems)
    placed = place(gold, documents, sections, problems)
    _check_targets(gold, placed, problems)
    _check_contradictions(gold, placed, problems)
    _check_wordings(gold, problems)
    _check_paraphrases(gold, problems)
    return list(problems.listed())


# ---- Relevant documents that the poisoning guard keeps out of the index.

_BLOCKED = "gold_blocked"
MAX_BLOCKED = 20
"""Largest number of warnings that name a document. One more warning counts the rest."""


def blocked_gold(qrels: pd.DataFrame, doc_ids: pd.Series, admitted: pd.Series) -> BlockedGold:
    """Find the relevant documents (QRELS) with chunks that are not admitted to the index.

    `doc_ids` [n_chunks] holds the document of each chunk. `admitted` [n_indexed] holds the document
    of each indexed chunk.
    """
    relevant = qrels[qrels["gain"] > 0]
    n_chunks = doc_ids.value_counts()
    n_blocked = n_chunks - admitted.value_counts().reindex(n_chunks.index, fill_value=0)
    touched = relevant[relevant["item_id"].isin(n_blocked.index[n_blocked > 0])]
    n_queries = touched.groupby("item_id")["query_id"].nunique()
    names = n_queries.index
    columns = (names, n_chunks.reindex(names), n_blocked.reindex(names), n_queries)
    documents = [
        BlockedGoldDocument(doc_id=doc_id, n_chunks=chunks, n_blocked=blocked, n_queries=queries)
        for doc_id, chunks, blocked, queries in zip(*map(list, columns), strict=True)
    ]
    return BlockedGold(
        n_documents=int(relevant["item_id"].nunique()),
        n_blocked=len(documents),
        n_wholly_blocked=sum(document.n_blocked == document.n_chunks for document in documents),
        n_queries=int(relevant["query_id"].nunique()),
        n_queries_blocked=int(touched["query_id"].nunique()),
        documents=sorted(documents, key=lambda document: (-document.n_queries, document.doc_id)),
    )


def describe_blocked(documents: Sequence[BlockedGoldDocument]) -> Iterator[str]:
    """Yield each document with its number of blocked chunks as text."""
    for document in documents:
        yield f"{quoted(document.doc_id)} ({document.n_blocked} of {document.n_chunks} chunks)"


def blocked_problems(found: BlockedGold) -> list[Problem]:
    """Warn of each blocked document, in the order of `found.documents`, and count the rest."""
    accepted = "gold without blocked chunks: rag-eval trust list shows why, trust allow lets one in"
    problems = [
        Problem(
            _BLOCKED,
            f"the poisoning guard blocks {document.n_blocked} of {document.n_chunks} chunks of a"
            f" document that is relevant to {document.n_queries} of {found.n_queries} questions",
            field="corpus",
            found=quoted(document.doc_id),
            accepted=accepted,
            severity="warning",
        )
        for document in found.documents[:MAX_BLOCKED]
    ]
    if found.n_blocked > MAX_BLOCKED:
        message = (
            f"the poisoning guard blocks chunks of {found.n_blocked} of {found.n_documents}"
            f" relevant documents; {found.n_blocked - MAX_BLOCKED} more are not listed"
        )
        problems.append(
            Problem(_BLOCKED, message, field="corpus", accepted=accepted, severity="warning")
        )
    return problems
