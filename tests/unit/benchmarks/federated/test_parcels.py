"""Files on their way between machines: whole and as they were, or not at all."""

import dataclasses

import pytest

from benchmarks.federated.executors import file_transfer
from benchmarks.federated.executors.file_transfer import Piece, Unpacking, pieces
from oblivionis.errors import RunError


@pytest.fixture
def sent(tmp_path, monkeypatch):
    """A folder with files of every kind, among them one of exactly two pieces."""
    monkeypatch.setattr(file_transfer, "PIECE_BYTES", 8)
    folder = tmp_path / "sent"
    for name, data in {
        "config.yaml": b"a: 1\n",
        "empty": b"",
        "deep/er/two": b"0123456789abcdef",
        "deep/three": bytes(range(17)),
        "running.json": b"{}",
        "running.lock": b"",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def files(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_arrives_as_it_was_in_place_of_what_was_there(sent, tmp_path):
    found = list(pieces(sent))
    assert max(len(piece.data) for piece in found) == 8
    assert [sum(piece.name == name for piece in found) for name in ("empty", "deep/er/two", "deep/three")] == [1, 2, 3]
    target = tmp_path / "there" / "run"
    target.mkdir(parents=True)
    (target / "old").write_text("")
    arriving = Unpacking(target)
    for piece in found:
        arriving.take(piece)
        assert files(target) == {"old": b""}, "nothing is replaced before all is there"
    arriving.settle()
    assert files(target) == {n: d for n, d in files(sent).items() if not n.startswith("running.")}
    assert [path.name for path in target.parent.iterdir()] == ["run"]


def test_what_is_damaged_or_belongs_elsewhere_is_refused_and_leaves_nothing(sent, tmp_path):
    found = list(pieces(sent))
    arriving = Unpacking(tmp_path / "there" / "run")
    two = [piece for piece in found if piece.name == "deep/er/two"]
    arriving.take(dataclasses.replace(two[0], data=b"01234567"[::-1]))
    with pytest.raises(RunError, match="deep/er/two arrived damaged"):
        arriving.take(two[1])
    for name in ("../beside", "/tmp/away", "a/../../b"):
        with pytest.raises(RunError, match="does not belong"):
            arriving.take(Piece(name, b"", None))
    arriving.drop()
    assert list((tmp_path / "there").iterdir()) == []
