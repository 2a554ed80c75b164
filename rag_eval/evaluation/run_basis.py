"""What the figures of this run rest on, known before its report is: the same parts that two kept runs are compared by.

Belongs here: naming them once, for the report that will be kept and for what is said of the run before it while this one is still being made.
"""

import dataclasses
from typing import Any

from rag_eval.evaluation.gold_steps import gold_variants
from rag_eval.evaluation.inputs import Evaluation
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.evaluation.past_runs import configuration_hash, settings_hash
from rag_eval.evaluation.trust_steps import admitted_chunks
from rag_eval.records.gold_set import Strategy
from rag_eval.storage.code import code_version


@dataclasses.dataclass(frozen=True)
class StrategyBasis:
    """What the figures of one strategy rest on."""

    index_hash: str
    configuration: str


@dataclasses.dataclass(frozen=True)
class RunBasis:
    """What the figures of a run rest on; the fields are those of `past_runs.PastRun`."""

    gold_hash: str
    chunks_hash: str
    settings: str
    code: str | None
    strategies: dict[str, StrategyBasis]


def configuration_part(spec: Strategy) -> dict[str, Any]:
    """The strategy as it was configured; where vectors or rankings come from a file, its place is this machine's business."""
    shown = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    for part in (shown, shown.get("rerank", {})):
        if "vectors" in part.get("embedding", {}):
            part["embedding"]["vectors"] = "(file)"
    return shown | {key: "(file)" for key in ("run_file", "recorded") if key in shown}


def evaluation_part(evaluation: Evaluation) -> dict[str, Any]:
    """How everything was evaluated, as the report says it."""
    config = evaluation.config
    return {
        "k": list(config.k),
        "depth": config.depth,
        "level": config.level,
        "primary": config.primary_strategy,
        "partial": evaluation.partial,
        "known": evaluation.known,
    }


def basis_of(runs: Runs) -> RunBasis:
    """Name what this run rests on."""
    evaluation, config = runs.evaluation, runs.evaluation.config
    return RunBasis(
        gold_hash=gold_variants(evaluation).json("about")["hash"],
        chunks_hash=admitted_chunks(evaluation).json("about")["chunks_hash"],
        settings=settings_hash(
            evaluation_part(evaluation),
            list(config.seeds),
            config.uncertainty.target,
            config.uncertainty.k,
        ),
        code=code_version(),
        strategies={
            name: StrategyBasis(
                runs.artifact(name).json("about")["index_hash"],
                configuration_hash(configuration_part(runs.spec(name))),
            )
            for name in runs.names
        },
    )
