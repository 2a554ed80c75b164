"""The locks: one product, and a team's deployment that adds to it."""

import re

import pytest

PINNED = re.compile(r"^([a-z0-9._-]+)==([^ ;\\]+)", re.MULTILINE)


def pins(project_root, name):
    return set(PINNED.findall((project_root / name).read_text("utf-8")))


def test_a_teams_lock_adds_packages_and_changes_no_version(project_root):
    product, team = (pins(project_root, f"requirements{part}.lock") for part in ("", "-team"))
    assert product < team
    added = {name for name, _ in team - product}
    assert {"dagster-postgres", "dagster-k8s", "qdrant-client", "ray", "s3fs"} <= added
    assert not added & {name for name, _ in product}


@pytest.mark.parametrize("part", ["", "-team", "-integrations"])
def test_a_lock_has_versions_and_hashes_only(project_root, part):
    text = (project_root / f"requirements{part}.lock").read_text("utf-8")
    assert not re.search(r"https?:|@|^-", text, re.MULTILINE)
    assert text.count("--hash=sha256:") >= len(PINNED.findall(text)) > 100
