"""The stages of a rollout with their numbers.

Belongs here: from a spread and the gold set's questions to what each stage needs and what this gold set can tell there.
"""

from collections.abc import Sequence

import numpy as np

from rag_eval.gates.rollout_assignment import STAGES, assignments, stage_before
from rag_eval.gates.rollout_decision import MIN_GROUPS
from rag_eval.gates.rollout_record import StagePlan
from rag_eval.gates.rollout_size import Spread, detectable, questions_needed


def plan_stages(
    spread: Spread,
    queries: Sequence[str],
    groups: Sequence[str],
    salt: str,
    *,
    detect: float,
    power: float,
) -> tuple[StagePlan, ...]:
    """Number the stages.

    Parameters
    ----------
    spread
        Of the relative difference between the strategies.
    queries, groups
        Text and group of each answerable question of the gold set.
    salt
        The plan's id.
    detect
        Relative degradation that must be told from zero.
    power
        With which.

    Returns
    -------
    tuple
        One `StagePlan` a stage. Every stage needs the same number, of questions that are new there: a question decides once.
    """
    places, codes = assignments(queries, salt), np.asarray(groups, dtype=str)
    needed = max(questions_needed(spread.relative, detect, power), MIN_GROUPS)
    stages = []
    for share in STAGES:
        before = stage_before(share)
        on = places < share
        n_groups = len(np.unique(codes[on]))
        told = detectable(spread.relative, n_groups, power)
        stages.append(
            StagePlan(
                share=share,
                needed=needed,
                traffic=int(
                    np.ceil(round(needed / (share - before), 6))
                ),  # 0.5 - 0.1 is not 0.4 in the last bit
                gold_questions=int(on.sum()),
                gold_new_groups=len(np.unique(codes[on & (places >= before)])),
                gold_groups=n_groups,
                detects=told
                if told is not None and told <= 1
                else None,  # more than all cannot be lost
            )
        )
    return tuple(stages)
