"""The folder loader: titles, revisions from git, and refused files."""

import re

import pytest

from rag_eval.core.errors import InputError
from rag_eval.corpus.loaders import folder
from rag_eval.corpus.loaders.folder import Folder
from rag_eval.corpus.loading import identify, load_corpus

SPEC = Folder(loader="folder", path="corpus")


@pytest.fixture
def base(checkout):
    front = "---\ntitle: The A\nurl: https://example.org/a\n---\n"
    checkout.write("guide/a.md", front + "# Head\n\ntext\n")
    checkout.write("b.md", "intro\r\n\r\n# B head\r\n\r\n## Part\r\nx\r\n")
    checkout.write("plain-notes.txt", "just text")
    return checkout.base


@pytest.fixture
def committed(base, checkout):
    """Commit the documents, and return the commit."""
    checkout.git("init", "-q")
    return checkout.commit()


def revs(base):
    documents = load_corpus(SPEC, base).documents
    return dict(zip(documents["doc_id"], documents["rev"], strict=True))


def problems(base, spec=SPEC):
    with pytest.raises(InputError) as caught:
        load_corpus(spec, base)
    return [(problem.code, problem.file, problem.line) for problem in caught.value.problems]


def test_titles_ids_sections_and_addresses(base, checkout):
    for hidden in (".git-notes/x.md", ".x.md"):
        checkout.write(hidden, "# left out")
    corpus = load_corpus(SPEC, base)
    documents = corpus.documents.set_index("doc_id")
    assert documents.index.tolist() == ["b.md", "guide/a.md", "plain-notes.txt"]
    assert documents["title"].tolist() == ["B head", "The A", "plain-notes"]
    assert documents["kind"].tolist() == ["markdown", "markdown", "text"]
    addresses = ["corpus/b.md", "https://example.org/a", "corpus/plain-notes.txt"]
    assert documents["source_url"].tolist() == addresses
    sections = "b.md b.md#b-head b.md#b-head/part guide/a.md#head plain-notes.txt"
    assert corpus.sections["section_id"].tolist() == sections.split()
    assert documents["text"]["b.md"].count("\r\n") == 6
    assert (documents["rev"] == documents["content_hash"]).all()  # no checkout


def test_revisions_are_the_commits_that_last_changed_each_file(base, checkout, committed):
    checkout.write("b.md", "# new\n")
    second = checkout.commit()
    (base / "elsewhere.txt").write_text("not in the corpus")
    third = checkout.commit()
    assert revs(base) == {"b.md": second, "guide/a.md": committed, "plain-notes.txt": committed}
    assert load_corpus(SPEC, base).about.corpus_rev == third


def test_what_differs_from_the_commit_is_marked_dirty(base, checkout, committed):
    checkout.write("b.md", "# new\n")
    checkout.write("ü neu.md", "# untracked\n")
    corpus = load_corpus(SPEC, base)
    documents = corpus.documents.set_index("doc_id")
    hashes = documents["content_hash"]
    assert documents["rev"]["b.md"] == f"{committed}+dirty.{hashes['b.md'][:12]}"
    assert documents["rev"]["guide/a.md"] == committed
    assert documents["rev"]["ü neu.md"] == hashes["ü neu.md"]  # in no commit
    assert corpus.about.corpus_rev.startswith(f"{committed}+dirty.")
    checkout.write("b.md", "# newer\n")
    assert load_corpus(SPEC, base).about.corpus_rev != corpus.about.corpus_rev


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("gone", ["b.md", "guide/a.md"])
def test_a_corpus_that_lacks_a_file_of_the_commit_is_dirty(base, checkout, committed, gone, staged):
    assert load_corpus(SPEC, base).about.corpus_rev == committed
    (base / "corpus" / gone).unlink()
    if staged:
        checkout.git("add", "-A")
    corpus = load_corpus(SPEC, base)
    assert re.fullmatch(f"{committed}\\+dirty\\.[0-9a-f]{{12}}", corpus.about.corpus_rev)
    assert set(corpus.documents["rev"]) == {committed}  # the other files are unchanged


def test_git_variables_of_a_hook_do_not_lead_elsewhere(base, committed, monkeypatch):
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere/index")
    assert load_corpus(SPEC, base).about.corpus_rev == committed


@pytest.mark.usefixtures("committed")
def test_a_repository_cannot_start_programs(base, checkout):
    checkout.git("config", "core.fsmonitor", f"touch {base / 'started'}; false")
    load_corpus(SPEC, base)
    assert not (base / "started").exists()


def test_identity_follows_content_names_and_commit(base, checkout):
    seen = [identify(SPEC, base)]
    assert identify(SPEC, base) == seen[0]
    checkout.write("b.md", "# other\n")
    seen.append(identify(SPEC, base))
    (base / "corpus" / "b.md").rename(base / "corpus" / "c.md")
    seen.append(identify(SPEC, base))
    checkout.git("init", "-q")
    checkout.commit()
    seen.append(identify(SPEC, base))
    assert len(set(seen)) == 4


def test_bad_files_are_all_named(base, checkout, monkeypatch):
    monkeypatch.setattr(folder, "MAX_BYTES", 200)
    checkout.write("c.md", b"ok\n\xff\xfe")
    checkout.write("d.md", b"a\nb\nc\x00")
    checkout.write("e.md", b"x" * 201)
    (base / "secret.md").write_text("# outside")
    (base / "corpus" / "f.md").symlink_to(base / "secret.md")
    (base / "corpus" / "g.md").symlink_to(base / "corpus" / "gone.md")
    (base / "corpus" / "h.md").symlink_to(base / "corpus" / "b.md")
    checkout.write("i\n.md", "# x")
    assert problems(base) == [
        ("bad_encoding", "c.md", 2),
        ("nul_byte", "d.md", 3),
        ("too_large", "e.md", None),
        ("outside_folder", "f.md", None),
        ("not_a_file", "g.md", None),
        ("bad_id", "i\\n.md", None),
    ]
    assert identify(SPEC, base)


@pytest.mark.parametrize("pattern", ["../*.md", "/etc/*", "a/../../*.md", ""])
def test_patterns_stay_in_the_folder(base, pattern):
    spec = Folder(loader="folder", path="corpus", pattern=(pattern,))
    assert problems(base, spec) == [("bad_pattern", None, None)]


def test_an_empty_or_missing_folder_is_an_error(tmp_path):
    assert problems(tmp_path) == [("missing_input", None, None)]
    (tmp_path / "corpus").mkdir()
    assert problems(tmp_path) == [("empty_corpus", None, None)]
