"""Which embedding speaks where no strategy is asked: for delta_s, and as the second retriever of lexical strategies."""

from rag_eval.evaluation.inputs import Evaluation
from rag_eval.records.configuration_parts import Embedding
from rag_eval.records.gold_set import Vector


def stability_embedding(evaluation: Evaluation) -> Embedding:
    """Choose the embedding of delta_s: that of the first vector strategy, else lsa-256."""
    vector = [spec.embedding for spec in evaluation.config.strategies if isinstance(spec, Vector)]
    return vector[0] if vector else Embedding(model="lsa-256")
