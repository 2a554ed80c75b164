"""The graph of stages: each stage reads only the inputs that its row declares."""

import dataclasses
import functools
import shutil
import sys
from pathlib import Path

import pytest

from rag_eval.core.settings import Settings
from rag_eval.pipeline.opening import open_gold_set
from rag_eval.pipeline.runner import AGAIN, Part, Work
from rag_eval.pipeline.stages import STAGES, open_runner
from rag_eval.retrieval.chroma import ChromaStore
from rag_eval.storage.artifacts import Artifact
from rag_eval.storage.home import Home

STORES = {
    "embeddings": "embeddings",
    "chroma": "vectors",
    "calibrators": "calibrators",
    "baselines": "baselines",
    "manifests": "manifests",
    "runs": "kept_runs",
    "rag_eval.db": "database",
    "mlflow.db": "mlflow",
    "mlartifacts": "mlflow",
}
"""Folder or file of the home -> name of its store."""
IN_DATABASE = dict.fromkeys(("outcomes", "traffic", "traces"), "database")
NOT_HERE = {
    ("evidence_trust", "manifests"): "smoke has no manifest",
    ("answers", "chat"): "smoke answers without a model",
    ("answer_measures", "chat"): "smoke asks no model about faithfulness",
    ("answer_measures", "embeddings"): "smoke answers with quotes, which leave no doubt",
    ("corpus_index", "embeddings"): "the vectors of these chunks are stored as one array",
    ("corpus_index", "vectors"): "smoke has no approximate search",
    ("run", "corpus_snapshot"): "only units of external strategies are placed in documents",
    ("run", "sources"): "smoke has no external strategy",
    ("run", "calibrators"): "smoke has no iterative strategy",
    ("trust_measures", "corpus_chunks"): "only units of external strategies are compared with them",
    ("retrieval_signals", "corpus_index"): "identifies the vectors of the index, which is open",
    ("missed_questions", "corpus_index"): "identifies the vectors of the index, which is open",
    ("missed_questions", "embeddings"): "smoke has no missed question to search again",
    ("miss_rate_claims", "run"): "smoke has no judged wordings, whose claims name the first seed",
    ("miss_rate_calibration", "run"): "the scores of the runs are in the memory of this process",
    ("retrieval_metrics_report", "corpus_chunks"): "only units of external strategies need them",
    ("retrieval_metrics_report", "miss_rate_calibration"): "smoke is too small for its pictures",
}
"""Declared reads that a run of smoke does not need, each with its reason."""


class Trace:
    """Records the kinds of artifacts and the stores that are read while `is_on` is true."""

    def __init__(self, home: Path, reports: Path) -> None:
        self.reports = str(reports)
        self.home, self.kinds, self.stores, self.is_on = str(home), set(), set(), False
        sys.addaudithook(self.note_event)

    def note_event(self, event: str, arguments: tuple) -> None:
        if self.is_on and event in {"open", "os.scandir", "os.listdir", "sqlite3.connect"}:
            self.note_path(arguments[0])

    def note_path(self, path: object) -> None:
        inside = str(path).removeprefix(self.home).lstrip("/")
        if str(path).startswith(self.home):
            self.stores.add(STORES.get(inside.partition("/")[0]))
        if str(path).startswith(self.reports):
            self.stores.add("reports")


@pytest.fixture
def trace(tmp_path, monkeypatch):
    """Trace reads of the home.

    Chroma and `Home.has` raise no audit event, so the fixture replaces them.
    """
    found = Trace(tmp_path / "home", tmp_path / "reports")
    read, chroma = Artifact._read, ChromaStore.open
    part_of, keep, has = Part.__get__, Work.keep, Home.has

    # A part is read from its file, or from a result that already holds the part in memory.
    def read_part(self, part, reader):
        if found.is_on:
            found.kinds.add(self.stage)
        return read(self, part, reader)

    def got(self, result, owner):
        if found.is_on and result is not None:
            found.kinds.add(result.artifact.stage)
        return part_of(self, result, owner)

    def looked_up(self, name):
        if found.is_on:
            found.note_path(self.folder / name)
        return has(self, name)

    def opened(settings):
        found.note_path(Path(settings.home) / "chroma")
        return chroma(settings)

    # Make every part again, because a stored part would hide the reads of its maker.
    def kept(self, kind, identity, make):
        if found.is_on:
            return self.evaluation.store.put(kind, make())
        return keep(self, kind, identity, make)

    monkeypatch.setattr(Work, "keep", kept)
    monkeypatch.setattr(Artifact, "_read", read_part)
    monkeypatch.setattr(Part, "__get__", got)
    monkeypatch.setattr(Home, "has", looked_up)
    monkeypatch.setattr(ChromaStore, "open", opened)
    yield found
    found.is_on = False


@pytest.mark.usefixtures("pages")
@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")
def test_a_stage_reads_what_its_row_declares(tmp_path, project_root, trace):
    folder = tmp_path / "gold_sets" / "smoke"
    shutil.copytree(project_root / "gold_sets" / "smoke", folder)
    with (folder / "gold_set.yaml").open("a", encoding="utf-8") as stream:
        stream.write("ragas: true\n")
    settings = Settings(
        home=tmp_path / "home", reports=tmp_path / "reports", gold_sets=folder.parent
    )
    evaluation = open_gold_set(folder, settings)
    for _ in open_runner(evaluation).run():
        pass
    faults = []
    for stage in STAGES:
        trace.kinds, trace.stores = set(), set()
        for node in stage.nodes(open_runner(evaluation).strategies):
            # Run each node as a separate step, because a value in memory would replace a read.
            runner = open_runner(dataclasses.replace(evaluation, use_record=True))
            runner.stages[stage.name] = dataclasses.replace(
                stage, make=on(trace, stage.make), outside=lambda *_, **__: AGAIN
            )
            runner.one(node)
        read = {one for one in trace.kinds if one in runner.stages} | trace.stores - {None}
        names = {one.removesuffix("s") if one == "runs" else one for one in stage.inputs}
        declared = names | {IN_DATABASE.get(one, one) for one in stage.stores}
        read -= {stage.name}  # work on unchanged chunks is taken from the run before
        faults += [f"{stage.name} reads {one} undeclared" for one in sorted(read - declared)]
        faults += [
            f"{stage.name} does not read {one}"
            for one in sorted(declared - read)
            if (stage.name, one) not in NOT_HERE
        ]
    assert not faults, "\n".join(faults)


def on(trace: Trace, make):
    @functools.wraps(make)
    def traced(work, **inputs):
        trace.is_on = True
        try:
            return make(work, **inputs)
        finally:
            trace.is_on = False

    return traced


def test_each_row_stands_once_and_after_its_inputs():
    earlier: set[str] = set()
    for stage in STAGES:
        assert stage.name not in earlier
        assert {*stage.inputs, *stage.after} <= earlier
        earlier |= {stage.name, *([stage.plural] if stage.each_strategy else [])}
