"""Names of the ranking measures: the label people see (ir-measures: `R@10`) and the name machines use (`recall_at_10`).

Belongs here: translating one into the other, and saying what is accepted. Not here: computing.
"""

import re
from collections.abc import Sequence

from rag_eval.records.problems import InputError, Problem

# What other tools call the same thing: Success@k is also "hit rate" and, wrongly, "recall@k"; the mean of RR is MRR.
_MACHINE = {
    "R": "recall",
    "Success": "success",
    "P": "precision",
    "RR": "mrr",
    "nDCG": "ndcg",
    "AP": "map",
    "Judged": "judged",
}
_SCREEN = {machine: screen for screen, machine in _MACHINE.items()}
_NEEDS_CUTOFF = frozenset({"R", "Success", "P"})
_LABEL = re.compile(r"([A-Za-z]+)(?:@([1-9]\d{0,5}))?")
_NAME = re.compile(r"([a-z]+)(?:_at_([1-9]\d{0,5}))?")


def parse_label(label: str) -> tuple[str, int | None]:
    """Split a label into the measure and its cutoff: `R@10` is `("R", 10)`, `RR` is `("RR", None)`.

    Raises
    ------
    InputError
        Not a label this project computes.
    """
    match = _LABEL.fullmatch(label)
    if (
        match is None
        or match[1] not in _MACHINE
        or (match[2] is None and match[1] in _NEEDS_CUTOFF)
    ):
        accepted = ", ".join(
            f"{name}@k" if name in _NEEDS_CUTOFF else f"{name}, {name}@k" for name in _MACHINE
        )
        raise InputError(
            Problem("unknown_measure", "no such ranking measure", found=label, accepted=accepted)
        )
    return match[1], None if match[2] is None else int(match[2])


def machine_name(label: str) -> str:
    """Name for MLflow, JSON keys and `acceptance`: `R@10` is `recall_at_10`, `RR` is `mrr`.

    Raises
    ------
    InputError
        Not a label this project computes.
    """
    name, cutoff = parse_label(label)
    return _MACHINE[name] if cutoff is None else f"{_MACHINE[name]}_at_{cutoff}"


def label(machine_name: str) -> str:
    """Label of a machine name: `recall_at_10` is `R@10`, `mrr` is `RR`.

    Raises
    ------
    InputError
        Not the name of a ranking measure.
    """
    match = _NAME.fullmatch(machine_name)
    if (
        match is None
        or match[1] not in _SCREEN
        or (match[2] is None and _SCREEN[match[1]] in _NEEDS_CUTOFF)
    ):
        accepted = ", ".join(
            f"{name}_at_<k>" if _SCREEN[name] in _NEEDS_CUTOFF else f"{name}, {name}_at_<k>"
            for name in _SCREEN
        )
        raise InputError(
            Problem(
                "unknown_measure", "no such ranking measure", found=machine_name, accepted=accepted
            )
        )
    return _SCREEN[match[1]] if match[2] is None else f"{_SCREEN[match[1]]}@{match[2]}"


def sweep(ks: Sequence[int]) -> tuple[str, ...]:
    """Labels of the k sweep: recall, success, precision and judged at every k, then `RR` and `nDCG@10`."""
    return (
        *(f"{name}@{k}" for name in ("R", "Success", "P", "Judged") for k in ks),
        "RR",
        "nDCG@10",
    )
