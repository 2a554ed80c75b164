"""Claims of production traffic: retrieved again, left out with a reason where they say nothing, and the only ground of prediction-powered estimates."""

import io
import json

import missing_project as made
import numpy as np
import pytest
from cli_project import jsonl
from missing_project import call
from rich.console import Console

from rag_eval.evaluation.calibrating import calibrate_gold_set, compare_strategies
from rag_eval.evaluation.calibration_steps import miss_rate_calibration
from rag_eval.evaluation.claim_steps import miss_rate_claims
from rag_eval.evaluation.corpus_steps import corpus_chunks
from rag_eval.evaluation.index_steps import IndexOpener
from rag_eval.evaluation.inputs import adjust, open_gold_set
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.evaluation.signal_steps import fingerprint_of, strategy_signals
from rag_eval.evaluation.traffic_steps import traffic
from rag_eval.gold.configuration import load_config
from rag_eval.records.problems import InputError
from rag_eval.reporting.calibration_tables import calibration_json, show_calibration
from rag_eval.storage.hashing import text_hash
from rag_eval.uncertainty.signals import SIGNALS

AT = "2026-01-31T12:00:00Z"


@pytest.fixture
def missing(project):
    made.make(project)
    return project


def opened(project):
    from rag_eval.settings import Settings

    evaluation = open_gold_set(
        project.gold,
        Settings(
            home=project.home,
            reports=project.reports,
            gold_sets=project.gold.parent,
            latency_queries=1,
        ),
    )
    return Runs(evaluation, IndexOpener(evaluation))


def bring(project, name, claims):
    """Import claims (query, ids, and more fields of a line) of a strategy as it stands."""
    rows = [
        {"query": query, "retrieved": [{"id": one, "score": 1.0} for one in ids], "at": AT, **more}
        for query, ids, more in claims
    ]
    (project.root / "traffic.jsonl").write_text(jsonl(rows), encoding="utf-8")
    call(
        project,
        "claim",
        "import",
        project.root / "traffic.jsonl",
        "--strategy",
        name,
        "--fingerprint",
        fingerprint_of(opened(project), name),
    )


def audit(project, name, n, missed):
    """Draw claims of a strategy at random and judge every one."""
    path = project.root / f"audit-{name}-{n}.jsonl"
    call(
        project,
        "audit",
        "draw",
        "--n",
        str(n),
        "--seed",
        "1",
        "--depth",
        "20",
        "--strategy",
        name,
        "--out",
        path,
    )
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    told = [
        {
            **row,
            "missed": missed(row["query"]),
            "gold_source": "human",
            "audit_depth": 20,
            "gold_strategies": [],
            **({"missed_content": "it"} if missed(row["query"]) else {}),
        }
        for row in rows
    ]
    path.write_text(jsonl(told), encoding="utf-8")
    call(project, "outcome", "import", path)


def shown(found):
    console = Console(width=200, file=io.StringIO())
    show_calibration(console, found)
    return console.file.getvalue()


def test_traffic_counts_as_much_for_who_speaks_as_for_what_is_announced(project):
    """Six questions are too few for the prior's z-scores, 44 more of production traffic are enough, and not one fewer."""
    for n, status in ((43, "uncalibrated"), (44, "prior")):
        bring(
            project,
            "bm25",
            [(f"how is job {at} tried again", ["retries.md"], {}) for at in range(n)],
        )
        runs = opened(project)
        n_own = int((~strategy_signals(runs, "bm25").frame("signals")["failed"]).sum())
        assert (n_own, len(traffic(runs, "bm25").frame)) == (6, n)
        claims = miss_rate_claims(runs)
        assert set(claims.frame("claims").query("strategy == 'bm25'")["status"]) == {status}
        known = miss_rate_calibration(runs)["bm25"]
        counted = next(
            one for one in known["standing"]["conditions"] if one["name"] == "queries_for_z_scores"
        )
        assert (known["status"], counted["found"]) == (status, str(6 + n))


@pytest.mark.parametrize("strategy", [made.BM25, made.VECTOR, made.ITERATIVE])
def test_a_list_that_production_cut_short_has_the_signals_of_the_whole_list(missing, strategy):
    made.configure(missing, *dict.fromkeys((made.BM25, strategy)), more="")
    name = strategy.split("name: ")[1].split(",")[0]
    runs = opened(missing)
    rows, variants = runs.rows(name)[13], runs.gold.variants["text"].tolist()
    of = [at for at in range(len(variants)) if (rows[at] >= 0).any()][:12]
    documents, chunks = runs.opened().table.doc_ids, runs.opened().table.chunk_ids
    bring(
        missing,
        name,
        [(variants[at], [(documents if at % 2 else chunks)[rows[at][0]]], {}) for at in of],
    )
    found = traffic(opened(missing), name)
    assert (len(found.frame), found.n_unknown, found.n_differing, found.reason) == (
        len(of),
        0,
        0,
        "",
    )
    whole = (
        strategy_signals(runs, name)
        .frame("signals")
        .set_index("variant")[list(SIGNALS)]
        .to_numpy()[of]
    )
    alone = [
        at for at, signal in enumerate(SIGNALS) if not signal.startswith(("wordings", "consensus"))
    ]  # no claim is known to be another's wording
    assert np.isnan(np.delete(found.signals, alone, axis=1)).all()
    mine, gold = (
        sorted(map(tuple, np.nan_to_num(part[:, alone], nan=-1).round(6).tolist()))
        for part in (found.signals, whole)
    )
    assert mine == gold


def test_claims_of_something_else_are_counted_and_left_out(missing):
    first, last = made.word(1), made.word(4)
    claims = [
        (f"where is {first} found", ["d01.md"], {}),
        (f"where is {first} found", ["d01.md", "other.md"], {"query_id": "again"}),
        (f"where stands {last}", ["d07.md", "d08.md"], {}),  # known here, and not what comes back
        (f"where stands {first}", ["a:1", "b:2"], {}),  # known nowhere
        (f"where lies {first}", ["a:1", "d01.md"], {"k": 1}),  # known under K only
        ("xyzzy", [], {}),  # nothing was retrieved, and nothing is
        (f"the {first}", [], {}),
    ]
    bring(missing, "bm25", claims)
    runs = opened(missing)
    found = traffic(runs, "bm25")
    assert sorted(found.frame["query_id"].isin(["again"]).tolist()) == [False, False, True]
    assert (found.n_unknown, found.n_differing, len(found.known())) == (2, 2, 3)
    assert found.reason == "2 whose first K ids are neither chunks nor documents of this corpus"
    assert found.signals.shape == (3, len(SIGNALS))
    calibrated = calibrate_gold_set(runs.evaluation)
    json.dumps(calibration_json(calibrated), allow_nan=False)
    assert calibrated.traffic["bm25"] == {
        "counted": 3,
        "n_unknown": 2,
        "n_differing": 2,
        "reason": found.reason,
    }
    text = shown(calibrated)
    assert "3 claims of production traffic counted in" in text
    assert f"2 claims of production traffic left out, they say nothing here: {found.reason}" in text
    assert (
        "2 claims of production traffic left out, nothing of their first K is what this strategy retrieves now"
        in text
    )


def test_without_claims_nothing_is_said_of_them(missing):
    found = calibrate_gold_set(opened(missing).evaluation)
    assert found.traffic["bm25"]["counted"] == 0
    assert "claims of production traffic" not in shown(found)


def vectors_file(project, path):
    """Vectors of all that a run asks for, and of nothing else."""
    chunks = corpus_chunks(opened(project).evaluation).frame("chunks")
    asked = [
        json.loads(line)["text"]
        for name in ("queries", "paraphrases")
        for line in (project.gold / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    titled = [
        f"{title} {text}".strip()
        for title, text in zip(chunks["title"], chunks["text"], strict=True)
    ]
    names = sorted({text_hash(text) for text in [*titled, *chunks["text"], *asked]})
    np.savez(
        path,
        sha256=np.array(names),
        vectors=np.random.default_rng(3).normal(size=(len(names), 8)).astype(np.float32),
    )


def test_questions_that_a_file_of_vectors_does_not_have_are_no_traffic_and_no_error(project):
    vectors_file(project, project.gold / "own.npz")
    path = project.gold / "gold_set.yaml"
    path.write_text(
        path.read_text(encoding="utf-8").replace("{model: lsa-8}", "{vectors: own.npz}"),
        encoding="utf-8",
    )
    for name in ("bm25", "vector"):  # the second retriever of bm25 is by the same vectors
        bring(
            project,
            name,
            [
                ("was it deleted at midnight", ["storage.md"], {}),
                ("number of retries", ["retries.md"], {}),
            ],
        )
        found = traffic(opened(project), name)
        assert (len(found.frame), found.n_unknown, found.reason) == (
            1,
            1,
            "1 with questions that the file of vectors has none for",
        )
        assert np.isfinite(found.signals).any()


def test_rounds_over_vectors_of_a_file_are_refused_where_they_are_configured(missing):
    made.configure(missing, made.VECTOR, "{name: rounds, kind: iterative, base: vector}", more="")
    config = load_config(missing.gold)
    vectors = missing.gold / "own.npz"
    vectors.write_bytes(b"")
    with pytest.raises(InputError, match="rounds") as error:
        adjust(config, (), vectors)
    assert [problem.code for problem in error.value.problems] == ["vectors_of_rounds"]
    assert [spec.name for spec in adjust(config, ("vector",), vectors).strategies] == ["vector"]
    hybrid = "{name: vector, kind: hybrid, embedding: {vectors: own.npz}}"
    for base in (made.VECTOR.replace("model: lsa-8", "vectors: own.npz"), hybrid):
        made.configure(missing, base, "{name: rounds, kind: iterative, base: vector}", more="")
        with pytest.raises(InputError, match="reads its vectors from a file"):
            load_config(missing.gold)
    made.configure(missing, made.BM25, hybrid, made.ITERATIVE, more="")
    assert load_config(missing.gold).primary_strategy == "bm25"


NAMES = ("bm25", "vector")
ASKED = [f"in what place is {made.word(number)} kept" for number in range(40)]
LOST = set(ASKED[::3])


@pytest.fixture
def asked(missing):
    """Two strategies with forty claims each, of the same questions."""
    made.configure(missing, made.BM25, made.VECTOR, more="")
    for name in NAMES:
        runs = opened(missing)
        rows, documents = (
            runs.opened().strategies[name].search(ASKED, 10, 13).rows,
            runs.opened().table.doc_ids,
        )
        bring(
            missing,
            name,
            [
                (text, [documents[row] for row in rows[at] if row >= 0], {})
                for at, text in enumerate(ASKED)
            ],
        )
    return missing


@pytest.mark.slow
def test_without_audits_there_is_no_powered_estimate(asked):
    csv, latex = asked.root / "compare.csv", asked.root / "compare.tex"
    text = call(
        asked,
        "calibrate",
        "compare",
        *NAMES,
        "--gold-set",
        "tiny",
        "--gold-sets",
        asked.gold.parent,
        "--csv",
        csv,
        "--latex",
        latex,
    ).stdout
    found = compare_strategies(opened(asked).evaluation, NAMES)
    assert found.n == 60
    assert [entry.powered for entry in found.strategies] == [None, None]
    assert [entry.powered_reason for entry in found.strategies] == [
        f"none of the 40 claims of production traffic of {name} has an audit with a known inclusion probability for miss_any@10"
        for name in NAMES
    ]
    told = " ".join(text.split())
    for entry in found.strategies:
        assert told.count(entry.powered_reason) == 1
        assert entry.powered_reason in csv.read_text(encoding="utf-8")
    assert latex.read_text(encoding="utf-8").count(
        "% No powered estimate: none of the 40 claims"
    ) == len(NAMES)


@pytest.mark.slow
def test_powered_estimates_need_a_simple_random_sample_of_the_traffic(asked):
    for name in NAMES:
        audit(asked, name, 25, LOST.__contains__)
    found = compare_strategies(opened(asked).evaluation, NAMES)
    assert found.n == 60  # the gold questions, whatever the traffic
    for entry in found.strategies:
        assert (entry.observed.n, entry.calibrated.n, entry.raw.n, entry.brier.n) == (
            60,
            60,
            60,
            60,
        )
        assert (entry.powered.n_labelled, entry.powered.n_unlabelled, entry.powered_reason) == (
            25,
            15,
            "",
        )
        assert 0 <= entry.powered.low <= entry.powered.value <= entry.powered.high <= 1
    pair = next(row for row in found.differences if row.measure == "powered")
    assert pair.delta.n == 40
    assert 10 <= pair.powered.n_labelled <= 25
    assert pair.powered.labels_value == pytest.approx(0)  # both audits say the same of a question

    audit(asked, "bm25", 5, LOST.__contains__)  # of the same claims: two draws are one sample of 30
    both = compare_strategies(opened(asked).evaluation, NAMES)
    assert (both.strategies[0].powered.n_labelled, both.strategies[0].powered.n_unlabelled) == (
        30,
        10,
    )
    assert both.strategies[1].powered == found.strategies[1].powered

    later = [f"in which place is {made.word(number)} kept" for number in range(4)]
    bring(
        asked, "bm25", [(text, [], {}) for text in later]
    )  # nothing was retrieved, so nothing of it comes back
    assert (
        compare_strategies(opened(asked).evaluation, NAMES).strategies[0].powered
        == both.strategies[0].powered
    )
    bring(asked, "bm25", [(text, [f"d{number:02d}.md"], {}) for number, text in enumerate(later)])
    came = compare_strategies(opened(asked).evaluation, NAMES).strategies[0]
    assert came.powered is None
    assert (
        came.powered_reason
        == "4 of the 44 claims of production traffic of bm25 came in after the last draw that was judged: those audited are no sample of all of them"
    )
    audit(asked, "bm25", 9, LOST.__contains__)
    unequal = compare_strategies(opened(asked).evaluation, NAMES)
    assert unequal.strategies[0].powered is None
    assert "unequal probabilities, 0.5 to 0.875" in unequal.strategies[0].powered_reason
    assert unequal.strategies[1].powered == found.strategies[1].powered
    assert (
        next(row for row in unequal.differences if row.measure == "powered").powered_reason
        == unequal.strategies[0].powered_reason
    )
