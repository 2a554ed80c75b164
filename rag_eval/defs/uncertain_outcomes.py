"""What the assets of uncertainty leave behind: versions, whether they were reused, and metadata worth looking at."""

from typing import Any

from rag_eval.defs.metadata import n_undefined, native, table, text
from rag_eval.defs.outcomes import Outcome
from rag_eval.defs.resources import Session
from rag_eval.storage.hashing import digest


def miss_rate_claims(session: Session) -> Outcome:
    """Stated miss rates of every retrieval."""
    import dagster as dg

    from rag_eval.evaluation.claim_steps import miss_rate_claims as stage

    artifact = stage(session.runs)
    frame, about = artifact.frame("claims"), artifact.json("about")["strategies"]
    rows = []
    for name, entry in about.items():
        own = frame[frame["strategy"] == name]
        mean = own["miss_rate"].mean()
        rows.append(
            {
                "strategy": name,
                "status": entry["status"],
                "calibrator": entry["calibrator"],
                "n_claims": len(own),
                "mean_stated": native(mean),
                "fingerprint": entry["fingerprint"],
            }
        )
    return Outcome(
        artifact.key,
        artifact.reused,
        {
            "n_claims": len(frame),
            "stated": table(
                ("strategy", "status", "calibrator", "n_claims", "mean_stated", "fingerprint"), rows
            ),
            "n_undefined": n_undefined(rows, "mean_stated"),
            "artifact": dg.MetadataValue.path(str(artifact.folder.resolve())),
        },
    )


def retrieval_outcomes(session: Session) -> Outcome:
    """Outcomes that the gold gave."""
    from rag_eval.evaluation.outcome_steps import judged_claims
    from rag_eval.evaluation.outcome_steps import retrieval_outcomes as stage

    found = stage(session.runs)
    judged = {
        name: judged_claims(session.runs, name)[["claim_id", "missed"]].to_numpy().tolist()
        for name in found["strategies"]
    }  # what is known, whichever run wrote it
    rows = [{"strategy": name, **entry} for name, entry in found["strategies"].items()]
    added = sum(row["added"] for row in rows)
    counts = table(("strategy", "n_claims", "n_judged", "n_missed", "added", "already_there"), rows)
    shown = {"n_added": added, "gold_source": text(found["gold_source"]), "outcomes": counts}
    return Outcome(
        digest(judged),
        added == 0,
        shown | ({"not_recorded": text(found["not_recorded"])} if found["not_recorded"] else {}),
    )


def miss_rate_calibration(session: Session) -> Outcome:
    """What the outcomes so far make of each strategy's miss rate."""
    from rag_eval.evaluation.calibration_steps import miss_rate_calibration as stage

    found = stage(session.runs)
    rows: list[dict[str, Any]] = []
    unmet: list[dict[str, Any]] = []
    for name, entry in found.items():
        validation = entry["validation"] or {}
        figures = {
            key: validation.get(key, {}).get("value")
            for key in ("skill", "auroc", "brier", "smece")
        }
        rows.append(
            {
                "strategy": name,
                "status": entry["status"],
                "calibrator": entry["calibrator"] or "none",
                "outcomes": entry["counts"]["outcomes"],
                "groups": entry["counts"]["groups"],
                **figures,
            }
        )
        unmet += [
            {
                "strategy": name,
                **{key: condition[key] for key in ("status", "name", "found", "needed")},
            }
            for condition in entry["standing"]["conditions"]
            if not condition["met"]
        ]
    promotions = [
        {"strategy": name, **entry["promotion"]}
        for name, entry in found.items()
        if entry["promotion"]
    ]
    shown = table(
        (
            "strategy",
            "status",
            "calibrator",
            "outcomes",
            "groups",
            "skill",
            "auroc",
            "brier",
            "smece",
        ),
        rows,
    )
    return Outcome(
        digest({name: [entry["artifact"], entry["status"]] for name, entry in found.items()}),
        not promotions and all(entry["promotion"] is None for entry in found.values()),
        {
            "calibration": shown,
            "n_undefined": n_undefined(rows, "skill"),
            **(
                {
                    "conditions_not_met": table(
                        ("strategy", "status", "name", "found", "needed"), unmet
                    )
                }
                if unmet
                else {}
            ),
            **(
                {"promotions": table(("strategy", "old_status", "new_status", "at"), promotions)}
                if promotions
                else {}
            ),
        },
    )


def calibrated_miss_rates(session: Session) -> Outcome:
    """Observed and stated miss rates side by side, and how strategies compare."""
    from rag_eval.evaluation.uncertainty_steps import calibrated_miss_rates as stage

    found = stage(session.runs)
    part, target = found["uncertainty"], found["uncertainty"]["target"]
    rows = [
        {
            "strategy": name,
            "status": entry["status"],
            **{
                key: entry["observed"][target][key]
                for key in ("value", "ci_low", "ci_high", "n_scored")
            },
            "stated": entry["stated"]["value"],
        }
        for name, entry in part["strategies"].items()
    ]
    comparison = found["calibration"]["comparison"]
    differences = [
        {
            "a": row["a"],
            "b": row["b"],
            "measure": row["measure"],
            **{key: row["delta"][key] for key in ("value", "low", "high")},
            "p_holm": row["p_holm"],
        }
        for row in (comparison or {}).get("differences", ())
    ]
    return Outcome(
        digest(rows),
        False,  # noqa: FBT003 - it is put together anew each night
        {
            "target": text(f"{target}@{part['k']}"),
            "observed": table(
                ("strategy", "status", "value", "ci_low", "ci_high", "n_scored", "stated"), rows
            ),
            "n_undefined": n_undefined(rows, "value"),
            **(
                {
                    "differences": table(
                        ("a", "b", "measure", "value", "low", "high", "p_holm"), differences
                    )
                }
                if differences
                else {}
            ),
        },
    )
