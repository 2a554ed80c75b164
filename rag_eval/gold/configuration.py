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
from rag_eval.core.errors import InputError, Place, ProblemList, quoted
from rag_eval.core.loader import is_address
from rag_eval.core.parts import MODELS, NAME, Embedding
from rag_eval.core.rows import FieldFault, Location, field_faults, format_location, read_text
from rag_eval.core.settings import Settings
from rag_eval.core.strategy import Strategy

CONFIG_FILE = "gold_set.yaml"
MAX_BYTES = 400_000

_CORE = "tag:yaml.org,2002:"
_SCALARS = {"null", "bool", "int", "float", "str", "timestamp"}
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Document:
    """A YAML mapping as plain values, with the line of each key and list item.

    Dangerous YAML is refused: aliases, tags and duplicate keys. Dates stay texts. Raises InputError
    with the first fault.
    """

    def __init__(self, path: Path) -> None:
        self.file = str(path)
        self.lines: dict[Location, int] = {(): 1}
        self._seen: set[int] = set()
        problems = ProblemList()
        text = read_text(path, problems, MAX_BYTES)
        if text is None:
            raise InputError(problems.listed())
        node = self._compose(text)
        if not isinstance(node, yaml.MappingNode):
            accepted = "a mapping with name, corpus and strategies"
            raise self._refuse("not_a_mapping", "not a mapping", 1, (), accepted)
        self.values: dict[str, object] = self._read_mapping(node, ())

    def line(self, location: Location) -> int:
        """Return the line (from 1) of the deepest part of a location that the file holds."""
        while location not in self.lines:
            location = location[:-1]
        return self.lines[location]

    def _compose(self, text: str) -> yaml.Node | None:
        try:
            return yaml.compose(text, Loader=yaml.SafeLoader)
        except RecursionError as error:
            message = "the file is nested too deeply"
            raise InputError.of("too_deep", message, self.file, line=1) from error
        except yaml.reader.ReaderError as error:
            line, message = text.count("\n", 0, error.position) + 1, error.reason
            raise self._refuse("bad_yaml", message, line, (), "printable text") from error
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            quotes = "; a text that begins with > or < needs quotes: " + '">= 0.60"'
            hint = quotes if "chomping or indentation" in str(error.problem) else ""
            message, line = quoted(str(error.problem)), mark.line + 1 if mark else 1
            raise self._refuse("bad_yaml", message, line, (), f"YAML{hint}") from error

    def _refuse(  # noqa: PLR0917 - the parts of a problem
        self, code: str, message: str, line: int, place: Location, accepted: str, found: str = ""
    ) -> InputError:
        field, shown = format_location(place) or None, quoted(found) or None
        more: Place = {"line": line, "field": field, "found": shown, "accepted": accepted}
        return InputError.of(code, message, self.file, **more)

    def _read(self, node: yaml.Node, place: Location) -> object:
        line = self.lines.setdefault(place, node.start_mark.line + 1)
        if id(node) in self._seen:  # aliases of aliases can grow without bound
            message, line = "anchors and aliases are not accepted here", node.start_mark.line + 1
            raise self._refuse("alias_refused", message, line, (), "the value itself")
        self._seen.add(id(node))
        kind = node.tag.removeprefix(_CORE)
        if isinstance(node, yaml.MappingNode) and kind == "map":
            return self._read_mapping(node, place)
        if isinstance(node, yaml.SequenceNode) and kind == "seq":
            return [self._read(item, (*place, i)) for i, item in enumerate(node.value)]
        if not isinstance(node, yaml.ScalarNode) or kind not in _SCALARS:
            message = "tags are not accepted here"
            raise self._refuse("bad_tag", message, line, place, "plain values", node.tag)
        if fault := _CONTROL.search(node.value):
            message, shown = "the value holds a control character", f"U+{ord(fault.group()):04X}"
            raise self._refuse("control_character", message, line, place, "printable text", shown)
        if kind == "timestamp":
            return node.value
        try:
            value = yaml.constructor.SafeConstructor().construct_object(node)
            repr(value)  # which an error shows; numbers to the base 16 or 60 convert at any length
        except ValueError:  # a number with more digits than Python converts
            value = math.inf
        if isinstance(value, float) and not math.isfinite(value):
            message = "NaN, infinity and larger numbers are not accepted here"
            raise self._refuse("bad_number", message, line, place, "a finite number", node.value)
        return value

    def _read_mapping(self, node: yaml.MappingNode, place: Location) -> dict[str, object]:
        values: dict[str, object] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or key.tag != _CORE + "str":
                accepted = "a word; quote it if YAML reads it as a number, date or truth value"
                raise self._refuse("bad_key", "a key must be a plain word", line, (), accepted)
            inner = (*place, key.value)
            if key.value in values:
                message = f"the key is in line {self.lines[inner]} already"
                raise self._refuse("duplicate_key", message, line, inner, "each key once")
            self.lines[inner] = line
            values[key.value] = self._read(value, inner)
        return values


def _refine(document: Document, fault: FieldFault) -> Location:
    """Return the location of a fault; for a rule over several keys, the first named key."""
    if fault.is_rule:
        for word in _WORD.findall(fault.message):
            for key in (word, word.removesuffix("s")):
                if (*fault.location, key) in document.lines:
                    return (*fault.location, key)
    return fault.location


def load_config(folder: Path) -> GoldSetConfig:
    """Read `gold_set.yaml` of a folder.

    Numbers, texts and truth values are not converted into each other: `"5"` is no number. Raises
    InputError with every mistake: the faults of `field_faults`, and `name_mismatch` if the name
    differs from the name of the folder. A fault of `Document` or `read_text` is raised alone.
    """
    document, problems, config = Document(folder / CONFIG_FILE), ProblemList(), None
    try:
        # strict validation accepts a list for a tuple only from JSON
        config = GoldSetConfig.model_validate_json(json.dumps(document.values), strict=True)
    except ValidationError as error:
        for fault in field_faults(error, GoldSetConfig, document.values):
            place = _refine(document, fault)
            more: Place = {"field": format_location(place) or None, "found": fault.found}
            more |= {"line": document.line(place), "accepted": fault.accepted}
            problems.add(fault.code, fault.message, document.file, **more)
    name, expected = document.values.get("name"), folder.resolve().name
    if isinstance(name, str) and name != expected and re.match(NAME, name):
        more = {"field": "name", "found": quoted(name), "accepted": quoted(expected)}
        more["line"] = document.line(("name",))
        message = "the name must be that of the folder"
        problems.add("name_mismatch", message, document.file, **more)
    if config is None or problems.n_errors:
        raise InputError(problems.listed())
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
    folders = sorted(path.parent for path in gold_sets.glob(f"*/{CONFIG_FILE}"))
    return {gold_set_name(path.name): path for path in folders if not path.name.startswith(".")}


def gold_set_name(name: str, field: str | None = None) -> str:
    """Return a valid name of a gold set, which is never a path; else raise InputError.

    `field` is the option or argument with the name.
    """
    if not re.fullmatch(NAME, name):
        accepted = "a letter or digit, then up to 63 letters, digits, - and _"
        message = "this cannot be the name of a gold set"
        raise InputError.of("bad_name", message, field=field, found=name, accepted=accepted)
    return name


# ---- What a gold set may use

_ACCEPTED_PATH = (
    "a path inside the gold set's folder, or below a folder or address that `corpus_roots` in "
    "settings.toml (or RAG_EVAL_CORPUS_ROOTS) lists"
)


def is_below(path: Path, roots: Iterable[Path | str]) -> bool:
    """Tell whether a path, after following symbolic links, lies in one of the folders."""
    try:
        resolved = path.resolve()
        folders = (root.resolve() for root in roots if isinstance(root, Path))
        return any(map(resolved.is_relative_to, folders))
    except (OSError, RuntimeError, ValueError):  # a loop of links, or a name with a NUL byte
        return False


def _is_below_address(address: str, roots: Iterable[Path | str]) -> bool:
    """Tell whether the address of an object store lies below one of the addresses."""
    parts = address.split("/")  # `::` would lead from there to another store
    if "::" in address or not {".", ".."}.isdisjoint(parts):
        return False
    addresses = (root.rstrip("/").split("/") for root in roots if isinstance(root, str))
    return any(parts[: len(root)] == root for root in addresses)


def _embeddings(config: GoldSetConfig) -> Iterator[tuple[Location, Embedding]]:
    for number, strategy in enumerate(config.strategies):
        for inner, embedding in strategy.embeddings().items():
            yield ("strategies", number, *inner), embedding


def _named_files(config: GoldSetConfig) -> Iterator[tuple[Location, str]]:
    """Yield location and text of every path in the configuration."""
    if config.trust.manifest is not None:
        for name in (config.trust.manifest, f"{config.trust.manifest}.sig"):
            yield ("trust", "manifest"), name
    if config.answers is not None and config.answers.recorded is not None:
        yield ("answers", "recorded"), config.answers.recorded
    for field, path in config.corpus.files().items():
        yield ("corpus", *field), path
    for place, embedding in _embeddings(config):
        if embedding.vectors is not None:
            yield (*place, "vectors"), embedding.vectors
    for number, strategy in enumerate(config.strategies):
        for name, path in strategy.files().items():
            yield ("strategies", number, name), path


def _find_outside(
    config: GoldSetConfig, folder: Path, roots: Iterable[Path | str]
) -> dict[Path | str, Location]:
    """Find each path or link that leads out of the folder and the roots, with its location."""
    allowed = [folder, *roots]
    outside: dict[Path | str, Location] = {}
    for place, text in _named_files(config):
        if is_address(text):
            if not _is_below_address(text, roots):
                outside[text] = place
        elif not is_below(folder / text, allowed):
            outside[folder / text] = place
    links = dict.fromkeys(sorted((*folder.glob("*"), *folder.glob("qrels/*"))), Location())
    if not outside:  # search the corpus for links only if its own path is allowed
        links |= dict.fromkeys(config.corpus.links(folder), ("corpus", "path"))
    for link, place in links.items():
        if link.is_symlink() and not is_below(link, allowed):
            outside.setdefault(link, place)
    return outside


def _distribution_key(name: str) -> str:
    """Write the name of a distribution as the package index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _replace_named(strategy: Strategy, embeddings: Mapping[str, Embedding]) -> Strategy:
    """Replace the names of embeddings by the embeddings of the settings."""
    if strategy.embeds_with is not None and strategy.embeds_with.is_named:
        strategy = strategy.with_embedding(embeddings[strategy.embeds_with.model or ""])
    rerank = strategy.rerank
    if rerank is not None and rerank.embedding is not None and rerank.embedding.is_named:
        embedding = embeddings[rerank.embedding.model or ""]
        rerank = rerank.model_copy(update={"embedding": embedding})
        strategy = strategy.model_copy(update={"rerank": rerank})
    return strategy


def permitted(
    config: GoldSetConfig,
    folder: Path,
    settings: Settings,
    faults: Iterable[FieldFault] = (),
) -> GoldSetConfig:
    """Check what a gold set names, and replace embedding names by embeddings of the settings.

    `faults` were found by the rooms that know what the configuration names.
    Raises InputError: `outside_gold_set` if a path or a symbolic link leads out of the gold set
    and of `corpus_roots`, `unknown_embedding` and `package_not_allowed` if the settings do not name
    an embedding or a distribution.
    """
    path = folder / CONFIG_FILE
    document = Document(path) if path.is_file() else None
    problems = ProblemList()

    def report(code: str, message: str, place: Location, found: str, accepted: str) -> None:
        more: Place = {"found": quoted(found), "accepted": accepted}
        if place:
            line = document.line(place) if document else None
            more |= {"field": format_location(place), "line": line}
        problems.add(code, message, path if place and document else found, **more)

    for fault in faults:
        report(fault.code, fault.message, fault.location, fault.found or "", fault.accepted or "")
    for outside, place in _find_outside(config, folder, settings.corpus_roots).items():
        message = "the path leads out of the gold set's folder"
        report("outside_gold_set", message, place, str(outside), _ACCEPTED_PATH)
    by_name = {
        name: Embedding.from_settings(entry.function, entry.config)
        for name, entry in settings.embeddings.items()
    }
    for place, embedding in _embeddings(config):
        if embedding.is_named and (model := embedding.model or "") not in by_name:
            message = "neither a built-in model nor a name under `embeddings` of the settings"
            accepted = f"{MODELS} (there: {', '.join(sorted(by_name)) or 'none'})"
            report("unknown_embedding", message, (*place, "model"), model, accepted)
    allowed = set(map(_distribution_key, settings.package_docs))
    for field, name in config.corpus.distributions().items():
        if _distribution_key(name) not in allowed:
            message = "the settings let no gold set import this distribution"
            accepted = f"{', '.join(settings.package_docs)} (package_docs in settings.toml)"
            report("package_not_allowed", message, ("corpus", *field), name, accepted)
    problems.raise_errors()
    strategies = tuple(_replace_named(strategy, by_name) for strategy in config.strategies)
    return config.model_copy(update={"strategies": strategies})
