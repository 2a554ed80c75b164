"""Groups of the gold's questions and of everything else that was asked, together: connected components over equal words and shared gold documents.

Belongs here: the components. Which words and documents the gold has, and which outcomes and claims there are, is found where they are known.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from rag_eval.gold.groups import group_ids


@dataclasses.dataclass(frozen=True)
class Asked:
    """A question that was asked outside the gold set's own runs: of production traffic, or judged by hand.

    Parameters
    ----------
    query_id, group_id
        As it was recorded.
    ties
        What else connects it: `words_tie` of its text, `document_tie` of each document that is known to be gold for it.
    """

    query_id: str
    group_id: str
    ties: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class QuestionGroups:
    """The groups that came of it; each is named by the smallest of its gold groups, else by the smallest of its names.

    Parameters
    ----------
    of_gold
        Query id of the gold set -> group.
    of_asked
        group_id of other questions, as it was recorded -> group.
    """

    of_gold: Mapping[str, str]
    of_asked: Mapping[str, str]

    def group(self, query_id: str, group_id: str) -> str:
        """Group of a question that was recorded under these names; a question of the gold set is in the gold's group, whatever was recorded."""
        return self.of_gold.get(query_id) or self.of_asked.get(group_id, group_id)


def words_tie(question_id: str) -> str:
    """Tie of all questions with these words, as `naming.question_id` names them; a question's own id is such a name where nobody gave it another."""
    return f"question {question_id}"


def document_tie(document: str) -> str:
    """Tie of all questions that have this gold document."""
    return f"document {document}"


def question_groups(
    gold: Mapping[str, str], gold_ties: Iterable[tuple[str, str]], asked: Sequence[Asked]
) -> QuestionGroups:
    """Join the gold's groups with those of other questions.

    The gold's groups alone stay what they are: two of them become one only where something that was asked has ties to both.

    Parameters
    ----------
    gold
        Query id -> group in the gold set.
    gold_ties
        (query id, tie): the words of its wordings and its gold documents.
    asked
        The other questions. One that has a gold query's id is that question; the group that was recorded with it is the gold's of then, and ties nothing.

    Examples
    --------
    >>> found = question_groups({"q1": "q1", "q2": "q2"}, [("q1", document_tie("x"))], [Asked("other", "other", (document_tie("x"),))])
    >>> found.group("other", "other"), found.group("q2", "q2")
    ('q1', 'q2')
    """
    # "0" before "1": in a component the gold's names come first
    pairs = [
        (f"1{one.group_id}", tie)
        for one in asked
        if one.query_id not in gold
        for tie in (words_tie(one.query_id), f"group {one.group_id}", *one.ties)
    ]
    pairs += [
        (f"0{gold[one.query_id]}", tie) for one in asked if one.query_id in gold for tie in one.ties
    ]
    wanted = {tie for _, tie in pairs}
    if wanted:
        pairs += [(f"0{gold[query]}", tie) for query, tie in gold_ties if tie in wanted]
        pairs += [(f"0{group}", f"group {group}") for group in set(gold.values())]
    nodes = sorted({*(node for node, _ in pairs), *(f"0{group}" for group in gold.values())})
    found = dict(
        zip(
            nodes,
            group_ids(nodes, [node for node, _ in pairs], [tie for _, tie in pairs]),
            strict=True,
        )
    )
    return QuestionGroups(
        {query: found[f"0{group}"][1:] for query, group in gold.items()},
        {node[1:]: name[1:] for node, name in found.items() if node.startswith("1")},
    )
