"""Published JSON Schemas of the files that stages write."""

import json
from importlib import resources


def published(name: str) -> dict:
    file = resources.files("rag_eval.pipeline") / f"{name}.schema.json"
    return json.loads(file.read_text("utf-8"))
