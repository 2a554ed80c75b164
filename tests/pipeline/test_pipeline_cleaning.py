"""`rag-eval clean` removes unused parts of a home and leaves all others."""

import json

import pytest

from rag_eval.core.errors import InputError
from rag_eval.core.settings import Settings
from rag_eval.pipeline.stages import clean
from rag_eval.storage.artifacts import ArtifactStore
from rag_eval.storage.hashing import digest
from rag_eval.storage.home import Home
from rag_eval.storage.locks import WriteLock


class FilledHome:
    """A home with runs of three nights over one corpus, each with its own chunks."""

    def __init__(self, root):
        self.root, self.store = root, ArtifactStore(Home(root))
        self.settings = Settings(home=root, wait_s=0)
        corpus = self.store.put("corpus_snapshot", {"about": {"rev": 1}})
        self.keys = {"corpus": corpus.key}
        for day in (1, 10, 28):
            made_from = [("corpus_snapshot", corpus.key)]
            chunks = self.store.put("corpus_chunks", {"about": {"day": day}}, made_from=made_from)
            self.keys[day] = chunks.key
            self.keep(f"202402{day:02}T020000000Z-{day:08x}", chunks.key, f"model-{day}")
        self.write("outcomes.db", "x")
        self.write("calibrators/one.json", "{}")

    def keep(self, run_id, key, model):
        body = {"gold_set": "tiny", "artifacts": {"cut": key}, "report": {"embed_model": model}}
        self.write(f"runs/{run_id}.json", json.dumps(body))
        self.write(f"runs/{run_id}.summary", "x")
        folder = f"embeddings/{digest(model)}"
        self.write(f"{folder}/model.json", json.dumps({"model": model}))

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def clean(self, **options):
        return {freed.what: freed.count for freed in clean(self.settings, **options)}

    def chunks(self):
        return {path.name for path in (self.root / "artifacts" / "corpus_chunks").iterdir()}


@pytest.fixture
def home(tmp_path):
    return FilledHome(tmp_path / "home")


@pytest.mark.parametrize(("options", "days"), [({}, (1, 10, 28)), ({"keep": 1}, (28,))])
def test_runs_go_with_what_they_alone_needed(home, options, days):
    gone = 3 - len(days)
    assert home.clean(**options) == {
        "half-written or damaged": 0,
        "files of kept runs": 2 * gone,  # a run and its summary
        "artifacts": gone,
        "embeddings": gone,
    }
    assert home.chunks() == {home.keys[day] for day in days}
    assert home.store.whole("corpus_snapshot", home.keys["corpus"])
    assert (home.root / "outcomes.db").is_file()
    assert (home.root / "calibrators" / "one.json").is_file()


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("record/tiny/corpus_chunks.json", "key"),
        ("baselines/tiny/accepted.jsonl", "run_id"),
    ],
)
def test_what_a_record_or_baseline_names_stays(home, place, name):
    named = {"key": home.keys[1], "run_id": "20240201T020000000Z-00000001"}
    home.write(place, json.dumps({name: named[name]}))
    home.clean(keep=1)
    assert home.chunks() == {home.keys[1], home.keys[28]}


def test_what_a_killed_run_left_goes(home):
    for place in ("artifacts/run/.partial-a/x", "artifacts/run/.damaged-b/x", "runs/.partial-c"):
        home.write(place, "12345")
    (freed, *_) = clean(home.settings)
    assert (freed.count, freed.size) == (3, 15)
    assert not list(home.root.rglob(".partial-*"))
    assert home.clean() == dict.fromkeys(home.clean(), 0)


def test_a_home_in_use_is_refused(home):
    with WriteLock(home.settings), pytest.raises(InputError, match="home_busy"):
        home.clean(keep=1)
    assert len(home.chunks()) == 3
