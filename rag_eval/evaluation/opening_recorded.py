"""Recorded outputs of the user's own system as an evaluation: no corpus, and gold only where it lies beside them.

Belongs here: from a path to a configuration. Reading outputs is `rag_eval.corpus.recorded`; what the gold then is, `rag_eval.gold.recorded`.
"""

import re
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from rag_eval.corpus.recorded import read_outputs
from rag_eval.evaluation.inputs import Evaluation
from rag_eval.evaluation.progress import Progress, Silent
from rag_eval.records.gold_set import GoldSetConfig
from rag_eval.records.problems import InputError, Problem
from rag_eval.settings import Settings

OUTPUTS_FILE = "outputs.jsonl"
STRATEGY = "recorded"
GOLD_FILES = frozenset(
    {"queries.jsonl", "answers.jsonl", "evidence.jsonl", "paraphrases.jsonl", "corpus.jsonl"}
)
"""Files of these names are gold, never outputs."""
K = (1, 5, 10, 20)


def outputs_file(place: Path) -> Path:
    """Find the file of outputs: the file itself, else `outputs.jsonl` of the folder, else its only .jsonl file that is not gold.

    Raises
    ------
    InputError
        `no_outputs`, `several_outputs`.
    """
    if place.is_file():
        return place
    if (place / OUTPUTS_FILE).is_file():
        return place / OUTPUTS_FILE
    found = (
        sorted(path for path in place.glob("*.jsonl") if path.name not in GOLD_FILES)
        if place.is_dir()
        else []
    )
    if len(found) == 1:
        return found[0]
    accepted = (
        f"a .jsonl file, or a folder with {OUTPUTS_FILE} or a single .jsonl file beside the gold"
    )
    if found:
        raise InputError(
            Problem(
                "several_outputs",
                "which of these files holds the outputs?",
                str(place),
                field="--recorded",
                found=", ".join(path.name for path in found[:20]),
                accepted=accepted,
            )
        )
    raise InputError(
        Problem(
            "no_outputs",
            "there are no recorded outputs",
            str(place),
            field="--recorded",
            accepted=accepted,
        )
    )


def recorded_configuration(outputs: Path) -> dict[str, Any]:
    """What `gold_set.yaml` would say of these outputs: contexts as the corpus, their order as the one ranking, the answers as they are."""
    stem = outputs.parent.resolve().name if outputs.name == OUTPUTS_FILE else outputs.stem
    return {
        "name": re.sub(r"[^A-Za-z0-9_-]+", "-", stem).strip("-_")[:64] or "recorded",
        "description": "recorded outputs; the contexts are the corpus",
        "corpus": {"loader": "recorded", "path": outputs.name},
        "k": K,
        "seeds": (13,),
        "strategies": ({"name": STRATEGY, "kind": "external", "recorded": outputs.name},),
        "answers": {"mode": "recorded", "recorded": outputs.name},
        "nightly": False,
    }


def open_recorded(
    place: Path, settings: Settings, *, progress: Progress | None = None
) -> Evaluation:
    """Open recorded outputs for evaluation.

    Parameters
    ----------
    place
        The .jsonl file, or a folder that holds it. `queries.jsonl`, `qrels.tsv` and `answers.jsonl` beside it are its gold; without them the
        questions come from the outputs, and everything that needs a judgement is null.

    Raises
    ------
    InputError
        No outputs are there, they cannot be read, or none has a context.
    """
    outputs = outputs_file(place)
    recorded = read_outputs(outputs)
    if not any(context.text for output in recorded for context in output.contexts):
        raise InputError(
            Problem(
                "empty_corpus",
                "no output has a context with a text, so there is nothing that an answer could rest on",
                str(outputs),
                field="contexts",
                accepted="contexts in at least one output",
            )
        )
    try:
        config = GoldSetConfig.model_validate(recorded_configuration(outputs))
    except ValidationError as error:
        raise InputError(
            [
                Problem(
                    "bad_value",
                    str(item["msg"]),
                    str(outputs),
                    field=".".join(map(str, item["loc"])),
                )
                for item in error.errors(include_url=False)
            ]
        ) from error
    return Evaluation(config, outputs.parent, settings, progress=progress or Silent(), known=False)
