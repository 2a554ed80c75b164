"""The runner: keys, reuse, records, and results that are read part by part."""

import dataclasses
import functools
import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rag_eval.core.errors import InputError
from rag_eval.pipeline import runner
from rag_eval.pipeline.evaluation import Evaluation, Progress
from rag_eval.pipeline.runner import (
    Node,
    Result,
    Runner,
    Stage,
    Work,
    array_part,
    file_part,
    frame_part,
    json_part,
)
from rag_eval.storage.artifacts import ArtifactStore
from rag_eval.storage.home import Home


@dataclasses.dataclass(frozen=True)
class About:
    n: int
    name: str | None = None


class Words(Result):
    table: pd.DataFrame = frame_part()
    about: About = json_part()
    seconds: float = json_part(volatile=True)
    vectors: np.ndarray | None = array_part(default=None)
    text: bytes | None = file_part("words.txt", default=None)


class Count(Result):
    n: int = json_part()


@dataclasses.dataclass
class Spec:
    name: str
    k: int


class Project:
    """Three stages over a tiny configuration. `calls` lists the stages that ran."""

    def __init__(self, home):
        self.home, self.calls, self.plugins = home, [], []
        self.words, self.state, self.seconds = ["a", "b"], "state", 1.0
        self.config = SimpleNamespace(
            name="tiny",
            strategies=[Spec("one", 1), Spec("two", 2)],
            strategy=self.strategy,
            corpus=SimpleNamespace(path="p", chunker="c"),
            extra=True,
        )
        self.is_recorded, self.use_record = True, False

    def strategy(self, name: str) -> Spec:
        return next(spec for spec in self.config.strategies if spec.name == name)

    def read(self, _: Work) -> Words:
        self.calls.append("words")
        table = pd.DataFrame({"word": self.words})
        return Words(table=table, about=About(n=len(table)), seconds=self.seconds)

    def run(self, work: Work, words: Words) -> Count:
        self.calls.append(f"run {work.strategy}")
        kept = work.keep("inner", words.id, lambda: {"n": len(words.table)})
        return Count(n=kept.json("n") * self.strategy(work.strategy).k)

    def extra(self, _: Work, words: Words) -> Count:
        self.calls.append("extra")
        return Count(n=len(words.table) - len(self.words))

    def total(self, _: Work, runs: dict[str, Count], extra: Count | None) -> Count:
        self.calls.append("total")
        return Count(n=sum(run.n for run in runs.values()) + (0 if extra is None else 1000))

    @property
    def stages(self) -> list[Stage]:
        return [
            Stage("words", "g", self.read, reads=("corpus.path",), outside=lambda _: [self.words]),
            Stage(
                "run",
                "g",
                self.run,
                reads=("strategy",),
                each_strategy=True,
                chosen=lambda *_: self.plugins,
            ),
            Stage("extra", "g", self.extra, configured=lambda config: config.extra),
            Stage("total", "g", self.total, live=True),
        ]

    def runner(self) -> Runner:
        evaluation: Any = SimpleNamespace(
            config=self.config,
            home=Home(self.home),
            store=ArtifactStore(Home(self.home)),
            is_recorded=self.is_recorded,
            progress=Progress(),
        )
        for method in (Evaluation.record_of, Evaluation.find_recorded):
            setattr(evaluation, method.__name__, functools.partial(method, evaluation))
        return Runner(evaluation, self.stages, use_record=self.use_record)

    def night(self) -> list[str]:
        """Run all stages and return the names of the computed stages."""
        self.calls.clear()
        self.made = {str(made.node): made for made in self.runner().run()}
        return list(self.calls)


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def test_a_result_is_read_part_by_part(tmp_path):
    made = Words(
        table=pd.DataFrame({"word": ["a"]}),
        about=About(n=1),
        seconds=2.5,
        vectors=np.eye(2),
        text=b"a\n",
    )
    artifact = ArtifactStore(Home(tmp_path)).put("words", made.as_parts(), made.volatile())
    back = Words.stored(artifact)
    assert back.table["word"].tolist() == ["a"]
    assert (back.about, back.seconds, back.text) == (About(n=1), 2.5, b"a\n")
    assert back.vectors.tolist() == [[1, 0], [0, 1]]
    bare = Words(table=made.table, about=About(n=1), seconds=9.0)
    stored = Words.stored(ArtifactStore(Home(tmp_path)).put("words", bare.as_parts()))
    assert (stored.vectors, stored.text) == (None, None)
    with pytest.raises(TypeError):
        Words(table=made.table, more=1)


def test_a_second_night_makes_only_what_is_live(project):
    assert project.night() == ["words", "run one", "run two", "extra", "total"]
    assert project.made["total"].result.n == 1006
    assert project.night() == ["total"]
    assert [name for name, made in project.made.items() if made.reused] == [
        "words",
        "run.one",
        "run.two",
        "extra",
    ]


def test_equal_content_reruns_nothing_behind_it(project, monkeypatch):
    project.night()
    monkeypatch.setattr(runner, "code_version", lambda: "2")
    assert project.night() == ["words", "run one", "run two", "extra", "total"]
    project.config.corpus.path, project.seconds = "elsewhere", 99.0
    assert project.night() == ["words", "total"]
    project.words = ["a", "b", "c"]
    assert project.night() == ["words", "run one", "run two", "extra", "total"]
    assert project.made["run.two"].result.n == 6


def test_only_what_a_stage_reads_of_the_configuration_counts(project):
    project.night()
    project.config.corpus.chunker = "other"
    assert project.night() == ["total"]
    project.config.strategies[1].k = 3
    assert project.night() == ["run two", "total"]
    project.config.extra = False
    assert project.night() == ["total"]
    assert "extra" not in project.made
    assert project.made["total"].result.n == 8


def test_what_was_damaged_is_made_again_and_nothing_else(project):
    project.night()
    (project.made["words"].result.artifact.folder / "table.parquet").write_bytes(b"")
    assert project.night() == ["words", "total"]


def test_a_step_of_its_own_reads_its_inputs_as_they_were_recorded(project):
    project.night()
    project.calls.clear()
    project.use_record = True
    project.words = ["another corpus", "that", "this", "step", "does not read"]
    assert project.runner().one(Node("total")).result.n == 1006
    assert project.calls == ["total"]
    place = project.home / "record" / "tiny" / "words.json"
    kept = json.loads(place.read_text())
    (project.home / "artifacts" / "words" / kept["key"] / "about.json").write_text("")
    with pytest.raises(InputError, match="materialize words first"):  # `words` is damaged
        project.runner().one(Node("run", "one"))
    assert project.calls == ["total"]


def test_a_step_without_a_record_names_what_must_be_made_first(project):
    project.use_record = True
    with pytest.raises(InputError, match="materialize words first"):
        project.runner().one(Node("run", "two"))
    assert project.calls == []


def test_a_changed_plugin_repeats_the_stages_that_choose_it(project, monkeypatch):
    project.night()
    project.plugins.append("a_plugin")
    monkeypatch.setattr(runner, "plugin_version", lambda name: [name])
    assert project.night() == ["run one", "run two", "total"]


def test_a_part_of_other_code_is_made_again(project, monkeypatch):
    def inner():
        folder = project.made["run.one"].result.artifact.folder
        return dict(json.loads((folder / "artifact.json").read_text())["made_from"])

    project.night()
    before = inner()
    assert list(before) == ["words", "inner"]
    monkeypatch.setattr(runner, "code_version", lambda: "changed")
    project.night()
    assert inner()["inner"] != before["inner"]
