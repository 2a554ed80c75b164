"""Faithfulness by a judging model through ragas, behind FEATURE_RAGAS_EVAL: which endpoint judges, and what is kept.

Belongs here: the switch, the endpoint, the artifact. What ragas is asked is `rag_eval.measures.ragas_bridge`, imported only when it is.
"""

import collections
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from rag_eval.evaluation.measure_steps import BOOTSTRAP_SEED, Runs, number
from rag_eval.records.answer_settings import Answers
from rag_eval.records.answers import Answer
from rag_eval.records.problems import InputError, Problem
from rag_eval.settings import Endpoint
from rag_eval.storage.artifacts import Artifact

RAGAS_OFF = "FEATURE_RAGAS_EVAL is off"


def judge_endpoint(runs: Runs, config: Answers) -> tuple[str, Endpoint]:
    """Choose who judges: the endpoint that the settings name for it, else the one that answers.

    Raises
    ------
    InputError
        The flag is on and there is no endpoint.
    """
    settings = runs.evaluation.settings
    name = settings.ragas_endpoint or config.endpoint
    if name is None or name not in settings.endpoints:
        accepted = (
            ", ".join(sorted(settings.endpoints)) or "none is enabled; see RAG_EVAL_ENDPOINTS"
        )
        raise InputError(
            Problem(
                "unknown_endpoint",
                "FEATURE_RAGAS_EVAL is on and needs a chat endpoint that judges",
                field="ragas_endpoint",
                found=name or "nothing",
                accepted=accepted,
            )
        )
    return name, settings.endpoints[name]


def faithfulness(runs: Runs, config: Answers, found: Sequence[Answer]) -> dict[str, Any]:
    """Judge a sample of the answers.

    Returns
    -------
    dict
        A figure as the report shows it, with `sample_rate`, `n_sampled`, `failures` by reason and `model`; `value` null with its reason while the flag is off.

    Notes
    -----
    Verdicts are kept only when the judge failed on none: the next run asks again.
    """
    evaluation = runs.evaluation
    if not evaluation.settings.feature_ragas_eval:
        return {"value": None, "value_reason": RAGAS_OFF}
    from rag_eval.measures import ragas_bridge

    name, endpoint = judge_endpoint(runs, config)
    gold = runs.gold.queries
    texts = dict(zip(gold["query_id"].tolist(), gold["text"].tolist(), strict=True))
    samples = [
        ragas_bridge.Sample(
            answer.query_id,
            texts[answer.query_id],
            answer.text if answer.outcome == "answered" else None,
            [item.chunk.text for item in answer.evidence],
        )
        for answer in found
    ]
    key = evaluation.key(
        "faithfulness",
        [list(sample) for sample in samples],
        endpoint.base_url,
        endpoint.model,
        config.ragas_sample_rate,
    )
    kept = evaluation.store.get("faithfulness", key)
    judged = _read(kept) if kept is not None else _judged(runs, config, samples, endpoint)
    if kept is None and not any(judged.failure):
        evaluation.memo(
            "faithfulness",
            key,
            lambda: {
                "judged": pd.DataFrame(
                    {"value": judged.value, "eligible": judged.eligible, "sampled": judged.sampled}
                )
            },
        )
    record = ragas_bridge.faithfulness_record(judged, runs.gold.groups, BOOTSTRAP_SEED)
    counts = {
        part: getattr(record, part)
        for part in ("n_attempted", "n_scored", "n_failed", "n_ineligible", "n_groups")
    }
    return {
        "value": number(record.value),
        **({"value_reason": record.reason} if record.reason else {}),
        "ci_low": number(record.ci_low),
        "ci_high": number(record.ci_high),
        **counts,
        "sample_rate": config.ragas_sample_rate,
        "n_sampled": int(judged.sampled.sum()),
        "failures": dict(sorted(collections.Counter(filter(None, judged.failure)).items())),
        "endpoint": name,
        "model": endpoint.model,
    }


def _read(kept: Artifact) -> Any:
    from rag_eval.measures.ragas_bridge import Faithfulness

    frame = kept.frame("judged")
    return Faithfulness(
        frame["value"].to_numpy(),
        frame["eligible"].to_numpy(dtype=bool),
        frame["sampled"].to_numpy(dtype=bool),
        [""] * len(frame),
    )


def _judged(runs: Runs, config: Answers, samples: Sequence[Any], endpoint: Endpoint) -> Any:
    from rag_eval.answers.chat import async_client
    from rag_eval.measures import ragas_bridge

    limits = ragas_bridge.Limits(
        concurrency=endpoint.concurrency,
        requests_per_minute=endpoint.requests_per_minute,
        timeout_s=2 * endpoint.timeout_s,
    )
    n = int(
        np.sum(
            [
                ragas_bridge.is_sampled(sample.query_id, config.ragas_sample_rate)
                for sample in samples
            ]
        )
    )
    with runs.evaluation.progress.step(
        f"Judging faithfulness with {endpoint.model}", n, "answers"
    ) as advance:
        found = ragas_bridge.faithfulness(
            samples,
            lambda: async_client(endpoint),
            endpoint.model,
            rate=config.ragas_sample_rate,
            limits=limits,
            options={"temperature": endpoint.temperature, "max_tokens": endpoint.max_tokens},
        )
        advance(n)
    return found
