"""Dagster stores a failure without passwords and without quotes of a corpus or gold set."""

import traceback

import dagster as dg
import pytest

from rag_eval.core.errors import InputError, Problem
from rag_eval.defs.metadata import clear_failures

EMAIL = "jane.doe@" + "private.example.com"


def test_what_an_error_quotes_is_kept_masked_without_its_cause():
    problem = Problem(
        "bad_target",
        "the target does not exist",
        field="doc_id",
        found=f"{EMAIL} of https://example.org/?to={EMAIL.replace('@', '%40')}",
    )
    with pytest.raises(dg.Failure) as failed, clear_failures():
        raise InputError(problem)
    stored = "".join(
        traceback.format_exception(failed.value)
    )  # Dagster stores an error with all its causes
    assert "[email" in stored
    assert EMAIL.partition("@")[2] not in stored
    (row,) = failed.value.metadata["problems"].records
    assert EMAIL.partition("@")[2] not in str(row.data)
