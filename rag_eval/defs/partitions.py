"""The gold sets as partitions: read once when definitions are built, from the folders and their `gold_set.yaml`."""

import dataclasses
from pathlib import Path

import dagster as dg

from rag_eval.defs import names
from rag_eval.gold.configuration import discover, load_config
from rag_eval.records.gold_set import GateName, GoldSetConfig
from rag_eval.records.problems import InputError


@dataclasses.dataclass(frozen=True)
class KnownGoldSet:
    """What the definitions need to know of a gold set.

    Parameters
    ----------
    name
        Partition key.
    strategies
        Names of its strategies, in their order.
    gates
        What its checks show: `acceptance.<measure>` for each floor, the bare name of every other gate.
    answers
        Whether it configures answers.
    nightly
        Whether the nightly job runs it. A gold set that cannot be read is run, so that its run shows what is wrong.
    """

    name: str
    strategies: tuple[str, ...]
    gates: tuple[str, ...]
    answers: bool
    nightly: bool

    @property
    def assets(self) -> list[dg.AssetKey]:
        """The assets of its configuration."""
        answers = names.OF_ANSWERS if self.answers else ()
        return [
            *names.FIXED,
            *answers,
            *(names.strategy_key(strategy) for strategy in self.strategies),
        ]

    @property
    def checks(self) -> list[dg.AssetCheckKey]:
        """The checks of its configuration."""
        gap = (names.RETRIEVAL_GAP,) if self.answers else ()
        return [*names.BLOCKING, *gap, *(names.gate_check(gate) for gate in self.gates)]


def gates_of(config: GoldSetConfig) -> tuple[str, ...]:
    """Name what the report of a configuration is judged by."""
    asked: tuple[GateName, ...] = (*config.gates.required, *config.gates.advisory)
    shown: list[str] = []
    if config.answers is not None and config.answers.fail_closed:
        asked = (*asked, "answer_contract")
    for gate in dict.fromkeys(asked):
        shown.extend(
            f"acceptance.{measure}" for measure in config.acceptance
        ) if gate == "acceptance" else shown.append(gate)
    return tuple(shown)


def known_gold_sets(folder: Path) -> list[KnownGoldSet]:
    """Read every gold set's configuration; one that is broken keeps its partition and has no strategies.

    Raises
    ------
    InputError
        The folder of gold sets is not there.
    """
    known = []
    for name, place in discover(folder).items():
        try:
            config = load_config(place)
        except InputError:
            known.append(KnownGoldSet(name, (), (), answers=False, nightly=True))
        else:
            known.append(
                KnownGoldSet(
                    name,
                    tuple(spec.name for spec in config.strategies),
                    gates_of(config),
                    config.answers is not None,
                    config.nightly,
                )
            )
    return known


def partitions(gold_sets: list[KnownGoldSet]) -> dg.StaticPartitionsDefinition:
    """One partition a gold set."""
    return dg.StaticPartitionsDefinition([gold_set.name for gold_set in gold_sets])
