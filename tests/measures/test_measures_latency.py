import pytest

from rag_eval.measures import strategy_figures

TEXTS = [f"question {number}" for number in range(100)]


@pytest.mark.parametrize(("seconds", "n_timed"), [(1e-9, 20), (1e9, 60)])
def test_timing_stops_early_only_for_slow_strategies(monkeypatch, seconds, n_timed):
    monkeypatch.setattr(strategy_figures, "LATENCY_SECONDS", seconds)
    asked = []
    found = strategy_figures.time_queries(asked.append, TEXTS)
    first, *timed = asked
    assert found.n == len(timed) == n_timed
    assert first == timed[0]
    numbers = [int(text.split()[1]) for text in timed]
    assert len(set(numbers)) == n_timed
    # Those that were timed come from the whole range.
    assert min(numbers) < 10
    assert max(numbers) > 90
