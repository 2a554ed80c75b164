"""The evaluated gold set that the Python of README.md reads."""

from pathlib import Path

import numpy as np
import pytest
from cli_project import CONFIG, PAGES, Project, jsonl

N = 80


@pytest.fixture
def read_by_readme(project: Project, shared_runs, monkeypatch) -> Path:
    """Enter a folder with `reports/pandas_api`, a run that misses some of 80 questions.

    A question has three words of its document, and its second wording has one.
    """
    random = np.random.default_rng(5)
    words = np.array([f"w{rank:03}" for rank in range(300)])
    chances = 1 / np.arange(5, 305)
    documents = [" ".join(random.choice(words, 30, p=chances / chances.sum())) for _ in range(N)]
    for at, text in enumerate(documents):
        project.write(f"corpus/d{at}.md", f"# d{at}\n\n{text}\n")
    asked = [random.choice(text.split(), 3) for text in documents]
    project.ask(
        {f"q{at}": " ".join(chosen) for at, chosen in enumerate(asked)},
        {f"q{at}": f"d{at}.md" for at in range(N)},
    )
    others = [
        {"query_id": f"q{at}", "paraphrase_id": "p1", "text": chosen[0]}
        for at, chosen in enumerate(asked)
    ]
    project.write("paraphrases.jsonl", jsonl(others))
    config = CONFIG.replace("vector", "hybrid")
    project.write("gold_set.yaml", config.replace("k: [1, 5]", "k: [1, 10]"))
    monkeypatch.setenv(PAGES, "true")
    shared_runs.run(project)
    (project.reports / "tiny").rename(project.reports / "pandas_api")
    monkeypatch.chdir(project.root)
    return project.root
