"""`lint` finds each name and file that a run of the gold set would refuse."""

import pytest
from cli_project import CONFIG

BM25 = "  - {name: bm25, kind: bm25}\n"
ANSWER = "answers: {mode: deterministic, top_k: 5}\n"


def add(strategy):
    return CONFIG.replace(BM25, f"{BM25}  - {strategy}\n")


def answer(settings):
    return CONFIG.replace(ANSWER, f"answers: {settings}\n")


UNMET = {
    "a pattern of a validator": (
        answer('{validators: [{name: ban_regex, patterns: ["(a"]}]}'),
        "bad_validator_options",
    ),
    "a validator": (answer("{validators: [{name: ban_regexp}]}"), "unknown_validator"),
    "a postprocessor": (answer("{postprocessors: [{name: nobody}]}"), "unknown_postprocessor"),
    "an endpoint": (answer("{mode: llm, endpoint: nobody}"), "unknown_endpoint"),
    "a file of outputs": (answer("{mode: recorded, recorded: none.jsonl}"), "none.jsonl"),
    "an engine": (
        add("{name: e, kind: qdrant, engine: nobody}"),
        "unknown_engine",
    ),
    "a source": (add("{name: e, kind: external, source: nobody}"), "unknown_source"),
    "a run file": (add("{name: e, kind: external, run_file: none.trec}"), "none.trec"),
    "rankings of outputs": (add("{name: e, kind: external, recorded: none.jsonl}"), "none.jsonl"),
    "a reranker": (
        add("{name: e, kind: bm25, rerank: {kind: nobody, depth: 5}}"),
        "unknown_reranker",
    ),
    "vectors": (
        add("{name: e, kind: vector, embedding: {vectors: none.npz}}"),
        "vectors_unreadable",
    ),
    "an endpoint of rounds": (
        add("{name: e, kind: iterative, base: bm25, endpoint: nobody}"),
        "unknown_endpoint",
    ),
    "a verifier": (answer("{verifier: nobody}"), "unknown_verifier"),
}


@pytest.mark.parametrize(("config", "code"), UNMET.values(), ids=UNMET)
def test_lint_names_what_a_run_would_refuse(project, config, code):
    assert config != CONFIG
    project.write("gold_set.yaml", config)
    linted = project.command("lint", "tiny", exit_code=1)
    assert code in linted.stdout + linted.stderr


@pytest.mark.slow
@pytest.mark.parametrize(("config", "code"), UNMET.values(), ids=UNMET)
def test_a_run_refuses_what_lint_names(project, config, code):
    project.write("gold_set.yaml", config)
    assert code in project.run(exit_code=1).stderr


def test_needs_that_are_met_are_no_problem(project):
    project.write("run.trec", "keep Q0 storage.md 1 2.0 x\n")
    project.write("gold_set.yaml", add("{name: e, kind: external, run_file: run.trec}"))
    before = project.command("lint", "tiny", exit_code=None).stdout
    project.write("gold_set.yaml", CONFIG)
    assert project.command("lint", "tiny", exit_code=None).stdout == before
