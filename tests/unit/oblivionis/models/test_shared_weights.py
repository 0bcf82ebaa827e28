"""Frozen weights lie once on a machine, whoever reads them, and are nobody else's once they are written to."""

import multiprocessing
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from oblivionis.models.shared_weights import share, shareable_bytes

WIDTH = 1024
BYTES = 4 * 3 * WIDTH * WIDTH


def made(seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))).to(dtype)


@pytest.fixture
def folder(tmp_path):
    save_file(dict(made().state_dict()), tmp_path / "model.safetensors")
    return tmp_path


def test_equal_weights_are_the_files_and_keep_their_values(folder):
    model, plain = made(), made()
    assert share(model, folder) == BYTES == shareable_bytes(folder, torch.float32)
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(p, q) and isinstance(p, nn.Parameter) and p.requires_grad
    x = torch.randn(3, WIDTH)
    torch.testing.assert_close(model(x), plain(x), rtol=0, atol=1e-5)


def test_what_was_converted_stays_where_it_is(folder):
    assert share(made(dtype=torch.bfloat16), folder) == 0 == shareable_bytes(folder, torch.bfloat16)
    assert share(made(seed=1), folder) == 0
    model = made()
    with torch.no_grad():
        model[1].weight[0, 0] += 1
    before = [p.data_ptr() for p in model.parameters()]
    assert share(model, folder) == BYTES * 2 // 3
    assert [p.data_ptr() == at for p, at in zip(model.parameters(), before, strict=True)] == [False, True, False]


def test_who_writes_changes_neither_the_file_nor_others(folder):
    model, other = made(), made()
    stored = (folder / "model.safetensors").read_bytes()
    share(model, folder), share(other, folder)
    with torch.no_grad():
        model[0].weight.zero_()
    assert torch.equal(other[0].weight, made()[0].weight) and not model[0].weight.any()
    assert (folder / "model.safetensors").read_bytes() == stored


def _reader(folder, ready, leave):
    model = made()
    share(model, Path(folder))
    sum(float(p.sum()) for p in model.parameters())
    ready.set()
    leave.wait(60)


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="what a process shares is read as Linux tells")
def test_two_processes_hold_the_weights_once(folder):
    """A process's own memory, without what is shared, has none of the weights."""
    context = multiprocessing.get_context("forkserver")
    leave = context.Event()
    readies = [context.Event() for _ in range(2)]
    readers = [context.Process(target=_reader, args=(str(folder), ready, leave)) for ready in readies]
    for reader in readers:
        reader.start()
    try:
        assert all(ready.wait(60) for ready in readies)
        for reader in readers:
            memory = psutil.Process(reader.pid).memory_maps(grouped=False)
            mapped = [m for m in memory if m.path.endswith("model.safetensors")]
            assert sum(m.rss for m in mapped) >= BYTES
            assert sum(m.private_clean + m.private_dirty for m in mapped) < BYTES / 10
            assert abs(sum(m.pss for m in mapped) - BYTES / 2) < BYTES / 10
    finally:
        leave.set()
        for reader in readers:
            reader.join(30)
