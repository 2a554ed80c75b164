"""History: kept runs are read once, checked by type, and never stop a night whatever stands in them."""

import copy
import json
import math
import os
import shutil

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rag_eval.evaluation.comparing import run_ids
from rag_eval.evaluation.history_steps import CODES, changes, history
from rag_eval.evaluation.past_runs import Past, keep_summary, past_run, past_runs
from rag_eval.reporting.metrics_report import content_hash, first_fault, schema
from rag_eval.reporting.null_reasons import with_reasons

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning"
)  # raised inside MLflow's own SQLAlchemy models


def unexplained(value, path="", key="", owner=None):
    """Paths of nulls without a reason beside them."""
    if value is None:
        told = owner.get(f"{key}_reason") or (key == "value" and owner.get("reason"))
        return [] if told else [path]
    parts = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [
        found
        for name, part in parts
        for found in unexplained(
            part, f"{path}/{name}", name, value if isinstance(value, dict) else {}
        )
    ]


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Where the first test's two runs are kept for the others: a run takes seconds, a copy none."""
    return tmp_path_factory.mktemp("stores") / "of two runs"


@pytest.fixture
def ran(project, stores):
    """The project after two runs on the same input; `first` is the report of the first, `printed` what each printed."""
    if not stores.exists():
        done = []
        for _ in range(2):
            result = project.invoke("run", "tiny")
            assert result.exit_code == 0
            done.append((result.output, project.report()))
        for folder in (project.home, project.reports):
            shutil.copytree(folder, stores / folder.name)
        (stores / "done.json").write_text(json.dumps(done), encoding="utf-8")
    else:
        for folder in (project.home, project.reports):
            shutil.copytree(stores / folder.name, folder)
    (project.printed_first, project.first), (project.printed, project.second) = json.loads(
        (stores / "done.json").read_text(encoding="utf-8")
    )
    return project


@pytest.fixture
def kept(ran):
    """What was kept of the first run."""
    return json.loads(
        (ran.home / "runs" / f"{ran.first['run_id']}.json").read_text(encoding="utf-8")
    )


def read(home, **more):
    return past_runs(home, "tiny", **{"before": "~", "limit": 59, **more})


def write(home, kept, run_id=None):
    run_id = run_id or kept["report"]["run_id"]
    (home / "runs").mkdir(parents=True, exist_ok=True)
    (home / "runs" / f"{run_id}.json").write_text(json.dumps(kept), encoding="utf-8")
    return run_id


def test_a_first_run_has_no_past(ran):
    report = ran.first
    assert [
        (entry["run_id"], entry["is_this"], entry["comparable"])
        for entry in report["history"]["runs"]
    ] == [(report["run_id"], True, None)]
    assert report["previous"] is None
    assert "no run" in report["previous_reason"]
    assert "previous run" not in ran.printed_first
    assert first_fault(report) is None
    assert unexplained({key: report[key] for key in ("history", "slices", "overlap")}) == []


def test_a_second_run_stands_after_the_first_and_finds_the_same(ran):
    first, second = ran.first, ran.second
    assert second["content_hash"] == first["content_hash"] == content_hash(second)
    entries = second["history"]["runs"]
    assert [(entry["run_id"], entry["is_this"], entry["comparable"]) for entry in entries] == [
        (first["run_id"], False, None),
        (second["run_id"], True, True),
    ]
    for entry, report in zip(entries, (first, second), strict=True):
        assert (entry["timestamp"], entry["gold_hash"], entry["rev"]) == (
            report["timestamp"],
            report["gold"]["hash"],
            report["index"]["rev"],
        )
        assert (entry["index_hash"], entry["chunks_hash"]) == (
            report["index"]["hash"],
            report["index"]["chunks_hash"],
        )
        for strategy in report["strategies"]:
            shown = entry["strategies"][strategy["name"]]
            for key, label in (("recall", "R@10"), ("mrr", "RR")):
                record = next(
                    record
                    for record in strategy["measures"]
                    if (record["label"], record["level"]) == (label, "document")
                )
                assert {
                    name: shown[key][name] for name in ("value", "ci_low", "ci_high", "n_scored")
                } == {name: record[name] for name in ("value", "ci_low", "ci_high", "n_scored")}
            observed = report["uncertainty"]["strategies"][strategy["name"]]["observed"]["miss_any"]
            assert shown["miss_any"]["value"] == observed["value"]
            assert (
                shown["status"] == report["calibration"]["strategies"][strategy["name"]]["status"]
            )
            assert shown["latency_p95_ms"] == strategy["latency_ms"]["p95"]
    assert first_fault(second) is None
    assert unexplained({key: second[key] for key in ("history", "previous")}) == []
    assert f"previous run {first['run_id']}: comparable\n" in ran.printed


def test_every_run_leaves_a_summary_and_ids_stay_those_of_runs(ran):
    ids = run_ids(ran.home)
    assert ids == [ran.first["run_id"], ran.second["run_id"]]
    assert sorted(path.stem for path in (ran.home / "runs").glob("*.summary")) == ids


def test_a_run_is_read_whole_once(ran):
    path = ran.home / "runs" / f"{ran.first['run_id']}.json"
    before, state = read(ran.home), path.stat()
    path.write_bytes(b"x" * state.st_size)
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert read(ran.home) == before  # the file was not opened
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1))
    again = read(ran.home)
    assert [run.run_id for run in again.runs] == [ran.second["run_id"]]
    assert [entry["run_id"] for entry in again.unreadable] == [ran.first["run_id"]]
    assert read(ran.home) == again  # from the summary that says so


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"version": 1}',
        b'{"version": 1, "of": %s, "run": {"run_id": 7}, "reason": null}',
        b'{"version": 1, "of": %s, "run": null, "reason": 5}',
    ],
)
def test_a_damaged_summary_is_made_anew(ran, damage):
    before = read(ran.home)
    path = ran.home / "runs" / f"{ran.first['run_id']}.summary"
    whole = path.read_bytes()
    path.write_bytes(damage.replace(b"%s", json.dumps(json.loads(whole)["of"]).encode()))
    assert read(ran.home) == before
    assert path.read_bytes() == whole


def test_a_summary_s_reason_is_bounded_and_masked(ran):
    path = ran.home / "runs" / f"{ran.first['run_id']}.summary"
    body = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(
        json.dumps({**body, "run": None, "reason": "jane.doe@example.org\n" + "x" * 5000}),
        encoding="utf-8",
    )
    (entry,) = read(ran.home).unreadable
    assert len(entry["reason"]) < 300
    assert entry["reason"].isprintable()
    assert "jane.doe" not in entry["reason"]


def damaged(part, value):
    def change(kept):
        *path, last = part
        at = kept
        for key in path:
            at = at[key]
        at[last] = value

    return change


DAMAGES = {
    "no report": (damaged(["report"], None), ""),
    "a list": (damaged(["report"], []), ""),
    "a figure that is a text": (
        damaged(["report", "strategies", 0, "measures", 0, "level"], []),
        None,
    ),
    "an impossible rate": (
        lambda kept: next(
            r
            for r in kept["report"]["strategies"][0]["measures"]
            if r["label"] == "R@10" and r["level"] == "document"
        ).update(value=1.5),
        "value",
    ),
    "a truth value for a rate": (
        lambda kept: next(
            r
            for r in kept["report"]["strategies"][0]["measures"]
            if r["label"] == "RR" and r["level"] == "document"
        ).update(ci_low=True),
        "ci_low",
    ),
    "too many digits": (damaged(["report", "gold", "n_groups"], 10**40), "n_groups"),
    "less than none": (damaged(["report", "gold", "n_groups"], -1), "n_groups"),
    "another run's id": (
        damaged(["report", "run_id"], "20200101T000000000Z-00000000"),
        "another run",
    ),
    "no id": (damaged(["report", "run_id"], "../../etc"), "run_id"),
    "markup for a hash": (damaged(["report", "index", "hash"], "<script>"), "index_hash"),
    "markup for a time": (damaged(["report", "timestamp"], "<b>"), "timestamp"),
    "markup for a name": (
        damaged(["report", "strategies", 0, "name"], "<b onload=x>"),
        "strategies",
    ),
    "a status of its own": (
        damaged(["report", "calibration", "strategies", "bm25", "status"], "excellent"),
        "status",
    ),
    "a key that leaves the home": (
        damaged(["artifacts", "ranking"], "../../../etc/passwd"),
        "ranking",
    ),
    "no artifacts": (damaged(["artifacts"], 7), ""),
    "no gold set": (damaged(["gold_set"], 5), "gold_set"),
}


@pytest.mark.parametrize(("change", "said"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_run_is_named_and_the_others_stand(ran, kept, change, said):
    spoiled = copy.deepcopy(kept)
    change(spoiled)
    write(ran.home, spoiled, kept["report"]["run_id"])
    past = read(ran.home)
    if said is None:  # what is not looked at may be anything
        assert len(past.runs) == 2
        return
    assert [run.run_id for run in past.runs] == [ran.second["run_id"]]
    (entry,) = past.unreadable
    assert entry["run_id"] == ran.first["run_id"]
    assert entry["reason"].startswith("not a run as it was kept")
    assert said in entry["reason"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"{",
        b"\xff\xfe",
        b'{"report": NaN}',
        b'{"report": 1e999}',
        b"[" * 100_000,
        b'{"report": ' + b"9" * 10_000 + b"}",
    ],
)
def test_bytes_that_are_no_run_are_named(ran, content):
    (ran.home / "runs" / "20200101T000000000Z-00000000.json").write_bytes(content)
    past = read(ran.home)
    assert len(past.runs) == 2
    assert [entry["run_id"] for entry in past.unreadable] == ["20200101T000000000Z-00000000"]
    assert past.n_unreadable == 1


def test_a_folder_a_dead_link_and_a_long_name_are_named(ran):
    (ran.home / "runs" / "1folder.json").mkdir()
    (ran.home / "runs" / "2link.json").symlink_to(ran.home / "nowhere")
    (ran.home / "runs" / f"3{'x' * 200}\u202e.json").write_text("{}", encoding="utf-8")
    past = read(ran.home)
    assert len(past.runs) == 2
    assert len(past.unreadable) == past.n_unreadable == 3
    assert all(
        len(entry["run_id"]) < 150 and entry["run_id"].isprintable() for entry in past.unreadable
    )


def test_the_newest_are_shown_and_the_others_counted(tmp_path, kept):
    for at in range(7):
        other = copy.deepcopy(kept)
        other["report"]["run_id"] = f"2025010{at + 1}T000000000Z-00000000"
        write(tmp_path, other | ({"gold_set": "another"} if at == 5 else {}))
    past = read(tmp_path, limit=3)
    assert [run.run_id[:8] for run in past.runs] == ["20250104", "20250105", "20250107"]
    assert (past.n_left_out, past.unreadable) == (3, [])
    assert [run.run_id[:8] for run in read(tmp_path, before="20250104T", limit=3).runs] == [
        "20250101",
        "20250102",
        "20250103",
    ]


def test_a_run_of_an_earlier_version_lacks_parts_and_says_so(tmp_path, kept):
    for part in ("uncertainty", "calibration", "code", "slices", "history", "previous"):
        kept["report"].pop(part)
    kept["artifacts"].pop("ranking")
    write(tmp_path, kept)
    (run,) = read(tmp_path).runs
    entry = with_reasons(history(Past([], [], 0, 0), run))["runs"][0]
    assert run.code is run.ranking is None
    for name in ("miss_any", "skill", "smece", "status"):
        assert entry["strategies"]["bm25"][name] is None
        assert entry["strategies"]["bm25"][f"{name}_reason"]
    assert entry["strategies"]["bm25"]["recall"]["value"] is not None


def test_a_revision_with_personal_data_or_markup_is_not_shown(tmp_path, kept):
    for rev in ("jane.doe@example.org", "<b>", "x" * 300, 7, None):
        kept["report"]["index"]["corpus_rev"] = rev
        write(tmp_path, kept)
        (run,) = read(tmp_path).runs
        assert run.rev is None
    kept["report"]["index"]["corpus_rev"] = "pandas==3.1.1"
    write(tmp_path, kept)
    assert read(tmp_path).runs[0].rev == "pandas==3.1.1"


def test_each_thing_that_differs_is_named_once(kept):
    one = past_run(kept)
    other = "f" * 32
    bm25, vector = one.strategies["bm25"], one.strategies["vector"]
    assert changes(one, one) == {}
    cases = {
        "gold_changed": {"gold_hash": other},
        "chunks_changed": {"chunks_hash": other},
        "index_changed": {
            "strategies": {
                "bm25": bm25.model_copy(update={"index_hash": f"bm25s:{other}"}),
                "vector": vector,
            }
        },
        "configuration_changed": {
            "strategies": {
                "bm25": bm25,
                "vector": vector.model_copy(update={"configuration": other}),
            }
        },
        "strategies_changed": {"strategies": {"bm25": bm25, "hybrid": vector}},
        "code_changed": {"code": other},
    }
    for code, update in cases.items():
        assert list(changes(one, one.model_copy(update=update))) == [code]
        assert list(changes(one.model_copy(update=update), one)) == [code]
    assert list(changes(one, one.model_copy(update={"settings": other}))) == [
        "configuration_changed"
    ]
    everything = {
        "gold_hash": other,
        "chunks_hash": other,
        "settings": other,
        "code": other,
        "strategies": {"bm25": bm25.model_copy(update={"index_hash": f"bm25s:{other}"})},
    }
    assert tuple(changes(one, one.model_copy(update=everything))) == CODES


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.sampled_from(["document", "measured", "R@10", "bm25", "0" * 32]),
    lambda part: (
        st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=5), part, max_size=3)
    ),
    max_leaves=5,
)


def places(value, path=()):
    yield path
    for key, part in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        yield from places(part, (*path, key))


READ = (
    "gold",
    "index",
    "evaluation",
    "strategies",
    "calibration",
    "uncertainty",
    "gates",
    "code",
    "run_id",
    "timestamp",
)


@given(st.data())
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_whatever_is_changed_the_history_keeps_its_schema(kept, tmp_path, data):
    spoiled = {
        "gold_set": "tiny",
        "artifacts": dict(kept["artifacts"]),
        "report": {key: copy.deepcopy(kept["report"][key]) for key in READ},
    }
    part = data.draw(st.sampled_from(READ))
    *path, last = data.draw(
        st.sampled_from([("report", part, *place) for place in places(spoiled["report"][part])])
    )
    at = spoiled
    for key in path:
        at = at[key]
    at[last] = data.draw(JSON)
    run_id = write(tmp_path, spoiled, kept["report"]["run_id"])
    found = keep_summary(tmp_path, run_id)
    past = read(tmp_path)
    assert (len(past.runs), len(past.unreadable)) in {(0, 1), (1, 0), (0, 0)}
    assert isinstance(found, str) == bool(past.unreadable)
    whole = schema()
    shown = with_reasons(history(past, past_run(kept)))
    errors = list(
        jsonschema.Draft202012Validator(
            {**whole["properties"]["history"], "$defs": whole["$defs"]}
        ).iter_errors(shown)
    )
    assert not errors
    assert unexplained(shown) == []
    assert all(math.isfinite(value) for value in numbers(shown))


def numbers(value):
    if isinstance(value, float):
        yield value
    for part in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from numbers(part)
