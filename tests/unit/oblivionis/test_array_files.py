"""Files of arrays: the same bytes for the same content, and nothing that was changed since is read."""

import hashlib
import json

import numpy as np
import pytest
from safetensors.numpy import save

from oblivionis.array_files import arrays_bytes, read_arrays
from oblivionis.errors import FileError

ARRAYS = {"b": np.arange(6, dtype=np.float32).reshape(2, 3), "a": np.zeros(0), "c": np.array(7)}
INFO = {"round": 3, "text": "zwei\nZeilen", "ü": None}


def test_the_same_content_is_the_same_bytes():
    assert len({arrays_bytes(ARRAYS, INFO) for _ in range(20)}) == 1
    assert len({arrays_bytes(dict(reversed(ARRAYS.items())), INFO) for _ in range(20)}) == 1


def test_what_is_written_is_read(tmp_path):
    (tmp_path / "x").write_bytes(arrays_bytes(ARRAYS, INFO))
    arrays, info = read_arrays(tmp_path / "x", "model")
    assert info == INFO and arrays.keys() == ARRAYS.keys()
    assert all(
        np.array_equal(arrays[name], array) and arrays[name].dtype == array.dtype for name, array in ARRAYS.items()
    )


def _earlier(info: str) -> str:
    """The hash of `ARRAYS` and the text of an info, as the files of version 0.2 have it."""
    digest = hashlib.sha256(info.encode())
    for name in sorted(ARRAYS):
        digest.update(f"\0{name}\0{ARRAYS[name].dtype.str}{ARRAYS[name].shape}\0".encode() + ARRAYS[name].tobytes())
    return digest.hexdigest()


@pytest.mark.parametrize("hashed", [True, False])
def test_files_of_earlier_versions_are_read(tmp_path, hashed):
    text = json.dumps(INFO)
    metadata = {"oblivionis": text} | ({"sha256": _earlier(text)} if hashed else {})
    (tmp_path / "x").write_bytes(save(ARRAYS, metadata=metadata))
    assert read_arrays(tmp_path / "x", "model")[1] == INFO


@pytest.mark.parametrize("earlier", [True, False])
def test_what_was_changed_since_is_refused(tmp_path, earlier):
    text = json.dumps(INFO)
    file = (
        save(ARRAYS, metadata={"oblivionis": text, "sha256": _earlier(text)}) if earlier else arrays_bytes(ARRAYS, INFO)
    )
    for changed in (file.replace(b'\\"round\\": 3', b'\\"round\\": 4'), file[:-1] + bytes([file[-1] ^ 1])):
        assert changed != file
        (tmp_path / "x").write_bytes(changed)
        with pytest.raises(FileError, match="is no readable model: it is not as it was written"):
            read_arrays(tmp_path / "x", "model")
