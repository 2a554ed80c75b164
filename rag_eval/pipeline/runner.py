"""The runner: the type of a stage, storage and reuse of results, and the loop over all stages.

A stage function receives its inputs as arguments and returns a typed result. The key of a stage
depends on its version, the configuration that it reads, and the ids of its inputs. The runner
reuses a result that is stored under the same key. Ids are hashes of content, so an equal result
of a repeated stage does not repeat the stages after it.
"""

import dataclasses
import functools
import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Self, TypeVar, dataclass_transform, get_type_hints

import pandas as pd
from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python

from rag_eval.core.config import GoldSetConfig
from rag_eval.core.errors import InputError
from rag_eval.core.settings import Settings
from rag_eval.pipeline.evaluation import Evaluation, Progress
from rag_eval.storage.artifacts import Artifact, Parts
from rag_eval.storage.hashing import canonical_json, code_version, digest, plugin_version

AGAIN: Final = "again"
"""Value of `Stage.outside` when equal inputs may give different results."""
SETTINGS: Final = "settings."
"""Prefix of the settings in `Stage.reads`."""
STRATEGY: Final = "strategy"
"""Name in `Stage.reads` for the configuration entry of the stage's own strategy."""
WHOLE: Final = tuple(GoldSetConfig.model_fields)
"""Value of `Stage.reads` for the whole configuration of the gold set."""
SMALL_FRAME: Final = 1 << 20
"""Largest Parquet file in bytes whose frame stays in memory between reads."""

# ---- Results: typed parts, which are read from the store on first access.


class Part:
    """A part of a result, with its file format.

    The ending is `.parquet`, `.npy` or `.json`, or empty for a part with its own `file` name. A
    `volatile` part, such as a duration, is left out of the identity of the result. A result may
    lack an `optional` part; the value is then None. `report` is the field of the report that the
    part is, if any.
    """

    name: str
    owner: type["Result"]

    def __init__(
        self,
        ending: str,
        *,
        file: str = "",
        volatile: bool = False,
        optional: bool = False,
        report: str = "",
    ) -> None:
        self.ending, self.file, self.volatile, self.optional = ending, file, volatile, optional
        self.report = report

    def __set_name__(self, owner: type["Result"], name: str) -> None:
        self.name, self.owner = name, owner

    def __get__(self, result: "Result | None", owner: type["Result"]) -> Any:
        if result is None:
            return self
        value = result.values.get(self.name, self)
        if value is self:
            value = self.read(result.artifact)
            file = result.artifact.files.get(f"{self.name}.parquet", {"size": SMALL_FRAME + 1})
            if self.ending == ".json" or file["size"] <= SMALL_FRAME:
                result.values[self.name] = value
        # copy on write: a reader may change its copy
        return value.copy(deep=False) if isinstance(value, pd.DataFrame) else value

    @functools.cached_property
    def annotation(self) -> Any:
        """Type of the value."""
        return get_type_hints(self.owner)[self.name]

    @functools.cached_property
    def adapter(self) -> TypeAdapter[Any]:
        """Adapter that checks and writes JSON by the annotated type."""
        return TypeAdapter(self.annotation)

    def read(self, artifact: Artifact) -> Any:
        """Read the part of a stored result."""
        if self.optional and f"{self.file or self.name}{self.ending}" not in artifact.files:
            return None
        if self.ending == ".parquet":
            return artifact.frame(self.name)
        if self.ending == ".npy":
            return artifact.array(self.name)
        if self.ending == ".json":
            return self.adapter.validate_python(artifact.json(self.name))
        return artifact.bytes(self.file)

    def write(self, value: Any) -> Any:
        """Convert a value for the store."""
        return self.adapter.dump_python(value, mode="json") if self.ending == ".json" else value


def frame_part(*, default: Any = ...) -> Any:
    """Declare a part that is a frame. With the default None, a result may be without it."""
    return Part(".parquet", optional=default is None)


def array_part(*, default: Any = ...) -> Any:
    """Declare a part that is an array."""
    return Part(".npy", optional=default is None)


def json_part(*, volatile: bool = False, report: str = "", default: Any = ...) -> Any:
    """Declare a part that is JSON: a dataclass, a model, or plain values, by its annotation."""
    return Part(".json", volatile=volatile, optional=default is None, report=report)


def file_part(name: str, *, default: Any = ...) -> Any:
    """Declare a part that is a file. A stage may also give its path or an iterator of bytes."""
    return Part("", file=name, optional=default is None)


@dataclass_transform(
    kw_only_default=True, field_specifiers=(frame_part, array_part, json_part, file_part)
)
class Result:
    """The result of a stage. A subclass declares its parts as fields; a stage gives their values.

    A result from the store reads each part on first access.
    """

    parts: ClassVar[dict[str, Part]] = {}
    shown: ClassVar[tuple[str, ...]] = ("about",)
    """Parts of JSON that people see in Dagster, besides the plain values."""

    def __init_subclass__(cls) -> None:
        """Collect the declared parts."""
        declared = {name: part for name, part in vars(cls).items() if isinstance(part, Part)}
        cls.parts = {**cls.parts, **declared}

    def __init__(self, **values: Any) -> None:
        unknown = set(values) - set(self.parts)
        missing = {name for name, part in self.parts.items() if not part.optional} - set(values)
        if unknown or missing:
            raise TypeError(
                f"{type(self).__name__}: unknown {sorted(unknown)}, missing {sorted(missing)}"
            )
        self.values: dict[str, object] = {**dict.fromkeys(self.parts), **values}
        self.is_lasting = True
        """Whether equal inputs are known to repeat the result, so that it can be reused."""
        self._artifact: Artifact | None = None

    @classmethod
    def stored(cls, artifact: Artifact) -> Self:
        """Open a stored result."""
        result = cls.__new__(cls)
        vars(result).update(values={}, _artifact=artifact)
        return result

    @property
    def artifact(self) -> Artifact:
        """The artifact of the result."""
        if self._artifact is None:
            raise RuntimeError(f"{type(self).__name__} is not stored yet")
        return self._artifact

    @property
    def id(self) -> str:
        """Identity of the content."""
        return self.artifact.id

    def id_for(self, strategy: str) -> str:  # noqa: ARG002 - subclasses use the strategy
        """Return the identity of the content that a stage of one strategy reads."""
        return self.id

    def describe(self) -> dict[str, object]:
        """Return what people see of the result: its plain values and its parts `shown`, as JSON."""
        return {
            name: part.write(getattr(self, name))
            for name, part in self.parts.items()
            if name in self.shown
            or (part.ending == ".json" and part.annotation in {str, int, float, bool})
        }

    def report_part(self, work: "Work") -> Mapping[str, Any]:  # noqa: ARG002 - of subclasses
        """Return the fields of the report that this result gives, by name.

        The report joins the fields of all results. Of one name, mappings are joined, lists are
        chained without repetitions, and numbers are added.
        """
        return {
            part.report: getattr(self, name) for name, part in self.parts.items() if part.report
        }

    def as_parts(self) -> Parts:
        """Return the parts in the form for the store."""
        return {
            self.parts[name].file or name: self.parts[name].write(value)
            for name, value in self.values.items()
            if value is not None or not self.parts[name].optional
        }

    @classmethod
    def volatile(cls) -> list[str]:
        """Name the parts outside the identity."""
        return [name for name, part in cls.parts.items() if part.volatile]


Input = Result | dict[str, Result] | None
"""The result of a stage, the results by strategy, or None outside the configuration."""
R = TypeVar("R", bound=Result)


class Results:
    """The results that a stage reads, by the name of the argument."""

    def __init__(self, inputs: Mapping[str, Input]) -> None:
        self.inputs = inputs

    def __iter__(self) -> Iterator[Result]:
        """List every result, those of all strategies in their order."""
        for value in self.inputs.values():
            yield from value.values() if isinstance(value, dict) else filter(None, [value])

    def find(self, kind: type[R]) -> R | None:
        """Return the result of a type; None outside the configuration."""
        return next((result for result in self if isinstance(result, kind)), None)

    def get(self, kind: type[R]) -> R:
        """Return the result of a type that every configuration has."""
        result = self.find(kind)
        if result is None:
            raise TypeError(f"there is no {kind.__name__}")
        return result

    def by_strategy(self, kind: type[R]) -> dict[str, R]:
        """Return the results of a type by strategy."""
        groups = (value for value in self.inputs.values() if isinstance(value, dict))
        pairs = (pair for group in groups for pair in group.items())
        return {name: result for name, result in pairs if isinstance(result, kind)}

    @property
    def artifact_keys(self) -> dict[str, str]:
        """Keys of all results, such as `run bm25`, which give access to the details of a run."""
        return {
            f"{name[:-1]} {strategy}" if strategy else name: result.artifact.key
            for name, value in self.inputs.items()
            for strategy, result in (value.items() if isinstance(value, dict) else [("", value)])
            if result is not None
        }

    def join_parts(self, work: "Work") -> dict[str, Any]:
        """Join the fields of the report that the results give."""
        fields = dict[str, Any]()
        for result in self:
            _join(fields, result.report_part(work))
        return fields


def _join(fields: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        if isinstance(value, dict):
            _join(fields.setdefault(name, {}), value)
        elif isinstance(value, list) and name in fields:
            fields[name] = [*fields[name], *(item for item in value if item not in fields[name])]
        elif isinstance(fields.get(name), int | float):
            fields[name] += value
        else:
            fields[name] = value


@dataclasses.dataclass
class Work:
    """The evaluation around a stage function, which the function gets besides its inputs.

    `strategy` is empty for a stage without a result per strategy. `made_from` lists the artifacts
    behind the result, as (kind, key).
    """

    evaluation: Evaluation
    stage: "Stage"
    version: str
    strategy: str = ""
    made_from: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    @property
    def config(self) -> GoldSetConfig:
        """The gold set's configuration."""
        return self.evaluation.config

    @property
    def settings(self) -> Settings:
        """The installation's settings."""
        return self.evaluation.settings

    @property
    def base(self) -> Path:
        """Folder that relative paths of the configuration start from."""
        return self.evaluation.base

    @property
    def progress(self) -> Progress:
        """Display of progress."""
        return self.evaluation.progress

    def keep(self, kind: str, identity: object, make: Callable[[], Parts]) -> Artifact:
        """Return a stored part of the work under a key of its own, or make and store the part.

        `kind` is the folder of the store. `identity` holds all inputs of the part, as JSON. The
        version of the stage is added.
        """
        key = digest([kind, self.version, identity])
        artifact: Artifact = self.evaluation.store.memo(kind, key, make)
        self.made_from.append((kind, artifact.key))
        return artifact


# ---- Stages: the rows of the graph.


def _nothing(*_: Any, **__: Any) -> tuple[str, ...]:
    return ()


def _undeclared(*_: Any, **__: Any) -> Result:
    raise TypeError("this stage has no function: use it as a decorator")


@dataclasses.dataclass(frozen=True)
class Stage:
    """One row of the graph, and the decorator that declares its function.

    Parameters
    ----------
    name, group
        Name of the asset, of the artifact's kind and of progress lines; group of the asset.
    make
        `make(work, **inputs)` returns the result. Each argument has the name of a stage and gets
        its result, or None outside the configuration. The plural of a stage with one result per
        strategy gives a mapping from strategies to results. People see the docstring's beginning.
    given
        Names of the inputs of a function that takes them as `**results`.
    stores
        Other stores that the stage reads or writes, for the graph.
    reads
        Configuration that the stage reads. An entry is a dotted name of the gold set's
        configuration, `settings.` and a name, or `strategy` for the entry of its strategy.
    outside
        `outside(work, **inputs)` identifies all other causes of the result, such as files or
        stores, as JSON. AGAIN makes every run repeat the stage.
    after
        Stages that must finish before this stage, although the stage does not read their results.
    each_strategy
        Whether each configured strategy has a result of its own.
    live
        Whether the stage writes to a store or a folder, which `outside` reads again, so that a
        later run repeats the stage only after another change there; without it, every run does.
    configured
        `configured(config)` says whether a configuration needs the stage.
    chosen
        `chosen(evaluation, strategy)` names the modules that the configuration chooses. Those of
        plug-ins are part of the version.
    failure
        `failure(result)` gives the reason for a job failure after this stage, or an empty text.
    """

    name: str
    group: str
    make: Callable[..., Result] = _undeclared
    given: tuple[str, ...] = ()
    stores: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    outside: Callable[..., object] = _nothing
    after: tuple[str, ...] = ()
    each_strategy: bool = False
    live: bool = False
    configured: Callable[[Any], bool] = lambda _: True
    chosen: Callable[..., Sequence[str]] = _nothing
    failure: Callable[..., str] = lambda _: ""

    def __call__(self, make: Callable[..., Result]) -> "Stage":
        """Declare the function of the stage."""
        return dataclasses.replace(self, make=make)

    @property
    def title(self) -> str:
        """First paragraph of the function's docstring, as one line."""
        return " ".join((inspect.getdoc(self.make) or "").partition("\n\n")[0].split())

    @functools.cached_property
    def inputs(self) -> tuple[str, ...]:
        """Names of the stages whose results the stage reads."""
        return self.given or tuple(inspect.signature(self.make).parameters)[1:]

    @functools.cached_property
    def result(self) -> type[Result]:
        """Type of the result."""
        kind: type[Result] = inspect.signature(self.make, eval_str=True).return_annotation
        return kind

    @property
    def plural(self) -> str:
        """Argument name for the results of all strategies."""
        return f"{self.name}s"

    def nodes(self, strategies: Iterable[str]) -> "list[Node]":
        """List the nodes of the stage."""
        return [Node(self.name, name) for name in (strategies if self.each_strategy else ("",))]


@dataclasses.dataclass(frozen=True, order=True)
class Node:
    """A stage, or a stage of one strategy."""

    name: str
    strategy: str = ""

    def __str__(self) -> str:
        """Return the name of the node in messages, keys and files."""
        return f"{self.name}.{self.strategy}" if self.strategy else self.name


def nodes_behind(
    name: str, strategy: str, stages: Iterable[Stage], strategies: Iterable[str]
) -> list[Node]:
    """List the nodes behind the name of an input, as a stage of one strategy reads it."""
    stage = next(stage for stage in stages if name in {stage.name, stage.plural})
    return stage.nodes([strategy] if stage.name == name else strategies)


# ---- The loop over the stages.


@dataclasses.dataclass(frozen=True)
class Made:
    """The runner's record of one node. `seconds` is the duration without making the inputs."""

    node: Node
    stage: Stage
    result: Result
    seconds: float

    @property
    def reused(self) -> bool:
        """Whether the result was stored before."""
        return self.result.artifact.reused


class Runner:
    """Runs the stages of one evaluation, a graph with inputs before their readers.

    With `use_record`, the runner reads the last recorded results of inputs that this process has
    not made. A job step in its own process does this.
    """

    def __init__(
        self, evaluation: Evaluation, stages: Sequence[Stage], *, use_record: bool = False
    ) -> None:
        self.evaluation, self._use_record = evaluation, use_record
        self.stages = {stage.name: stage for stage in stages}
        self.made: dict[Node, Made] = {}

    @property
    def strategies(self) -> list[str]:
        """Names of the configured strategies, in their order."""
        return [spec.name for spec in self.evaluation.config.strategies]

    def nodes(self) -> Iterator[Node]:
        """List every node of the configuration in order."""
        for stage in self.stages.values():
            if stage.configured(self.evaluation.config):
                yield from stage.nodes(self.strategies)

    def run(self) -> Iterator[Made]:
        """Run every stage, and yield each record when the stage ends."""
        yield from map(self.one, self.nodes())

    def one(self, node: Node) -> Made:
        """Run one node once per runner, after its missing inputs."""
        if node not in self.made:
            self.made[node] = self._make(node)
        return self.made[node]

    def ancestors(self, node: Node) -> set[Node]:
        """List every node that a node depends on."""
        above, left = set[Node](), [node]
        while left:
            current = left.pop()
            for name in self.stages[current.name].inputs:
                new = nodes_behind(name, current.strategy, self.stages.values(), self.strategies)
                left += [node for node in new if node not in above]
                above.update(new)
        return above

    def get(self, kind: type[R], strategy: str = "") -> R:
        """Return the result of a stage by its type."""
        stage = next(stage for stage in self.stages.values() if stage.result is kind)
        result = self.result(Node(stage.name, strategy))
        if not isinstance(result, kind):
            raise TypeError(f"{stage.name} is no {kind.__name__}")
        return result

    def result(self, node: Node) -> Result:
        """Return the result of a node. It was made here, is made now, or comes from the record.

        Raises
        ------
        InputError
            `not_made`: a step of a job reads a result that no job has made yet.
        """
        if node in self.made or not self._use_record:
            return self.one(node).result
        recorded = self.find_recorded(node)
        if recorded is None:
            asset = node.strategy or node.name
            message = f"there is no {asset} yet; materialize {asset} first"
            raise InputError.of("not_made", message, file=self.evaluation.record_of(str(node)))
        return recorded

    def find_recorded(self, node: Node) -> Result | None:
        """Open the last recorded result of a node; None when it is absent or damaged."""
        artifact = self.evaluation.find_recorded(str(node))
        return None if artifact is None else self.stages[node.name].result.stored(artifact)

    def _input(self, node: Node, name: str) -> Input:
        stage = next(each for each in self.stages.values() if name in {each.name, each.plural})
        if name != stage.name:
            return {each.strategy: self.result(each) for each in stage.nodes(self.strategies)}
        if not stage.configured(self.evaluation.config):
            return None
        return self.result(Node(name, node.strategy if stage.each_strategy else ""))

    def _make(self, node: Node) -> Made:
        stage, evaluation = self.stages[node.name], self.evaluation
        inputs = {name: self._input(node, name) for name in stage.inputs}
        version, kind, store = self._version(node), stage.name, evaluation.store
        behind = [(result.artifact.stage, result.artifact.key) for result in Results(inputs)]
        work = Work(evaluation, stage, version, node.strategy, behind)
        started = time.perf_counter()
        reads, ids = self._read_values(stage, node.strategy), _ids(inputs, node.strategy)
        is_repeated = stage.live and stage.outside is _nothing
        outside = AGAIN if is_repeated else stage.outside(work, **inputs)
        key = digest([kind, version, reads, outside, ids])
        artifact = None if outside == AGAIN else store.whole(kind, key)
        if artifact is None:
            try:
                with evaluation.progress.step(str(node)):
                    result = stage.make(work, **inputs)
            except SystemExit as error:  # of a library or plug-in; a run must not end as if done
                message, accepted = "its code asked to exit", "a result, or an error"
                raise InputError.of(
                    "stage_exited", message, node, found=f"status {error.code}", accepted=accepted
                ) from error
            parts, is_kept = result.as_parts(), result.is_lasting and outside != AGAIN
            if stage.live and is_kept:
                key = digest([kind, version, reads, stage.outside(work, **inputs), ids])
            volatile = stage.result.volatile()
            artifact = store.put(kind, parts, volatile, work.made_from, key if is_kept else "")
        if evaluation.is_recorded:  # for job steps in their own processes
            place = canonical_json({"kind": artifact.stage, "key": artifact.key})
            evaluation.home.write(evaluation.record_of(str(node)), place.encode())
        seconds = time.perf_counter() - started
        return Made(node, stage, stage.result.stored(artifact), seconds)

    def _version(self, node: Node) -> str:
        """Hash everything that decides what a node computes: this package, libraries, plug-ins.

        After a change of code, no old result is reused.
        """
        chosen = self.stages[node.name].chosen(self.evaluation, node.strategy)
        plugins = {name for name in chosen if not name.startswith("rag_eval.")}
        return digest([code_version(), {name: plugin_version(name) for name in plugins}])

    def _read_values(self, stage: Stage, strategy: str) -> dict[str, object]:
        """Return the configuration values that a stage reads, as JSON."""
        return {path: to_jsonable_python(self._read(path, strategy)) for path in stage.reads}

    def _read(self, path: str, strategy: str) -> Any:
        if path == STRATEGY:
            return self.evaluation.config.strategy(strategy)
        value = self.evaluation.settings if path.startswith(SETTINGS) else self.evaluation.config
        for name in path.removeprefix(SETTINGS).split("."):
            value = None if value is None else getattr(value, name)
        return value


def _ids(inputs: Mapping[str, Input], strategy: str) -> dict[str, object]:
    def identity(value: Input) -> object:
        if isinstance(value, dict):
            return [[name, result.id] for name, result in value.items()]
        return None if value is None else value.id_for(strategy)

    return {name: identity(value) for name, value in inputs.items()}
