"""Import time of `rag_eval.definitions` against `dagster` alone, and the time of `rag-eval --help`, each in fresh processes.

Prints one JSON line; the bars are a ratio of 1.3 and 0.5 seconds.
"""

import importlib.util
import subprocess
import sys
from pathlib import Path

from timing import alternate, report, skipped

REPEATS = 5


def fresh(*command: str) -> None:
    """Run a command and see it succeed."""
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def main() -> None:
    if importlib.util.find_spec("rag_eval.definitions") is None:
        skipped("startup", "there is no rag_eval.definitions")
        return
    program = Path(sys.executable).with_name("rag-eval")
    runs = {
        "ours": lambda: fresh(sys.executable, "-c", "import rag_eval.definitions"),
        "reference": lambda: fresh(sys.executable, "-c", "import dagster"),
    }
    with_help = program.is_file() and importlib.util.find_spec("rag_eval.cli") is not None
    if with_help:
        runs["help"] = lambda: fresh(str(program), "--help")
    seconds = alternate(runs, REPEATS)
    about_help = (
        {"help_s": round(seconds["help"], 3)}
        if with_help
        else {"help_skipped": "there is no program rag-eval"}
    )
    report("startup", seconds["ours"], seconds["reference"], 1.3, **about_help, help_bar_s=0.5)


if __name__ == "__main__":
    main()
