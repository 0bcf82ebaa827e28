"""The memory estimate: sizes against loaded models, passes against real passes, and what is said before a run."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from support import tiny_llama
from support.commands import call
from support.one_layer import one_layer
from support.stages import WHOLE_MODEL
from torch import nn
from transformers import LlamaConfig, PhiConfig

from clients.flat_parameters import FlatParameters
from clients.optimisation import checkpointing
from evaluation.engine.forward import token_log_probs
from evaluation.engine.fused_lora import fused_lora
from evaluation.engine.kernels import forget_masks
from evaluation.engine.packing import PackedBatch
from evaluation.engine.sequences import TokenSequence
from oblivionis.config import compose as configuration
from oblivionis.data.tokenize import PromptTemplate, encode_pairs
from oblivionis.models import dry_run, loading, lora, memory
from oblivionis.models import hardware as resources
from oblivionis.models.assembly import assemble
from oblivionis.models.configured_corpus import corpus_of, tokenizer_of
from oblivionis.models.errors import ModelError
from oblivionis.models.hardware import Machine, ResourceError
from oblivionis.models.record_lengths import Lengths, Size, lengths, mean
from oblivionis.models.shard_merges import assemble_served
from oblivionis.server.preflight import preflight

GB = 10**9
CPU = Machine(cpus=2, gpus=0, free_ram=20 * GB)
SEVEN = Machine(cpus=128, gpus=7, free_ram=100 * GB, free_gpu=40 * GB)
GPUS = Machine(cpus=16, gpus=2, free_ram=100 * GB, free_gpu=40 * GB)
ONE_LAYER = f"model.source={one_layer()}"
LORA: dict[str, Any] = {"rank": 8, "alpha": 16.0, "target_modules": tiny_llama.MODULES}


def need(*overrides: str, machine: Machine = CPU) -> memory.Estimate:
    """Of the embedded model with one layer, unless it is said."""
    short = ["model.max_length=128", "evaluation.token_budget=64", ONE_LAYER]
    return memory.estimate(configuration.compose("smoke", [*short, *overrides]), machine)


known = functools.cache(need)
"""Several tests look at the same estimate."""


@pytest.fixture
def no_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Estimates without passes, for tests that look at the sizes of what is stored alone."""
    monkeypatch.setattr(dry_run.DryRun, "training", lambda *_, **__: dry_run.Peak(0, 0))
    monkeypatch.setattr(memory, "evaluation_peak", lambda *_: dry_run.Peak(0, 0))


def folder_of(config: Any, path: Path) -> Path:
    config.save_pretrained(path)
    return path


@pytest.mark.usefixtures("no_passes")
@pytest.mark.parametrize("mode", ["lora", "full"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_sizes_are_those_of_the_loaded_model(mode: str, dtype: str) -> None:
    overrides = [WHOLE_MODEL, f"model.mode={mode}", f"model.dtype={dtype}"]
    found = need(*overrides)
    assembled = assemble(configuration.compose("smoke", overrides).model, 0)
    parameters = list(assembled.model.parameters())
    assert found.trainable == assembled.flat.size
    frozen = [p for p in parameters if not p.requires_grad]
    parts = dict(found.client.parts)
    assert parts["base weights"] == sum(p.numel() * p.element_size() for p in frozen)
    # The vector, its gradient and two moments, in float32.
    assert parts["trained weights, gradient, AdamW's moments"] == 16 * assembled.flat.size
    assert found.parameters == sum(p.numel() for p in (frozen if mode == "lora" else parameters))


@pytest.mark.usefixtures("no_passes")
@pytest.mark.parametrize(
    "kind",
    [
        ["model.lora.use_dora=true"],
        ["model.lora.target_modules=[q_proj,lm_head,embed_tokens]"],
        ["model.lora.modules_to_save=[lm_head]", "model.dtype=bfloat16"],
        ["model.lora.modules_to_save=[lm_head]", "model.lora.target_modules=[q_proj]", "model.quantization=nf4"],
        ["model.lora.target_modules=[lm_head]", "model.quantization=int8"],
    ],
)
def test_sizes_of_every_kind_of_adapter_are_those_of_the_loaded_model(kind: list[str]) -> None:
    found = need(WHOLE_MODEL, *kind)
    assembled = assemble(configuration.compose("smoke", kind).model, 0)
    assert found.trainable == assembled.flat.size
    frozen = [p for p in assembled.model.parameters() if not p.requires_grad]
    # What bitsandbytes keeps beside the numbers, scales and tables, is no parameter.
    least = sum(p.numel() * p.element_size() for p in frozen)
    assert least <= dict(found.client.parts)["base weights"] <= 1.05 * least + 20000


@pytest.mark.usefixtures("no_passes")
@pytest.mark.parametrize(
    ("quantization", "double"), [("int8", False), ("nf4", True), ("nf4", False)], ids=["int8", "double", "single"]
)
def test_quantised_sizes_are_bitsandbytes_own(quantization: str, double: bool) -> None:
    pytest.importorskip("bitsandbytes")
    model, _ = loading.load_base("embedded", dtype="bfloat16", quantization=quantization, double_quantization=double)
    size = 0
    for parameter in model.parameters():
        size += parameter.numel() * parameter.element_size()
        if quantization == "int8" and parameter.dtype == torch.int8:
            size += parameter.SCB.numel() * 4
        state = getattr(parameter, "quant_state", None)
        for part in [state, getattr(state, "state2", None)]:
            tensors = [] if part is None else [part.absmax, part.code]
            size += sum(t.numel() * t.element_size() for t in tensors)
        size += 4 if getattr(state, "offset", None) is not None else 0
    overrides = [WHOLE_MODEL, f"model.quantization={quantization}", f"model.double_quantization={str(double).lower()}"]
    found = need(*overrides, "model.dtype=bfloat16")
    assert dict(found.client.parts)["base weights"] == size
    assert found.parameters == need(WHOLE_MODEL).parameters


def test_a_tied_weight_counts_once(tmp_path: Path) -> None:
    shape: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes = []
    for tied in (True, False):
        config = LlamaConfig(**shape, intermediate_size=48, vocab_size=100, tie_word_embeddings=tied)
        model = dry_run.skeleton(folder_of(config, tmp_path / str(tied)), dtype=torch.float32)
        assert dry_run.stored_bytes(model.requires_grad_(False)) == 4 * sum(p.numel() for p in model.parameters())
        sizes.append(dry_run.stored_bytes(model))
    assert sizes[1] - sizes[0] == 4 * 32 * 100


class Kept:
    """Bytes that autograd keeps for the backward pass, each storage once: a count of its own, by torch's own hook."""

    def __init__(self, model: nn.Module) -> None:
        self._without = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self._sizes: dict[int, int] = {}
        self._hold: list[torch.Tensor] = []

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._without:
            self._sizes[storage.data_ptr()] = storage.nbytes()
            self._hold.append(tensor)
        return tensor

    @property
    def total(self) -> int:
        return sum(self._sizes.values())


SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 160,
    "vocab_size": 97,
    "max_position_embeddings": 256,
}


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.slow
def test_a_dry_pass_takes_what_a_real_pass_keeps(tmp_path: Path, dropout: float) -> None:
    """At the end of the forward pass all that is kept is alive and little else: the peak is a few tensors more."""
    from transformers import LlamaForCausalLM

    config = LlamaConfig(**SHAPE)
    real = lora.attach_lora(LlamaForCausalLM(config), dropout=dropout, **LORA)
    lora.trainable(real)
    FlatParameters(real)
    batch = PackedBatch.build([TokenSequence((1,), (2,) * 63)] * 8)
    kept = Kept(real)
    with torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda x: x), fused_lora(real.train()):
        token_log_probs(real, batch, mode="packed")
    dry = lora.attach_lora(dry_run.skeleton(folder_of(config, tmp_path), dtype=torch.float32), dropout=dropout, **LORA)
    lora.trainable(dry)
    peak = dry_run.DryRun(dry, on_gpu=True, dtype=torch.float32).training(8, 64)
    assert kept.total < peak.total < 1.35 * kept.total and peak.heap == 0


@pytest.mark.slow
def test_a_dry_pass_is_the_real_pass_to_the_byte(tmp_path: Path) -> None:
    """The same count over a real model, whose numbers exist: forward and backward, all ways of running it."""
    from transformers import LlamaForCausalLM

    config = LlamaConfig(**SHAPE)
    folder_of(config, tmp_path)
    for mode, checkpoint, gpu in (("fused", False, False), ("packed", False, True), ("packed", True, True)):
        real = lora.attach_lora(LlamaForCausalLM(config), dropout=0.0, **LORA)
        lora.trainable(real)
        for p in real.parameters():
            p.grad = torch.zeros_like(p) if p.requires_grad else None
        batch = PackedBatch.build([TokenSequence((0,), (0,) * 63)] * 8)
        forget_masks()
        token_log_probs(real.train(), PackedBatch.build([TokenSequence((0,), (0,) * 3)]), mode=mode)
        forget_masks()
        live = dry_run.Live(real, heap=not gpu)
        with fused_lora(real):
            if checkpoint:
                with checkpointing(real), live:
                    token_log_probs(real, batch, mode=mode).sum().backward()
            else:
                with live:
                    token_log_probs(real, batch, mode=mode).sum().backward()
        dry = lora.attach_lora(dry_run.skeleton(tmp_path, dtype=torch.float32), dropout=0.0, **LORA)
        lora.trainable(dry)
        run = dry_run.DryRun(dry, on_gpu=gpu, dtype=torch.float32)
        peak = run.training(8, 64, gradient_checkpointing=checkpoint)
        assert dataclasses.astuple(peak) == pytest.approx(dataclasses.astuple(live.peak), rel=0.01)


@pytest.mark.slow
def test_a_dry_run_leaves_no_fake_tensors_behind() -> None:
    need()
    records = tiny_llama.sequences(4)
    model = tiny_llama.lora()
    got = token_log_probs(model, PackedBatch.build(records))
    expected = torch.cat(tiny_llama.padded_log_probs(model, records))
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-4)
    assert type(got) is torch.Tensor


@pytest.mark.parametrize("machine", [CPU, GPUS], ids=["cpu", "gpu"])
@pytest.mark.slow
def test_what_makes_an_update_larger_or_smaller(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "evaluation_peak", lambda *_: dry_run.Peak(0, 0))  # only the client's is looked at

    def activations(*overrides: str) -> int:
        return dict(need("training.batch_size=8", *overrides, machine=machine).client.parts)["activations of an update"]

    all_layers = activations(WHOLE_MODEL)
    sixteen = activations(WHOLE_MODEL, "training.batch_size=16")
    assert sixteen == pytest.approx(2 * all_layers, rel=0.2)
    assert activations(WHOLE_MODEL, "unlearning.batch_size=16") == sixteen
    assert activations(WHOLE_MODEL, "training.gradient_checkpointing=true") < 0.8 * all_layers
    one = activations()
    assert activations("model.max_length=256") > 1.3 * one
    assert activations("model.lora.dropout=0.1") > one
    assert activations("unlearning.entropy.forget=0.1") >= one
    eager = activations("model.attn_implementation=eager")
    assert eager == one if machine is CPU else eager > one, "on a CPU a Llama has its own attention"
    two = activations("training.batch_size=2")
    assert activations("training.batch_size=1") == two, "unlearning pairs each record with one to keep"
    assert activations("training.batch_size=1", "stages=[finetune]") < two
    three = activations("training.batch_size=3")
    assert activations("training.batch_size=1", "unlearning=idk_dpo") == three > two, "and with another answer"
    assert activations("unlearning=pdu") >= one
    only_trained = activations("stages=[finetune]", "unlearning.entropy.forget=0.1")
    assert only_trained == activations("stages=[finetune]") <= one, "what no stage unlearns by takes nothing"


@pytest.mark.slow
def test_batches_are_made_of_the_longest_records_that_there_are() -> None:
    settings = ["training.batch_size=2", "stages=[finetune]", "model.max_length=128", ONE_LAYER]
    config = configuration.compose("smoke", settings)

    def parts(trained: tuple[Size, ...], scored: tuple[Size, ...], answers: int) -> tuple[int, int]:
        found = memory.estimate(config, CPU, Lengths(trained, scored, answers, 1))
        return dict(found.client.parts)["activations of an update"], dict(found.server.parts)["evaluation"]

    long, short = Size(64, 64), Size(8, 8)
    whole = parts((long, long, short), (long,) * 3, 10_000)
    assert parts((long, long, long), (long,) * 3, 10_000) == whole, "two make a batch"
    assert parts((long, short, short), (long,) * 3, 10_000)[0] < whole[0]
    assert parts((Size(127, 1), Size(127, 1)), (long,) * 3, 10_000)[0] < whole[0], "fewer logits"
    assert parts((short,), (long,) * 3, 10_000)[0] < parts((long,), (long,) * 3, 10_000)[0] == whole[0]
    assert parts((long, long, short), (long,) * 3, 3)[1] <= whole[1]


def test_answers_that_are_learned_instead_count() -> None:
    corpus = corpus_of(configuration.compose("smoke"))
    longest = "an answer that is longer than any other one, " * 3
    train = tuple(dataclasses.replace(r, perturbed_answers=(longest,)) for r in corpus.train)
    corpus = dataclasses.replace(corpus, train=train)
    found, idk = (
        lengths(corpus, configuration.compose("smoke", o)) for o in ("unlearning=altpo", "unlearning=idk_nll")
    )
    assert found is not None and idk is not None
    assert found.trained[0].tokens > idk.trained[0].tokens and found.scored == idk.scored


def test_lengths_are_those_of_the_tokenizer() -> None:
    config = configuration.compose("smoke", ["evaluation.ruler.enabled=false", "evaluation.membership.enabled=false"])
    corpus = corpus_of(config)
    found = lengths(corpus, dataclasses.replace(config, stages=["finetune"]))
    assert found is not None
    template = PromptTemplate(**dataclasses.asdict(config.model.template))
    encoded = encode_pairs([(r.question, r.answer) for r in corpus.train], tokenizer_of(config), template)
    sizes = sorted((Size(len(e.prompt), len(e.answer)) for e in encoded), key=lambda size: -size.tokens)
    assert [size.tokens for size in found.trained] == [size.tokens for size in sizes[: len(found.trained)]]
    assert set(found.trained) <= set(sizes) and found.scored[0].tokens >= found.trained[0].tokens
    asked = [
        1 + (record.paraphrased_answer is not None) + len(record.perturbed_answers)
        for name in config.evaluation.full.sets
        for record in corpus.evaluation[name][: config.evaluation.full.questions_per_set]
    ]
    assert (found.answers, found.variants) == (sum(asked), max(asked))
    with_ruler = dataclasses.replace(
        config.evaluation, ruler=dataclasses.replace(config.evaluation.ruler, enabled=True)
    )
    more = lengths(corpus, dataclasses.replace(config, stages=["finetune"], evaluation=with_ruler))
    assert more is not None and more.answers >= found.answers + len(corpus.train)
    cut = lengths(corpus, dataclasses.replace(config, model=dataclasses.replace(config.model, max_length=16)))
    assert cut is not None and max(size.tokens for size in cut.scored if size.prompt < 16) == 16


@pytest.mark.parametrize("sizes", [[Size(1, 2)], [Size(3, 9), Size(4, 4), Size(4, 5)]])
def test_a_batch_of_the_mean_has_no_fewer_tokens(sizes: list[Size]) -> None:
    size = mean(sizes)
    assert len(sizes) * size.prompt >= sum(s.prompt for s in sizes) > len(sizes) * (size.prompt - 1)
    assert len(sizes) * size.answer >= sum(s.answer for s in sizes) > len(sizes) * (size.answer - 1)


@pytest.mark.slow
def test_other_architectures_can_be_told(tmp_path: Path) -> None:
    config = PhiConfig(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, vocab_size=99)
    folder = folder_of(config, tmp_path)
    targets = "model.lora.target_modules=[q_proj, k_proj, v_proj, dense, fc1, fc2]"
    found = need(f"model.source={folder}", "model.name=phi", targets, "model.max_length=64", machine=GPUS)
    linear = 4 * 64 * 64 + 2 * 64 * 96
    assert found.parameters > 2 * linear and dict(found.client.parts)["activations of an update"] > 0
    quantised = need(f"model.source={folder}", "model.name=phi", targets, "model.quantization=nf4", machine=GPUS)
    saved = dict(found.client.parts)["base weights"] - dict(quantised.client.parts)["base weights"]
    assert saved == pytest.approx(2 * linear * (4 - 0.5), rel=0.2)


@pytest.mark.slow
def test_a_second_process_that_measures_is_counted_where_there_is_one() -> None:
    two, one = known("evaluation.processes=2"), known("evaluation.processes=1")
    extra = dict(two.server.parts)["second process that measures"]
    assert extra > memory.LIBRARIES and two.server.total >= one.server.total + memory.LIBRARIES
    assert two.server.passing > one.server.passing, "both give back what an evaluation took"
    for more, machine in (("federation.server_threads=1", CPU), ("federation.client_gpus=0.5", GPUS)):
        found = need("evaluation.processes=2", more, machine=machine)
        assert "second process that measures" not in dict(found.server.parts)


@pytest.mark.slow
def test_the_total_is_the_server_and_the_clients_that_run_at_once() -> None:
    found = known()
    assert found.clients == 2 and found.gpu == 0
    evaluating, training = found.server.total + 2 * found.client.idle, found.server.idle + 2 * found.client.total
    assert found.ram == max(evaluating, training) and found.client.idle < found.client.total
    assert found.shortages(dataclasses.replace(CPU, free_ram=found.ram)) == []
    assert found.shortages(dataclasses.replace(CPU, free_ram=found.ram - 1)) == [("RAM", found.ram, found.ram - 1)]
    gpu = need("federation.client_gpus=0.5", machine=GPUS)
    assert (gpu.clients, gpu.gpu_clients) == (2, 2)
    assert gpu.gpu == gpu.server.total + 2 * gpu.client.total
    assert gpu.ram == gpu.server.host + 2 * gpu.client.host
    assert need("federation.client_gpus=1", machine=GPUS).gpu_clients == 1
    assert [what for what, *_ in gpu.shortages(dataclasses.replace(GPUS, free_gpu=gpu.gpu - 1))] == ["GPU memory"]


@pytest.mark.usefixtures("no_passes")
def test_weights_that_processes_have_in_common_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "shareable_bytes", lambda folder, dtype: 0)
    alone = need()
    monkeypatch.setattr(memory, "shareable_bytes", lambda folder, dtype: 1000)
    found = need()
    assert found.shared == 1000 and found.ram == alone.ram - 2 * 1000
    monkeypatch.setattr(memory, "shareable_bytes", lambda folder, dtype: 10**12)
    assert need().shared == dict(need().client.parts)["base weights"]
    assert need("model.quantization=nf4").shared == need("federation.client_gpus=1", machine=GPUS).shared == 0


@pytest.mark.parametrize(
    ("overrides", "machine", "expected"),
    [
        ([], CPU, 2),
        (["federation.client_cpus=2"], CPU, 1),
        (["federation.client_cpus=8"], CPU, 1),
        (["federation.clients=40", "federation.fraction_train=0.2"], GPUS, 8),
        (["federation.clients=40", "federation.client_gpus=1"], GPUS, 2),
        (["federation.clients=40", "federation.client_gpus=0.25"], GPUS, 8),
        (["federation.clients=40", "federation.client_gpus=0.3"], GPUS, 6),
        (["federation.clients=40", "federation.client_gpus=2"], GPUS, 1),
        (["federation.clients=120", "federation.fraction_train=1", "federation.client_gpus=0.07"], SEVEN, 98),
        (["federation.client_gpus=1"], CPU, 0),
        (["federation.clients=40", "federation.fraction_train=0.2", "federation.client_processes=3"], CPU, 3),
        (["federation.clients=40", "federation.client_gpus=1", "federation.client_processes=3"], GPUS, 2),
        (["federation.client_processes=5"], CPU, 2),
        (["federation.clients=40", "federation.fraction_train=0.2", "federation.client_processes=3"], GPUS, 8),
    ],
)
def test_client_processes_are_bounded_by_cores_gpus_and_participants(
    overrides: list[str], machine: Machine, expected: int
) -> None:
    config = configuration.compose("smoke", ["data.authors=60", *overrides])
    assert resources.client_processes(config, machine) == expected


def test_gpus_that_are_not_there_are_an_error_before_anything_starts() -> None:
    def check(*overrides: str, machine: Machine = CPU) -> list[str]:
        return resources.check(configuration.compose("smoke", list(overrides)), machine)

    assert check() == []
    with pytest.raises(ResourceError, match=r"model\.device is cuda, but torch sees no GPU"):
        check("model.device=cuda")
    with pytest.raises(ResourceError, match=r"client_gpus=1 .* sees no GPU; set federation\.client_gpus=0"):
        check("federation.client_gpus=1")
    with pytest.raises(ResourceError, match=r"client_gpus=3 .* sees 2 GPUs; lower it"):
        check("federation.client_gpus=3", machine=GPUS)
    with pytest.raises(ResourceError, match=r"paged_adamw_32bit needs a GPU"):
        check("training.optimizer=paged_adamw_32bit")
    assert check("federation.client_gpus=1", machine=GPUS) == []
    for device in ("auto", "cuda"):
        (hint,) = check(f"model.device={device}", machine=GPUS)
        assert hint.startswith("federation.client_gpus is 0") and "here 2" in hint
    assert check("model.device=cpu", machine=GPUS) == []


def test_8_bits_on_a_cpu_come_with_a_hint() -> None:
    pytest.importorskip("bitsandbytes")
    config = configuration.compose("smoke", ["model.quantization=int8"])
    (hint,) = resources.check(config, CPU)
    assert "rounds activations to 8 bits" in hint
    assert not any("int8" in text for text in resources.check(config, GPUS))


@pytest.mark.slow
def test_too_little_memory_is_a_warning_and_in_a_strict_run_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    small = dataclasses.replace(CPU, free_ram=GB)
    monkeypatch.setattr(Machine, "here", classmethod(lambda cls: small))
    console = Console(record=True, width=400, file=open("/dev/null", "w"))  # noqa: SIM115
    preflight(configuration.compose("smoke", [ONE_LAYER]), console)
    text = console.export_text()
    assert text.startswith("memory: at most ") and "of 1 GB free RAM (server" in text
    assert "warning: the memory may not do (RAM: up to " in text and "training.gradient_checkpointing=true" in text
    with pytest.raises(ResourceError, match=r"strict: the memory may not do .*model\.quantization=nf4"):
        preflight(configuration.compose("smoke", [ONE_LAYER, "strict=true"]), console)


@pytest.mark.slow
def test_a_strict_run_that_does_not_fit_leaves_no_run_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Machine, "here", classmethod(lambda cls: dataclasses.replace(CPU, free_ram=GB)))
    result = call("simulate", "smoke", ONE_LAYER, f"output={tmp_path / 'runs'}", "strict=true")
    assert result.code == 2 and "strict: the memory may not do" in result.err and "Traceback" not in result.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_a_model_without_weights_can_be_told(tmp_path: Path) -> None:
    config = LlamaConfig(**SHAPE)
    found = need(f"model.source={folder_of(config, tmp_path)}", "model.name=x")
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"] and found.ram > 0


@pytest.mark.slow
def test_model_info_prints_the_parts() -> None:
    result = call("model", "info", ONE_LAYER, "model.quantization=nf4")
    assert result.code == 0
    for text in ("nf4, double quantisation", "activations of an update", "evaluation", "a simulation here: at most"):
        assert text in result.out


def test_a_folder_that_is_no_model_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "nonsense"}')
    with pytest.raises(ModelError, match="cannot read the model's shape"):
        need(f"model.source={tmp_path}", "model.name=x")


SHARDS = 3
IN_SHARDS = ("federation.shards=3", "federation.clients=6", "model.lora.rank=4")


@pytest.mark.parametrize("merge", ["mean", "stack", "ensemble"])
@pytest.mark.slow
def test_what_the_server_holds_of_shards_is_counted(merge: str) -> None:
    """The served model by its loaded weights; the numbers that it is loaded from, and the global models, by hand."""
    of_shards = (*IN_SHARDS, "evaluation.token_budget=4096", f"federation.shard_merge={merge}")
    one, found = known(*of_shards[1:-1]), need(*of_shards)
    assert found.trainable == one.trainable and found.client == one.client
    config = configuration.compose("smoke", [ONE_LAYER, *of_shards])
    served = sum(p.numel() for p in assemble_served(config).model.parameters() if p.requires_grad)
    assert served == {"mean": 1, "stack": SHARDS, "ensemble": 1}[merge] * one.trainable
    before, after = dict(one.server.parts), dict(found.server.parts)
    assert after["trained weights and gradient"] == 8 * served
    more_models, held = 4 * (SHARDS - 1), {"mean": 1, "stack": SHARDS, "ensemble": SHARDS}[merge]
    states, measuring = "global models and replies", 2
    assert "second process that measures" in after
    assert after[states] - before[states] == 4 * one.trainable * (more_models + measuring * held)
    beside = after["evaluation"] - before["evaluation"]
    assert beside > 0 if merge == "ensemble" else beside == 0, "answering takes most without the members' logits"
