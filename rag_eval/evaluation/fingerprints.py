"""What a miss rate is bound to: the identity of everything that decides a strategy's rankings, and the calibrator accepted for it.

Belongs here: fingerprints, and which accepted calibrator a run starts with. A run uses the calibrator that was accepted before it started.
"""

import dataclasses
from typing import Any

from rag_eval.evaluation.calibrator_files import accepted_calibrator, read_calibrator
from rag_eval.evaluation.inputs import Evaluation
from rag_eval.records.gold_set import Iterative, Strategy
from rag_eval.records.uncertainty import DISCOUNTING, Status
from rag_eval.storage.hashing import digest


@dataclasses.dataclass(frozen=True)
class Accepted:
    """The calibrator that a strategy's claims use.

    Parameters
    ----------
    calibrator_id
        Its id; empty where none was accepted.
    status
        What it has earned; `stale` where it was made for another fingerprint.
    body
        The calibrator as it was kept; None where there is none, or it is of another fingerprint.
    """

    calibrator_id: str
    status: Status
    body: dict[str, Any] | None


def strategy_fingerprint(evaluation: Evaluation, spec: Strategy, index_hash: str) -> str:
    """Identity of everything that decides a strategy's rankings (configuration, index, guard, trust filter) and of the gold set that judges them.

    Its name is none of it. Two gold sets over one index are two: what one of them judges as missed says nothing of the other's questions.
    """
    config = evaluation.config
    trust = [config.trust.quarantine, config.trust.threshold if config.trust.filter else None]
    shown = spec.model_dump(
        mode="json", exclude={"name", "base"} if isinstance(spec, Iterative) else {"name"}
    )
    return digest([config.name, shown, index_hash, trust, config.level], 32)


def accepted(evaluation: Evaluation, name: str, fingerprint: str) -> Accepted:
    """Find the calibrator that was accepted for a strategy before this run; the answer stays the same within an evaluation."""
    return evaluation.once(f"accepted {name}", lambda: _accepted(evaluation, name, fingerprint))


def _accepted(evaluation: Evaluation, name: str, fingerprint: str) -> Accepted:
    spec, home = evaluation.config.uncertainty, evaluation.settings.home
    found = accepted_calibrator(home, evaluation.config.name, name, spec.target, spec.k)
    if found is None:
        return Accepted("", "absent", None)
    if found.strategy_fingerprint != fingerprint:
        earned = (
            found.status in DISCOUNTING or found.status == "stale"
        )  # what had earned nothing cannot grow old
        return (
            Accepted(found.calibrator_id, "stale", None) if earned else Accepted("", "absent", None)
        )
    return Accepted(found.calibrator_id, found.status, read_calibrator(home, found.calibrator_id))
