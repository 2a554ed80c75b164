"""Every asset key, group, check and job name, in one place."""

import re

import dagster as dg

OWNER = "team:retrieval"
RESOURCE = "evaluations"
JOB = "nightly_eval"
SCHEDULE = "nightly_eval_schedule"

CORPUS, TRUST, GOLD, RETRIEVAL, ANSWERING, MEASURES, UNCERTAINTY, REPORTING = (
    "corpus",
    "trust",
    "gold",
    "retrieval",
    "answers",
    "measures",
    "uncertainty",
    "reporting",
)

CORPUS_SNAPSHOT = dg.AssetKey([CORPUS, "corpus_snapshot"])
CORPUS_CHUNKS = dg.AssetKey([CORPUS, "corpus_chunks"])
EVIDENCE_TRUST = dg.AssetKey([TRUST, "evidence_trust"])
CORPUS_INDEX = dg.AssetKey([CORPUS, "corpus_index"])
GOLD_VARIANTS = dg.AssetKey([GOLD, "gold_variants"])
ANSWERS = dg.AssetKey([ANSWERING, "answers"])
CITATIONS = dg.AssetKey([ANSWERING, "citations"])
ANSWER_MEASURES = dg.AssetKey([MEASURES, "answer_measures"])
RANKING_MEASURES = dg.AssetKey([MEASURES, "ranking_measures"])
STABILITY_MEASURES = dg.AssetKey([MEASURES, "stability_measures"])
TRUST_MEASURES = dg.AssetKey([MEASURES, "trust_measures"])
MISS_RATE_CLAIMS = dg.AssetKey([UNCERTAINTY, "miss_rate_claims"])
RETRIEVAL_OUTCOMES = dg.AssetKey([UNCERTAINTY, "retrieval_outcomes"])
MISS_RATE_CALIBRATION = dg.AssetKey([UNCERTAINTY, "miss_rate_calibration"])
CALIBRATED_MISS_RATES = dg.AssetKey([UNCERTAINTY, "calibrated_miss_rates"])
REPORT = dg.AssetKey([REPORTING, "retrieval_metrics_report"])
HTML_REPORT = dg.AssetKey([REPORTING, "html_report"])
MLFLOW_RECORD = dg.AssetKey([REPORTING, "mlflow_record"])
GATE_VERDICT = dg.AssetKey([REPORTING, "gate_verdict"])

FIXED = (
    *(CORPUS_SNAPSHOT, CORPUS_CHUNKS, EVIDENCE_TRUST, CORPUS_INDEX, GOLD_VARIANTS),
    *(RANKING_MEASURES, STABILITY_MEASURES, TRUST_MEASURES),
    *(MISS_RATE_CLAIMS, RETRIEVAL_OUTCOMES, MISS_RATE_CALIBRATION, CALIBRATED_MISS_RATES),
    *(REPORT, HTML_REPORT, MLFLOW_RECORD, GATE_VERDICT),
)
"""Assets that every gold set has; the strategies differ."""

OF_ANSWERS = (ANSWERS, CITATIONS, ANSWER_MEASURES)
"""Assets of gold sets that configure `answers`."""

INDEX_NOT_EMPTY = dg.AssetCheckKey(CORPUS_CHUNKS, "index_not_empty")
INDEX_IDENTITY = dg.AssetCheckKey(CORPUS_INDEX, "index_identity_as_planned")
GOLD_LINT = dg.AssetCheckKey(GOLD_VARIANTS, "gold_lint")
RETRIEVAL_GAP = dg.AssetCheckKey(ANSWER_MEASURES, "FK019_retrieval_to_answer_gap")
BLOCKING = (INDEX_NOT_EMPTY, INDEX_IDENTITY, GOLD_LINT)
"""Checks that stop what is downstream; their assets yield them."""


def strategy_key(strategy: str) -> dg.AssetKey:
    """Key of a strategy's asset."""
    return dg.AssetKey([RETRIEVAL, strategy])


def identifier(text: str) -> str:
    """Make a text fit for a Dagster name: letters, digits, underscores.

    Examples
    --------
    >>> identifier("acceptance.recall_at_10")
    'acceptance_recall_at_10'
    """
    return re.sub(r"[^A-Za-z0-9_]", "_", text)


def gate_check(gate: str) -> dg.AssetCheckKey:
    """Key of the check that shows a gate of the report (`acceptance.recall_at_10`, `stability`, ...)."""
    return dg.AssetCheckKey(REPORT, identifier(gate))
