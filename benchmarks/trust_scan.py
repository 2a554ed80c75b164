"""Time the scan for forbidden, hidden and encoded text against tokenising the same texts.

Prints two lines for each corpus: `trust_scan` for the rules (at most 1.5 times tokenising), and
`trust_screen` for the rules and the model over sentences.
"""

from timing import ROOT, alternate, data_folder, emit, indexed_text, json_lines, report, skipped

from rag_eval.corpus.analyzer import Analyzer
from rag_eval.corpus.loading import load_corpus
from rag_eval.gold.configuration import load_config
from rag_eval.trust.guard import screen
from rag_eval.trust.rules import RuleSet

BAR, REPEATS = 1.5, 5


def _corpora() -> dict[str, list[str]]:
    gold = ROOT / "gold_sets" / "pandas_api"
    found = {"pandas": load_corpus(load_config(gold).corpus, gold).documents["text"].tolist()}
    folder = data_folder()
    if folder is None:
        skipped("trust_scan", "the public data is not there; set RAG_EVAL_TEST_DATA")
        return found
    for name in ("scifact", "xquad"):
        found[name] = [
            indexed_text({"title": "", **document})
            for document in json_lines(folder / name / "corpus.jsonl")
        ]
    return found


def _corpus(name: str, texts: list[str], rules: RuleSet) -> None:
    runs = {
        "scan": lambda: screen(texts, rules, sentences=False),
        "screen": lambda: screen(texts, rules),
        "tokenise": lambda: Analyzer().index(texts),
    }
    seconds = alternate(runs, REPEATS)
    about = {"corpus": name, "texts": len(texts), "version": rules.version}
    report("trust_scan", seconds["scan"], seconds["tokenise"], BAR, **about)
    share = round(seconds["screen"] / seconds["tokenise"], 3)
    emit("trust_screen", ours_s=round(seconds["screen"], 4), ratio=share, **about)


if __name__ == "__main__":
    loaded = RuleSet.load()
    for corpus, texts in _corpora().items():
        _corpus(corpus, texts, loaded)
