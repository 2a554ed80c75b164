"""Traces of a finished run: one for each question and answer segment, as rows of `rag_traces` and as lines of `traces.log`.

Belongs here: what a trace of ours says. Its forms and writers are `rag_eval.citations.traces`.
"""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from rag_eval.citations.traces import Trace, write_log, write_traces
from rag_eval.corpus.analyzer import ANALYZER
from rag_eval.corpus.outgoing import shown
from rag_eval.evaluation.answer_frames import from_artifact
from rag_eval.evaluation.answer_steps import answers
from rag_eval.evaluation.inputs import Evaluation
from rag_eval.evaluation.measure_steps import Runs
from rag_eval.evaluation.stability_steps import stability_measures
from rag_eval.gold.files import ORIGINAL
from rag_eval.records.answers import Answer, Evidence
from rag_eval.records.gold_set import Bm25, External, Hybrid, Vector
from rag_eval.records.problems import InputError
from rag_eval.storage.sql import SqlStore

LOG = "traces.log"
DATABASE = "rag_eval.db"


def open_sql_store(evaluation: Evaluation) -> SqlStore:
    """Open the SQL store of the settings, or the SQLite file of the home.

    Raises
    ------
    InputError
        It cannot be used; no password is shown.
    """
    address = evaluation.settings.database_url
    return SqlStore(
        evaluation.settings.home / DATABASE if address is None else address.get_secret_value()
    )


def store_name(spec: Bm25 | Vector | Hybrid | External) -> str:
    """Name what held the postings or vectors of a strategy."""
    if isinstance(spec, External):
        return f"external:{spec.source or 'file'}"
    if isinstance(spec, Bm25):
        return spec.engine
    return "chroma" if spec.search == "approximate" else "exact"


def traces(runs: Runs, report: Mapping[str, Any]) -> list[Trace]:
    """Traces of the run's answers; none where no answers were made."""
    made = answers(runs)
    if made is None:
        return []
    name = made.json("about")["strategy"]
    stability, seed = stability_measures(runs), runs.artifact(name).json("about")["seeds"][0]
    per_run = stability.frame("per_run")
    per_run = per_run[
        (per_run["strategy"] == name)
        & (per_run["seed"] == seed)
        & (per_run["paraphrase_id"] == ORIGINAL)
    ]
    states = stability.frame("per_query")
    states = states[states["strategy"] == name]
    distance: dict[str, float] = dict(zip(per_run["query_id"], per_run["delta_s"], strict=True))
    state: dict[str, str] = dict(zip(states["query_id"], states["lambda_state"], strict=True))
    about = runs.artifact(name).json("about")
    common: dict[str, Any] = {
        "ts": report["timestamp"],
        "store": store_name(runs.evaluation.config.base_of(runs.spec(name))),
        "index_hash": about["index_hash"],
        "embed_model": about["embed_model"],
        "analyzer": ANALYZER,
        "run_id": report["run_id"],
        "strategy": name,
        "paraphrase_id": ORIGINAL,
        "seed": seed,
    }
    found = []
    for answer in from_artifact(made):
        value = distance.get(answer.query_id)
        own: dict[str, Any] = {
            "qid": answer.query_id,
            "delta_s": None if value is None or pd.isna(value) else value,
            "lambda_state": state.get(answer.query_id, ""),
            "k": answer.top_k,
        }
        found += [Trace(**common, **own, **segment) for segment in _segments(answer)]
    return found


def _segments(answer: Answer) -> list[dict[str, Any]]:
    """One entry for each segment that cites, in their order; one without citations where the answer cites nothing."""
    cited: dict[int, list[Evidence | None]] = {}
    names: dict[int, list[str]] = {}
    for span in answer.citations:
        item = answer.evidence[span.evidence] if 0 <= span.evidence < len(answer.evidence) else None
        cited.setdefault(span.segment, []).append(item)
        names.setdefault(span.segment, []).append(
            item.chunk.snippet_id if item else shown(span.doc_id)
        )  # what is no evidence may be any text
    if not cited:
        return [{"seg": 0}]
    segments = []
    for seg in sorted(cited):
        items = cited[seg]
        first = next((item for item in items if item is not None), None)
        segments.append(
            {
                "seg": seg,
                "citations": tuple(names[seg]),
                "scores": tuple(None if item is None else item.chunk.score_raw for item in items),
                "kpos": tuple(None if item is None else item.chunk.k_pos for item in items),
                "kfinal": tuple(None if item is None else item.chunk.k_final for item in items),
                "section_id": first.chunk.section_id if first else "",
                "rev": first.chunk.rev if first else "",
            }
        )
    return segments


def record_traces(runs: Runs, report: Mapping[str, Any]) -> int:
    """Write the run's traces to the SQL store and, where the settings say so, to the reports; returns how many.

    Raises
    ------
    InputError
        The SQL store cannot be used.
    """
    found = traces(runs, report)
    log = runs.evaluation.reports / LOG
    if found and runs.evaluation.settings.trace_log:
        write_log(log, found)
    else:
        log.unlink(missing_ok=True)  # lines of an earlier run must not stand beside this report
    return write_traces(open_sql_store(runs.evaluation), found) if found else 0


def traces_or_error(runs: Runs, report: Mapping[str, Any]) -> str | None:
    """Write the run's traces; why the SQL store could not be used, for a warning: the report stands without it."""
    try:
        record_traces(runs, report)
    except InputError as failure:
        return str(failure)
    return None
