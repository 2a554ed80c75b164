"""Gates that compare figures with floors: acceptance, stability, contract, trust, poisoning.

The worse bound of the 95 % interval must meet the floor. Trust and poisoning see every retrieved
chunk of a run, so they compare the figure itself.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from rag_eval.core.config import Floor, GoldSetConfig
from rag_eval.core.errors import quoted
from rag_eval.gates.gate import (
    FIRST_RUN,
    Figure,
    Gate,
    GateInputs,
    Judgement,
    Priority,
    known_figures,
)

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
        factors = {
            factor.factor: f"{factor.status}: {factor.reason}"
            if factor.reason
            else f"{factor.n} of {factor.of}"
            for factor in inputs.trust_factors
        }
        more = {"factors": factors} if factors else {}
        yield judgement._replace(evidence={**judgement.evidence, **more})


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
