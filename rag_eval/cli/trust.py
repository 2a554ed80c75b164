"""Commands about trust: findings, decisions, keys, signatures and manifests."""

import json as json_form
import math
from pathlib import Path
from typing import Annotated

import typer

from rag_eval.cli.app import (
    CommandLine,
    GoldSets,
    Home,
    OneGoldSet,
    app,
    console_for,
    open_evaluation,
    open_settings,
    report_errors,
)
from rag_eval.core.errors import format_count

trust = CommandLine(
    no_args_is_help=True,
    help=(
        "Source trust and the poisoning guard: list, show and allow blocked chunks; sign "
        "documents and record their hashes."
    ),
)
app.add_typer(trust, name="trust")


@trust.command("list")
def list_(
    gold_set: OneGoldSet = None,
    *,
    warnings: Annotated[
        bool, typer.Option("--warnings", help="Also list chunks with warnings only.")
    ] = False,
    chunks: Annotated[
        bool, typer.Option("--chunks", help="A row for each chunk instead of documents.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="A line of JSON for each chunk instead of documents.")
    ] = False,
    home: Home = None,
    gold_sets: GoldSets = None,
) -> None:
    """List the documents with chunks that the guard holds back: how many, why, and where."""
    with report_errors():
        evaluation = open_evaluation(gold_set, home, gold_sets)
        from rag_eval.pipeline.held_back import held_back

        found = held_back(evaluation, warnings=warnings)
        if json:
            for row in found.rows:
                line = vars(row) | {"trust": None if math.isnan(row.trust) else row.trust}
                typer.echo(json_form.dumps(line, sort_keys=True, allow_nan=False))
        else:
            from rag_eval.reporting.listings import show_listing

            show_listing(console_for(), found, chunks=chunks)


@trust.command()
def show(
    chunk_id: Annotated[str, typer.Argument(help="A chunk, or the start of its id.")],
    gold_set: OneGoldSet = None,
    home: Home = None,
    gold_sets: GoldSets = None,
) -> None:
    """Show one chunk: its trust with all factors, its findings and who allowed it.

    Shows up to 200 characters of its text.
    """
    with report_errors():
        evaluation = open_evaluation(gold_set, home, gold_sets)
        from rag_eval.pipeline.held_back import inspect
        from rag_eval.reporting.listings import show_chunk

        show_chunk(console_for(), inspect(evaluation, chunk_id))


@trust.command()
def allow(
    who: Annotated[str, typer.Option(help="Who decides.")],
    why: Annotated[str, typer.Option(help="Why it is harmless.")],
    chunk_id: Annotated[
        str | None, typer.Argument(help="A blocked chunk, or the start of its id.")
    ] = None,
    gold_set: OneGoldSet = None,
    *,
    document: Annotated[
        str | None, typer.Option(help="All blocked chunks of this document.")
    ] = None,
    page: Annotated[
        str | None,
        typer.Option(
            help="All blocked chunks of the documents with this link, or with the link of this "
            "document."
        ),
    ] = None,
    reason: Annotated[
        str | None, typer.Option(help="All chunks that are blocked for this reason.")
    ] = None,
    revoke: Annotated[bool, typer.Option("--revoke", help="Withdraw the permission.")] = False,
    home: Home = None,
    gold_sets: GoldSets = None,
) -> None:
    """Let blocked chunks into the index again: one, or all of a document, page or reason.

    The person and the reason are kept beside the gold set. A changed document is judged anew.
    """
    with report_errors():
        from rag_eval.core.errors import InputError, quoted

        options = {"--document": document, "--page": page, "--reason": reason}
        named = {option: value for option, value in options.items() if value is not None}
        if named and chunk_id is not None and gold_set is None:
            gold_set, chunk_id = chunk_id, None  # the argument that is left is NAME
        named |= {} if chunk_id is None else {"CHUNK_ID": chunk_id}
        if len(named) != 1:
            accepted = "one of CHUNK_ID, --document, --page and --reason"
            message, found = "the chunks must be named in one way", ", ".join(named) or "none"
            raise InputError.of("bad_choice", message, found=found, accepted=accepted)
        evaluation = open_evaluation(gold_set, home, gold_sets)
        from rag_eval.pipeline.allowances import decide

        (choice,) = named.items()
        decisions, path = decide(evaluation, *choice, who=who, why=why, revoke=revoke)
        first, n_documents = decisions[0], len({one.doc_id for one in decisions})
        names = f"{quoted(first.chunk_id)} of {quoted(first.doc_id)} ({', '.join(first.reasons)})"
        if len(decisions) > 1:
            ending = "" if n_documents == 1 else "s"
            names = f"{format_count(len(decisions), 'chunk')} of {n_documents:,} document{ending}"
        done = "no longer allowed" if revoke else "allowed"
        typer.echo(f"{done}: {names}; recorded in {path}")
        typer.echo("the next run applies this")


@trust.command()
def manifest(
    gold_set: OneGoldSet = None,
    key: Annotated[
        Path | None, typer.Option(help="Ed25519 private key (PEM) to sign the manifest with.")
    ] = None,
    home: Home = None,
    gold_sets: GoldSets = None,
) -> None:
    """Record the hash of every document as it is now; later runs block documents that changed.

    Writes trust.manifest of the gold set, else manifest.json in its folder.
    """
    with report_errors():
        evaluation = open_evaluation(gold_set, home, gold_sets)
        from rag_eval.pipeline.corpus import write_manifest
        from rag_eval.pipeline.stages import open_runner

        path, version, count = write_manifest(open_runner(evaluation), key)
        signed = "" if key is None else ", signed"
        typer.echo(
            f"{format_count(count, 'document')} recorded in {path} as version {version}{signed}"
        )
        if evaluation.config.trust.keys and not signed:
            typer.echo(
                "trust.keys is configured, so no run accepts it before it is signed: rag-eval "
                "trust manifest --key"
            )


@trust.command()
def accept_manifest(
    who: Annotated[str, typer.Option(help="Who decides.")],
    why: Annotated[str, typer.Option(help="Why this version is right.")],
    gold_set: OneGoldSet = None,
    home: Home = None,
    gold_sets: GoldSets = None,
) -> None:
    """Accept the manifest as it is now, although the last accepted one is newer or differs.

    The home keeps the decision. A person checks first how the manifest came back.
    """
    with report_errors():
        evaluation = open_evaluation(gold_set, home, gold_sets)
        from rag_eval.pipeline.corpus import accept_present_manifest

        accepted = accept_present_manifest(evaluation, who, why)
        typer.echo(f"accepted: version {accepted.version} of {accepted.created_at}")


@trust.command()
def sign(
    key: Annotated[Path, typer.Option(help="Ed25519 private key (PEM).")],
    name: Annotated[str, typer.Option(help="Name of the key under trust.keys.")],
    gold_set: OneGoldSet = None,
    home: Home = None,
    gold_sets: GoldSets = None,
) -> None:
    """Sign every document of the corpus as it is now (detached Ed25519 signatures).

    Writes trust.signatures of the gold set, else signatures.jsonl in its folder.
    """
    with report_errors():
        evaluation = open_evaluation(gold_set, home, gold_sets)
        from rag_eval.pipeline.corpus import write_signatures

        path, count = write_signatures(evaluation, key, name)
        typer.echo(f"{format_count(count, 'document')} signed in {path}")
        if evaluation.config.trust.signatures is None:
            typer.echo(
                f"no run reads them until gold_set.yaml says under trust: signatures: {path.name}"
            )


@trust.command()
def keygen(
    out: Annotated[Path, typer.Argument(help="File for the private key; it must not exist.")],
) -> None:
    """Make an Ed25519 key pair: write the private key to a file and print the public key."""
    with report_errors():
        open_settings()
        from rag_eval.trust.signatures import write_key

        public = write_key(out)  # print no path before the key is written
        typer.echo(f"private key in {out}; keep it out of the repository")
        typer.echo(f"public key, for trust.keys of gold_set.yaml: {public}")
