"""Commands about gold sets: lint, init."""

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from rag_eval.cli.app import (
    ERROR,
    GoldSets,
    Home,
    app,
    command,
    open_settings,
    progress_for,
    report_errors,
)

ROOTS_VARIABLE = "RAG_EVAL_CORPUS_ROOTS"


@app.command()
def lint(
    gold_set: Annotated[
        list[str] | None, typer.Argument(help="Gold sets to check. Default: all.")
    ] = None,
    home: Home = None,
    gold_sets: GoldSets = None,
) -> None:
    """List every problem of a gold set with its file and line; exit 1 if one would block a run."""
    with report_errors():
        settings = open_settings(home, None, gold_sets)
        from rag_eval.corpus.masking import masked_text
        from rag_eval.pipeline.corpus import lint_gold_set
        from rag_eval.pipeline.evaluation import open_gold_set, select_gold_sets

        errors = 0
        for folder in select_gold_sets(settings.gold_sets, gold_set or [], every=True):
            problems = lint_gold_set(open_gold_set(folder, settings, progress=progress_for()))
            for problem in problems:
                typer.echo(masked_text(str(problem)))
            found = sum(problem.severity == "error" for problem in problems)
            typer.echo(f"{folder.name}: {found} errors, {len(problems) - found} warnings")
            errors += found
    if errors:
        raise typer.Exit(ERROR)


@app.command()
def init(
    name: Annotated[
        str, typer.Argument(help="Name of the new gold set: letters, digits, - and _.")
    ],
    docs: Annotated[Path, typer.Option(help="Folder of Markdown or text documents.")],
    gold_sets: GoldSets = None,
) -> None:
    """Start a gold set over your own documents: a configuration and draft questions."""
    with report_errors():
        settings = open_settings(None, None, gold_sets)
        from rag_eval.core.errors import NAME, InputError, Problem
        from rag_eval.core.settings import SETTINGS_FILE
        from rag_eval.gold.configuration import is_below
        from rag_eval.gold.scaffold import init_gold_set, list_corpus_root

        if not re.fullmatch(
            NAME, name
        ):  # a path as name could write outside the folder of gold sets
            raise InputError(
                Problem(
                    "bad_name",
                    "this cannot be the name of a gold set",
                    field="NAME",
                    found=name,
                    accepted="a letter or digit, then up to 63 letters, digits, - and _",
                )
            )
        folder = settings.gold_sets / name
        is_listed = is_below(docs, settings.corpus_roots)
        if not is_listed and any(key.upper() == ROOTS_VARIABLE for key in os.environ):
            raise InputError(
                Problem(
                    "root_not_listed",
                    "this variable hides settings.toml and does not list the folder of documents",
                    field=ROOTS_VARIABLE,
                    found=str(docs.resolve()),
                    accepted="the folder in the variable, or no such variable",
                )
            )
        init_gold_set(folder, docs)
        if not is_listed:
            list_corpus_root(Path(SETTINGS_FILE), docs)
    typer.echo(f"wrote {folder}")
    if not is_listed:
        typer.echo(
            f"added {docs.resolve()} to corpus_roots in {SETTINGS_FILE}: gold sets may read files "
            "below it"
        )
    typer.echo(
        f"next: edit {folder / 'queries.jsonl'} (rewrite each draft as a user would ask it, "
        f"remove its tag 'draft'), then: {command()} lint {name} && {command()} run {name}"
    )
