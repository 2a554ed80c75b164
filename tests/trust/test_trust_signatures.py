import base64
import datetime as dt
import hashlib
import json
import resource
import tomllib
from pathlib import Path

import pandas as pd
import pytest
from cli_project import make_key

from rag_eval.core.errors import InputError
from rag_eval.core.frames import SOURCES
from rag_eval.storage.home import Home
from rag_eval.trust.signatures import (
    ALLOWED_FILE,
    Decision,
    ManifestFile,
    VerifiedManifest,
    _read_allowed,
    _verify,
    accept_manifest,
    compare_manifest,
    last_accepted,
    make_manifest,
    read_decisions,
    read_manifest,
    read_private_key,
    record_decisions,
    sign,
)

VECTORS = tomllib.loads((Path(__file__).parent / "rfc8032.toml").read_text(encoding="utf-8"))
NOW = dt.datetime(2026, 7, 1, 2, 3, 4, tzinfo=dt.UTC)
GOOD = base64.b64encode(bytes(64)).decode("ascii")


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    path = tmp_path_factory.mktemp("key") / "key.pem"
    public = make_key(path)
    return read_private_key(path, {"press": public}), {"press": public}


@pytest.mark.parametrize("vector", VECTORS["vector"])
def test_the_vectors_of_the_standard_hold(vector):
    keys = {"k": base64.b64encode(bytes.fromhex(vector["public"])).decode()}
    keys = {
        "other": base64.b64encode(bytes.fromhex(VECTORS["vector"][0]["public"])).decode()
    } | keys
    data, signature = bytes.fromhex(vector["message"]), bytes.fromhex(vector["signature"])
    assert _verify(data, signature, keys)
    assert not _verify(data + b"\n", signature, keys)
    assert not _verify(data, signature, {})


def test_a_private_key_is_named_and_never_quoted(tmp_path):
    path = tmp_path / "key.pem"
    public = make_key(path)
    private = path.read_text(encoding="ascii")
    keys = {"a": GOOD, "release": public}
    assert len(base64.b64decode(sign(read_private_key(path, keys), b""))) == 64
    with pytest.raises(InputError, match="unknown_key") as caught:
        read_private_key(path, {"a": GOOD})
    assert public in str(caught.value)
    secret = private.splitlines()[1]
    public = private.replace("BEGIN PRIVATE", "BEGIN PUBLIC")
    for bad in (public, private.replace(secret, secret[:-8]), secret, "", "ü"):
        path.write_text(bad, encoding="utf-8")
        with pytest.raises(InputError, match="cannot be read") as caught:
            read_private_key(path, keys)
        assert caught.value.problems[0].code == "bad_private_key"
        assert secret[:12] not in str(caught.value)
        assert caught.value.__suppress_context__
    path.write_text(private * 100, encoding="ascii")
    with pytest.raises(InputError, match="bytes"):
        read_private_key(path, keys)
    with pytest.raises(InputError, match="missing_file"):
        read_private_key(tmp_path / "none.pem", keys)


# ---- Manifests


def make_sources(documents):
    hashes = [hashlib.sha256(data).hexdigest() for data in documents.values()]
    frame = pd.DataFrame({"doc_id": list(documents), "source_hash": hashes}, dtype="str")
    return SOURCES.check(frame.assign(author="", author_hash="", date="", domain=""))


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "manifest.json"
    path.write_bytes(make_manifest(make_sources({"a": b"1", "ü": b"2"}), "tiny", 7, NOW))
    return path


def test_equal_documents_give_equal_manifests(written):
    assert (
        make_manifest(make_sources({"ü": b"2", "a": b"1"}), "tiny", 7, NOW) == written.read_bytes()
    )
    one, two = (hashlib.sha256(data).hexdigest() for data in (b"1", b"2"))
    expected = (
        f'{{"created_at":"2026-07-01T02:03:04Z","documents":{{"a":"{one}","ü":"{two}"}},'
        '"gold_set":"tiny","schema_version":2,"version":7}\n'
    )
    assert written.read_text(encoding="utf-8") == expected
    recorded = read_manifest(written, {}).content.documents
    now = make_sources({"a": b"1", "new": b"2"})
    assert compare_manifest(now, recorded) == (["same", "not_in_manifest"], ["ü"])
    assert compare_manifest(make_sources({"ü": b"3"}), recorded) == (["changed"], ["a"])


def test_an_unsigned_manifest_is_refused_where_a_key_could_tell(written, key):
    with pytest.raises(InputError) as caught:
        read_manifest(written, key[1])
    [problem] = caught.value.problems
    assert (problem.code, problem.file) == ("unsigned_manifest", str(written))
    assert "rag-eval trust sign --key" in problem.accepted
    assert set(read_manifest(written, {}).content.documents) == {"a", "ü"}


def test_a_signature_beside_the_manifest_must_hold(written, key, tmp_path):
    private, keys = key
    beside = written.with_name("manifest.json.sig")
    signature = sign(private, written.read_bytes())
    beside.write_text(f"{signature}\n", encoding="ascii")
    assert read_manifest(written, keys) == read_manifest(written, {})
    data = bytearray(written.read_bytes())
    for at in (0, len(data) // 2, len(data) - 1):
        data[at] ^= 1
        written.write_bytes(bytes(data))
        with pytest.raises(InputError, match="invalid_signature") as caught:
            read_manifest(written, keys)
        assert caught.value.problems[0].file == str(beside)
        data[at] ^= 1
    written.write_bytes(bytes(data))
    public = make_key(tmp_path / "other.pem")
    other = sign(read_private_key(tmp_path / "other.pem", {"other": public}), bytes(data))
    for text in (other, "nothing", "", signature[:-4]):
        beside.write_text(text, encoding="ascii")
        with pytest.raises(InputError, match="invalid_signature"):
            read_manifest(written, keys)


@pytest.mark.parametrize(
    ("content", "code", "field"),
    [
        (None, "missing_file", None),
        ("{", "bad_json", None),
        ('{"version": 1, "version": 1}', "duplicate_key", None),
        ({"schema_version": 1}, "bad_value", "schema_version"),
        ({"version": "7"}, "wrong_type", "version"),
        ({"created_at": "2026-07-01"}, "bad_value", "created_at"),
        ({"more": 1}, "unknown_key", "more"),
        ({"documents": {"a": "00"}}, "bad_value", "documents.a"),
    ],
)
def test_a_bad_manifest_is_named(tmp_path, content, code, field):
    path = tmp_path / "manifest.json"
    if isinstance(content, dict):
        row = {"schema_version": 2, "gold_set": "tiny", "version": 1, "documents": {}}
        row |= {"created_at": f"{NOW:%FT%TZ}"} | content
        content = json.dumps({key: value for key, value in row.items() if value is not None})
    if content is not None:
        path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        read_manifest(path, {})
    [problem] = caught.value.problems
    assert (problem.code, problem.field, problem.file) == (code, field, str(path))


# ---- Accepted manifests


def make_read(version, text=""):
    """Make a manifest as `read_manifest` returns it; `text` stands for other bytes."""
    content = ManifestFile(
        schema_version=2,
        gold_set="tiny",
        version=version,
        created_at=f"{NOW:%FT%TZ}",
        documents={},
    )
    digest = hashlib.sha256(f"{version}{text}".encode()).hexdigest()
    return VerifiedManifest(Path("manifest.json"), content, digest)


def accept(home, version, text=""):
    return accept_manifest(home, "tiny", make_read(version, text))


def accepted_versions(home):
    return [json.loads(home.read(name))["version"] for name in home.names("manifests/tiny")]


@pytest.fixture
def home(home_url, tmp_path):
    return Home(home_url, tmp_path / "scratch")


def test_a_new_home_accepts_any_version_and_then_only_newer_ones(home):
    assert last_accepted(home, "tiny") == (0, None)
    assert accept(home, 5).version == 5
    assert accept(home, 5) == accept(home, 5)
    for version, text in ((4, ""), (5, "other bytes"), (1, "")):
        with pytest.raises(InputError) as caught:
            accept(home, version, text)
        [problem] = caught.value.problems
        assert (problem.code, problem.file) == ("manifest_not_newer", "manifest.json")
        assert problem.found == f"version {version} of 2026-07-01T02:03:04Z"
        assert "version 5 of 2026-07-01T02:03:04Z, which was accepted last" in problem.accepted
    assert accept(home, 9).version == 9
    assert accepted_versions(home) == [5, 9]
    with pytest.raises(InputError, match=r"other_gold_set.*found: tiny; accepted: other"):
        accept_manifest(home, "other", make_read(9))


def test_what_a_person_once_accepted_keeps_counting(home):
    accept(home, 3)
    accept(home, 5)
    older = json.loads(home.read("manifests/tiny/00000001.json"))
    older |= {"highest": 5, "accepted_at": f"{NOW:%FT%TZ}", "who": "Ann", "why": "rolled back"}
    home.write("manifests/tiny/00000003.json", json.dumps(older).encode())
    assert accept(home, 3).version == 3
    with pytest.raises(InputError, match=r"accepted last, or a version after 5"):
        accept(home, 4)
    assert accept(home, 6).version == 6


def test_a_run_that_is_overtaken_judges_its_manifest_anew(home, home_url, tmp_path):
    class Overtaken(Home):
        """Lets another run accept a version between the reading and the writing of this run."""

        def create(self, name, data):
            if other := others.pop(0) if others else 0:
                accept(home, other)
            return super().create(name, data)

    overtaken = Overtaken(home_url, tmp_path / "overtaken")
    accept(home, 1)
    others = [3]
    with pytest.raises(InputError, match="manifest_not_newer"):
        accept(overtaken, 2)
    others = [4]
    assert accept(overtaken, 5).version == 5
    others = [6]
    assert accept(overtaken, 6).version == 6
    assert accepted_versions(home) == [1, 3, 4, 5, 6]


@pytest.mark.parametrize("damage", [b"", b"{}", b'{"version": 1}'])
def test_a_damaged_acceptance_is_never_taken_for_none(tmp_path, damage):
    home = Home(tmp_path)
    accept(home, 2)
    home.write("manifests/tiny/00000001.json", damage)
    with pytest.raises(InputError, match="acceptance_damaged"):
        accept(home, 3)


# ---- Decisions of people

AT = dt.datetime(2026, 3, 1, 12, 30, tzinfo=dt.UTC)


def make_decision(doc_id="d.md", who="Ann", **more):
    given = {"why": "it quotes an attack", "at": AT, "source_hash": sha("1")} | more
    return Decision(doc_id=doc_id, who=who, **given)


def line(**changes):
    given = {"schema_version": 1, "chunk_id": "", "doc_id": "d", "action": "allow", "who": "Ann"}
    given |= {"why": "fine", "reasons": [], "at": "2026-03-01T12:30:00Z"} | changes
    return json.dumps({key: value for key, value in given.items() if value != "left out"})


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_decision_is_flushed_to_disk(tmp_path, flushed):
    assert record_decisions(tmp_path, [make_decision()]).stat().st_ino in flushed.all()


@pytest.mark.parametrize(
    "changes",
    [
        {"doc_id": "ü/\u202e\n.md", "why": '"why"\n\x1b[31m', "reasons": ("pattern.x", "hidden.y")},
        {"doc_id": "\U0001f600" * 1000, "why": "\U0001f600" * 2000},
    ],
    ids=["controls", "longest"],
)
def test_a_decision_comes_back_as_it_was_made(tmp_path, changes):
    made = make_decision(**changes)
    path = record_decisions(tmp_path, [made])
    assert path == tmp_path / ALLOWED_FILE
    assert read_decisions(tmp_path) == [made]
    assert path.read_bytes().count(b"\n") == 1
    assert all(32 <= byte < 127 for byte in path.read_bytes()[:-1])


def test_lines_are_only_added_and_the_last_one_counts(tmp_path):
    before = b""
    for given in ("a Ann", "b Bob", "a Cy"):
        now = record_decisions(tmp_path, [make_decision(*given.split())]).read_bytes()
        assert now.startswith(before)
        assert now.count(b"\n") == before.count(b"\n") + 1
        before = now
    assert _read_allowed(tmp_path, {"a": sha("1"), "b": sha("1")}) == ({"a": "Cy", "b": "Bob"}, 0)


def test_decisions_are_added_together_or_not_at_all(tmp_path):
    path = record_decisions(tmp_path, [make_decision()])
    path.write_bytes(path.read_bytes().rstrip())  # as an editor may leave the file
    several = [make_decision("c2"), make_decision("c3")]
    record_decisions(tmp_path, several)
    assert read_decisions(tmp_path) == [make_decision(), *several]
    before = path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 300, hard))
    try:
        with pytest.raises(OSError, match="No space left"):
            record_decisions(tmp_path, several)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        (line()[:-5], None),
        (line(chunk_id="c1"), "chunk_id"),
        (line(action="revoke"), "action"),
        (line(who="left out"), "who"),
        (line(why="w" * 2001), "why"),
        (line(reasons=["r"] * 101), "reasons"),
        (line(source_hash="A" * 64), "source_hash"),
        ('{"who": "\x1b]0;owned\x07"}', None),
    ],
)
def test_a_bad_line_is_refused_with_its_file_and_number(tmp_path, bad, field):
    path = tmp_path / ALLOWED_FILE
    path.write_text(f"{line()}\n\n{bad}\n{line()}\n", encoding="utf-8")
    before = path.read_bytes()
    for use in (read_decisions, lambda folder: record_decisions(folder, [make_decision()])):
        with pytest.raises(InputError) as caught:
            use(tmp_path)
        [problem] = caught.value.problems
        assert (problem.file, problem.line, problem.field) == (str(path), 3, field)
        assert not set(str(problem)) & {"\x1b", "\x07"}
    assert path.read_bytes() == before


def test_a_decision_counts_for_the_bytes_that_were_seen(tmp_path):
    for doc_id, text in (("same", "1"), ("changed", "2"), ("gone", "3")):
        record_decisions(tmp_path, [make_decision(doc_id, source_hash=sha(text))])
    record_decisions(tmp_path, [make_decision("unsaid", source_hash="")])
    # Two missing hashes are equal in "unsaid", but no hash says which bytes were read.
    now = {"same": sha("1"), "changed": sha("two"), "unsaid": ""}
    assert _read_allowed(tmp_path, now) == ({"same": "Ann"}, 3)
