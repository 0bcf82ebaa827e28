"""The door through which code of the user's own is run: nothing that nobody permitted by its hash."""

import hashlib
import os
from pathlib import Path

import pytest

from clients import own_code
from clients.own_code import LARGEST, NotPermitted, code_hash, permit, read_code, run_code


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that leaves a mark where it is run."""
    monkeypatch.setattr(own_code, "permitted", set())
    found = tmp_path / "mine.py"
    found.write_text("from pathlib import Path\nPath(__file__).with_name('ran').touch()\nx = 3\n")
    return found


def ran(file: Path) -> bool:
    return file.with_name("ran").exists()


def test_its_hash_is_that_of_its_bytes(file: Path) -> None:
    assert code_hash(file) == hashlib.sha256(file.read_bytes()).hexdigest()


def test_nothing_is_run_that_nobody_permitted(file: Path) -> None:
    with pytest.raises(NotPermitted, match=rf"SHA-256 {code_hash(file)[:12]}….*--allow-code .*mine\.py"):
        run_code(file)
    permit("0" * 64)
    with pytest.raises(NotPermitted):
        run_code(file)
    assert not ran(file)
    permit(code_hash(file))
    assert run_code(file).x == 3 and ran(file)


def test_a_file_that_was_changed_since_is_other_code(file: Path) -> None:
    permit(code_hash(file))
    file.write_text(file.read_text() + "\n")
    with pytest.raises(NotPermitted):
        run_code(file)
    assert not ran(file)


def test_a_copy_is_the_same_code(file: Path) -> None:
    permit(code_hash(file))
    copy = file.with_name("copy.py")
    copy.write_bytes(file.read_bytes())
    assert run_code(copy).x == 3


def test_code_that_fails_says_so(file: Path) -> None:
    file.write_text("1 / 0")
    permit(code_hash(file))
    with pytest.raises(ValueError, match=r"mine\.py cannot be imported: ZeroDivisionError"):
        run_code(file)


def test_what_is_no_file_is_not_waited_for(file: Path) -> None:
    os.mkfifo(file.with_name("pipe.py"))
    for name in ("none.py", "pipe.py", "."):
        with pytest.raises(ValueError, match="there is no such file"):
            read_code(file.parent / name)
    file.write_bytes(b" " * (LARGEST + 1))
    with pytest.raises(ValueError, match="more than"):
        read_code(file)
    file.write_bytes(b" " * LARGEST)
    assert len(read_code(file)) == LARGEST
