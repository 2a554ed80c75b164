"""A postprocessor of another package in a run, and the event of a run that ends early."""

from cli_project import CONFIG

PLUGIN = """
def tag(options):
    def process(found):
        secret = {"kind": "secret", "text": "mail ann@example.org"}
        return {"text": f"({found.text})", "findings": [secret] * options["times"]}
    return process
"""


def test_findings_and_new_texts_reach_the_report_and_an_early_end_its_event(
    project, tmp_path, monkeypatch
):
    about = tmp_path / "tagger-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tagger\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[rag_eval.postprocessors]\ntag = tagger:tag\n")
    (tmp_path / "tagger.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    text = CONFIG.replace("top_k: 5}", "top_k: 5, postprocessors: [{name: tag, times: 2}]}")
    project.write("gold_set.yaml", text)
    project.run()
    answered = [row for row in project.lines("answers.jsonl") if row["outcome"] == "answered"]
    assert answered
    for row in answered:
        assert row["text"].startswith("(")
        (finding, _) = row["findings"]
        assert (finding["source"], finding["kind"], finding["segment"]) == ("tag", "secret", -1)
        assert "ann@example.org" not in finding["text"]
    n = 2 * len(answered)
    assert project.report()["answers"]["findings"] == {"tag.secret": n}
    assert "event=question.postprocessed" in project.text("events.log")

    project.write("gold_set.yaml", text.replace("top_k: 5", "strict_fail_on_empty_evidence: true"))
    assert "empty_evidence" in project.run(exit_code=1).stderr
    log = project.text("aborted.log").splitlines()
    assert log[0].startswith("event=run.start ")
    assert log[-1] == "event=run.abort code=empty_evidence questions=1"
