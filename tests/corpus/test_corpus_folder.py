"""The folder loader: titles, revisions from git, and refused files."""

import os
import re
import shutil
import socket
import string
import subprocess

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


def test_revisions_are_the_commits_that_last_changed_each_file(
    base, checkout, committed, monkeypatch
):
    checkout.write("b.md", "# new\n")
    second = checkout.commit()
    (base / "elsewhere.txt").write_text("not in the corpus")
    third = checkout.commit()
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # as in a hook
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


def test_a_corpus_that_lacks_a_file_of_the_commit_is_dirty(base, committed):
    assert load_corpus(SPEC, base).about.corpus_rev == committed
    (base / "corpus" / "guide" / "a.md").unlink()
    corpus = load_corpus(SPEC, base)
    assert re.fullmatch(f"{committed}\\+dirty\\.[0-9a-f]{{12}}", corpus.about.corpus_rev)
    assert set(corpus.documents["rev"]) == {committed}  # the other files are unchanged


# Each configuration would start the program $RUN, or connect to $HOST. `lost` removes
# an object, which git would then ask a promisor remote for.
HOSTILE = {
    "clean": ("*.md filter=x", ("filter.x.clean", "$RUN")),
    "process": ("*.md filter=x", ("filter.x.process", "$RUN"), ("filter.x.required", "true")),
    "fsmonitor": ("", ("core.fsmonitor", "$RUN"), ("core.fsmonitorHookVersion", "2")),
    "hooks": ("", ("core.hooksPath", "$BASE/hooks")),
    "textconv": ("*.md diff=x", ("diff.x.textconv", "$RUN"), ("diff.x.command", "$RUN")),
    "external diff": ("", ("diff.external", "$RUN"), ("log.diffMerges", "on")),
    "signature": ("", ("log.showSignature", "true"), ("gpg.program", "$RUN")),
    "pager": ("", ("core.pager", "$RUN"), ("pager.log", "true")),
    "include": ("*.md filter=x", ("include.path", "$BASE/extra")),
    "conditional include": ("*.md filter=x", ("includeIf.gitdir:**.path", "$BASE/extra")),
    "worktree config": ("", ("extensions.worktreeConfig", "true"), ("core.worktree", "/")),
    "uploadpack": ("lost", ("remote.o.url", "$BASE"), ("remote.o.uploadpack", "$RUN")),
    "ext": ("lost", ("remote.o.url", "ext::$RUN"), ("protocol.ext.allow", "always")),
    "ssh": ("lost", ("remote.o.url", "ssh://x/y"), ("core.sshCommand", "$RUN")),
    "http": ("lost", ("remote.o.url", "http://$HOST/x.git"), ("credential.helper", "!$RUN")),
    "git": ("lost", ("remote.o.url", "git://$HOST/x"), ("core.gitProxy", "$RUN")),
}


@pytest.fixture
def listener():
    """Open a server on the loopback address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def write_program(path, mark):
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\ntouch {mark}\nexit 1\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("name", HOSTILE)
def test_a_repository_starts_no_program_and_no_connection(
    base, checkout, committed, listener, name
):
    attributes, *settings = HOSTILE[name]
    mark, host = base / "mark", f"127.0.0.1:{listener.getsockname()[1]}"
    run = write_program(base / "bin" / "run", mark)
    for hook in ("post-index-change", "reference-transaction", "fsmonitor-watchman"):
        write_program(base / "hooks" / hook, mark)
    (base / "extra").write_text(f'[filter "x"]\n\tclean = {run}\n\trequired = true\n')
    given = {"RUN": run, "BASE": base, "HOST": host}
    if attributes == "lost":
        settings += [("remote.o.promisor", "true"), ("extensions.partialClone", "o")]
        tree = checkout.git("rev-parse", "HEAD:corpus/guide")
        (base / ".git" / "objects" / tree[:2] / tree[2:]).unlink()
    for key, value in settings:
        checkout.git("config", key, string.Template(value).substitute(given))
    (base / "corpus" / ".gitattributes").write_text(attributes)
    os.utime(base / "corpus" / "b.md", (1, 1))  # git must compare the content
    corpus = load_corpus(SPEC, base)
    assert not mark.exists()
    with pytest.raises(BlockingIOError):
        listener.accept()
    if attributes != "lost":
        assert corpus.about.corpus_rev == committed


LEADS = {
    "file": 'rm -r $G && echo "gitdir: $O" > $G',
    "work tree": "rm -r $G && mkdir -p worktrees/x && cp $O/HEAD worktrees/x && "
    'echo "gitdir: $PWD/worktrees/x" > $G && echo $G > worktrees/x/gitdir && '
    "echo $O > worktrees/x/commondir",
    "alternates": "cp -r $O/refs $G && echo $O/objects > $G/objects/info/alternates",
    "objects": "cp -r $O/refs $G && rm -r $G/objects && ln -s $O/objects $G/objects",
    "refs": "rm -r $G/refs && ln -s $O/refs $G/refs",
    "branch": 'echo "ref: refs/../../other/.git/$(git -C other symbolic-ref HEAD)" > $G/HEAD',
    "folder": "rm -r $G && ln -s $O $G",
    "pipe": "cp -r $O/refs $G && mkdir $G/objects/ff && mkfifo $G/objects/ff/$(printf %038d 0)",
}
"""Ways from the repository $G to another one, $O."""


@pytest.mark.parametrize("lead", LEADS.values(), ids=LEADS)
@pytest.mark.usefixtures("committed")
def test_nothing_is_read_from_another_repository(base, checkout, lead):
    shutil.copytree(base, base / "other")
    shutil.copytree(base / "other" / "corpus", base / "corpus", dirs_exist_ok=True)
    checkout.git("-C", "other", "commit", "-q", "--allow-empty", "-m", "other")
    commit = checkout.git("-C", "other", "rev-parse", "HEAD")
    env = os.environ | {"G": str(base / ".git"), "O": str(base / "other" / ".git")}
    subprocess.run(["sh", "-ec", lead], cwd=base, env=env, check=True)
    assert commit not in SPEC.identity(base)
    assert not load_corpus(SPEC, base).about.corpus_rev.startswith(commit)


def test_a_linked_work_tree_has_hashes_of_its_content_and_a_warning(
    base, checkout, committed, caplog
):
    checkout.git("pack-refs", "--all")
    assert load_corpus(SPEC, base).about.corpus_rev == committed
    assert not caplog.records
    checkout.git("worktree", "add", "-q", str(base / "tree"))
    documents = load_corpus(SPEC, base / "tree").documents
    assert documents["rev"].tolist() == documents["content_hash"].tolist()
    assert "no commit is read" in caplog.text


def test_a_commit_without_bound_gives_no_revision(base, checkout, committed, monkeypatch):
    monkeypatch.setattr(folder, "_BOUNDED", 'ulimit -v 100000; ulimit -f 1000; exec "$@"')
    kind, made = "100644 blob", checkout.git("rev-parse", "HEAD:corpus/b.md")
    for _ in range(7):
        listed = "".join(f"{kind} {made}\t{number:02}.md\n" for number in range(30))
        kind, made = "040000 tree", checkout.git("mktree", given=listed)
    top = checkout.git("mktree", given=f"{kind} {made}\tcorpus\n")
    checkout.git("update-ref", "HEAD", checkout.git("commit-tree", "-m", "x", top))
    assert committed not in SPEC.identity(base)
    documents = load_corpus(SPEC, base).documents
    assert documents["rev"].tolist() == documents["content_hash"].tolist()


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


def test_an_empty_or_missing_folder_is_an_error(tmp_path):
    assert problems(tmp_path) == [("missing_input", None, None)]
    (tmp_path / "corpus").mkdir()
    assert problems(tmp_path) == [("empty_corpus", None, None)]
