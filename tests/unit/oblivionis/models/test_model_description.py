"""What `model info` tells of a model, and the record it shows."""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from support.architectures import tiny_model
from support.commands import call
from support.small_tokenizers import byte_level
from transformers import GPT2Config, LlamaConfig, LlamaForCausalLM

from evaluation.engine.architectures import way
from oblivionis.config.compose import compose
from oblivionis.config.schema import LLAMA_MODULES
from oblivionis.data.tokenize import PromptTemplate
from oblivionis.models import embedded_model, loading, lora
from oblivionis.models.fingerprint import fingerprint
from oblivionis.models.memory import Estimate
from oblivionis.models.model_description import ANSWER, QUESTION, Example, example_of, facts_of
from oblivionis.reports.record_example import print_example
from oblivionis.server import preflight

THINKS = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' }}{%- if m.role == 'assistant' %}"
    "{{- '<think>\n\n</think>\n\n' }}{%- endif %}{{- m.content + '<|im_end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' + (hint or '') }}{%- endif %}"
)


def folder(path: Path, chat: str = THINKS, **shape: Any) -> Path:
    size = {"vocab_size": 640, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    config = LlamaConfig(**{**size, "num_attention_heads": 2, **shape})
    LlamaForCausalLM._from_config(config, dtype=torch.bfloat16).save_pretrained(path)
    byte_level(bos=True, chat=chat).save_pretrained(path)
    return path


def shown(example: Example, width: int = 80) -> str:
    out = io.StringIO()
    print_example(example, Console(file=out, width=width))
    return out.getvalue()


@pytest.fixture
def told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """All commands of a test ask for the memory of the same model: it is estimated for the first one."""
    plain, known = preflight.estimated, list[Estimate | str]()

    def estimated(*given: Any) -> Estimate | str:
        if not known:
            known.append(plain(*given))
        return known[0]

    monkeypatch.setattr(preflight, "estimated", estimated)


def test_facts_are_those_of_the_loaded_model() -> None:
    config = compose("default").model
    found = facts_of(config, fingerprint(embedded_model.folder()))
    model, tokenizer = loading.load_base("embedded")
    assert found.architecture == type(model).__name__ and found.model_type == model.config.model_type
    assert found.parameters == lora.count(model).total
    assert (found.vocabulary_rows, found.tokens) == (model.get_input_embeddings().num_embeddings, len(tokenizer))
    assert found.tied_head is (model.lm_head.weight is model.model.embed_tokens.weight)
    assert found.context == model.config.max_position_embeddings
    assert set(found.linear_layers) == set(LLAMA_MODULES)
    assert (found.way, found.way_limit) == (way(model).name, None) == ("fused", None)
    assert json.loads(json.dumps(dataclasses.asdict(found)))["example"]["kind"] == "qa"


@pytest.mark.usefixtures("told_once")
@pytest.mark.parametrize(
    ("kind", "overrides", "expected"),
    [
        ("mistral", [], ("packed", 16, "padded")),
        ("mamba2", [], ("plain", None, "plain")),
        ("llama", ["model.lora.target_modules=[q_proj,lm_head]"], ("packed", None, "padded")),
        ("llama", ["model.quantization=nf4"], ("packed", None, "padded")),
    ],
)
@pytest.mark.slow
def test_model_info_tells_how_the_model_is_run_and_why(
    kind: str, overrides: list[str], expected: tuple[str, int | None, str], tmp_path: Path
) -> None:
    tiny_model(kind, vocab_size=2048).save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(embedded_model.folder() / name, tmp_path / name)
    options = [tmp_path, "model.lora.target_modules=null", *overrides]
    found = json.loads(call("model", "info", *options, "--json").out)
    assert (found["way"], found["way_limit"], found["way_beyond"]) == expected
    told = " ".join(call("model", "info", *options).out.split())
    assert found["way_reason"] and found["way_cost"].split(",")[0] in told and expected[0] in told


def test_the_files_tell_their_own_number_format(tmp_path: Path) -> None:
    told = call("model", "info", folder(tmp_path, tie_word_embeddings=False), "--json")
    assert told.code == 0 and told.err == ""
    found = json.loads(told.out)
    assert (found["stored_dtype"], found["dtype"], found["tied_head"]) == ("bfloat16", "float32", False)
    assert found["vocabulary_rows"] == 640 and found["tokens"] == len(byte_level(bos=True))


def test_other_architectures(tmp_path: Path) -> None:
    GPT2Config(vocab_size=640, n_embd=16, n_layer=1, n_head=2, architectures=["GPT2LMHeadModel"]).save_pretrained(
        tmp_path
    )
    byte_level().save_pretrained(tmp_path)
    found = facts_of(compose("default", [f"model.source={tmp_path}", "model.name=x"]).model, "")
    assert found.linear_layers == ("c_attn", "c_proj", "c_fc") and found.tied_head and found.context == 1024


def test_the_example_marks_prompt_and_answer() -> None:
    tokenizer = byte_level(bos=True, chat=THINKS)
    example = example_of(tokenizer, PromptTemplate("chat"))
    assert shown(example).splitlines() == [
        "a record as it is trained on, scored and sampled (template chat)",
        f"prompt, {example.prompt_tokens} tokens",
        "│ <|im_start|>user⏎",
        f"│ {QUESTION}<|im_end|>⏎",
        "│ <|im_start|>assistant⏎",
        "│ <think>⏎",
        "│ ⏎",
        "│ </think>⏎",
        "│ ⏎",
        f"answer, {example.answer_tokens} tokens, the last one its end",
        f"│ {ANSWER}<|im_end|>",
    ]
    whole = tokenizer(example.prompt + example.answer, add_special_tokens=False)["input_ids"]
    assert len(whole) + 1 == example.prompt_tokens + example.answer_tokens


def test_the_example_of_prefixes_has_the_start_token_and_marks_spaces() -> None:
    text = shown(example_of(byte_level(bos=True), PromptTemplate()))
    assert f"│ <|begin|>Question: {QUESTION}⏎\n│ Answer:\n" in text and f"│ ·{ANSWER}<|end|>\n" in text


def test_long_lines_are_folded_and_nothing_moves_the_cursor() -> None:
    lines = shown(Example("chat", "\x1b[31m" + "a [b] " * 40, " \x07x", 9, 2, "\x9bend"), 80).splitlines()
    assert max(map(len, lines)) <= 80 and all(c.isprintable() for line in lines for c in line)


@pytest.mark.slow
def test_the_command_shows_it(tmp_path: Path) -> None:
    told = call("model", "info", folder(tmp_path), "model.template.kind=chat", "model.template.arguments.hint=<think>")
    assert told.code == 0 and "│ </think>⏎" in told.out
    assert "hint" in next(line for line in told.out.splitlines() if "arguments" in line)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["model.template.arguments.hnt=x"], "no variable of the chat template"),
        (["model.template.arguments.tools=x"], "model.template.arguments.tools: the name is reserved"),
        (["model.template.kind=qa", "model.template.answer_prefix=A "], "space"),
    ],
)
def test_what_cannot_be_used_is_one_line(tmp_path: Path, arguments: list[str], expected: str) -> None:
    told = call("model", "info", folder(tmp_path), "model.template.kind=chat", *arguments)
    assert told.code == 2 and expected in told.err and "Traceback" not in told.err


@pytest.mark.slow
def test_an_endless_template_is_refused(tmp_path: Path) -> None:
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    told = call("model", "info", folder(tmp_path, endless), "model.template.kind=chat")
    assert told.code == 2 and "takes longer than 1 s" in told.err
    assert call("model", "info", tmp_path, "--json").code == 0, "by prefixes nobody asks the template"


def test_a_simulation_is_refused_before_it_begins(tmp_path: Path) -> None:
    model, runs = folder(tmp_path / "model"), tmp_path / "runs"
    chosen = [f"model.source={model}", "model.name=x", "model.template.kind=chat", "model.template.arguments.hnt=x"]
    told = call("simulate", "smoke", *chosen, f"output={runs}")
    assert told.code == 2 and "model.template.arguments.hnt: no variable of the chat template" in told.err
    assert not runs.exists()


def test_models_by_name_and_experiments() -> None:
    for name, kind in (("embedded", "embedded"), ("tiny", "embedded"), ("smoke", "embedded")):
        assert json.loads(call("model", "info", name, "--json").out)["source"] == kind
    told = call("model", "info", "./nope")
    assert told.code == 2 and "no model folder" in told.err
