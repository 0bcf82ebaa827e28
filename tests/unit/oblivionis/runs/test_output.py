"""An `output` in which no run directory can be made is the user's mistake, told before anything is loaded."""

import time

import pytest
from support.commands import call

from oblivionis.config.problems import ConfigError
from oblivionis.runs.directory import check_output


def unusable(folder):
    (folder / "file").write_text("x")
    (folder / "loop").symlink_to("loop")
    here = ("file", "file/below", "n" * 300, "loop")
    return ["/sys/x", "/proc/x", "/proc/x/y", *(folder / name for name in here)]


@pytest.mark.parametrize("number", range(7))
def test_it_is_told_with_its_key_at_once(tmp_path, number):
    output = unusable(tmp_path)[number]
    before = sorted(tmp_path.iterdir())
    started = time.monotonic()
    done = call("simulate", "smoke", f"output={output}")
    assert time.monotonic() - started < 5  # a second, on a machine that does nothing else
    assert done.code == 2 and "  output: no run directory can be made in" in done.err, done.err
    assert "fault of oblivionis" not in done.err and "Traceback" not in done.err
    assert sorted(tmp_path.iterdir()) == before


def test_a_nul_and_a_folder_without_permission(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match=r"output: .*null"):
        check_output(tmp_path / "a\0b", None)
    with pytest.raises(ConfigError, match=r"output: .*300 bytes"):
        check_output(tmp_path, "n" * 300)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    with pytest.raises(ConfigError, match=r"output: .*Permission denied"):
        check_output(tmp_path, None)


def test_a_folder_that_is_not_there_yet_is_fine(tmp_path):
    check_output(tmp_path / "new" / "newer", "run")
    assert not list(tmp_path.iterdir())
