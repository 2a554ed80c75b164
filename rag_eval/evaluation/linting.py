"""Lint as a command: every problem of a gold set at once, whether its files, its questions or its targets are at fault."""

from rag_eval.evaluation.corpus_steps import corpus_snapshot
from rag_eval.evaluation.inputs import Evaluation
from rag_eval.gold.lint import lint
from rag_eval.gold.loading import read_gold
from rag_eval.records.problems import Problem


def lint_gold_set(evaluation: Evaluation) -> list[Problem]:
    """Check a gold set against the corpus as it is now; files with faults are checked as far as they can be read.

    Raises
    ------
    InputError
        The configuration or the corpus cannot be used.
    """
    corpus = corpus_snapshot(evaluation)
    return lint(
        read_gold(evaluation.base, evaluation.config),
        corpus.frame("documents"),
        corpus.frame("sections"),
    )
