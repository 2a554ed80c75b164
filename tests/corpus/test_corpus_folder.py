"""The folder loader: titles, revisions from git, and what it refuses."""

import re
import shutil
import subprocess
import sys

import pytest

from rag_eval.corpus import folder
from rag_eval.corpus.loading import identify, load_corpus
from rag_eval.records.gold_set import Folder
from rag_eval.records.problems import InputError

SPEC = Folder(loader="folder", path="corpus")


@pytest.fixture
def base(tmp_path):
    write(
        tmp_path,
        "guide/a.md",
        "---\ntitle: The A\nurl: https://example.org/a\n---\n# Head\n\ntext\n",
    )
    write(tmp_path, "b.md", "intro\r\n\r\n# B head\r\n\r\n## Part\r\nx\r\n")
    write(tmp_path, "plain-notes.txt", "just text")
    return tmp_path


def write(base, name, content):
    path = base / "corpus" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def git(base, *arguments):
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    identity = (
        "-c",
        "user.name=Test",
        "-c",
        "user.email=test@example.org",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "init.defaultBranch=main",
    )
    return subprocess.run(
        ["git", *identity, *arguments], cwd=base, check=True, capture_output=True, text=True
    ).stdout.strip()


def commit(base, message):
    git(base, "add", "-A")
    git(base, "commit", "-q", "-m", message)
    return git(base, "rev-parse", "HEAD")


def revs(base):
    documents = load_corpus(SPEC, base).documents
    return dict(zip(documents["doc_id"], documents["rev"], strict=True))


def problems(base, spec=SPEC):
    with pytest.raises(InputError) as caught:
        load_corpus(spec, base)
    return [(problem.code, problem.file, problem.line) for problem in caught.value.problems]


def test_titles_ids_sections_and_addresses(base):
    corpus = load_corpus(SPEC, base)
    documents = corpus.documents.set_index("doc_id")
    assert documents.index.tolist() == ["b.md", "guide/a.md", "plain-notes.txt"]
    assert documents["title"].tolist() == ["B head", "The A", "plain-notes"]
    assert documents["kind"].tolist() == ["markdown", "markdown", "text"]
    assert documents["source_url"].tolist() == [
        "corpus/b.md",
        "https://example.org/a",
        "corpus/plain-notes.txt",
    ]
    assert corpus.sections["section_id"].tolist() == [
        "b.md",
        "b.md#b-head",
        "b.md#b-head/part",
        "guide/a.md#head",
        "plain-notes.txt",
    ]
    assert documents["text"]["b.md"].count("\r\n") == 6
    assert (documents["rev"] == documents["content_hash"]).all()  # no checkout


def test_headings_and_titles_are_masked_before_they_become_ids(base):
    write(
        base,
        "c.md",
        "---\ntitle: ask jane@example.org\nauthor: joe@example.org\n---\n# Mail joe@example.org\n",
    )
    corpus = load_corpus(SPEC, base)
    stored = corpus.documents.to_json() + corpus.sections.to_json()
    assert "@example.org" not in stored
    assert corpus.masked["email"] == 4  # the title is masked once as a title, once in the text
    assert corpus.documents.set_index("doc_id")["title"]["c.md"] == "ask [email██████████"


def test_revisions_are_the_commits_that_last_changed_each_file(base):
    git(base, "init", "-q")
    first = commit(base, "one")
    write(base, "b.md", "# new\n")
    second = commit(base, "two")
    (base / "elsewhere.txt").write_text("not in the corpus")
    third = commit(base, "three")
    assert revs(base) == {"b.md": second, "guide/a.md": first, "plain-notes.txt": first}
    assert load_corpus(SPEC, base).corpus_rev == third


def test_what_differs_from_the_commit_is_marked_dirty(base):
    git(base, "init", "-q")
    first = commit(base, "one")
    write(base, "b.md", "# new\n")
    write(base, "ü neu.md", "# untracked\n")
    corpus = load_corpus(SPEC, base)
    documents = corpus.documents.set_index("doc_id")
    hashes = documents["content_hash"]
    assert documents["rev"]["b.md"] == f"{first}+dirty.{hashes['b.md'][:12]}"
    assert documents["rev"]["guide/a.md"] == first
    assert documents["rev"]["ü neu.md"] == hashes["ü neu.md"]  # no commit has it
    assert corpus.corpus_rev.startswith(f"{first}+dirty.")
    before = corpus.corpus_rev
    write(base, "b.md", "# newer\n")
    assert load_corpus(SPEC, base).corpus_rev != before


def test_a_renamed_file_with_changes_is_dirty(base):
    git(base, "init", "-q")
    commit(base, "one")
    git(base, "mv", "corpus/b.md", "corpus/c.md")
    assert "+dirty." in load_corpus(SPEC, base).corpus_rev


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("gone", ["b.md", "guide/a.md"])
def test_a_corpus_that_lacks_a_file_of_the_commit_is_dirty(base, gone, staged):
    git(base, "init", "-q")
    head = commit(base, "one")
    assert load_corpus(SPEC, base).corpus_rev == head
    (base / "corpus" / gone).unlink()
    if staged:
        git(base, "add", "-A")
    corpus = load_corpus(SPEC, base)
    assert re.fullmatch(f"{head}\\+dirty\\.[0-9a-f]{{12}}", corpus.corpus_rev)
    assert set(corpus.documents["rev"]) == {head}  # those that are left are as committed


@pytest.mark.parametrize(
    "gone", ["outside.md", "corpus/table.csv", "corpus/.hidden.md", "corpus/never-committed.md"]
)
def test_a_deleted_file_that_the_corpus_never_had_says_nothing(base, gone):
    git(base, "init", "-q")
    for name in ("outside.md", "corpus/table.csv", "corpus/.hidden.md"):
        (base / name).write_text("x")
    head = commit(base, "one")
    (base / "corpus" / "never-committed.md").write_text("x")
    git(base, "add", "-A")
    (base / gone).unlink()
    git(base, "reset", "-q", "--", "corpus/never-committed.md")
    (base / "corpus" / "never-committed.md").unlink(missing_ok=True)
    assert load_corpus(SPEC, base).corpus_rev == head


@pytest.mark.parametrize(
    "pattern",
    [
        "*.md",
        "**/*.md",
        "guide/*",
        "guide/**/*.md",
        "**/guide/*.md",
        "**/*/[!b].md",
        "*",
        "?.md",
        "**/**/a.md",
        "**/guide/**/*",
    ],
)
def test_deleted_files_are_chosen_as_present_ones_are(base, pattern):
    git(base, "init", "-q")
    commit(base, "one")
    spec = Folder(loader="folder", path="corpus", pattern=(pattern, "plain-*"))
    chosen = load_corpus(spec, base).documents["doc_id"].tolist()
    for name in ("b.md", "guide/a.md"):
        (base / "corpus" / name).unlink()
        assert ("+dirty." in load_corpus(spec, base).corpus_rev) == (name in chosen)
        git(base, "checkout", "-q", "--", ".")


def test_a_checkout_that_holds_none_of_the_files_says_nothing_about_them(base):
    git(base, "init", "-q")
    (base / ".gitignore").write_text("corpus/\n")
    git(base, "add", ".gitignore")
    git(base, "commit", "-q", "-m", "ignore")
    documents = load_corpus(SPEC, base).documents
    assert (documents["rev"] == documents["content_hash"]).all()
    assert "dirty" not in load_corpus(SPEC, base).corpus_rev


def test_git_variables_of_a_hook_do_not_lead_elsewhere(base, monkeypatch):
    git(base, "init", "-q")
    first = commit(base, "one")
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nowhere/index")
    assert load_corpus(SPEC, base).corpus_rev == first


def test_a_repository_cannot_start_programs(base):
    git(base, "init", "-q")
    commit(base, "one")
    git(base, "config", "core.fsmonitor", f"touch {base / 'started'}; false")
    load_corpus(SPEC, base)
    assert not (base / "started").exists()


def test_identity_follows_content_names_and_commit(base):
    seen = [identify(SPEC, base)]
    assert identify(SPEC, base) == seen[0]
    write(base, "b.md", "# other\n")
    seen.append(identify(SPEC, base))
    (base / "corpus" / "b.md").rename(base / "corpus" / "c.md")
    seen.append(identify(SPEC, base))
    git(base, "init", "-q")
    commit(base, "one")
    seen.append(identify(SPEC, base))
    assert len(set(seen)) == 4


def test_byte_order_mark_is_not_text(base):
    write(base, "c.md", b"\xef\xbb\xbf# C\n")
    assert load_corpus(SPEC, base).documents.set_index("doc_id")["text"]["c.md"] == "# C\n"


def test_hidden_files_are_left_out(base):
    write(base, ".git-notes/x.md", "# x")
    write(base, ".x.md", "# x")
    assert len(load_corpus(SPEC, base).documents) == 3


def test_bad_files_are_all_named(base, monkeypatch):
    monkeypatch.setattr(folder, "MAX_BYTES", 200)
    write(base, "c.md", b"ok\n\xff\xfe")
    write(base, "d.md", b"a\nb\nc\x00")
    write(base, "e.md", b"x" * 201)
    (base / "secret.md").write_text("# outside")
    (base / "corpus" / "f.md").symlink_to(base / "secret.md")
    (base / "corpus" / "g.md").symlink_to(base / "corpus" / "gone.md")
    (base / "corpus" / "h.md").symlink_to(base / "corpus" / "b.md")
    write(base, "i\n.md", "# x")
    assert problems(base) == [
        ("not_utf8", "c.md", 2),
        ("nul_byte", "d.md", 3),
        ("too_large", "e.md", None),
        ("outside_folder", "f.md", None),
        ("not_a_file", "g.md", None),
        ("bad_id", "i\\n.md", None),
    ]
    assert identify(SPEC, base)


def test_a_linked_folder_that_leads_out_is_not_read(base):
    (base / "other").mkdir()
    (base / "other" / "x.md").write_text("# x")
    (base / "corpus" / "link").symlink_to(base / "other", target_is_directory=True)
    assert len(load_corpus(SPEC, base).documents) == 3
    assert problems(base, Folder(loader="folder", path="corpus", pattern=("*/*.md",))) == [
        ("outside_folder", "link/x.md", None)
    ]


@pytest.mark.parametrize("pattern", ["../*.md", "/etc/*", "a/../../*.md", ""])
def test_patterns_stay_in_the_folder(base, pattern):
    assert problems(base, Folder(loader="folder", path="corpus", pattern=(pattern,))) == [
        ("bad_pattern", None, None)
    ]


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="Python 3.13 reads ** inside a name as *")
def test_a_pattern_that_python_refuses_is_an_error(base):
    assert problems(base, Folder(loader="folder", path="corpus", pattern=("a**b",))) == [
        ("bad_pattern", None, None)
    ]


def test_an_empty_or_missing_folder_is_an_error(tmp_path):
    assert problems(tmp_path) == [("missing_input", None, None)]
    (tmp_path / "corpus").mkdir()
    assert problems(tmp_path) == [("empty_corpus", None, None)]
