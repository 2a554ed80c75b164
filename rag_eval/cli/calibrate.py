"""Commands that calibrate miss rates by outcomes and that compare strategies."""

import dataclasses
import json as json_form
from pathlib import Path
from typing import Annotated

import typer

from rag_eval.cli.app import (
    GoldSets,
    Home,
    OneGoldSet,
    app,
    console_for,
    open_evaluation,
    report_errors,
)

calibrate = typer.Typer(invoke_without_command=True, pretty_exceptions_enable=False)
app.add_typer(
    calibrate,
    name="calibrate",
    help="Calibrate miss rates on the outcomes so far, and say what each has earned; compare "
    "strategies.",
)


@calibrate.callback(
    invoke_without_command=True,
    help="Fit each strategy's estimator to its outcomes, validate it on held-out groups, "
    "and keep what it has earned for the next run.",
)
def calibrate_now(
    context: typer.Context,
    *,
    gold_set: OneGoldSet = None,
    json: Annotated[
        bool, typer.Option("--json", help="Everything as one JSON object instead of tables.")
    ] = False,
    home: Home = None,
    gold_sets: GoldSets = None,
) -> None:
    """Fit and validate each strategy's estimator, and keep its status for the next run."""
    if context.invoked_subcommand is not None:
        return
    with report_errors():
        evaluation = open_evaluation(gold_set, home, gold_sets)
        from rag_eval.pipeline.miss_rates import calibrate_gold_set
        from rag_eval.reporting.terminal import show_calibration

        found = calibrate_gold_set(evaluation)
        if json:
            typer.echo(json_form.dumps(dataclasses.asdict(found), sort_keys=True, allow_nan=False))
        else:
            show_calibration(console_for(), found)


@calibrate.command()
def compare(
    strategies: Annotated[
        list[str], typer.Argument(help="Two or more strategies of the gold set.")
    ],
    *,
    gold_set: OneGoldSet = None,
    csv: Annotated[Path | None, typer.Option(help="Also write the table to this file.")] = None,
    home: Home = None,
    gold_sets: GoldSets = None,
) -> None:
    """Compare strategies on the same questions, with intervals and Holm-adjusted p.

    Shows miss rates, Brier scores and skill, and prediction-powered estimates.
    """
    with report_errors():
        evaluation = open_evaluation(gold_set, home, gold_sets)
        from rag_eval.pipeline.miss_rates import compare_strategies
        from rag_eval.reporting.listings import (
            differences_table,
            strategies_table,
            write_comparison_csv,
        )

        found = compare_strategies(evaluation, strategies)
        console = console_for()
        console.print(strategies_table(found))
        console.print(differences_table(found))
        if csv is not None:
            write_comparison_csv(csv, found)
            typer.echo(f"written to {csv}")
