"""The seven strategies by name."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from rag_eval.records.uncertainty import ExpansionName
from rag_eval.uncertainty.expansion import (
    code_pattern,
    hypernym,
    hyponym,
    negative_sampling,
    reformulation,
    related_concept,
    synonym,
)
from rag_eval.uncertainty.expansion.context import Expand

STRATEGIES: Final[Mapping[ExpansionName, Expand]] = MappingProxyType(
    {
        "synonym": synonym.expand,
        "related_concept": related_concept.expand,
        "reformulation": reformulation.expand,
        "hypernym": hypernym.expand,
        "hyponym": hyponym.expand,
        "code_pattern": code_pattern.expand,
        "negative_sampling": negative_sampling.expand,
    }
)
