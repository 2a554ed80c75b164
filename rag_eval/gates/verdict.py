"""The one list of gates, those with floors, and the verdict over all of them."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from rag_eval.core.config import Floor, GoldSetConfig
from rag_eval.core.errors import quoted
from rag_eval.core.rows import FieldFault, Location, suggest
from rag_eval.core.types import Level
from rag_eval.gates.gate import (
    FIRST_RUN,
    Figure,
    Gate,
    GateInputs,
    GatePart,
    Judgement,
    Priority,
    known_figures,
)
from rag_eval.gates.regression import RegressionGate
from rag_eval.measures.ranking import find_machine_name, labels_at, machine_name

MIN_JUDGED = 0.5
DELTA_S = Floor(measure="delta_s", direction="<=", bound=0.45)
_ESTIMATE = ("value", "ci_low", "ci_high", "n_scored", "n_effective")
_UNKNOWN = "this run does not measure it"


def judge_floor(floor: Floor, figure: Figure | None, min_queries: int, part: str = "") -> Judgement:
    """Compare one figure with its floor."""
    evidence: dict[str, object] = {
        "measure": floor.measure,
        "accepted": f"{floor.direction} {floor.bound:g}",
    }
    figure = figure or {}
    if figure.get("value") is None:
        reason = figure.get("reason") or figure.get("value_reason") or _UNKNOWN
        missing = {**evidence, "reason": reason}
        return Judgement("insufficient_evidence", "not_measured", missing, part)
    evidence |= known_figures(figure, *_ESTIMATE, "judged_at_k")
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
    severity: Priority = "P2"

    def check_names(self, config: GoldSetConfig) -> list[str]:
        """Name one check for each floor."""
        return [f"{self.name}.{measure}" for measure in config.acceptance]

    def judge(self, inputs: GateInputs) -> Iterator[Judgement]:
        """Judge each floor by itself."""
        yield from (self._judge(floor, inputs) for floor in inputs.config.floors)

    @staticmethod
    def _judge(floor: Floor, inputs: GateInputs) -> Judgement:
        name, figures = floor.measure, inputs.figures
        if name == "cache_hit_rate" and inputs.is_first:
            asked = {"measure": name, "accepted": f"{floor.direction} {floor.bound:g}"}
            return Judgement("not_applicable", "first_run", {**asked, "reason": FIRST_RUN}, name)
        judgement = judge_floor(floor, figures.get(name), inputs.config.gates.min_queries, name)
        if name == "groundedness" and "refused_answerable" in figures:
            # An answerer that refuses most questions can be grounded and of no use.
            refused = figures["refused_answerable"]["value"]
            judgement = judgement._replace(
                evidence={**judgement.evidence, "refused_answerable": refused}
            )
        return judgement


class StabilityGate(Gate):
    """The target of delta_s, and the share of questions that every wording and seed hits.

    A question that is always missed can be convergent too, so convergence alone is not judged.
    """

    name = "stability"
    severity: Priority = "P2"

    def judge(self, inputs: GateInputs) -> Iterator[Judgement]:
        """Judge both floors."""
        gates = inputs.config.gates
        together = Floor(
            measure="convergent_hit_share", direction=">=", bound=gates.min_convergent_hit
        )
        for part, floor in (("delta_s", DELTA_S), ("convergent_hit", together)):
            yield judge_floor(floor, inputs.figures.get(floor.measure), gates.min_queries, part)


class ContractGate(Gate):
    """No answer may break the answer contract."""

    name = "answer_contract"
    severity: Priority = "P1"

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
        if broken:
            yield Judgement("fail", "contract_broken", evidence)
        else:
            yield Judgement("pass", "met", evidence)


class TrustGate(Gate):
    """The mean trust of the primary strategy's chunks is at least `gates.min_trust`.

    A floor on `avg_trust_score` under `acceptance` compares the bound of the interval instead.
    """

    name = "trust"
    severity: Priority = "P1"

    def judge(self, inputs: GateInputs) -> Iterator[Judgement]:
        """Judge the mean; a gold set without trust settings gives insufficient evidence."""
        gates = inputs.config.gates
        figure = inputs.trust[inputs.config.primary_strategy]["avg_trust"]
        without_bounds = {**figure, "ci_low": None, "ci_high": None}
        floor = Floor(measure="avg_trust_score", direction=">=", bound=gates.min_trust)
        judgement = judge_floor(floor, without_bounds, gates.min_queries)
        if figure.get("value") is not None:
            interval = known_figures(figure, *_ESTIMATE)
            judgement = judgement._replace(evidence={**judgement.evidence, **interval})
        yield judgement


MAX_EXAMPLES = 20
"""Largest number of blocked chunks that the evidence names, over all strategies."""
_MAX_TEXT = 200


class PoisoningGate(Gate):
    """No strategy may return a blocked chunk; a single blocked chunk fails the gate."""

    name = "poisoning"
    severity: Priority = "P0"

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
                for example in part["blocked"]
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
    texts = {
        key: quoted(str(example[key]), _MAX_TEXT) for key in ("chunk_id", "doc_id", "query_id")
    }
    reasons = [quoted(reason, _MAX_TEXT) for reason in example["reasons"][:MAX_EXAMPLES]]
    return {**texts, "rank": example["rank"], "n": example["n"], "reasons": reasons}


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


def _unknown(key: Location, name: str, accepted: Iterable[str], kind: str) -> Iterator[FieldFault]:
    """Explain an unknown name; a measure with several cutoffs is listed once, with `_at_`."""
    names = list(accepted)
    if name not in names:
        families = dict.fromkeys(re.sub(r"_at_\d+$", "_at_<k>", name) for name in names)
        near = find_machine_name(name) if kind == "measure" else name  # MRR, recall@10
        message = f"there is no such {kind}{suggest(near, names)}"
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
