"""Commands about trust: allow documents, sign a corpus, verify it."""

from pathlib import Path
from typing import Annotated

import typer

from rag_eval.cli.app import (
    GATE_FAILED,
    GoldSets,
    Home,
    OneGoldSet,
    app,
    open_evaluation,
    report_errors,
)
from rag_eval.core.errors import format_count

trust = typer.Typer(
    no_args_is_help=True,
    help="Source trust and the poisoning guard: allow documents, sign and verify the corpus.",
)
app.add_typer(trust, name="trust")


@trust.command()
def allow(
    who: Annotated[str, typer.Option(help="Who decides.")],
    why: Annotated[str, typer.Option(help="Why it is harmless.")],
    gold_set: OneGoldSet = None,
    *,
    document: Annotated[str | None, typer.Option(help="Id of a document.")] = None,
    page: Annotated[
        str | None,
        typer.Option(help="All documents with this link, or with the link of this document."),
    ] = None,
    home: Home = None,
    gold_sets: GoldSets = None,
) -> None:
    """Let the chunks of a document or page that the last run held back into the index again.

    The person and the reason are kept beside the gold set. A changed document is judged anew.
    """
    with report_errors():
        from rag_eval.core.errors import InputError

        filters = {"--document": document, "--page": page}
        choices = [(option, value) for option, value in filters.items() if value is not None]
        if len(choices) != 1:
            message, number = "one of two options names the documents", f"{len(choices)} of them"
            accepted = "--document or --page"
            raise InputError.of("bad_choice", message, found=number, accepted=accepted)
        evaluation = open_evaluation(gold_set, home, gold_sets)
        from rag_eval.pipeline.trust_commands import allow_documents

        decisions, path = allow_documents(evaluation, *choices[0], who=who, why=why)
        typer.echo(f"allowed: {format_count(len(decisions), 'document')}; recorded in {path}")
        typer.echo("the next run applies this; to withdraw it, delete the lines")


@trust.command()
def sign(
    gold_set: OneGoldSet = None,
    key: Annotated[
        Path | None, typer.Option(help="Ed25519 private key (PEM) of one of trust.keys.")
    ] = None,
    home: Home = None,
    gold_sets: GoldSets = None,
) -> None:
    """Record every document as it is now, and sign the record; later runs block changed documents.

    Writes the file that trust.manifest of the gold set names, and its signature beside it.
    """
    with report_errors():
        evaluation = open_evaluation(gold_set, home, gold_sets)
        from rag_eval.pipeline.stages import open_runner
        from rag_eval.pipeline.trust_commands import sign_corpus

        typer.echo(sign_corpus(open_runner(evaluation), key))


@trust.command()
def verify(gold_set: OneGoldSet = None, home: Home = None, gold_sets: GoldSets = None) -> None:
    """Check the documents as they are now against the manifest; status 2 if one differs."""
    with report_errors():
        evaluation = open_evaluation(gold_set, home, gold_sets)
        from rag_eval.pipeline.stages import open_runner
        from rag_eval.pipeline.trust_commands import verify_corpus

        lines, holds = verify_corpus(open_runner(evaluation))
        for line in lines:
            typer.echo(line)
    if not holds:
        raise typer.Exit(GATE_FAILED)
