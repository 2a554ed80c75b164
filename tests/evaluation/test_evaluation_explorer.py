"""The explorer's parts agree with the measures on every retrieval, and its texts are safe."""

import json
import math

import numpy as np
import pytest
from cli_project import ANSWERS, CONFIG, jsonl
from hypothesis import example, given
from hypothesis import strategies as st

from rag_eval.core.settings import Settings
from rag_eval.corpus.masking import mask_shown_address
from rag_eval.pipeline.answer_stages import AnswerMeasures, AnswerSet, CitationSet
from rag_eval.pipeline.corpus import CorpusChunks, CorpusSnapshot, EvidenceTrust
from rag_eval.pipeline.explorer import Explored, write_explorer
from rag_eval.pipeline.exports import Answered
from rag_eval.pipeline.history import find_previous, make_record
from rag_eval.pipeline.measure_stages import MissedQuestions, RankingMeasures
from rag_eval.pipeline.miss_rate_stages import MissRateClaims
from rag_eval.pipeline.opening import open_gold_set, open_recorded
from rag_eval.pipeline.report_stages import MetricsReport
from rag_eval.pipeline.runner import Work
from rag_eval.pipeline.stages import open_runner
from rag_eval.pipeline.strategy_runs import open_runs
from rag_eval.reporting.questions import (
    _embedded_size,
    address,
    marked,
    rank_missed,
    slim,
    unpacked,
)
from rag_eval.reporting.tables import visible

VECTOR = "  - {name: vector, kind: vector, embedding: {model: lsa-8}}\n"
SEEDS = CONFIG.replace("seeds: [13]", "seeds: [13, 29]").replace(
    "{model: lsa-8}}", "{model: lsa-8}, search: approximate, rerank: {kind: mmr}}"
)
OTHER_BM25 = CONFIG.replace("kind: bm25", "kind: bm25, k1: 9, b: 1")
HOSTILE = (
    "<script>alert(1)</script> \u202etxt\u200b {{7*7}} ${1} onerror=alert(1) jane.doe@example.org "
    + "w" * 5_000
)
FACT = "A failed job is tried three more times."
UNKNOWN = {"query_id": "keep", "question": "?", "answer": None, "error": "timeout", "contexts": []}


def settings_of(project):
    return Settings(
        home=project.home, reports=project.reports, gold_sets=project.root / "gold_sets"
    )


def evaluation_of(project, config=CONFIG):
    project.write("gold_set.yaml", config)
    return open_gold_set(project.gold, settings_of(project))


def explore(evaluation):
    """Write the explorer as the stage of the report does."""
    runner = open_runner(evaluation)
    get, stage = runner.get, runner.stages["retrieval_metrics_report"]
    answered = None
    if evaluation.config.answers is not None:
        answered = Answered(get(AnswerSet), get(CitationSet), get(AnswerMeasures))
    types = (CorpusSnapshot, CorpusChunks, EvidenceTrust, MissRateClaims, MissedQuestions)
    made = Explored(open_runs(runner), *map(get, types), answered)
    now = make_record(evaluation.config.name, {}, get(MetricsReport).report.dump())
    per_query = get(RankingMeasures).per_query
    previous = find_previous(evaluation.home, now, made.runs.gold, per_query)
    return write_explorer(Work(evaluation, stage, "1"), made, previous)


class Read:
    """Parts of an explorer."""

    def __init__(self, parts):
        self.parts = {name: unpacked(part) for name, part in sorted(parts.items())}
        self.summary = self.parts["summary.json.gz"]
        self.table = self.summary["questions"]
        shards = (part for name, part in self.parts.items() if name.startswith("questions-"))
        self.questions = [question for part in shards for question in part]
        assert self.summary["n_questions"] == len(self.questions)
        assert [question["id"] for question in self.questions] == self.table["id"]

    def question(self, query_id):
        return next(question for question in self.questions if question["id"] == query_id)

    def runs(self, query_id, strategy):
        return [run for run in self.question(query_id)["runs"] if run["s"] == strategy]

    def units(self, query_id, strategy):
        """Return the units of the first retrieval of a strategy, best first."""
        units = self.question(query_id)["units"]
        return [units[place] for place in self.runs(query_id, strategy)[0]["units"]]


def parts_of(artifact):
    return {path.name: path.read_bytes() for path in artifact.folder.glob("*.json.gz")}


def read(evaluation):
    return Read(parts_of(explore(evaluation)))


def close(found, value, rel=1e-5):
    if found is None or math.isnan(value):
        return found is None and math.isnan(value)
    return found == pytest.approx(value, rel=rel, abs=1e-9)


def relevant_places(runs, name, row, seed):
    """Return the places of relevant chunks among the first ten, from the frames of the stages."""
    gold, level, variants = runs.gold_variants, runs.config.level, runs.gold.variants
    is_asked = (variants["query_id"] == row["id"]) & (variants["paraphrase_id"] == row["wording"])
    units = runs.rows(name)[seed][variants.index[is_asked][0]][:10]
    units = units[units >= 0]
    if level == "span":
        spans = gold.spans.index[gold.spans["query_id"] == row["id"]]
        good = gold.span_chunks.loc[gold.span_chunks["span"].isin(spans), "chunk"]
    else:
        qrels = gold.qrels_document if level == "document" else gold.qrels_section
        good = qrels.loc[(qrels["query_id"] == row["id"]) & (qrels["gain"] > 0), "item_id"]
        units = runs.units(name).iloc[units][{"document": "doc_id"}.get(level, "section_id")]
    return [place for place, unit in enumerate(units) if unit in set(good)]


def check_against_measures(evaluation, found):
    """Check each run's values, first ranks, hits and counts against the per-query frame."""
    runs, get = open_runs(open_runner(evaluation)), open_runner(evaluation).get
    keys = ["strategy", "query_id", "paraphrase_id", "seed"]
    frame = get(RankingMeasures).per_query
    frame = frame[frame["level"] == runs.config.level].set_index(keys).sort_index()
    claims = get(MissRateClaims).claims.set_index(keys).sort_index()
    names, table, n_hits = found.summary["strategies"], found.table, 0
    for at, question in enumerate(found.questions):
        by_strategy = {name: [] for name in names}
        for run in question["runs"]:
            name, wording = names[run["s"]], question["wordings"][run["w"]]["id"]
            row = frame.loc[(name, question["id"], wording, run["seed"])]
            by_strategy[name].append((wording, run))
            assert close(run["value"], row["recall_at_10"])
            assert run["first"] == (None if not row["mrr"] > 0 else round(1 / row["mrr"]))
            assert len(run["units"]) == len(run["scores"])
            assert run["failed"] == bool(row["failed"])
            claim = claims.loc[(name, question["id"], wording, run["seed"])]
            assert close(run["miss"][0], claim["miss_rate"], 1e-3)
            assert run["miss"][3:] == [claim["status"], claim["calibrator"]]
            asked = {"id": question["id"], "wording": wording}
            if not runs.spec(name).own_units:
                assert run["hits"] == relevant_places(runs, name, asked, run["seed"])
            n_hits += len(run["hits"])
        for place, name in enumerate(names):
            asked = frame.loc[(name, question["id"])] if by_strategy[name] else frame.iloc[:0]
            scored = asked.dropna(subset="recall_at_10")
            assert close(table["value"][place][at], scored["recall_at_10"].mean())
            hits, n_runs = table["hits"][place][at], table["runs"][place][at]
            share = None if hits is None else hits / n_runs
            assert close(share, scored["success_at_10"].mean())
            first = [run["first"] for wording, run in by_strategy[name] if wording == "original"]
            assert table["first"][place][at] == (first[0] if first else None)
    assert n_hits


@pytest.mark.parametrize("config", [CONFIG + "level: span\n", SEEDS], ids=["span", "seeds matter"])
def test_every_retrieval_says_what_the_measures_say(project, config):
    evaluation = evaluation_of(project, config)
    found = read(evaluation)
    check_against_measures(evaluation, found)
    assert {None} == {value for row in found.table["change"] for value in row}
    seeds = [{run["seed"] for run in found.runs("keep", strategy)} for strategy in (0, 1)]
    assert seeds == [{13}, {13}]


def test_questions_show_gold_marks_and_answers(project):
    found = read(evaluation_of(project))
    question, quote = found.question("again"), ANSWERS[0]["anchors"][0]["quote"]
    assert [(entry["doc"], entry["quote"]) for entry in question["gold"]] == [("retries.md", quote)]
    gold = [unit for unit in question["units"] if quote in unit["text"][1::2]]
    assert gold
    assert {unit["doc"] for unit in gold} == {"retries.md"}
    assert found.question("keep")["gold"][0]["quote"] == ""
    assert {len(unit["text"]) for unit in found.question("keep")["units"]} == {1}
    assert found.question("price")["gold"] == []
    table, at = found.table, found.table["id"].index("price")
    assert [row[at] for row in table["value"]] == [row[at] for row in table["hits"]] == [None] * 2
    assert [len(asked["wordings"]) for asked in found.questions] == [2, 2, 1, 1]
    assert found.question("price")["answer"]["outcome"] == "not_found"
    for asked in found.questions:
        assert all(citation["code"] == "ok" for citation in asked["answer"]["citations"])
    assert [citation["correct"] for citation in question["answer"]["citations"]] == [True]


def test_units_of_a_run_file_stand_behind_the_chunks(project):
    rows = ["keep Q0 storage.md 1 2.0 t", "keep Q0 nowhere.md 2 1.0 t"]
    rows += ["again Q0 alerts.md 1 2.0 t", "again Q0 retries.md 2 1.0 t"]
    project.write("mine.trec", "\n".join(rows) + "\n")
    external = "  - {name: mine, kind: external, run_file: mine.trec}\n"
    config = CONFIG.replace(VECTOR, external) + "trust: {domains: [example.org]}\n"
    evaluation = evaluation_of(project, config)
    found = read(evaluation)
    check_against_measures(evaluation, found)
    assert {unit["doc"] for unit in found.units("keep", 1)} == {"storage.md", "nowhere.md"}
    # The run file has the original wordings only.
    assert [(run["w"], run["hits"]) for run in found.runs("again", 1)] == [(0, [1])]
    assert found.table["runs"][1][:2] == [1, 1]


def test_outputs_of_a_system_of_its_own_keep_to_the_format(project):
    folder = project.root / "my-system"
    folder.mkdir()
    url = "https://example.org/jane.doe@example.org"
    contexts = [
        {"doc_id": "retries.md", "text": FACT, "url": url},
        {"doc_id": "odd", "text": f"A. {HOSTILE}", "url": "javascript:alert(1)"},
    ]
    answered = {"query_id": "again", "question": f"{HOSTILE}?"[:900], "answer": f"{FACT} [1]"}
    rows = [{**answered, "contexts": contexts}, UNKNOWN]
    (folder / "outputs.jsonl").write_text(jsonl(rows), encoding="utf-8")
    evaluation = open_recorded(folder, settings_of(project))
    found = read(evaluation)
    citation = found.question("again")["answer"]["citations"][0]
    assert (citation["doc"], citation["correct"]) == ("retries.md", None)
    assert found.question("keep")["answer"]["outcome"] == "failed"
    assert [run["failed"] for run in found.question("keep")["runs"]] == [True]
    written = json.dumps(found.parts, ensure_ascii=False)
    assert not any(text in written for text in ("\u202e", "\u200b", "jane.doe", "w" * 700))
    assert "<script>" in found.table["text"][found.table["id"].index("again")]
    assert {unit["link"] for unit in found.question("again")["units"]} == {""}


# ---- The run before, and parts that a later run shares.


def keep(evaluation, run_id):
    """Keep a run under an id, as an earlier night did."""
    made = open_runner(evaluation).get(MetricsReport).report.run_id
    path = evaluation.home.folder / "runs" / f"{made}.json"
    path.write_text(path.read_text(encoding="utf-8").replace(made, run_id), encoding="utf-8")
    return path.rename(path.with_stem(run_id))


NIGHTS = [f"2026010{day}T000000000Z-00000000" for day in (1, 2, 3)]


@pytest.mark.slow
def test_changes_are_against_the_newest_kept_run(project):
    old = evaluation_of(project, OTHER_BM25)
    before = read(old)
    keep(old, NIGHTS[0])
    (project.home / "runs" / f"{NIGHTS[1]}.json").write_bytes(b"{")
    new = evaluation_of(project)
    found = read(new)
    for changes, now, then in zip(
        found.table["change"], found.table["value"], before.table["value"], strict=True
    ):
        for change, after, earlier in zip(changes, now, then, strict=True):
            expected = None if after is None else pytest.approx(after - earlier, rel=0, abs=1e-5)
            assert change == expected
    # A previous run with other figures changes the explorer's comparison.
    keep(new, NIGHTS[2])
    again = read(evaluation_of(project))
    assert {value for row in again.table["change"] for value in row} == {0, None}
    assert again.questions == found.questions


def test_a_page_keeps_the_first_ranks_that_fit(project):
    made = explore(evaluation_of(project))
    whole = parts_of(made)
    assert slim(made, _embedded_size(whole)) == whole
    least = Read(slim(made, 1))
    assert least.summary["cut"] == [0, 0]
    for question, before in zip(least.questions, Read(whole).questions, strict=True):
        units = [unit for unit in question["units"] if unit is not None]
        assert {(unit["text"], unit["title"], unit["source"]) for unit in units} <= {(None, "", "")}
        for run, then in zip(question["runs"], before["runs"], strict=True):
            assert run["units"] == (then["units"] if run["w"] == 0 else [])
        assert (question["gold"], question["answer"]) == (before["gold"], before["answer"])
    limit = (_embedded_size(slim(made, 1)) + _embedded_size(whole)) // 2
    assert _embedded_size(slim(made, limit)) <= limit


# ---- Texts of strangers.


@given(st.text(max_size=200), st.sampled_from(["https://example.org/", "javascript:", ""]))
@example("people/jane.doe@example.org", "https://example.org/")
def test_an_address_is_masked_and_followed_only_as_it_stands(path, start):
    found = address(start + path)
    assert visible(found["source"]) == found["source"]
    assert len(found["source"]) <= 500
    if mask_shown_address(start + path) != start + path:
        assert found["link"] == ""
    assert found["link"] in {"", start + path}
    assert not found["link"] or found["link"].startswith("https://example.org/")


def test_a_window_lies_around_its_span_and_masks_what_it_cuts():
    text = "before\u202e   the\n\n gold\u200b words \u202e after"
    start, end = text.index("gold"), text.index("words") + 5
    pieces = ["before[U+202E] the ", "gold[U+200B] words", " [U+202E] after"]
    assert marked(text, [(start, end)]) == pieces
    long = "a" * 50 + "b" * 1000 + "c" * 50
    assert marked(long, [(50, 1050)]) == ["…", "b" * 200, "…"]
    text = "x" * 30 + " jane.doe@example.org " + "gold " * 60
    for span in ((40, 60), (len(text) - 200, len(text) - 5)):
        assert "example.org" not in "".join(marked(text, [span]))


def test_questions_to_look_at_first_are_the_worst_of_each_group():
    asked = {
        # id: group, hits of the primary and of the other strategy in four runs, stated miss rate
        "half": (0, 2, 4, 0.1),
        "sure": (1, 0, 4, 0.1),
        "unsure": (2, 0, 4, 0.6),
        "same group": (1, 0, 4, 0.2),
        "both miss": (3, 0, 0, None),
        "found": (4, 4, 0, 0.1),
        "no gold": (5, None, None, None),
    }
    groups, primary, other, stated = zip(*asked.values(), strict=True)
    summary = {
        "strategies": ["other", "primary"],
        "primary": 1,
        "questions": {
            "id": list(asked),
            "text": [f"{name}?" for name in asked],
            "hits": [other, primary],
            "runs": [[4] * len(asked)] * 2,
            "miss": [[None] * len(asked), stated],
            "status": [["absent"] * len(asked), ["prior"] * len(asked)],
        },
    }
    found = rank_missed(summary, np.array(groups), {"sure": "No list had it."})
    assert [one.query_id for one in found] == ["sure", "unsure", "both miss"]
    assert (found[0].primary.n_found, found[0].other.n_found, found[0].miss_rate) == (0, 4, 0.1)
    assert found[2].other is None
    assert found[2].why["miss_rate"]
    assert (found[0].lost, found[1].lost) == ("No list had it.", None)
