"""The explorer's parts keep their schemas and agree with the measures on every retrieval."""

import json
import math

import jsonschema
import numpy as np
import pytest
from cli_project import ANSWERS, CONFIG, DOCUMENTS, PARAPHRASES, QRELS, QUERIES, jsonl
from schemas import published

from rag_eval.core.settings import Settings
from rag_eval.pipeline.answers import Answered, AnswerMeasures, AnswerSet, CitationSet
from rag_eval.pipeline.claims import MissRateClaims
from rag_eval.pipeline.corpus import CorpusChunks, CorpusSnapshot, EvidenceTrust
from rag_eval.pipeline.evaluation import open_gold_set, open_recorded
from rag_eval.pipeline.explorer import (
    Explored,
    embedded_size,
    slim,
    unpacked,
    write_explorer,
)
from rag_eval.pipeline.measures import RankingMeasures, StabilityMeasures, open_runs
from rag_eval.pipeline.report import MetricsReport
from rag_eval.pipeline.runner import Work

VECTOR = "  - {name: vector, kind: vector, embedding: {model: lsa-8}}\n"
SEEDS = CONFIG.replace("seeds: [13]", "seeds: [13, 29]").replace(
    "{model: lsa-8}}", "{model: lsa-8}, search: approximate, rerank: {kind: mmr}}"
)
HOSTILE = (
    "<script>alert(1)</script> \u202etxt\u200b {{7*7}} ${1} onerror=alert(1) jane.doe@example.org "
    + "w" * 1_000_000
)


def evaluation_of(project, config=CONFIG):
    (project.gold / "gold_set.yaml").write_text(config, encoding="utf-8")
    return open_gold_set(
        project.gold,
        Settings(home=project.home, reports=project.reports, gold_sets=project.root / "gold_sets"),
    )


def explore(evaluation):
    """Write the explorer as the stage of the report does."""
    get, stage = evaluation.runner.get, evaluation.runner.stages["retrieval_metrics_report"]
    answered = Answered(get(AnswerSet), get(CitationSet), get(AnswerMeasures))
    results = [get(one) for one in (CorpusSnapshot, CorpusChunks, EvidenceTrust)]
    results += [get(one) for one in (StabilityMeasures, MissRateClaims)]
    return write_explorer(
        Work(evaluation, stage, "1"), Explored(open_runs(evaluation), *results, answered)
    )


class Read:
    """Parts of an explorer, each held against its schema."""

    def __init__(self, parts):
        self.parts = {name: unpacked(part) for name, part in sorted(parts.items())}
        for name, part in self.parts.items():
            schema = published(f"explorer-{name.split('-')[0].removesuffix('.json.gz')}")
            jsonschema.Draft202012Validator.check_schema(schema)
            assert [
                error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(part)
            ] == []
        self.summary = self.parts["summary.json.gz"]
        self.questions = [
            question
            for name, part in self.parts.items()
            if name.startswith("questions-")
            for question in part
        ]
        chunks = [part for name, part in self.parts.items() if name.startswith("chunks-")]
        self.chunks = {
            column: [value for part in chunks for value in part[column]]
            for column in (
                "doc",
                "section",
                "title",
                "text",
                "source",
                "link",
                "trust",
                "verdict",
                "reasons",
            )
        }
        assert len({len(values) for values in self.chunks.values()}) == 1
        assert self.summary["n_chunks"] == len(self.chunks["doc"])
        assert (
            self.summary["n_questions"]
            == len(self.questions)
            == len(self.summary["questions"]["id"])
        )
        assert [question["id"] for question in self.questions] == self.summary["questions"]["id"]

    def question(self, query_id):
        return next(question for question in self.questions if question["id"] == query_id)


def parts_of(artifact):
    return {path.name: path.read_bytes() for path in artifact.folder.glob("*.json.gz")}


def read(evaluation):
    return Read(parts_of(explore(evaluation)))


def close(found, value):
    return (found is None and math.isnan(value)) or (
        found is not None and found == pytest.approx(value, rel=1e-5, abs=1e-9)
    )


def check_against_measures(evaluation, found):
    """Recompute values, first ranks, hits and counts of each run from its per-query frame."""
    level = evaluation.config.level
    frame = evaluation.runner.get(RankingMeasures).per_query
    frame = (
        frame[frame["level"] == level]
        .set_index(["strategy", "query_id", "paraphrase_id", "seed"])
        .sort_index()
    )
    claims = (
        evaluation.runner.get(MissRateClaims)
        .claims.set_index(["strategy", "query_id", "paraphrase_id", "seed"])
        .sort_index()
    )
    summary, names = found.summary, found.summary["strategies"]
    for at, question in enumerate(found.questions):
        by_strategy = {name: [] for name in names}
        for run in question["runs"]:
            name, wording = names[run["s"]], question["wordings"][run["w"]]["id"]
            row = frame.loc[(name, question["id"], wording, run["seed"])]
            by_strategy[name].append((wording, run, row))
            assert close(run["value"], row["recall_at_10"])
            assert run["first"] == (None if not row["mrr"] > 0 else round(1 / row["mrr"]))
            assert len(run["c"]) == len(run["x"])
            assert run["failed"] == int(row["failed"])
            claim = claims.loc[(name, question["id"], wording, run["seed"])]
            assert (
                run["miss"][0] is None
                if math.isnan(claim["miss_rate"])
                else run["miss"][0] == pytest.approx(claim["miss_rate"], rel=1e-3)
            )
            assert summary["statuses"][run["miss"][3]] == claim["status"]
            assert run["miss"][4] == claim["calibrator"]
            # `first` counts items and `h` counts units: further units of an item do not count.
            assert (not run["h"]) or run["first"] <= run["h"][0] + 1
            assert (
                bool(run["h"])
                or run["first"] is None
                or run["first"] > len({found.chunks["doc"][unit] for unit in run["c"]})
                or level == "section"
            )
        for place, name in enumerate(names):
            rows = by_strategy[name]
            values = [
                row["recall_at_10"] for _, _, row in rows if not math.isnan(row["recall_at_10"])
            ]
            columns = summary["questions"]
            assert close(columns["value"][place][at], np.mean(values) if values else math.nan)
            assert columns["runs"][place][at] == len(rows)
            assert columns["hits"][place][at] == (
                sum(
                    row["success_at_10"]
                    for _, _, row in rows
                    if not math.isnan(row["success_at_10"])
                )
                if values
                else None
            )
            first = [run for wording, run, _ in rows if wording == "original"][:1]
            assert columns["first"][place][at] == (first[0]["first"] if first else None)


LEVELS = {level: CONFIG + f"level: {level}\n" for level in ("document", "section", "span")}


@pytest.mark.parametrize("config", [*LEVELS.values(), SEEDS], ids=[*LEVELS, "seeds matter"])
def test_every_retrieval_says_what_the_measures_say(project, config):
    evaluation = evaluation_of(project, config)
    found = read(evaluation)
    check_against_measures(evaluation, found)
    assert found.summary["previous"] is None
    assert "no run of this gold set" in found.summary["previous_reason"]
    assert {None} == {value for row in found.summary["questions"]["change"] for value in row}
    assert found.summary["texts"] == {
        "kept": found.summary["n_chunks"],
        "of": found.summary["n_chunks"],
    }
    assert {
        run["seed"] for question in found.questions for run in question["runs"] if run["s"] == 0
    } == {13}
    assert {
        run["seed"] for question in found.questions for run in question["runs"] if run["s"] == 1
    } == ({13, 29} if config is SEEDS else {13})


def hits_by_hand(runs, name, question, wording, seed):
    """Places of relevant chunks among the first ten, from the frames of the stages."""
    gold, level = runs.gold, runs.config.level
    variant = gold.variants.index[
        (gold.variants["query_id"] == question) & (gold.variants["paraphrase_id"] == wording)
    ][0]
    rows = runs.rows(name)[seed][variant][:10]
    chunks = runs.chunks.iloc[rows[rows >= 0]]
    if level == "span":
        spans = runs.gold_variants.spans
        carried = runs.gold_variants.span_chunks
        carriers = set(
            carried.loc[carried["span"].isin(spans.index[spans["query_id"] == question]), "chunk"]
        )
        return [place for place, row in enumerate(rows) if row in carriers]
    qrels = getattr(runs.gold_variants, f"qrels_{level}")
    good = set(qrels.loc[(qrels["query_id"] == question) & (qrels["gain"] > 0), "item_id"])
    return [
        place
        for place, item in enumerate(chunks["doc_id" if level == "document" else "section_id"])
        if item in good
    ]


@pytest.mark.parametrize("config", LEVELS.values(), ids=LEVELS.keys())
def test_hits_are_what_scoring_judges_relevant(project, config):
    evaluation = evaluation_of(project, config)
    found, scored = read(evaluation), open_runs(evaluation)
    flagged = 0
    for question in found.questions:
        for run in question["runs"]:
            name = found.summary["strategies"][run["s"]]
            assert run["h"] == hits_by_hand(
                scored, name, question["id"], question["wordings"][run["w"]]["id"], run["seed"]
            )
            flagged += len(run["h"])
    assert flagged


def test_gold_marks_hold_the_quote_in_the_units_that_were_retrieved(project):
    found = read(evaluation_of(project))
    question = found.question("again")
    quote = ANSWERS[0]["anchors"][0]["quote"]
    assert [(entry["doc"], entry["quote"]) for entry in question["gold"]] == [("retries.md", quote)]
    assert question["marks"]
    for unit, mark in question["marks"].items():
        assert found.chunks["doc"][int(unit)] == "retries.md"
        assert [mark["text"][start:end] for start, end in mark["at"]] == [quote]
    assert found.question("keep")["gold"][0]["quote"] == ""
    assert found.question("keep")["marks"] == {}
    assert found.question("price")["gold"] == []


def test_unanswerable_questions_and_answers_are_told_apart(project):
    found = read(evaluation_of(project))
    columns = found.summary["questions"]
    at = columns["id"].index("price")
    assert columns["answerable"] == [1, 1, 1, 0]
    assert [row[at] for row in columns["value"]] == [None, None]
    assert [row[at] for row in columns["hits"]] == [None, None]
    assert columns["wordings"] == [2, 2, 1, 1]
    assert found.summary["tags"] == ["storage"]
    assert columns["tags"] == [[0], [], [], []]
    for question, outcome in zip(found.questions, columns["outcome"], strict=True):
        assert question["answer"]["outcome"] == outcome
        assert all(citation["code"] == "ok" for citation in question["answer"]["citations"])
    cited = found.question("again")["answer"]
    assert columns["cited"][columns["id"].index("again")] == len(cited["citations"])
    assert columns["correct"][columns["id"].index("again")] == sum(
        citation["correct"] for citation in cited["citations"]
    )


def test_without_answers_and_spans_there_are_none(project):
    (project.gold / "answers.jsonl").unlink()
    found = read(
        evaluation_of(
            project, CONFIG.replace("answers: {mode: deterministic, top_k: 5}\n", "level: span\n")
        )
    )
    columns = found.summary["questions"]
    assert {question["answer"] is None for question in found.questions} == {True}
    assert (
        columns["outcome"]
        == columns["cited"]
        == columns["correct"]
        == columns["groundedness"]
        == [None] * 4
    )
    assert {value for row in columns["value"] for value in row} == {None}
    assert {value for row in columns["state"] for value in row} == {None}
    assert all(run["h"] == [] for question in found.questions for run in question["runs"])


RUN_FILE = [
    "keep Q0 storage.md 1 2.0 t",
    "keep Q0 nowhere.md 2 1.0 t",
    "again Q0 alerts.md 1 2.0 t",
    "again Q0 retries.md 2 1.0 t",
]


def test_units_of_a_run_file_stand_behind_the_chunks(project):
    (project.gold / "mine.trec").write_text("\n".join(RUN_FILE) + "\n", encoding="utf-8")
    evaluation = evaluation_of(
        project,
        CONFIG.replace(VECTOR, "  - {name: mine, kind: external, run_file: mine.trec}\n")
        + "trust: {domains: [example.org]}\n",
    )
    found = read(evaluation)
    check_against_measures(evaluation, found)
    ran = [run for question in found.questions for run in question["runs"] if run["s"] == 1]
    own = {unit for run in ran for unit in run["c"]}
    chunks = {
        unit
        for question in found.questions
        for run in question["runs"]
        if run["s"] == 0
        for unit in run["c"]
    }
    assert min(own) > max(chunks)
    assert {found.chunks["doc"][unit] for unit in own} == {
        "storage.md",
        "nowhere.md",
        "alerts.md",
        "retries.md",
    }
    first = next(run for run in found.question("again")["runs"] if run["s"] == 1)
    assert first["h"] == [1]
    assert {run["w"] for run in ran} == {0}  # the file has the original wordings only
    assert found.summary["questions"]["runs"][1][:2] == [1, 1]


def outputs():
    fact = "A failed job is tried three more times."
    contexts = [
        {"doc_id": "retries.md", "text": fact},
        {"doc_id": "retries.md", "text": DOCUMENTS["retries.md"][12:80]},
        {"doc_id": "elsewhere.md", "text": HOSTILE[:900_000]},
    ]
    rows = [
        {"query_id": "again", "question": QUERIES[1]["text"], "answer": fact, "contexts": contexts}
    ]
    return jsonl(
        [
            *rows,
            {
                "query_id": "keep",
                "question": QUERIES[0]["text"],
                "answer": None,
                "error": "timeout",
                "contexts": [],
            },
        ]
    )


def test_recorded_contexts_are_chunks_of_ours_or_units_of_their_own(project):
    (project.gold / "outputs.jsonl").write_text(outputs(), encoding="utf-8")
    found = read(
        evaluation_of(
            project,
            CONFIG.replace(VECTOR, "  - {name: theirs, kind: external, recorded: outputs.jsonl}\n"),
        )
    )
    runs = [run for run in found.question("again")["runs"] if run["s"] == 1]
    texts = [found.chunks["text"][unit] for unit in runs[0]["c"]]
    assert texts[0].startswith("A failed job") or texts[0] in found.chunks["text"]
    assert "example.org" not in json.dumps(found.chunks)
    assert all(len(text) <= 200 for text in texts)
    assert found.question("again")["marks"]
    failed = [run for run in found.question("keep")["runs"] if run["s"] == 1]
    assert failed[0]["failed"] == 1
    assert failed[0]["c"] == []
    assert failed[0]["miss"][0] is None


def test_hostile_texts_are_masked_bounded_and_written_out(project):
    (project.corpus / "storage.md").write_text(
        DOCUMENTS["storage.md"] + f"\n## Odd\n\n{HOSTILE}\n", encoding="utf-8"
    )
    queries = [
        {**QUERIES[0], "text": f"{HOSTILE}?"[:900], "tags": ["__proto__", "<b>", "\u202etag"]},
        *QUERIES[1:],
    ]
    (project.gold / "queries.jsonl").write_text(jsonl(queries), encoding="utf-8")
    found = read(evaluation_of(project))
    written = json.dumps(found.parts, ensure_ascii=False)
    assert "\u202e" not in written
    assert "\u200b" not in written
    assert "jane.doe" not in written
    assert "w" * 700 not in written
    assert found.summary["tags"][:2] == ["__proto__", "<b>"]
    assert "<script>" in found.summary["questions"]["text"][0]


def test_equal_inputs_give_equal_bytes(project):
    first = parts_of(explore(evaluation_of(project)))
    for stage in ("explorer", "explorer parts"):
        for path in (project.home / "artifacts" / stage).iterdir():
            path.rename(project.root / f"{stage}-{path.name}")
    assert parts_of(explore(evaluation_of(project))) == first
    assert explore(evaluation_of(project)).reused


def test_another_run_before_costs_a_summary_and_not_the_parts_again(project):
    evaluation = evaluation_of(project)
    first = explore(evaluation)
    kept(evaluation, "20260101T000000000Z-00000000")
    second = explore(evaluation_of(project))
    assert first.folder != second.folder
    names = {path.name for path in first.folder.iterdir()}
    assert names == {path.name for path in second.folder.iterdir()}
    own = {name for name in names if not second.path(name).samefile(first.path(name))}
    assert own == {"summary.json.gz", "artifact.json"}


def kept(evaluation, run_id):
    """Keep a run under an id, as an earlier night did."""
    made = evaluation.runner.get(MetricsReport).report.run_id
    path = evaluation.settings.home / "runs" / f"{made}.json"
    path.write_text(path.read_text(encoding="utf-8").replace(made, run_id), encoding="utf-8")
    return path.rename(path.with_stem(run_id))


def test_changes_are_against_the_newest_kept_run(project):
    old = evaluation_of(project, CONFIG.replace("kind: bm25", "kind: bm25, k1: 9, b: 1"))
    before = read(old)
    kept(old, "20260101T000000000Z-00000000")
    (project.home / "runs" / "20260102T000000000Z-00000000.json").write_bytes(b"{")
    new = evaluation_of(project)
    found = read(new)
    assert found.summary["previous"] == "20260101T000000000Z-00000000"
    after, earlier = (part.summary["questions"]["value"] for part in (found, before))
    for change, now, then in zip(found.summary["questions"]["change"], after, earlier, strict=True):
        assert change == [
            None if a is None else pytest.approx(a - b, abs=1e-5)
            for a, b in zip(now, then, strict=True)
        ]
    # another previous run with other figures is another explorer, of the same parts
    kept(new, "20260103T000000000Z-00000000")
    again = read(evaluation_of(project))
    assert again.summary["previous"] == "20260103T000000000Z-00000000"
    assert {value for row in again.summary["questions"]["change"] for value in row} == {0, None}
    assert again.questions == found.questions


def edited(old, new):
    """Change the kept run; `place` is its file and the folder of its ranking."""
    return lambda place: place[0].write_text(
        place[0].read_text(encoding="utf-8").replace(old, new), encoding="utf-8"
    )


DAMAGES = {
    "other gold": (edited('"hash": "', '"hash": "0'), "different gold"),
    "artifact gone": (
        lambda place: place[1].rename(place[1].with_name("gone")),
        "no longer in the home",
    ),
    "artifact damaged": (
        lambda place: (place[1] / "per_query.parquet").write_bytes(b"PAR1"),
        "not as they were kept",
    ),
    "no key": (edited('"ranking": "', '"ranking": "../../'), "no run of this gold set"),
}


@pytest.mark.parametrize(("damage", "said"), DAMAGES.values(), ids=DAMAGES.keys())
def test_a_previous_run_that_cannot_be_compared_says_why(project, damage, said):
    evaluation = evaluation_of(project)
    ranking = evaluation.runner.get(RankingMeasures).artifact
    path = kept(evaluation, "20260101T000000000Z-00000000")
    fresh = evaluation_of(project)
    fresh.runner.get(MissRateClaims)
    fresh.runner.get(RankingMeasures)
    damage((path, ranking.folder))
    found = read(fresh)
    assert said in found.summary["previous_reason"]
    assert {value for row in found.summary["questions"]["change"] for value in row} == {None}


def test_a_page_takes_as_many_texts_as_fit_the_first_ranked_first(project):
    evaluation = evaluation_of(project)
    made = explore(evaluation)
    whole = parts_of(made)
    assert slim(made, embedded_size(whole)) == whole
    least = slim(made, 1)
    none = Read(least)
    assert none.summary["texts"] == {"kept": 0, "of": none.summary["n_chunks"]}
    assert set(none.chunks["text"]) == {None}
    assert set(none.chunks["title"]) == set(none.chunks["source"]) == {""}
    limit = (embedded_size(least) + embedded_size(whole)) // 2
    parts = slim(made, limit)
    assert embedded_size(parts) <= limit
    assert parts == slim(made, limit)
    found = Read(parts)
    there = [at for at, text in enumerate(found.chunks["text"]) if text is not None]
    assert 0 < len(there) == found.summary["texts"]["kept"] < found.summary["n_chunks"]
    first = {
        run["c"][0]
        for question in found.questions
        for run in question["runs"]
        if run["w"] == 0 and run["c"]
    }
    assert len(there) < len(first) or first <= set(there)
    assert len(there) >= len(first) or set(there) <= first
    assert {name: part for name, part in parts.items() if name.startswith("questions-")} == {
        name: part for name, part in whole.items() if name.startswith("questions-")
    }


def test_schemas_are_closed(project):
    found = read(evaluation_of(project))
    for name, part in found.parts.items():
        check = jsonschema.Draft202012Validator(
            published(f"explorer-{name.split('-')[0].removesuffix('.json.gz')}")
        )
        more = [{**part[0], "more": 1}] if isinstance(part, list) else {**part, "more": 1}
        assert list(check.iter_errors(more))


def test_the_tiny_project_is_as_these_tests_know_it():
    assert (len(QUERIES), len(PARAPHRASES), QRELS.count("\n")) == (4, 2, 4)


def test_outputs_of_a_system_of_its_own_keep_to_the_format(project):
    folder = project.root / "my-system"
    folder.mkdir()
    fact = "A failed job is tried three more times."
    rows = [
        {
            "query_id": "again",
            "question": "How often?",
            "answer": f"{fact} [1]",
            "contexts": [
                {
                    "doc_id": "retries.md",
                    "text": fact,
                    "url": "https://example.org/jane.doe@example.org",
                },
                {"doc_id": "odd", "text": f"A. {HOSTILE[:5000]}", "url": "javascript:alert(1)"},
            ],
        },
        {
            "query_id": "none",
            "question": "What is the answer?",
            "answer": None,
            "error": "timeout",
            "contexts": [],
        },
    ]
    (folder / "outputs.jsonl").write_text(jsonl(rows), encoding="utf-8")
    settings = Settings(
        home=project.home, reports=project.reports, gold_sets=project.root / "gold_sets"
    )
    evaluation = open_recorded(folder, settings)
    found = read(evaluation)
    assert found.summary["questions"]["answerable"] == [None, None]
    assert found.question("again")["answer"]["citations"][0]["doc"] == "retries.md"
    assert found.question("again")["answer"]["citations"][0]["correct"] is None
    assert found.question("none")["answer"]["outcome"] == found.summary["outcomes"].index("failed")
    assert [run["failed"] for run in found.question("none")["runs"]] == [1]
    assert "jane.doe" not in json.dumps(found.parts)
    assert set(found.chunks["link"]) == {""}


def test_a_previous_run_that_is_not_comparable_says_what_changed(project):
    old = evaluation_of(project, CONFIG.replace("kind: bm25", "kind: bm25, k1: 9, b: 1"))
    kept(old, "20260101T000000000Z-00000000")
    new = evaluation_of(project)
    summary = read(new).summary
    assert summary["previous_comparable"] is False
    reported = new.runner.get(MetricsReport).report.previous
    assert summary["previous_changes"] == reported.reasons
    assert reported.reason_codes == ["index_changed", "configuration_changed"]
    assert {value for row in summary["questions"]["change"] for value in row} - {
        None
    }  # the gold is the same: the figures stay
    kept(new, "20260102T000000000Z-00000000")
    again = read(evaluation_of(project)).summary
    assert (again["previous_comparable"], again["previous_changes"]) == (True, [])
