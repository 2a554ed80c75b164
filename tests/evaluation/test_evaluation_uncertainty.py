"""Small parts of the uncertainty stages.

The parts are coverage of the corpus, histories of other wordings, calibrator files and stored
rankings.
"""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from missing_project import opened

from rag_eval.core.errors import InputError
from rag_eval.retrieval.ranking import Ranking, run_frame
from rag_eval.storage.home import Home
from rag_eval.uncertainty.calibrators import (
    Accepted,
    accepted_calibrator,
    find_accepted,
    keep_calibrator,
    read_calibrator,
)
from rag_eval.uncertainty.confidence import _count_covered
from rag_eval.uncertainty.status import Series

SPANS = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.integers(0, 15)), max_size=30
)


def chunks(spans):
    return pd.DataFrame(
        {
            "doc_id": [name for name, _, _ in spans],
            "start": [start for _, start, _ in spans],
            "end": [start + length for _, start, length in spans],
        }
    ).astype({"start": "int64", "end": "int64"})


@given(SPANS)
def test_covered_counts_every_character_once(spans):
    covered = {(name, at) for name, start, n in spans for at in range(start, start + n)}
    assert _count_covered(chunks(spans)) == _count_covered(chunks(spans[::-1])) == len(covered)


BODY = {
    "schema_version": 1,
    "strategy": "bm25",
    "model": {"coefficients": [0.1, -2.5e-17, 1e300], "names": ["ä", "s_K/s_1"]},
    "fitted_at": "2026-01-01T00:00:00+00:00",
}


def test_a_calibrator_comes_back_as_it_was_and_its_name_does_not_say_when(tmp_path):
    name = keep_calibrator(Home(tmp_path), BODY)
    assert read_calibrator(Home(tmp_path), name) == {**BODY, "calibrator_id": name}
    assert (
        keep_calibrator(Home(tmp_path), {**BODY, "fitted_at": "2027-01-01T00:00:00+00:00"}) == name
    )
    assert (
        read_calibrator(Home(tmp_path), name)["fitted_at"] == BODY["fitted_at"]
    )  # the first of equal rows stays
    assert keep_calibrator(Home(tmp_path), {**BODY, "strategy": "vector"}) != name


@pytest.mark.parametrize(
    "damage",
    [
        b"[]",
        b"\xff",
        b'{"a": Infinity, "calibrator_id": "%s"}',
        b"[" * 100_000,
        b'{"calibrator_id": "%s"}',
    ],
)
def test_a_damaged_calibrator_is_an_input_error(tmp_path, damage):
    name = keep_calibrator(Home(tmp_path), BODY)
    (tmp_path / "calibrators" / f"{name}.json").write_bytes(damage.replace(b"%s", name.encode()))
    with pytest.raises(InputError) as caught:
        read_calibrator(Home(tmp_path), name)
    assert caught.value.problems[0].code == "calibrator_damaged"


@pytest.mark.parametrize("name", ["../../etc/passwd", "0" * 32, "0" * 32 + "\n"])
def test_no_calibrator_of_that_name(tmp_path, name):
    with pytest.raises(InputError) as caught:
        read_calibrator(Home(tmp_path), name)
    assert caught.value.problems[0].code == "calibrator_missing"


SERIES = Series("tiny", "bm25", "miss_any", 10)


def accepted(status):
    return Accepted(
        calibrator_id="0" * 32,
        strategy_fingerprint="before",
        status=status,
        at="2026-01-01T00:00:00+00:00",
    )


def test_what_was_accepted_is_read_back_and_damage_is_told(tmp_path):
    choice = accepted("provisional")
    assert accepted_calibrator(Home(tmp_path), SERIES) is None
    choice.accept(Home(tmp_path), SERIES)
    assert accepted_calibrator(Home(tmp_path), SERIES) == choice
    assert accepted_calibrator(Home(tmp_path), Series("tiny", "bm25", "miss_some", 10)) is None
    assert accepted_calibrator(Home(tmp_path), Series("tiny", "bm25", "miss_any", 5)) is None
    path = tmp_path / "calibrators" / "accepted" / "tiny" / "bm25" / "miss_any@10.json"
    for damage in (
        path.read_bytes().replace(b"provisional", b"perfect"),
        path.read_bytes().replace(b"{", b'{"more": 1, '),
    ):
        path.write_bytes(damage)
        with pytest.raises(InputError) as caught:
            accepted_calibrator(Home(tmp_path), SERIES)
        assert caught.value.problems[0].code == "accepted_damaged"


@pytest.mark.parametrize(
    ("earned", "spoken"),
    [
        ("uncalibrated", "absent"),
        ("prior", "absent"),
        ("provisional", "stale"),
        ("measured", "stale"),
        ("stale", "stale"),
    ],
)
def test_what_had_earned_nothing_does_not_go_stale_with_another_fingerprint(
    project, earned, spoken
):
    evaluation = opened(project)
    accepted(earned).accept(Home(project.home), SERIES)
    assert find_accepted(evaluation.home, evaluation.config, "bm25", "now").status == spoken


def test_a_calibrator_of_an_earlier_version_is_stale_and_not_read(project):
    evaluation = opened(project)
    name = keep_calibrator(Home(project.home), {**BODY, "schema_version": 1})
    choice = accepted("measured").model_copy(update={"calibrator_id": name})
    choice.accept(Home(project.home), SERIES)
    found = find_accepted(evaluation.home, evaluation.config, "bm25", "before")
    assert (found.calibrator_id, found.status, found.body) == (name, "stale", None)


@st.composite
def rankings(draw, n=4, depth=5):
    length = draw(st.lists(st.integers(0, depth), min_size=n, max_size=n))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    found = np.arange(depth)[None, :] < np.array(length)[:, None]
    rows = np.where(found, np.argsort(rng.random((n, 20)), axis=1)[:, :depth], -1).astype(np.int32)
    raw = np.where(found, -np.sort(-rng.normal(size=(n, depth)), axis=1), 0.0)
    norm = np.where(found, rng.random((n, depth)), 0.0)
    k_pos = np.where(found, np.arange(1, depth + 1), 0).astype(np.int32)
    rerank = np.where(found & (rng.random((n, depth)) < 0.5), rng.normal(size=(n, depth)), np.nan)
    return Ranking(rows, raw, norm, k_pos, rerank, found.sum(axis=1).astype(np.int64))


@given(rankings(), rankings())
def test_a_stored_ranking_is_the_one_that_was_found(first, second):
    frame = run_frame({13: first, 29: second})
    for seed, ranking in ((13, first), (29, second)):
        read = Ranking.read(frame, seed, 4, 5)
        for field in ("rows", "raw", "norm", "k_pos", "rerank"):
            np.testing.assert_array_equal(
                getattr(read, field), getattr(ranking, field), err_msg=field
            )
        np.testing.assert_array_equal(read.has_chunk, ranking.has_chunk)
