"""The one list of gates, and the verdict over all of them.

The gate `regression` compares the primary strategy, question by question, with the baseline. A
measure has fallen when two things hold. Its mean is lower than the baseline's by
`gates.max_relative_drop` or more, and the 95 % interval of the paired difference excludes zero.
The interval is two-sided although the alarm is one-sided, so a false alarm is rarer than 1 in 20.
Every measure is judged by itself, so the chance of some false alarm is at most their sum.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from rag_eval.core.arrays import number
from rag_eval.core.config import Floor, GoldSetConfig
from rag_eval.core.errors import quoted
from rag_eval.core.rows import FieldFault, Location, suggest
from rag_eval.core.types import Level
from rag_eval.gates.gate import FIRST_RUN, Figure, Gate, GateInputs, GatePart, Judgement
from rag_eval.measures.intervals import PairedComparison, paired_comparison
from rag_eval.measures.overlap import SharedGold
from rag_eval.measures.ranking import find_machine_name, labels_at, machine_name

# ---- Figures against fixed bounds

MIN_JUDGED = 0.5
DELTA_S = Floor(measure="delta_s", direction="<=", bound=0.45)
_ESTIMATE = ("value", "ci_low", "ci_high", "n_scored", "n_effective")


def _select(figure: Figure, *names: str) -> dict[str, object]:
    """Return the named parts of a figure that have a value."""
    return {name: figure[name] for name in names if figure.get(name) is not None}


def judge_floor(floor: Floor, figure: Figure | None, min_queries: int, part: str = "") -> Judgement:
    """Compare the worse bound of a figure, or its value without bounds, with its floor."""
    accepted = f"{floor.direction} {floor.bound:g}"
    evidence: dict[str, object] = {"measure": floor.measure, "accepted": accepted}
    figure = figure or {}
    if figure.get("value") is None:
        reason = figure.get("reason") or figure.get("value_reason")
        missing = {**evidence, "reason": reason or "this run does not measure it"}
        return Judgement("insufficient_evidence", "not_measured", missing, part)
    evidence |= _select(figure, *_ESTIMATE, "judged_at_k")
    if figure.get("n_effective") is not None and figure["n_effective"] < min_queries:
        evidence["min_queries"] = min_queries
        return Judgement("insufficient_evidence", "too_few_queries", evidence, part)
    at_least = floor.direction == ">="
    share_judged = figure.get("judged_at_k")
    needs_judgements = at_least and floor.measure.startswith(("precision", "ndcg"))
    if needs_judgements and share_judged is not None and share_judged < MIN_JUDGED:
        evidence["min_judged"] = MIN_JUDGED
        return Judgement("insufficient_evidence", "too_few_judged", evidence, part)

    def meets(value: float) -> bool:
        return value >= floor.bound if at_least else value <= floor.bound

    bound = figure.get("ci_low" if at_least else "ci_high")
    if meets(figure["value"] if bound is None else bound):
        return Judgement("pass", "met", evidence, part)
    code = "bound_not_met" if meets(figure["value"]) else "value_not_met"
    return Judgement("fail", code, evidence, part)


class AcceptanceGate(Gate):
    """Every floor under `acceptance` of the gold set."""

    name = "acceptance"
    severity = "P2"

    def check_names(self, config: GoldSetConfig) -> list[str]:
        """Name one check for each floor."""
        return [f"{self.name}.{measure}" for measure in config.acceptance]

    def judge(self, inputs: GateInputs) -> Iterator[Judgement]:
        """Judge each floor by itself."""
        for floor in inputs.config.floors:
            name, figure = floor.measure, inputs.figures.get(floor.measure)
            if name == "cache_hit_rate" and inputs.is_first:
                accepted = f"{floor.direction} {floor.bound:g}"
                evidence = {"measure": name, "accepted": accepted, "reason": FIRST_RUN}
                yield Judgement("not_applicable", "first_run", evidence, name)
            else:
                yield judge_floor(floor, figure, inputs.config.gates.min_queries, name)


class StabilityGate(Gate):
    """The target of delta_s, and the share of questions that every wording and seed hits.

    A question that is always missed can be convergent too, so convergence alone is not judged.
    """

    name = "stability"
    severity = "P2"

    def judge(self, inputs: GateInputs) -> Iterator[Judgement]:
        """Judge both floors."""
        gates = inputs.config.gates
        together = Floor(measure="convergent_hit_share", direction=">=", bound=0.5)
        for part, floor in (("delta_s", DELTA_S), ("convergent_hit", together)):
            yield judge_floor(floor, inputs.figures.get(floor.measure), gates.min_queries, part)


class ContractGate(Gate):
    """No answer may break the answer contract."""

    name = "answer_contract"
    severity = "P1"

    def judge(self, inputs: GateInputs) -> Iterator[Judgement]:
        """Count broken answers; NOT FOUND and INSUFFICIENT EVIDENCE keep the contract."""
        answers = inputs.answers
        if "outcomes" not in answers:
            reason = {"reason": str(answers["reason"])}
            yield Judgement("insufficient_evidence", "not_measured", reason)
            return
        outcomes = answers["outcomes"]
        broken = outcomes.get("failed", 0) + outcomes.get("contract_error_reply", 0)
        evidence = {
            "measure": "answers that broke the contract",
            "value": broken,
            "n_scored": answers["n_questions"],
            "accepted": "<= 0",
            "codes": dict(answers["codes"]),
        }
        code = "contract_broken" if broken else "met"
        yield Judgement("fail" if broken else "pass", code, evidence)


class TrustGate(Gate):
    """The mean trust of the primary strategy's chunks is at least `gates.min_trust`.

    A floor on `avg_trust_score` under `acceptance` compares the bound of the interval instead.
    """

    name = "trust"
    severity = "P1"

    def judge(self, inputs: GateInputs) -> Iterator[Judgement]:
        """Judge the mean; a gold set without trust settings gives insufficient evidence."""
        gates = inputs.config.gates
        figure = inputs.trust[inputs.config.primary_strategy]["avg_trust"]
        without_bounds = {**figure, "ci_low": None, "ci_high": None}
        floor = Floor(measure="avg_trust_score", direction=">=", bound=gates.min_trust)
        judgement = judge_floor(floor, without_bounds, gates.min_queries)
        if figure.get("value") is not None:
            evidence = {**judgement.evidence, **_select(figure, *_ESTIMATE)}
            judgement = judgement._replace(evidence=evidence)
        yield judgement


MAX_EXAMPLES = 20
"""Largest number of blocked chunks that the evidence names, over all strategies."""
_MAX_TEXT = 200


class PoisoningGate(Gate):
    """No strategy may return a blocked chunk; a single blocked chunk fails the gate."""

    name = "poisoning"
    severity = "P0"

    def judge(self, inputs: GateInputs) -> Iterator[Judgement]:
        """Count blocked chunks in the rankings of every strategy, and name some of them.

        The evidence also counts what quarantine kept out and what was retrieved with a warning.
        """
        counts = ("n_retrieved", "n_blocked", "n_warned")
        strategies = {
            quoted(name): {key: int(part[key]) for key in counts}
            for name, part in inputs.trust.items()
        }
        total, blocked, warned = (sum(part[key] for part in strategies.values()) for key in counts)
        evidence: dict[str, object] = {
            "measure": "blocked chunks among the retrieved chunks",
            "accepted": "<= 0",
            "value": blocked,
            "n_scored": total,
            "quarantined": f"{inputs.n_quarantined:,} of {inputs.n_chunks:,} chunks",
            "warned": f"{warned:,} of {total:,} results",
            "strategies": strategies,
        }
        if blocked:
            examples = [
                {"strategy": quoted(name), **_bound_texts(example)}
                for name, part in inputs.trust.items()
                for example in part["blocked"][:MAX_EXAMPLES]
            ]
            evidence["examples"] = examples[:MAX_EXAMPLES]
            yield Judgement("fail", "blocked_retrieved", evidence)
        elif total:
            yield Judgement("pass", "met", evidence)
        else:
            evidence["reason"] = "no strategy retrieved anything"
            yield Judgement("insufficient_evidence", "nothing_retrieved", evidence)


def _bound_texts(example: Mapping[str, Any]) -> dict[str, object]:
    """Escape and shorten the texts of a blocked chunk, so that they are safe to print."""
    ids = {key: quoted(str(example[key]), _MAX_TEXT) for key in ("chunk_id", "doc_id", "query_id")}
    reasons = [quoted(reason, _MAX_TEXT) for reason in example["reasons"][:MAX_EXAMPLES]]
    return {**ids, "rank": example["rank"], "n": example["n"], "reasons": reasons}


# ---- The primary strategy against the accepted baseline

LOWER_IS_BETTER: Final = (
    *("delta_s", "latency", "cost", "answered_anyway", "refused_answerable", "failure_rate"),
    "failed",
)
"""Beginnings of the names of measures that improve as they fall."""
_STEPS = 20  # of the iteration that finds a drop and the variance after it
_ROUNDING = 1e-9  # tolerance of a relative drop, so that 0.80 to 0.76 counts as 5 %


def higher_is_better(measure: str) -> bool:
    """Tell whether a measure improves as it rises."""
    return not measure.startswith(LOWER_IS_BETTER)


def with_delta_s(per_query: pd.DataFrame, per_run: pd.DataFrame) -> pd.DataFrame:
    """Add delta_s of each retrieval, a part of the stability stage, to the per-query figures.

    A failed retrieval counts 1, as in the report. A strategy without any delta_s has none.
    """
    keys = ["strategy", "query_id", "paraphrase_id", "seed"]
    distances = per_run[[*keys, "delta_s"]]
    joined = per_query.merge(distances, on=keys, how="left", validate="many_to_one")
    # a strategy that ignores the seed ran under one seed and has a row under each
    of_wording = per_run.groupby(keys[:-1])["delta_s"].mean().rename("of_wording")
    joined = joined.join(of_wording, on=keys[:-1])
    value = joined["delta_s"].fillna(joined["of_wording"])
    measured = value.notna().groupby(joined["strategy"]).transform("any")
    value = value.mask(joined["failed"] & measured, 1.0)
    return joined.drop(columns="of_wording").assign(delta_s=value)


def judge_drops(
    before: ArrayLike,
    now: ArrayLike,
    gold: SharedGold,
    *,
    max_relative_drop: float,
    min_queries: int,
    higher: Sequence[bool],
) -> list[Judgement]:
    """Compare values of the same questions in two runs, measure by measure.

    `before` and `now` are [n_queries, m] means inside each question, NaN where not scored.
    `gold` is that of the questions. Figures of the evidence are of now - before.

    A question that only the baseline scored may have fallen. Where such questions are a share of
    `max_relative_drop` or more, the evidence is insufficient.
    """
    left, right = (np.asarray(values, dtype=np.float64) for values in (before, now))
    difference = right - left
    compared = paired_comparison(
        right,
        left,
        gold,
        higher_is_better=list(higher),
        unit_range=[not np.any(np.abs(column) > 1) for column in difference.T],
    )
    judgements = []
    for at, up in enumerate(higher):
        paired = ~np.isnan(difference[:, at])
        n_before, n_paired = int(np.sum(~np.isnan(left[:, at]))), int(paired.sum())
        n_effective, lost = float(compared.n_effective[at]), n_before - n_paired
        evidence: dict[str, object] = {"n_scored": n_paired, "n_effective": number(n_effective)}
        if lost:
            evidence["n_unpaired"] = lost
        code = "not_measured"
        if n_before and lost >= max_relative_drop * n_before:
            why = f"{lost} of {n_before} questions that the baseline scored were not scored now"
            evidence["reason"] = why
        elif not n_paired:
            evidence["reason"] = "no question was scored in both runs"
        elif n_effective < min_queries:
            code, evidence["min_queries"] = "too_few_queries", min_queries
        else:
            means = float(left[paired, at].mean()), float(right[paired, at].mean())
            judgements.append(_judge_drop(compared, at, means, evidence, max_relative_drop, up=up))
            continue
        judgements.append(Judgement("insufficient_evidence", code, evidence))
    return judgements


def _judge_drop(
    compared: PairedComparison,
    at: int,
    means: tuple[float, float],
    evidence: dict[str, object],
    max_relative_drop: float,
    *,
    up: bool,
) -> Judgement:
    """Judge one measure whose questions can be paired."""
    base, level = means
    value, low, high = (field[at] for field in (compared.delta, compared.ci_low, compared.ci_high))
    fallen = base - level if up else level - base
    figures = {"baseline": base, "now": level, "value": value, "ci_low": low, "ci_high": high}
    if base > 0:
        figures["relative_drop"] = fallen / base
    least = float(compared.minimum_detectable[at])
    if not np.isnan(least):
        least = _catchable_drop(least, base, float(compared.n_effective[at]), up=up)
        figures["catches_drop"] = max(least, max_relative_drop * base)
    evidence |= {name: number(figure) for name, figure in figures.items()}
    for name in ("n_better", "n_worse", "n_tied"):
        evidence[name] = int(getattr(compared, name)[at])
    enough = fallen > 0 if base <= 0 else fallen / base >= max_relative_drop - _ROUNDING
    # The bound of a single question is NaN, which compares as false.
    sure = high < 0 if up else low > 0
    if enough and sure:
        return Judgement("fail", "regression", evidence)
    return Judgement("pass", "no_regression", evidence)


def _catchable_drop(least: float, base: float, n: float, *, up: bool) -> float:
    """Return the drop that is found with 80 % power, from the smallest detectable difference.

    The variance of the differences of rates is taken to grow as the mean of the binomial variances
    before and after. Half a missed and half a hit question keep that of a perfect baseline above 0.
    """
    if not 0 <= base <= 1:
        return least
    start, drop = (base * n + 0.5) / (n + 1), least
    for _ in range(_STEPS):
        fallen = min(max(start - drop if up else start + drop, 0.0), 1.0)
        growth = fallen * (1 - fallen) / (start * (1 - start))
        drop = least * math.sqrt((1 + growth) / 2)
    return drop


class RegressionGate(Gate):
    """Every measure of `gates.regression` at the headline level, against the accepted baseline."""

    name = "regression"
    severity = "P2"

    def judge(self, inputs: GateInputs) -> Iterator[Judgement]:
        """Judge each measure, or give the reason why the two runs cannot be paired."""
        config, baseline = inputs.config, inputs.baseline
        gates, strategy = config.gates, config.primary_strategy
        measures = list(dict.fromkeys(gates.regression))
        common: dict[str, object] = {
            "strategy": strategy,
            "level": config.level,
            "accepted": f"relative drop < {gates.max_relative_drop:g}, or not significant",
        }
        code, reason = _find_obstacle(inputs)
        if baseline is not None:
            common["baseline_run"] = quoted(baseline.run_id)
        if baseline is None or code:
            obstacle = Judgement("insufficient_evidence", code, {"reason": reason})
            judgements = [obstacle for _ in measures]
        else:
            if baseline.changes:
                common["different"] = list(baseline.changes.values())
            left, right = (
                _mean_by_query(per_query, strategy, config.level, measures)
                for per_query in (baseline.per_query, inputs.per_query)
            )
            queries = left.index.union(right.index)
            judgements = judge_drops(
                left.reindex(queries).to_numpy(dtype=np.float64),
                right.reindex(queries).to_numpy(dtype=np.float64),
                inputs.gold.of(queries.tolist()),
                max_relative_drop=gates.max_relative_drop,
                min_queries=gates.min_queries,
                higher=[higher_is_better(name) for name in measures],
            )
        for measure, (status, code, evidence, _) in zip(measures, judgements, strict=True):
            yield Judgement(status, code, {"measure": measure, **common, **evidence}, measure)


def _find_obstacle(inputs: GateInputs) -> tuple[str, str]:
    """Return code and reason why the run and the baseline cannot be compared; empty if they can."""
    baseline, strategy = inputs.baseline, inputs.config.primary_strategy
    if inputs.baseline_fault:
        return "baseline_damaged", f"the baseline cannot be used: {inputs.baseline_fault}"
    if baseline is None:
        advice = "rag-eval gate --accept"
        return "no_baseline", f"no run was accepted as the baseline yet: {advice}"
    if "gold_changed" in baseline.changes:
        reason = "so figures cannot be paired: accept a run of this gold"
        return "gold_differs", f"{baseline.changes['gold_changed']}, {reason}"
    if strategy not in set(baseline.per_query["strategy"]):
        return "strategy_missing", f"the baseline has no strategy {quoted(strategy)}"
    return "", ""


def _mean_by_query(
    per_query: pd.DataFrame, strategy: str, level: str, measures: list[str]
) -> pd.DataFrame:
    """Mean of each measure inside each question; NaN for unknown measures."""
    chosen = per_query[(per_query["strategy"] == strategy) & (per_query["level"] == level)]
    measured = [name for name in measures if name in per_query.columns]
    means = chosen.groupby("query_id", sort=True)[measured].mean()
    return means.reindex(columns=measures)


# ---- All gates

GATES: Final[tuple[Gate, ...]] = (
    AcceptanceGate(),
    StabilityGate(),
    ContractGate(),
    TrustGate(),
    PoisoningGate(),
    RegressionGate(),
)


OTHER_FIGURES = tuple(
    """delta_s latency_p50_ms latency_p95_ms latency_p99_ms cost_per_1k cache_hit_rate
    citation_match_rate citation_precision citation_recall citation_validity_rate
    citation_support coverage groundedness faithfulness supported_share abstention_rate
    answered_anyway refused_answerable failure_rate avg_trust_score convergent_hit_share""".split()
)
"""Figures besides the ranking measures that a floor may ask for.

A floor on a figure that the run does not measure gives insufficient evidence."""


def find_faults(config: GoldSetConfig) -> Iterator[FieldFault]:
    """Find the gates and measures that a gold set names and that do not exist."""
    gates, names = config.gates, _measured_names(config, "document")
    for measure in config.acceptance:
        yield from _unknown(("acceptance", measure), measure, (*names, *OTHER_FIGURES), "measure")
    for key in ("required", "advisory"):
        for gate in getattr(gates, key):
            yield from _unknown(("gates", key), gate, [gate.name for gate in GATES], "gate")
    for measure in gates.regression:
        accepted = (*_measured_names(config, config.level), "delta_s")
        yield from _unknown(("gates", "regression"), measure, accepted, "measure")


def _measured_names(config: GoldSetConfig, level: Level) -> tuple[str, ...]:
    return tuple(machine_name(label) for label in labels_at(level, sorted({*config.k, 10})))


def _unknown(key: Location, name: str, accepted: Sequence[str], kind: str) -> Iterator[FieldFault]:
    """Explain an unknown name; a measure with several cutoffs is listed once, with `_at_`."""
    if name not in accepted:
        families = dict.fromkeys(re.sub(r"_at_\d+$", "_at_<k>", name) for name in accepted)
        near = find_machine_name(name) if kind == "measure" else name  # MRR, recall@10
        message = f"there is no such {kind}{suggest(near, accepted)}"
        yield FieldFault("bad_value", message, key, name, ", ".join(families), is_rule=False)


def judge_gates(inputs: GateInputs) -> list[GatePart]:
    """Judge every gate that the gold set asks for."""
    configured = (gate for gate in GATES if gate.is_configured(inputs.config))
    return [result for gate in configured for result in gate.results(inputs)]


def check_names(config: GoldSetConfig) -> list[str]:
    """Name the checks of all gates that the gold set asks for."""
    configured = (gate for gate in GATES if gate.is_configured(config))
    return [name for gate in configured for name in gate.check_names(config)]


def required_failures(gates: Iterable[GatePart]) -> list[str]:
    """Name the required gates of a report that did not pass."""
    return [gate.id for gate in gates if gate.required and not gate.is_fine]
