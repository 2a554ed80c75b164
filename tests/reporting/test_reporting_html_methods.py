"""The panel of methods: definitions that agree with the code, the configuration, and a command."""

import panel_reports
import pytest
from panel_pages import exports, rendered

from rag_eval.core import config as ladder
from rag_eval.core import config as trust_records
from rag_eval.core.records import FEW_EFFECTIVE
from rag_eval.gates.verdict import MIN_JUDGED
from rag_eval.measures import intervals, overlap, stability, support
from rag_eval.measures.run_scores import ALWAYS_K
from rag_eval.reporting.tables import panel_words
from rag_eval.uncertainty import conformal as conformal_splits
from rag_eval.uncertainty import validation as ece
from rag_eval.uncertainty.claims import MIN_MISSED

DEFINED = {
    term["term"]: f"{term['text']} {term.get('formula', '')}"
    for part in panel_words()["methods"]
    for term in part["terms"]
}


@pytest.fixture
def report():
    return panel_reports.full()


@pytest.mark.parametrize(
    ("term", "constants"),
    [
        (
            "delta_s",
            [
                f"{stability.STABLE_BELOW:.2f}",
                f"{stability.TRANSITIONAL_BELOW:.2f}",
                stability.DELTA_S_TARGET,
                stability.SAME_DISTANCE,
            ],
        ),
        ("lambda", [stability.RBO_CHAOTIC, stability.RBO_CONVERGENT, f"hit@{ALWAYS_K}"]),
        (
            "Groundedness",
            [
                f"x {support.MISSING} where",
                f"{support.CONTRADICTED} of it stays",
                {0.5: "(2 x share of words in the window + share of pairs) / 3"}[support.PAIRS],
                {3: "three evidence sentences"}[support.WINDOW],
            ],
        ),
        ("Final and calibrated confidence", [f"{MIN_MISSED} groups"]),
        (
            "ECE and its null",
            [f"every {ece.MIN_PER_BIN} outcomes", f"at most {ece.MAX_BINS}", f"{ece.LEVEL}^(1/m)"],
        ),
        ("Slope and intercept", [f"{ladder.SLOPE[0]} to {ladder.SLOPE[1]}"]),
        (
            "Status ladder",
            [
                f"at least {ladder.PRIOR_QUERIES} questions",
                f"at least {ladder.PROVISIONAL_OUTCOMES} groups",
                f"at least {ladder.PROVISIONAL_EACH} each",
                f"at least {ladder.MEASURED_OUTCOMES} groups",
                f"at least {ladder.MEASURED_EACH} each",
                f"{ladder.SLOPE[0]} to {ladder.SLOPE[1]}",
            ],
        ),
        (
            "Intervals",
            [f"under {FEW_EFFECTIVE} ", f"{overlap._PSEUDO_QUESTIONS} / N"],
        ),
        ("Paired differences", [f"Where fewer than {intervals.FEW_DIFFERING} questions"]),
        ("Gates", [f"under {MIN_JUDGED}"]),
        (
            "Trust",
            [
                f"{trust_records.DOMAIN_WEIGHT} allowed domain",
                f"{trust_records.SIGNATURE_WEIGHT} valid signature",
                f"{trust_records.AUTHOR_WEIGHT} known author",
                f"max({trust_records.STALE}",
                trust_records.YEAR_DAYS,
            ],
        ),
        ("Conformal K and its coverage", [{1 / 3: "a third"}[conformal_splits.TEST_SHARE]]),
    ],
)
def test_constants_of_the_definitions_are_those_of_the_code(term, constants):
    for constant in constants:
        assert str(constant) in DEFINED[term], (term, constant)


def test_every_measure_of_the_page_is_defined():
    words = " ".join(DEFINED) + " ".join(DEFINED.values())
    names = (
        "R@k, Success@k, RR, nDCG@k, P@k, Judged@k, delta_s, lambda, Coverage, Citation precision, "
        "Citation recall, match rate, Groundedness, miss_any@K, miss_some@K, miss_frac@K, Brier, "
        "Reliability diagram, null, Slope, Conformal, Trust, Holm, Smallest detectable"
    )
    assert [name for name in names.split(", ") if name not in words] == []


def test_configuration_hashes_and_versions(report):
    panel, markup = rendered("methods", report)
    (configuration,) = exports(panel)
    lines = configuration.csv().splitlines()
    for line in (
        "strategies.0.configuration.nested.deep[1],two",
        "strategies.0.configuration.k1,0.9",
        f"content_hash,{report['content_hash']}",
        "code.libraries.numpy,2.4.6",
    ):
        assert line in lines
    assert sum(f"index_hash,bm25s:{panel_reports.HASH}" in line for line in lines) == 3
    assert "Wilson" in markup
