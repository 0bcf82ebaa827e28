"""Files of a run are found as `Path.glob` finds them, and no change of one leaves their digest as it was."""

import os
import shutil
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oblivionis.runs.run_files import at, covered, digest, matching, seen

PATTERNS = (
    "a.json",
    "stages",
    "stages/*.json",
    "stages/*.states",
    "audits/x-*/audit.json",
    "*/results.json",
    "points/*",
)
NAMES = (
    "a.json",
    "stages",
    "audits",
    "x-1",
    "audit.json",
    "results.json",
    "points",
    ".json",
    "b.states",
    "b.json",
    "x",
)


def by_glob(folder):
    paths = sorted({path for pattern in PATTERNS for path in folder.glob(pattern)})
    return [path.relative_to(folder).as_posix() for path in paths]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(NAMES), min_size=1, max_size=3), st.sampled_from(["file", "link", "folder"])
        ),
        max_size=12,
    ),
    st.sampled_from(["a.json", "stages", "nowhere", "."]),
)
def test_it_finds_what_glob_finds(tmp_path, places, target):
    folder = tmp_path / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for parts, kind in places:
        path = folder.joinpath(*parts)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if kind == "file":
                path.write_text("x")
            elif kind == "folder":
                path.mkdir()
            else:
                path.symlink_to(folder / target)
        except OSError:
            continue  # something else is there
    found = matching(folder, PATTERNS)
    assert found == by_glob(folder)
    assert all(covered(name, PATTERNS) for name in found)


@pytest.mark.parametrize(
    "name", ["stages/../a.json", "./a.json", "stages//b.json", "/a.json", "other.json", "a.json/b"]
)
def test_a_file_by_another_name_is_not_covered(name):
    assert not covered(name, PATTERNS)


def test_names_that_are_no_text_are_found(tmp_path):
    (tmp_path / "stages").mkdir()
    (tmp_path / "stages" / os.fsdecode(b"\xff.json")).write_text("x")
    assert [os.fsencode(name) for name in matching(tmp_path, PATTERNS)] == [b"stages", b"stages/\xff.json"]
    assert digest(seen(tmp_path, PATTERNS))


def test_what_cannot_be_listed_is_found_by_its_name(tmp_path, monkeypatch):
    (tmp_path / "a.json").write_text("x")

    def refuse(path):
        raise PermissionError(13, "no", path)

    monkeypatch.setattr(os, "listdir", refuse)
    assert matching(tmp_path, PATTERNS) == ["a.json"]


def rewrite(path):
    """Other content of the same length, with the time of writing set back."""
    before = path.stat()
    path.write_text("y")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(path):
    path.with_name("new").write_text("x")
    path.with_name("new").rename(path)


CHANGES = {
    "rewritten": lambda folder: rewrite(folder / "stages" / "b.json"),
    "grown": lambda folder: (folder / "a.json").write_text("xx"),
    "replaced": lambda folder: replace(folder / "a.json"),
    "gone": lambda folder: (folder / "stages" / "b.json").unlink(),
    "renamed": lambda folder: (folder / "stages" / "b.json").rename(folder / "stages" / "c.json"),
    "new": lambda folder: (folder / "stages" / "c.json").write_text("x"),
    "a new folder": lambda folder: (folder / "points" / "x").mkdir(parents=True),
    "the target of a link": lambda folder: rewrite(folder / "elsewhere"),
    "an own name": lambda folder: (folder / "other").write_text("x"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_is_another_digest(tmp_path, change):
    folder = tmp_path
    (folder / "stages").mkdir()
    for name in ("a.json", "stages/b.json", "elsewhere"):
        (folder / name).write_text("x")
    (folder / "stages" / "link.json").symlink_to(folder / "elsewhere")

    def now():
        return digest([*seen(folder, PATTERNS), at(folder, "other")])

    before = now()
    assert now() == before
    shutil.copytree(folder, other := tmp_path / "copy", symlinks=True)
    shutil.rmtree(other)
    assert now() == before, "what no pattern names is of no matter"
    time.sleep(0.02)  # a tick of the file system's clock
    CHANGES[change](folder)
    assert now() != before
