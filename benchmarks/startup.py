"""Time `import rag_eval.definitions` against `import dagster`, and `rag-eval --help`.

Each run is a new process. Prints one JSON line; the bars are a ratio of 1.3 and 0.5 seconds.
"""

import subprocess
import sys
from pathlib import Path

from timing import alternate, report

REPEATS = 5


def main() -> None:
    commands = {
        "ours": [sys.executable, "-c", "import rag_eval.definitions"],
        "reference": [sys.executable, "-c", "import dagster"],
        "help": [str(Path(sys.executable).with_name("rag-eval")), "--help"],
    }
    seconds = alternate(
        {
            name: lambda command=command: subprocess.run(
                command, check=True, stdout=subprocess.DEVNULL
            )
            for name, command in commands.items()
        },
        REPEATS,
    )
    help_s = round(seconds["help"], 3)
    report("startup", seconds["ours"], seconds["reference"], 1.3, help_s=help_s, help_bar_s=0.5)


if __name__ == "__main__":
    main()
