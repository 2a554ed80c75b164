"""A kept run that says what no run says: whatever stands in it, no page fails for it, and where it cannot be shown it is named."""

import copy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ODD = "20300101T000000000Z-00000000"
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([10**400, -(10**308), 10**307, 2**63, 1e308, -0.0, 5e-324]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=40),
    st.sampled_from(
        [
            "0001-01-01T00:00:00+23:59",
            "9999-12-31T23:59:59-23:59",
            "0001-01-01",
            "\ud800",
            "../../etc/passwd",
            "\x00",
            "{{ 7*7 }}",
            "x" * 100_000,
        ]
    ),
    st.lists(st.none() | st.integers() | st.text(max_size=5), max_size=3),
    st.dictionaries(
        st.text(max_size=5), st.none() | st.integers() | st.text(max_size=5), max_size=3
    ),
)
NO_CHECK = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}


def leaves(value, path=()):
    """Paths of everything in a JSON value that is neither an object nor a list, and of those that are empty."""
    parts = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    found = [leaf for name, part in parts for leaf in leaves(part, (*path, name))]
    return found or [path]


def changed(kept, path, value):
    made = copy.deepcopy(kept)
    place = made
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    return made


def asked(viewed, client, kept, *, report=False):
    """Keep an odd run beside the real one, ask for everything of it (its report takes a second to make), and return the page of the list."""
    viewed.keep(kept, ODD)
    page = client.get("/")
    assert page.status_code == 200
    assert f'href="/runs/{viewed.run_id}/"' in page.text
    assert ODD in page.text
    for rest in (
        "/",
        "/explorer/summary.json",
        "/explorer/questions-0000.json",
        *(["/report"] if report else []),
    ):
        status = client.get(f"/runs/{ODD}{rest}").status_code
        assert status in (
            {200, 404}
            if f'href="/runs/{ODD}/"' in page.text and rest != "/report"
            else {200, 404, 409}
        ), (rest, status)
    assert client.get(f"/runs/{viewed.run_id}/").status_code == 200
    return page.text


def of_report(kept, label="R@10"):
    """Path of the primary strategy's figure in the list."""
    report = kept["report"]
    at = next(
        place
        for place, entry in enumerate(report["strategies"])
        if entry["name"] == report["strategy"]
    )
    measures = report["strategies"][at]["measures"]
    return (
        "report",
        "strategies",
        at,
        "measures",
        next(
            place
            for place, entry in enumerate(measures)
            if entry["label"] == label and entry["level"] == report["evaluation"]["level"]
        ),
    )


@pytest.mark.parametrize(
    "text",
    [
        "0001-01-01T00:00:00+23:59",
        "9999-12-31T23:59:59-23:59",
        "0001-01-01T00:00:00",
        "9999-12-31T23:59:59",
    ],
)
def test_a_time_that_no_clock_shows_stands_as_it_is(viewed, text):
    assert text[:10] in asked(
        viewed, viewed.client(), changed(viewed.kept(), ("report", "timestamp"), text)
    )


@pytest.mark.parametrize("name", ["value", "ci_low", "ci_high", "n_scored"])
@pytest.mark.parametrize("figure", [10**400, -(10**400)], ids=["large", "small"])
def test_a_figure_that_no_float_holds_is_a_damaged_run(viewed, name, figure):
    kept = viewed.kept()
    page = asked(viewed, viewed.client(), changed(kept, (*of_report(kept), name), figure))
    assert "This run cannot be read" in page
    assert "cannot be shown" in viewed.client().get(f"/runs/{ODD}/").text


def test_whatever_is_shown_in_a_line_may_be_anything(viewed):
    """Every place that the list reads, under many values each."""
    kept, client = viewed.kept(), viewed.client()
    figure = of_report(kept)
    places = [
        ("gold_set",),
        ("artifacts",),
        ("report",),
        *(
            ("report", name)
            for name in ("timestamp", "strategy", "index", "evaluation", "gates", "strategies")
        ),
        *((*figure, name) for name in ("value", "ci_low", "ci_high", "n_scored", "label", "level")),
    ]
    places += [
        ("report", "index", "hash"),
        ("report", "evaluation", "level"),
        figure,
        figure[:3],
        figure[:4],
        ("artifacts", "explorer"),
        ("artifacts", "claims"),
    ]

    @settings(max_examples=60, **NO_CHECK)
    @given(st.sampled_from(places), VALUES)
    def check(path, value):
        asked(viewed, client, changed(kept, path, value))

    check()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_any_leaf_of_a_kept_run_may_be_anything(viewed):
    """Also the report as it is made anew of what is kept: no page of it is stored here."""
    kept, client = viewed.kept(), viewed.client()
    kept["artifacts"].pop("html", None)
    every = leaves(kept)
    unhashed = [
        path
        for path in every
        if path[:2]
        in {
            ("report", name)
            for name in (
                "calibration",
                "history",
                "previous",
                "uncertainty",
                "embeddings",
                "drift",
                "timestamp",
                "run_id",
            )
        }
    ]
    assert len(every) > len(unhashed) > 100

    @settings(max_examples=40, **NO_CHECK)
    @given(st.sampled_from(every) | st.sampled_from(unhashed), VALUES)
    def check(path, value):
        asked(viewed, client, changed(kept, path, value), report=True)

    check()


def test_a_report_that_keeps_its_schema_and_makes_no_page_is_refused(viewed):
    """What is not hashed may be anything that the schema allows: the page is refused in words, and the server has not failed."""
    kept, client = viewed.kept(), viewed.client()
    kept["artifacts"].pop("html", None)
    kept["report"]["uncertainty"]["strategies"].pop(kept["report"]["strategy"])
    viewed.keep(kept, ODD)
    answer = client.get(f"/runs/{ODD}/report")
    assert (answer.status_code, "cannot be shown" in answer.text) == (409, True)
    assert client.get(f"/runs/{ODD}/").status_code == 200
