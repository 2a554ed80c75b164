"""Names of gold sets and strategies that become parts of paths."""

import re

from rag_eval.records.configuration_parts import NAME
from rag_eval.records.problems import InputError, Problem


def gold_set_name(name: str) -> str:
    """Return the name of a gold set: one folder of the home and of the reports, never a path out of them.

    Raises
    ------
    InputError
        It cannot be one.
    """
    if not re.fullmatch(NAME, name):
        raise InputError(
            Problem(
                "bad_name",
                "this cannot be the name of a gold set",
                found=name,
                accepted="a letter or digit, then up to 63 letters, digits, - and _",
            )
        )
    return name
