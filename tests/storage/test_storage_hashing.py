from rag_eval.storage.hashing import hash_sources


def test_sources_are_hashed_without_what_a_run_caches(tmp_path):
    for name in ("a.py", "b.toml", "c.txt"):
        (tmp_path / name).write_text(name, encoding="utf-8")
    before = hash_sources(tmp_path)
    cache = tmp_path / "__pycache__" / "versions.json"
    cache.parent.mkdir()
    cache.write_text("{}", encoding="utf-8")
    assert hash_sources(tmp_path) == before
    (tmp_path / "b.toml").write_text("more", encoding="utf-8")
    assert {name for name, value in hash_sources(tmp_path).items() if before[name] != value} == {
        "b.toml"
    }
    assert set(before) == {"a.py", "b.toml"}
