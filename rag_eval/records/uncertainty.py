"""Uncertainty: what `gold_set.yaml` may say of it, the names of targets and statuses, and the frames of the stage.

Belongs here: configuration, closed sets of names, column schemas. How a miss rate is estimated and calibrated is `rag_eval.uncertainty`.
"""

from typing import Annotated, Final, Literal, get_args

from pydantic import Field

from rag_eval.records.configuration_parts import Part
from rag_eval.records.frames import schema

Target = Literal["miss_any", "miss_some", "miss_frac"]
"""`miss_any@K`: no gold in the top K. `miss_some@K`: some gold below K. `miss_frac@K`: 1 - recall@K. Never mixed."""
BinaryTarget = Literal["miss_any", "miss_some"]
"""Targets that an outcome can have; a share is reported and never an outcome."""
Status = Literal["absent", "uncalibrated", "prior", "provisional", "measured", "stale"]
GoldSource = Literal["qrels", "human", "llm_judge", "deep_audit", "user_feedback"]
CalibratorName = Literal["none", "platt", "beta", "isotonic", "venn_abers"]
ExpansionName = Literal[
    "synonym",
    "related_concept",
    "reformulation",
    "hypernym",
    "hyponym",
    "code_pattern",
    "negative_sampling",
]

TARGETS: Final[tuple[Target, ...]] = get_args(Target)
STATUSES: Final[tuple[Status, ...]] = get_args(Status)
GOLD_SOURCES: Final[tuple[GoldSource, ...]] = get_args(GoldSource)
CALIBRATORS: Final[tuple[CalibratorName, ...]] = get_args(CalibratorName)
EXPANSIONS: Final[tuple[ExpansionName, ...]] = get_args(ExpansionName)

DISCOUNTING: Final[frozenset[Status]] = frozenset({"provisional", "measured"})
"""Statuses under which an answer's confidence may be discounted by the miss rate."""

PRIOR_QUERIES = 50
"""Unlabelled queries that the prior's z-scores need."""
PROVISIONAL_OUTCOMES, PROVISIONAL_EACH = 25, 5
"""Outcomes, and misses and hits each in distinct groups, of a provisional miss rate."""
MEASURED_OUTCOMES, MEASURED_EACH = 200, 30
"""Outcomes, and misses and hits each in distinct groups, of a measured miss rate."""
SLOPE: Final = (0.8, 1.25)
"""Calibration slopes that are near 1."""


class Uncertainty(Part):
    """How the nightly run estimates and calibrates miss rates."""

    k: Annotated[
        int,
        Field(ge=1, le=1000, description="cutoff of the target: 10, or one of the gold set's k"),
    ] = 10
    target: BinaryTarget = "miss_any"
    stale_after_days: Annotated[int, Field(ge=1, le=3650)] = 180


CLAIMS = schema(
    "miss_rate_claims",
    claim_id=(
        "str",
        "hash of (strategy fingerprint, query id, paraphrase id, seed, the wording's text)",
    ),
    query_id=("str", "the gold query, or the query of production traffic"),
    paraphrase_id=("str", "`original` or the paraphrase's id"),
    group_id=("str", "unit of inference"),
    seed=("int", "the seed that the retriever was given"),
    strategy=("str", "name of the strategy"),
    strategy_fingerprint=("str", "identity of everything that decides its rankings"),
    target=("str", "miss_any | miss_some"),
    k=("int", "cutoff of the target"),
    miss_rate=("float", "the estimate that was shown; NaN where absent"),
    ci_low=("float", "its 95 % interval; NaN where none is known"),
    ci_high=("float", "its 95 % interval; NaN where none is known"),
    status=("str", "what the estimate has earned"),
    calibrator=("str", "id of the calibrator that gave it; empty for heuristic_v0"),
    heuristic_v0=("float", "the uncalibrated heuristic, kept for comparison"),
)
