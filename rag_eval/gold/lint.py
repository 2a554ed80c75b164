"""Is a gold set fit to measure with? Every objection at once, each with file and line.

Belongs here: what a person who writes questions has to mend. Errors block a run, warnings are shown.
"""

import re
import unicodedata

import numpy as np
import pandas as pd

from rag_eval.gold.frames import rows_of
from rag_eval.gold.loading import GoldSet
from rag_eval.gold.problem_list import ProblemList
from rag_eval.gold.resolving import Placed, place
from rag_eval.records.problems import Problem, quoted

DRAFT = "draft"
"""Tag of a question that no person has edited yet."""
MIN_QUERIES = 2

_NOT_WORD = re.compile(r"[\W_]+")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def fold(text: str) -> str:
    """Wording without case, punctuation and white space; two wordings that fold alike ask nothing new.

    Examples
    --------
    >>> fold("What is  a *Tern*?") == fold("what is a tern")
    True
    """
    return (
        _NOT_WORD.sub(" ", unicodedata.normalize("NFKC", text).casefold()).strip() or text.strip()
    )


def _questions(gold: GoldSet, problems: ProblemList) -> None:
    """Report faults of single questions: flag, text, draft tag."""
    for query, place_ in zip(rows_of(gold.queries), rows_of(gold.places), strict=True):
        where, shown = {"file": place_.file, "line": int(place_.line)}, quoted(query.query_id)
        if gold.layout == "own" and not place_.has_flag:
            problems.add(
                "missing_answerable",
                f"question {shown} does not say whether the corpus answers it",
                **where,
                field="answerable",
                accepted="true, false",
            )
        if not query.text.strip():
            problems.add(
                "empty_text",
                f"question {shown} has no text",
                **where,
                field="text",
                accepted="a question",
            )
        elif control := _CONTROL.search(query.text):
            problems.add(
                "control_character",
                f"question {shown} holds a control character",
                **where,
                field="text",
                found=f"U+{ord(control.group()):04X}",
                severity="warning",
            )
        if DRAFT in query.tags:
            problems.add(
                "draft_question",
                f"question {shown} is a draft: edit it, then remove the tag",
                **where,
                field="tags",
                found=DRAFT,
                accepted=f"no tag {DRAFT}",
            )


def _targets(gold: GoldSet, placed: Placed, problems: ProblemList) -> None:
    """Report flags and targets that disagree. A target that is gone counts as given: it was reported already."""
    relevant = set(gold.judgements.loc[gold.judgements["gain"] > 0, "query_id"]) | set(
        gold.anchors["query_id"]
    )
    flags = zip(
        gold.queries["query_id"],
        gold.queries["answerable"],
        gold.places["file"],
        gold.places["line"],
        strict=True,
    )
    for query_id, answerable, file, line in flags:
        if answerable and query_id not in relevant and gold.layout != "recorded":
            problems.add(
                "answerable_without_target",
                f"question {quoted(query_id)} is answerable but nothing is judged relevant",
                file=file,
                line=int(line),
                field="query_id",
                accepted="a judgement above 0, an anchor, or answerable: false",
            )
        if not answerable and query_id in relevant:
            problems.add(
                "unanswerable_with_target",
                f"question {quoted(query_id)} is not answerable but something is judged relevant",
                file=file,
                line=int(line),
                field="answerable",
                found="false",
                accepted="true, or no judgement above 0 and no anchor",
            )
    judged = placed.judgements
    pairs = set(
        zip(
            judged.loc[judged["gain"] > 0, "query_id"],
            judged.loc[judged["gain"] > 0, "document"],
            strict=True,
        )
    )
    sections = set(
        zip(
            judged.loc[judged["gain"] > 0, "query_id"],
            judged.loc[judged["gain"] > 0, "section"],
            strict=True,
        )
    )
    for decoy, document, section in zip(
        rows_of(placed.decoys),
        placed.found_decoys.document,
        placed.found_decoys.section,
        strict=True,
    ):
        if (
            (decoy.query_id, section) in sections
            if section >= 0
            else (decoy.query_id, document) in pairs
        ):
            problems.add(
                "decoy_is_target",
                f"the decoy of question {quoted(decoy.query_id)} is judged relevant too",
                file=decoy.file,
                line=int(decoy.line),
                field="decoy",
                found=quoted(decoy.target),
                accepted="a document or section that does not answer",
            )


def _contradictions(gold: GoldSet, placed: Placed, problems: ProblemList) -> None:
    """Report anchors that lie in a document which the same question judges not relevant."""
    judged = placed.judgements
    zero = judged[(judged["gain"] == 0) & (judged["section"] < 0)][
        ["query_id", "document", "line"]
    ].rename(columns={"line": "judged_line"})
    rows = gold.anchors.iloc[placed.located.anchor][["query_id", "doc", "file", "line"]].assign(
        document=placed.located.document
    )
    for row in rows_of(rows.merge(zero, on=["query_id", "document"])):
        problems.add(
            "contradicting_judgement",
            f"question {quoted(row.query_id)} has an anchor in a document that it judges 0 in line {row.judged_line} of the judgements",
            file=row.file,
            line=int(row.line),
            field="anchors",
            found=quoted(row.doc),
        )


def _wordings(gold: GoldSet, problems: ProblemList) -> None:
    """Report paraphrases that are empty or say nothing new. In a BEIR or TREC set, whose wordings are not ours to mend, they are one warning."""
    original = pd.DataFrame(
        {
            "query_id": gold.queries["query_id"],
            "paraphrase_id": "",
            "text": gold.queries["text"],
            "file": gold.places["file"],
            "line": gold.places["line"],
        }
    )
    both = pd.concat([original, gold.paraphrases[list(original.columns)]], ignore_index=True)
    both["folded"] = [fold(text) for text in both["text"]]
    both["first"] = both.groupby(["query_id", "folded"], sort=False)["paraphrase_id"].transform(
        "first"
    )
    said_before = both.duplicated(["query_id", "folded"]) & (both["folded"] != "")
    empty = (both["folded"] == "") & (both["paraphrase_id"] != "")
    for row in rows_of(both[empty]):
        problems.add(
            "empty_text",
            f"paraphrase {quoted(row.paraphrase_id)} of question {quoted(row.query_id)} has no text",
            file=row.file,
            line=int(row.line),
            field="text",
            accepted="another wording",
        )
    same = both[said_before]
    if gold.layout != "own":
        if len(same):
            message = f"{len(same)} of {len(gold.paraphrases)} paraphrases equal their question or an earlier paraphrase but for case and punctuation"
            problems.add(
                "paraphrase_equals_question",
                message,
                file=same["file"].iloc[0],
                line=int(same["line"].iloc[0]),
                field="text",
                severity="warning",
            )
        return
    for row in rows_of(same):
        code, other = (
            ("paraphrases_equal", f"paraphrase {quoted(row.first)}")
            if row.first
            else ("paraphrase_equals_question", "the question")
        )
        problems.add(
            code,
            f"paraphrase {quoted(row.paraphrase_id)} of question {quoted(row.query_id)} equals {other} but for case and punctuation",
            file=row.file,
            line=int(row.line),
            field="text",
            found=quoted(row.text),
            accepted="another wording",
        )


def _missing_paraphrases(gold: GoldSet, problems: ProblemList) -> None:
    lacking = np.flatnonzero(
        ~gold.queries["query_id"].isin(gold.paraphrases["query_id"]).to_numpy()
    )
    if gold.layout != "own":
        if len(lacking):
            message = f"{len(lacking)} of {len(gold.queries)} questions have no paraphrase: stability cannot be measured on them"
            problems.add(
                "missing_paraphrases",
                message,
                file=gold.places["file"].iloc[lacking[0]],
                line=int(gold.places["line"].iloc[lacking[0]]),
                severity="warning",
            )
        return
    for row in lacking:
        query_id = gold.queries["query_id"].iloc[row]
        message = (
            f"question {quoted(query_id)} has no paraphrase: stability cannot be measured on it"
        )
        problems.add(
            "missing_paraphrases",
            message,
            file=gold.places["file"].iloc[row],
            line=int(gold.places["line"].iloc[row]),
            field="query_id",
            accepted="rows in paraphrases.jsonl",
            severity="warning",
        )


def lint(gold: GoldSet, documents: pd.DataFrame, sections: pd.DataFrame) -> list[Problem]:
    """Every objection to a gold set on this revision of its corpus (DOCUMENTS, SECTIONS), in the order of the checks.

    Codes, besides those of the files (`read_gold`): `few_queries` (warning), `missing_answerable` (own gold sets), `empty_text`,
    `control_character` (warning), `draft_question`, `dangling_target`, `section_of_other_document`, `anchor_not_found`, `anchor_ambiguous`,
    `bad_offsets`, `offset_mismatch`, `contradicting_judgement`, `answerable_without_target`, `unanswerable_with_target`, `decoy_is_target`,
    `paraphrase_equals_question`, `paraphrases_equal`, `missing_paraphrases` (warning). At most 100 errors and 100 warnings are listed, the
    rest is counted in `more_problems`.
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
    _questions(gold, problems)
    placed = place(gold, documents, sections, problems)
    _targets(gold, placed, problems)
    _contradictions(gold, placed, problems)
    _wordings(gold, problems)
    _missing_paraphrases(gold, problems)
    return list(problems.listed())
