"""Configuration, discovery, layouts, hashes, groups and variants."""

import shutil

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rag_eval.core.errors import InputError
from rag_eval.core.frames import VARIANTS
from rag_eval.gold.configuration import discover, load_config
from rag_eval.gold.lint import lint
from rag_eval.gold.loading import gold_groups, group_ids, load_gold, variants
from rag_eval.gold.resolving import resolve

CONFIG = "name: {name}\ncorpus: {corpus}\nstrategies: [{{name: bm25, kind: bm25}}]\n"


def _configure(folder, corpus="{loader: folder, path: docs}", more=""):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gold_set.yaml").write_text(CONFIG.format(name=folder.name, corpus=corpus) + more)


def test_discover_is_sorted_and_skips_what_is_no_gold_set(tmp_path):
    for name in ("beta", "alpha", ".hidden"):
        _configure(tmp_path / name)
    (tmp_path / "notes").mkdir()
    assert list(discover(tmp_path).items()) == [
        ("alpha", tmp_path / "alpha"),
        ("beta", tmp_path / "beta"),
    ]


@pytest.mark.parametrize(("name", "code"), [("no such", "missing_folder"), ("sets", "bad_name")])
def test_discover_refuses(tmp_path, name, code):
    _configure(tmp_path / "sets" / "has space")
    with pytest.raises(InputError) as caught:
        discover(tmp_path / name)
    assert [problem.code for problem in caught.value.problems] == [code]


def test_beir_gold_beside_its_corpus(tmp_path):
    data = tmp_path / "data"
    (data / "qrels").mkdir(parents=True)
    (data / "queries.jsonl").write_text('{"_id": "1", "text": "a"}\n{"_id": "2", "text": "b"}\n')
    (data / "qrels" / "dev.tsv").write_text("query-id\tcorpus-id\tscore\n2\td\t1\n")
    _configure(
        tmp_path / "sets" / "mine", "{loader: beir, path: ../../data}", "split: dev\nversion: 7\n"
    )
    gold = load_gold(tmp_path / "sets" / "mine")
    assert (gold.name, gold.version, gold.layout) == ("mine", "7", "beir")
    assert gold.queries["query_id"].tolist() == ["2"]
    assert gold.queries["answerable"].tolist() == [True]
    # A BEIR folder with one split needs no configuration.
    assert load_gold(data).judgements["target"].tolist() == ["d"]
    (data / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n1\td\t1\n")
    with pytest.raises(InputError) as caught:
        load_gold(data)
    problem = caught.value.problems[0]
    assert (problem.code, problem.accepted) == ("missing_split", "dev, test")


def test_trec_topics(tmp_path):
    (tmp_path / "topics.tsv").write_text("301\twhat is a tern\n302\twhat is a gull\n")
    (tmp_path / "qrels.txt").write_text("301 0 d1 1\n301\tQ0\td2\t0\n302 0 d1 2\n")
    gold = load_gold(tmp_path)
    assert gold.layout == "trec"
    assert gold.queries["text"].tolist() == ["what is a tern", "what is a gull"]
    assert gold.queries["group_id"].tolist() == ["301", "301"]
    assert gold.judgements["line"].tolist() == [1, 2, 3]


def test_gold_hash_covers_the_files_and_not_the_strategies(smoke, tmp_path):
    copy = tmp_path / "smoke"
    shutil.copytree(smoke, copy)
    first = load_gold(smoke).gold_hash
    assert load_gold(copy).gold_hash == first, "the place does not matter"
    config = copy / "gold_set.yaml"
    config.write_text(config.read_text().replace("alpha: 0.5", "alpha: 0.4"))
    assert load_gold(copy).gold_hash == first
    config.write_text(config.read_text().replace("version: 1", "version: 2"))
    second = load_gold(copy).gold_hash
    wordings = copy / "paraphrases.jsonl"
    wordings.write_text(wordings.read_text().replace("hot backup", "live backup"))
    assert len({first, second, load_gold(copy).gold_hash}) == 3


def join_groups(queries, pairs):
    groups = {query: {query} for query in queries}
    for one, first in pairs:
        for other, second in pairs:
            if first == second and {one, other} <= groups.keys():
                joined = groups[one] | groups[other]
                groups |= dict.fromkeys(joined, joined)
    return [min(groups[query]) for query in queries]


@given(
    queries=st.lists(st.sampled_from("abcdefgh"), unique=True, max_size=8),
    pairs=st.lists(st.tuples(st.sampled_from("abcdefghz"), st.sampled_from("12345")), max_size=10),
)
def test_groups_are_connected_components(queries, pairs):
    asked, documents = [query for query, _ in pairs], [document for _, document in pairs]
    assert group_ids(queries, asked, documents) == join_groups(queries, pairs)


def test_not_relevant_documents_join_nobody(make_gold):
    rows = [{"query_id": name, "text": name, "answerable": True} for name in ("q1", "q2", "q3")]
    gold = load_gold(make_gold(rows, "q1\ta\t1\nq2\ta\t0\nq2\tb\t1\nq3\tb#x\t1\n"))
    assert gold.queries["group_id"].tolist() == ["q1", "q2", "q2"]


def test_variants_are_ordered(make_gold):
    rows = [{"query_id": name, "text": f"{name}?", "answerable": name == "z"} for name in "za"]
    others = [
        {"query_id": name, "paraphrase_id": other, "text": f"{name}{other}"}
        for name, other in (("a", "p2"), ("z", "p10"), ("a", "p1"), ("z", "A"))
    ]
    frame = variants(load_gold(make_gold(rows, "z\td\t1\n", paraphrases=others)))
    pd.testing.assert_frame_equal(frame, VARIANTS.check(frame))
    assert frame["query_id"].tolist() == ["z"] * 3 + ["a"] * 3
    assert frame["paraphrase_id"].tolist() == ["original", "A", "p10", "original", "p1", "p2"]
    assert frame["text"].tolist() == ["z?", "zA", "zp10", "a?", "ap1", "ap2"]
    assert frame["answerable"].tolist() == [True] * 3 + [False] * 3
    assert frame["group_id"].tolist() == ["z"] * 3 + ["a"] * 3


def test_the_shipped_set_is_clean_and_resolves_on_every_level(smoke, smoke_frames):
    gold = load_gold(smoke)
    assert lint(gold, smoke_frames.documents, smoke_frames.sections) == []
    resolved = resolve(gold, *smoke_frames)
    assert resolved.problems == ()
    assert len(resolved.spans) == 10
    assert set(resolved.span_chunks["span"]) == set(range(10))
    document = resolved.qrels["document"].set_index(["query_id", "item_id"])["gain"]
    assert document["missed-while-down", "schedules.md"] == 2
    assert ("missed-while-down", "storage.md") not in document.index, (
        "a section that does not answer says nothing about its document"
    )
    section = resolved.qrels["section"].set_index(["query_id", "item_id"])["gain"]
    assert section["missed-while-down", "storage.md#storage-and-backup/restore"] == 0
    texts = smoke_frames.documents.set_index("doc_id")["text"]
    spans = resolved.spans.set_index("query_id")
    assert (
        texts["workers.md"][spans.loc["worker-count", "start"] : spans.loc["worker-count", "end"]]
        == "The default is one slot for each processor core."
    )
    assert [tuple(row) for row in resolved.decoys.itertuples(index=False)] == [
        ("stuck-task", "retries.md", "retries.md#retries/overdue-runs"),
        ("password-for-job", "jobs.md", ""),
        ("slack", "alerts.md", "alerts.md#alerts/channels"),
    ]


def test_a_chain_of_all_questions_is_split_where_they_share_little():
    queries = [f"q{at:02}" for at in range(60)]
    chained = [(query, f"d{2 * at + j}") for at, query in enumerate(queries) for j in range(3)]
    twins = [("q01", f"d{j}") for j in range(3)]
    asked, documents = zip(*chained, *twins, strict=True)
    assert len(set(group_ids(queries, asked, documents))) == 1
    groups = gold_groups(queries, asked, documents)
    assert len(set(groups)) > 50
    assert groups[0] == groups[1] == "q00"
    # without a chain of most questions the components stay
    pairs = [(query, f"d{at // 2}") for at, query in enumerate(queries)]
    assert gold_groups(queries, *zip(*pairs, strict=True)) == group_ids(
        queries, *zip(*pairs, strict=True)
    )


@pytest.mark.parametrize("name", ["pandas_api", "smoke"])
def test_shipped_gold_sets_require_the_contract(project_root, name):
    assert "answer_contract" in load_config(project_root / "gold_sets" / name).gates.required
