"""Start the command `rag-eval`, or say in one line which extra it needs."""

import sys

from rag_eval.core.parts import explain_missing


def main() -> None:
    """Run the command line; exit with status 1 if its packages are not installed."""
    if missing := explain_missing("rag-eval"):
        sys.exit(missing)
    from rag_eval.cli import main as run_command

    run_command()


if __name__ == "__main__":
    main()
