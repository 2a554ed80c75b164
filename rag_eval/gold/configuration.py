"""Read `gold_set.yaml`, name every mistake with its place, and refuse forbidden places.

The models are in `rag_eval.core.config`. PyYAML's nodes give the lines. A gold set comes from a
stranger. It may read files below its own folder and below the roots of the settings. It may use
only the embedding functions of the settings.
"""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import yaml
from pydantic import ValidationError

from rag_eval.core.config import GoldSetConfig
from rag_eval.core.errors import (
    MODELS,
    NAME,
    NAME_AN_ENTRY,
    Embedding,
    InputError,
    Problem,
    ProblemList,
    quoted,
)
from rag_eval.core.rows import FieldFault, Location, field_faults, format_location, read_text
from rag_eval.core.strategy import Strategy

CONFIG_FILE = "gold_set.yaml"
MAX_BYTES = 400_000

_CORE = "tag:yaml.org,2002:"
_VALUES = {_CORE + kind for kind in ("null", "bool", "int", "float", "str", "timestamp")}
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEYS = "a mapping with name, corpus and strategies"


def _line_of(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


class Document:
    """A YAML mapping as plain values, with the line of each key and list item.

    Dangerous YAML is refused: aliases, tags and duplicate keys. Dates stay texts.
    """

    def __init__(self, path: Path, problems: ProblemList) -> None:
        self.file = str(path)
        self.values: dict[str, object] | None = None
        self._lines: dict[Location, int] = {(): 1}
        self._seen: set[int] = set()
        self._has_alias = False
        self._problems = problems
        text = read_text(path, problems, MAX_BYTES)
        root = None if text is None else self._compose(text)
        if root is not None:
            values = self._read(root, ())
            self.values = values if isinstance(values, dict) and not self._has_alias else None

    def line(self, location: Location) -> int:
        """Return the line (from 1) of the deepest part of a location that the file holds."""
        while location not in self._lines:
            location = location[:-1]
        return self._lines[location]

    def __contains__(self, location: Location) -> bool:
        """Tell whether the file has a value at a location."""
        return location in self._lines

    def report(  # noqa: PLR0917 - the parts of a problem
        self,
        code: str,
        message: str,
        place: Location | int,
        found: str | None,
        accepted: str,
        line: int | None = None,
    ) -> None:
        """Report a fault at a location, or at a line without a location."""
        field = None if isinstance(place, int) else format_location(place) or None
        line = line or (place if isinstance(place, int) else self.line(place))
        self._problems.extend([Problem(code, message, self.file, line, field, found, accepted)])

    def _compose(self, text: str) -> yaml.Node | None:
        try:
            node = yaml.compose(text, Loader=yaml.SafeLoader)
        except RecursionError:
            self.report("too_deep", "the file is nested too deeply", 1, None, "a flat mapping")
            return None
        except yaml.reader.ReaderError as error:
            line = text.count("\n", 0, error.position) + 1
            found = f"U+{ord(text[error.position]):04X}"
            message = "the file holds a character that YAML does not accept"
            self.report("control_character", message, line, found, "printable text")
            return None
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            quotes = "; a text that begins with > or < needs quotes: " + '">= 0.60"'
            hint = quotes if "chomping or indentation" in str(error.problem) else ""
            message = f"not YAML: {quoted(str(error.problem))}"
            self.report("bad_yaml", message, mark.line + 1 if mark else 1, None, f"YAML{hint}")
            return None
        if node is None:
            self.report("empty_file", "the file holds nothing", 1, None, _KEYS)
        elif not isinstance(node, yaml.MappingNode):
            message = "the file is YAML but not a mapping"
            self.report("not_a_mapping", message, _line_of(node), None, _KEYS)
        else:
            return node
        return None

    def _read(self, node: yaml.Node, place: Location) -> object:
        if id(node) in self._seen:  # an alias: aliases of aliases can grow without bound
            if not self._has_alias:
                message = "anchors and aliases are not accepted here"
                self.report("alias_refused", message, _line_of(node), None, "the value itself")
            self._has_alias = True
            return None
        self._seen.add(id(node))
        if isinstance(node, yaml.MappingNode) and node.tag == _CORE + "map":
            return self._read_mapping(node, place)
        if isinstance(node, yaml.SequenceNode) and node.tag == _CORE + "seq":
            self._lines.update({(*place, i): _line_of(item) for i, item in enumerate(node.value)})
            return [self._read(item, (*place, i)) for i, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode) and node.tag in _VALUES:
            return self._read_scalar(node, place)
        self.report(
            "bad_tag", "tags are not accepted here", place, quoted(node.tag), "plain values"
        )
        return None

    def _read_mapping(self, node: yaml.MappingNode, place: Location) -> dict[str, object]:
        values: dict[str, object] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag != _CORE + "str":
                found = quoted(key.value) if isinstance(key, yaml.ScalarNode) else "a list"
                accepted = "a word; quote it if YAML reads it as a number, date or truth value"
                self.report("bad_key", "a key must be a plain word", _line_of(key), found, accepted)
                continue
            inner = (*place, key.value)
            if key.value in values:
                message = f"the key is in line {self._lines[inner]} already"
                found, line = quoted(key.value), _line_of(key)
                self.report("duplicate_key", message, inner, found, "each key once", line)
                continue
            self._lines[inner] = _line_of(key)
            values[key.value] = self._read(value, inner)
        return values

    def _read_scalar(self, node: yaml.ScalarNode, place: Location) -> object:
        if fault := _CONTROL.search(node.value):
            found, message = f"U+{ord(fault.group()):04X}", "the value holds a control character"
            self.report("control_character", message, place, found, "printable text")
            return None
        if node.tag == _CORE + "timestamp":
            return node.value
        try:
            value = yaml.constructor.SafeConstructor().construct_object(node)
        except ValueError as error:  # a number with more digits than Python converts
            message, found = f"the value cannot be read: {quoted(str(error))}", quoted(node.value)
            self.report("bad_value", message, place, found, "a number of usual size")
            return None
        if isinstance(value, float) and not math.isfinite(value):
            message = "NaN and infinity are not accepted here"
            self.report("bad_number", message, place, quoted(node.value), "a finite number")
            return None
        return value


def _refine(document: Document, fault: FieldFault) -> Location:
    """Return the location of a fault; for a rule over several keys, the first named key."""
    if fault.is_rule:
        for word in _WORD.findall(fault.message):
            for key in (word, word.removesuffix("s")):
                if (*fault.location, key) in document:
                    return (*fault.location, key)
    return fault.location


def load_config(folder: Path) -> GoldSetConfig:
    """Read `gold_set.yaml` of a folder.

    Numbers, texts and truth values are not converted into each other: `"5"` is no number. Raises
    InputError with every mistake: the faults of `field_faults`, `Document` and `read_text`, and
    `name_mismatch` if the name differs from the name of the folder.
    """
    problems = ProblemList()
    document = Document(folder / CONFIG_FILE, problems)
    if document.values is None:
        raise InputError(problems.listed())
    reported = {(problem.line, problem.field) for problem in problems.listed()}
    try:
        # strict validation accepts a list for a tuple only from JSON
        config = GoldSetConfig.model_validate_json(json.dumps(document.values), strict=True)
    except ValidationError as error:
        config = None
        for fault in field_faults(error, GoldSetConfig, document.values):
            place, accepted = _refine(document, fault), fault.accepted
            if place[-2:-1] == ("embedding",) and fault.code == "unknown_key":
                accepted = f"{accepted}; for anything else {NAME_AN_ENTRY}"
            key = (document.line(place), format_location(place) or None)
            if key not in reported:
                reported.add(key)
                document.report(fault.code, fault.message, place, fault.found, accepted)
    name, expected = document.values.get("name"), folder.resolve().name
    if isinstance(name, str) and name != expected and re.match(NAME, name):
        message = "the name must be that of the folder"
        document.report("name_mismatch", message, ("name",), quoted(name), quoted(expected))
    problems.raise_errors()
    if config is None:  # unreachable, unless `reported` hides a new fault of the model
        raise InputError.of("bad_value", "the configuration cannot be used", document.file, line=1)
    return config


def discover(gold_sets: Path) -> dict[str, Path]:
    """Find gold sets below a folder: name -> folder, sorted by name.

    A folder counts if it holds `gold_set.yaml` and is not hidden. The files are not read, so that
    one broken gold set does not hide the others. Raises InputError: `missing_folder`, and
    `bad_name` if the name of a folder is not a valid name of a gold set.
    """
    if not gold_sets.is_dir():
        message, accepted = "the folder of gold sets does not exist", "a folder of gold sets"
        raise InputError.of("missing_folder", message, gold_sets, accepted=accepted)
    found = sorted(path.parent for path in gold_sets.glob(f"*/{CONFIG_FILE}"))
    folders = [folder for folder in found if not folder.name.startswith(".")]
    message = "the folder's name cannot be that of a gold set"
    if bad := [
        Problem("bad_name", message, str(folder), None, "name", quoted(folder.name), NAME)
        for folder in folders
        if not re.fullmatch(NAME, folder.name)
    ]:
        raise InputError(bad)
    return {folder.name: folder for folder in folders}


def gold_set_name(name: str, field: str | None = None) -> str:
    """Return a valid name of a gold set, which is never a path; else raise InputError.

    `field` is the option or argument with the name.
    """
    if not re.fullmatch(NAME, name):
        accepted = "a letter or digit, then up to 63 letters, digits, - and _"
        message = "this cannot be the name of a gold set"
        raise InputError.of("bad_name", message, field=field, found=name, accepted=accepted)
    return name


# ---- Files and endpoints that a gold set may use

_ACCEPTED_PATH = (
    "a path inside the gold set's folder, or below a folder that `corpus_roots` in "
    "settings.toml (or RAG_EVAL_CORPUS_ROOTS) lists"
)


def is_below(path: Path, roots: Iterable[Path]) -> bool:
    """Tell whether a path, after following symbolic links, lies in one of the folders."""
    try:
        resolved = path.resolve()
        return any(resolved.is_relative_to(root.resolve()) for root in roots)
    except (OSError, RuntimeError, ValueError):  # a loop of links, or a name with a NUL byte
        return False


def _embeddings(config: GoldSetConfig) -> Iterator[tuple[Location, Embedding]]:
    for number, strategy in enumerate(config.strategies):
        place: Location = ("strategies", number)
        yield from (((*place, *inner), found) for inner, found in strategy.embeddings().items())
    if config.answers is not None and config.answers.embedding is not None:
        yield ("answers", "embedding"), config.answers.embedding


def _named_files(config: GoldSetConfig) -> Iterator[tuple[Location, str]]:
    """Yield location and text of every path in the configuration."""
    corpus, answers = config.corpus, config.answers
    paths: list[tuple[Location, str | None]] = [
        (("trust", "manifest"), config.trust.manifest),
        (("trust", "signatures"), config.trust.signatures),
        (("answers", "recorded"), None if answers is None else answers.recorded),
    ]
    paths += [(("corpus", *field), path) for field, path in corpus.files().items()]
    paths += [((*place, "vectors"), embedding.vectors) for place, embedding in _embeddings(config)]
    for number, strategy in enumerate(config.strategies):
        paths += [(("strategies", number, field), path) for field, path in strategy.files().items()]
    yield from ((place, path) for place, path in paths if path is not None)


def _outside(
    config: GoldSetConfig, folder: Path, roots: Iterable[Path]
) -> Iterator[tuple[Location, Path]]:
    """Yield location and path of each path or link that leads out of the folder and the roots."""
    allowed = [folder, *roots]
    reported: set[Path] = set()
    for place, text in _named_files(config):
        if not is_below(folder / text, allowed):
            reported.add(folder / text)
            yield place, folder / text
    own = (*folder.glob("*"), *folder.glob("qrels/*"))
    links: list[tuple[Location, Path]] = [((), link) for link in sorted(own) if link.is_symlink()]
    if not reported:  # search the corpus for links only if its own path is allowed
        links += [(("corpus", "path"), link) for link in config.corpus.links(folder)]
    for place, link in links:
        if link not in reported and not is_below(link, allowed):
            reported.add(link)
            yield place, link


def _replace_named(strategy: Strategy, known: Mapping[str, Embedding]) -> Strategy:
    if strategy.embeds_with is not None and strategy.embeds_with.is_named:
        strategy = strategy.with_embedding(known[strategy.embeds_with.model or ""])
    rerank = strategy.rerank
    if rerank is not None and rerank.embedding is not None and rerank.embedding.is_named:
        found = known[rerank.embedding.model or ""]
        rerank = rerank.model_copy(update={"embedding": found})
        strategy = strategy.model_copy(update={"rerank": rerank})
    return strategy


def permitted(
    config: GoldSetConfig, folder: Path, roots: Iterable[Path], known: Mapping[str, Embedding]
) -> GoldSetConfig:
    """Check the paths of a gold set, and replace embedding names by embeddings of the settings.

    `roots` are further allowed folders, from `corpus_roots` of the settings; `known` is name ->
    embedding. Raises InputError: `outside_gold_set` if a path or a symbolic link leads elsewhere,
    `unknown_embedding` if the settings have no embedding of a name.
    """
    path = folder / CONFIG_FILE
    document = Document(path, ProblemList()) if path.is_file() else None

    def report(code: str, message: str, place: Location, found: str, accepted: str) -> None:
        file = str(folder if document is None else path) if place else found
        line = None if document is None or not place else document.line(place)
        field = format_location(place) or None
        problems.append(Problem(code, message, file, line, field, found, accepted))

    problems: list[Problem] = []
    for place, outside in _outside(config, folder, tuple(roots)):
        message = "the path leads out of the gold set's folder"
        report("outside_gold_set", message, place, str(outside), _ACCEPTED_PATH)
    for place, embedding in _embeddings(config):
        if embedding.is_named and embedding.model not in known:
            message = "neither a built-in model nor a name under `embeddings` of the settings"
            accepted = f"{MODELS} (there: {', '.join(sorted(known)) or 'none'})"
            model = embedding.model or ""
            report("unknown_embedding", message, (*place, "model"), model, accepted)
    if problems:
        raise InputError(problems)
    answers = config.answers
    if answers is not None and answers.embedding is not None and answers.embedding.is_named:
        answers = answers.model_copy(update={"embedding": known[answers.embedding.model or ""]})
    strategies = tuple(_replace_named(strategy, known) for strategy in config.strategies)
    return config.model_copy(update={"strategies": strategies, "answers": answers})
