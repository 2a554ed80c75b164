"""`gates.regression` takes what the gate can pair question by question, and nothing that it never could."""

import pytest
from pydantic import ValidationError

from rag_eval.evaluation.scoring import labels_for
from rag_eval.measures.labels import machine_name
from rag_eval.records.gold_set import PAIRED_MEASURES, GoldSetConfig


def config(*names, level="document", k=(1, 5)):
    head = {
        "name": "g",
        "corpus": {"loader": "folder", "path": "."},
        "k": list(k),
        "depth": 50,
        "level": level,
        "strategies": [{"name": "bm25", "kind": "bm25"}],
    }
    return GoldSetConfig.model_validate(
        {**head, **({"gates": {"regression": list(names)}} if names else {})}
    )


@pytest.mark.parametrize("level", ["document", "section", "span"])
def test_all_that_is_measured_of_a_question_is_accepted(level):
    names = [machine_name(label) for label in labels_for((1, 5))[level]]
    assert config(*names, "delta_s", level=level).gates.regression == (*names, "delta_s")
    assert set(PAIRED_MEASURES) <= {*names, "delta_s"}
    assert config(level=level).gates.regression == ("recall_at_10", "mrr")


@pytest.mark.parametrize(
    ("name", "level", "told"),
    [
        ("recal_at_10", "document", "no such measure; did you mean recall_at_10?"),
        ("recall_at_7", "document", "no such measure; did you mean recall_at_"),
        (
            "citation_match_rate",
            "document",
            "not measured question by question; accepted are mrr, ndcg_at_10, delta_s",
        ),
        ("latency_p95_ms", "document", "not measured question by question"),
        ("judged_at_5", "span", "no such measure"),
        ("", "document", "no such measure"),
        ("\x1b[2J" + "x" * 5000, "document", "no such measure"),
    ],
)
def test_a_name_that_could_never_be_measured_is_an_error_with_what_is_accepted(name, level, told):
    with pytest.raises(ValidationError) as caught:
        config("mrr", name, level=level)
    message = caught.value.errors()[0]["msg"]
    assert "gates.regression: found" in message
    assert told in message
    assert len(message) < 500
    assert "\x1b" not in message
