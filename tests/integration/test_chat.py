"""The chat: its answers are those of the run's models, its commands do what /help says, mistakes end nothing."""

import io
import itertools
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from support.commands import call
from support.processes import environment
from support.stages import execute, new_run

from evaluation.engine.sampling import Rule, sample
from evaluation.metrics.tofu import SECTIONS
from oblivionis.audits.chat import Chat, ChatError, Decoding
from oblivionis.audits.loaded_model import find_subject
from oblivionis.cli import chat as chat_loop
from oblivionis.data.corpora import load_corpus
from oblivionis.data.tokenize import encode_prompts
from oblivionis.errors import RunError

NAMES = {"finetune": "finetuned", "unlearn": "unlearned", "retrain": "retrained"}
FREE = "What colour is the sky over Lisbon?"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A small finished run with its configuration."""
    config, run = new_run(tmp_path_factory.mktemp("runs"), "talk", "training.learning_rate=0.003")
    execute(config, run)
    return config, run


@pytest.fixture(scope="module")
def loaded(finished):
    return Chat(finished[1].path)


@pytest.fixture
def chat(loaded):
    loaded.decoding = Decoding()
    loaded.restart()
    return loaded


def told(chat, *lines, width=200, **how):
    """What the loop prints for these lines."""
    out = io.StringIO()
    chat_loop.answer_lines(chat, chat_loop.read_lines(lines), Console(file=out, width=width), **how)
    return out.getvalue()


def rows(text):
    """Rows of the printed tables as lists of cells."""
    lines = (line for line in text.splitlines() if line.startswith("│"))
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines]


def spoken(text):
    """As a table shows it."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split()) or "(empty)"


# -- answers -------------------------------------------------------------------------------------------------------


def test_greedy_answers_are_those_of_the_runs_evaluation(finished, chat):
    config, run = finished
    questions = {r.id: r.question for records in load_corpus(config.data).evaluation.values() for r in records}
    compared, different = 0, set()
    for stage, name in NAMES.items():
        log = run.evaluation_log(stage)
        for key, section in SECTIONS.items():
            for i, identifier in enumerate(log["ids"][section]):
                reply = chat.ask(questions[identifier])
                _, generated, truth = log[section]["generated_text"][str(i)]
                assert reply.answers[name] == [generated] and (reply.known, reply.truth) == (key, truth)
                assert reply.recalls[name] == [pytest.approx(log[section]["rougeL_recall"][str(i)])]
                compared += 1
                different.add(tuple(a[0] for a in reply.answers.values()))
    assert compared == 3 * 4 * 3
    assert any(len(set(answers)) > 1 for answers in different), "the models differ"
    assert not chat.ask(FREE).recalls and chat.ask(FREE).truth is None


@pytest.mark.parametrize("rule", [Rule(0.7, 0.9), Rule(1.0, 1.0, 5), Rule(1.5, 0.8, 20, 0.3)])
def test_samples_are_those_of_the_sampler(finished, chat, rule):
    _, run = finished
    chat.decoding = Decoding(rule.temperature, rule.top_p, rule.top_k, rule.confidence, 4, 6, seed=3)
    replies = [chat.ask(FREE) for _ in range(2)]
    assert replies[0].answers != replies[1].answers, "a repeated question is answered anew"
    for stage, name in NAMES.items():
        subject = find_subject(str(run.path), stage, [])
        prompts = encode_prompts([FREE] * 2, subject.tokenizer, subject.template)
        found = sample(
            subject.model, prompts, 4, max_new_tokens=6, stop_ids=subject.stop_ids, rule=rule, seed=3, questions=[0, 1]
        )
        expected = [subject.tokenizer.batch_decode(tokens, skip_special_tokens=True) for tokens in found]
        assert [reply.answers[name] for reply in replies] == expected


def test_the_same_conversation_with_the_same_seed_is_the_same(chat):
    def converse(seed):
        chat.decoding = Decoding(temperature=1.0, samples=2, seed=seed)
        chat.restart()
        replies = [chat.ask(FREE), chat.ask_known("forget"), chat.ask(FREE), chat.ask_known("retain")]
        return [(r.question, r.answers) for r in replies]

    first = converse(5)
    assert converse(5) == first != converse(6)


def test_greedy_unless_something_is_to_be_sampled(chat):
    greedy = chat.ask(FREE).answers
    for decoding in (Decoding(temperature=0), Decoding(top_k=1), Decoding(temperature=1e-4, samples=1)):
        chat.decoding = decoding
        assert chat.ask(FREE).answers == greedy
    assert Decoding().rule is None and Decoding(temperature=0.0).rule is None
    assert Decoding(samples=2).rule == Rule() and Decoding(top_p=0.5).rule == Rule(1.0, 0.5)
    assert Decoding(0.5, None, 3, 0.9).rule == Rule(0.5, 1.0, 3, 0.9)


def test_the_longest_answer(finished, chat):
    config, _ = finished
    tokenizer = chat.assembled.tokenizer
    assert chat.max_new_tokens == config.evaluation.full.max_new_tokens
    whole = chat.ask(FREE).answers["unlearned"][0]
    chat.decoding = Decoding(max_new_tokens=2)
    short = chat.ask(FREE).answers["unlearned"][0]
    assert len(tokenizer(short)["input_ids"]) <= 3 and whole.startswith(short)


def test_drawn_questions_are_all_of_the_set_before_one_comes_again(finished, chat):
    config, _ = finished
    forget = load_corpus(config.data).evaluation["forget"]
    drawn = [chat.draw("forget") for _ in range(2 * len(forget))]
    assert len(forget) == 4 and sorted(r.id for r in drawn[:4]) == sorted(r.id for r in forget)
    assert drawn[:4] == drawn[4:]
    orders = set()
    for seed in range(6):
        chat.decoding = Decoding(seed=seed)
        chat.restart()
        orders.add(tuple(chat.draw("forget").id for _ in forget))
    assert len(orders) > 1


def test_some_stages_only(finished):
    _, run = finished
    chat = Chat(run.path, ["retrain", "finetune"])
    assert list(chat.ask(FREE).answers) == ["finetuned", "retrained"]


def test_a_ruined_model_does_not_silence_the_others(loaded):
    vectors = loaded.vectors
    loaded.decoding = Decoding(samples=2)
    loaded.vectors = {**vectors, "unlearn": np.full_like(vectors["unlearn"], 1e30)}
    try:
        reply = loaded.ask(FREE)
        text = told(loaded, FREE)
    finally:
        loaded.vectors = vectors
    assert set(reply.answers) == {"finetuned", "retrained"} and "not finite" in reply.problems["unlearned"]
    assert "no answer: the model's logits are not finite" in text


def test_without_the_data_free_questions_are_answered(finished, tmp_path):
    _, run = finished
    data = tmp_path / "torn.jsonl"
    data.write_text("{torn\n" * 5)
    chat = Chat(run.path, ["unlearn"], overrides=["data=jsonl", f"data.path={data}"])
    text = told(chat, "/forget", FREE)
    assert "the run's data cannot be read" in text.splitlines()[0] and "torn.jsonl:2" in text.splitlines()[0]
    assert text.splitlines()[1] == FREE and rows(text)[0][0] == "unlearned"


def test_data_without_a_set(chat, monkeypatch):
    corpus = chat.corpus
    monkeypatch.setattr(chat, "corpus", replace(corpus, evaluation={"retain": corpus.evaluation["retain"]}))
    assert told(chat, "/forget") == "the run's data have no forget questions\n"


# -- the loop ------------------------------------------------------------------------------------------------------


def test_a_question_becomes_a_table(chat):
    answers = chat.ask(FREE).answers
    text = told(chat, f"  {FREE}  \n", "\n", "")
    assert text.splitlines()[0] == FREE
    assert rows(text) == [[name, spoken(answers[name][0])] for name in NAMES.values()]


def test_a_known_question_is_compared_with_the_truth(finished, chat):
    record = load_corpus(finished[0].data).evaluation["forget"][0]
    reply = chat.ask(record.question)
    typed = told(chat, record.question)
    assert typed.splitlines()[0] == f"[forget] {record.question}" and "ROUGE-L recall" in typed
    assert rows(typed) == [
        ["truth", record.answer, ""],
        *([n, spoken(reply.answers[n][0]), f"{reply.recalls[n][0]:.3f}"] for n in NAMES.values()),
    ]


@pytest.mark.parametrize("name", ["forget", "retain"])
def test_forget_and_retain_ask_a_question_of_the_set(finished, chat, name):
    records = {r.question: r.answer for r in load_corpus(finished[0].data).evaluation[name]}
    text = told(chat, f"/{name}", f"/{name}")
    asked = re.findall(rf"^\[{name}\] (.*)$", text, re.MULTILINE)
    assert len(set(asked)) == 2 and set(asked) <= set(records)
    assert [row[1] for row in rows(text) if row[0] == "truth"] == [spoken(records[q]) for q in asked]


def test_samples_are_numbered(chat):
    found = rows(told(chat, "/set samples 3", FREE))
    assert [row[0] for row in found] == list(itertools.chain(*([name, "", ""] for name in NAMES.values())))
    assert all(re.match(rf"{i % 3 + 1}\. ", row[1]) for i, row in enumerate(found))


def test_set_changes_how_answers_are_decoded(chat):
    text = told(
        *(chat, "/set", "/set temperature 0.7", "/set top-p=0.9", "/set top_k 40", "/set confidence 0.95"),
        *("/set samples 2", "/set max_new_tokens 5", "/set seed 11"),
    )
    assert chat.decoding == Decoding(0.7, 0.9, 40, 0.95, 2, 5, 11)
    assert text.splitlines()[0] == "greedy"
    last = "temperature 0.7, top_p 0.9, top_k 40, confidence 0.95, samples 2, seed 11, max_new_tokens 5"
    assert text.splitlines()[-1] == last
    told(chat, "/set top_k none", "/set confidence off")
    assert chat.decoding == Decoding(0.7, 0.9, None, None, 2, 5, 11)
    told(chat, "/set greedy")
    assert chat.decoding == Decoding(max_new_tokens=5, seed=11) and chat.decoding.rule is None


def test_setting_the_seed_begins_anew(chat):
    first = told(chat, "/set samples 2", "/set seed 4", FREE, "/forget")
    again = told(chat, FREE, "/set seed 4", FREE, "/forget")
    assert rows(first) == rows(again)[6:] != rows(again)[:6]


MISTAKES = {
    "/foget": "there is no command /foget; did you mean /forget?",
    "/xyzzy": "there is no command /xyzzy; /help lists them",
    "/": "there is no command /; /help lists them",
    "/forget 3": "/forget takes nothing behind it, got '3'",
    "/quit now": "/quit takes nothing behind it, got 'now'",
    "/set temperature": "expected /set NAME VALUE, e.g. /set temperature 0.7, or /set greedy",
    "/set temprature 1": "there is no setting 'temprature'; did you mean temperature?",
    "/set zzz 1": "there is no setting 'zzz'; there are temperature, top_p, top_k, confidence, samples",
    "/set temperature hot": "temperature: 'hot' is not a number; expected value >= 0 or null",
    "/set samples 1.5": "samples: 1.5 is not a whole number; expected value >= 1 or null",
    "/set temperature -1": "temperature: -1.0 is out of range; expected value >= 0 or null",
    "/set temperature nan": "temperature: 'nan' is not a number; expected value >= 0 or null",
    "/set top_p 0": "top_p: 0.0 is out of range; expected 0 < value <= 1 or null",
    "/set top_k 0": "top_k: 0 is out of range; expected value >= 1 or null",
    "/set confidence 2": "confidence: 2.0 is out of range; expected 0 <= value <= 1 or null",
    "/set samples 0": "samples: 0 is out of range; expected value >= 1 or null",
    "/set max_new_tokens 0": "max_new_tokens: 0 is out of range; expected 1 <= value <= 8192 or null",
    "/set seed -1": "seed: -1 is out of range; expected value >= 0",
    "word " * 3000: "tokens as a prompt, the model's context is",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_one_line_and_the_conversation_goes_on(chat, line):
    text = told(chat, line, "/set", width=60)
    assert MISTAKES[line] in text.splitlines()[0] and text.splitlines()[1:] == ["greedy"]
    assert chat.decoding == Decoding()


def test_temperature_0_with_what_only_sampling_has(chat):
    text = told(chat, "/set samples 2", "/set temperature 0", "/set")
    assert "temperature 0 is greedy decoding, which knows no samples" in text.splitlines()[1]
    assert chat.decoding == Decoding(samples=2)


def test_help_names_every_command_and_setting(chat):
    text = told(chat, "/help", width=80)
    for name in ("/forget", "/retain", "/set", "/help", "/quit", *Decoding.__dataclass_fields__):
        assert name in text
    assert max(map(len, text.splitlines())) <= 80


def test_the_conversation_ends_with_quit_or_the_input(chat):
    assert told(chat, "/quit", "/help") == ""
    assert told(chat) == ""


def test_ctrl_c_drops_a_line_of_a_terminal_and_ends_a_pipe(chat):
    def read(lines):
        def next_line():
            line = next(lines, None)
            if line == "^C":
                raise KeyboardInterrupt
            return line

        return next_line

    out = io.StringIO()
    chat_loop.answer_lines(chat, read(iter(["^C", "/set"])), Console(file=out), interruptible=True)
    assert out.getvalue().splitlines() == ["dropped; /quit or Ctrl-D to end", "greedy"]
    with pytest.raises(KeyboardInterrupt):
        chat_loop.answer_lines(chat, read(iter(["^C", "/set"])), Console(file=out))


def test_hostile_questions_stay_text(chat):
    text = told(chat, "[red]Who\x1b[31m?\x07 \ud800 [/nope]", "/\x1b[31mx")
    assert "\x1b" not in text and "\x07" not in text
    assert text.splitlines()[0] == "[red]Who [31m? ? [/nope]"
    assert rows(text)[0][0] == "finetuned"


# -- the command ---------------------------------------------------------------------------------------------------


def test_questions_on_the_command_line(finished):
    _, run = finished
    result = call(
        "chat", run.path, "--question", FREE, "--question", "Who?", "--stage", "unlearn", "--stage", "retrain"
    )
    assert result.code == 0 and result.err == ""
    assert [row[0] for row in rows(result.out)] == ["unlearned", "retrained"] * 2
    assert result.out.index(FREE) < result.out.index("Who?")
    same = [row[1] for row in rows(result.out)][:2]
    assert same == [spoken(a[0]) for m, a in Chat(run.path).ask(FREE).answers.items() if m != "finetuned"]
    sampled = call(
        *("chat", run.path, "--question", FREE, "--temperature", 2, "--top-p", 0.9, "--top-k", 30),
        *("--confidence", 0.9, "--samples", 2, "--max-new-tokens", 4, "--seed", 1),
    )
    chat = Chat(run.path, decoding=Decoding(2.0, 0.9, 30, 0.9, 2, 4, 1))
    said = [f"{i + 1}. {spoken(a)}" for answers in chat.ask(FREE).answers.values() for i, a in enumerate(answers)]
    assert [row[1] for row in rows(sampled.out)] == said and len(said) == 6


def test_questions_from_a_pipe(finished, monkeypatch):
    _, run = finished
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{FREE}\n/set samples 0\n\n/forget"))
    result = call("chat", run.path)
    assert result.code == 0 and "samples: 0 is out of range; expected value >= 1" in result.out
    assert [row[0] for row in rows(result.out)] == [*NAMES.values(), "truth", *NAMES.values()]
    assert chat_loop.PROMPT not in result.out.splitlines() and "Ctrl-D" not in result.out


def test_a_terminal_gets_a_banner_and_a_prompt(chat, monkeypatch, capsys):
    lines = iter(["/set"])
    prompts = []

    def typed(prompt):
        prompts.append(prompt)
        line = next(lines, None)
        if line is None:
            raise EOFError
        return line

    monkeypatch.setattr("builtins.input", typed)
    chat_loop.converse(chat, Console(width=200), stdin_is_terminal=True)
    out = capsys.readouterr().out
    assert out.splitlines()[0].startswith("talk: finetuned, unlearned, retrained · greedy · /help")
    assert out.splitlines()[1] == "greedy" and prompts == [chat_loop.PROMPT] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope"], "nope is no run directory"),
        (["{run}", "--stage", "local"], "'local' is no finished stage; finished: finetune, unlearn, retrain"),
        (["{run}", "--temperature", "-1"], "temperature: -1.0 is out of range; expected value >= 0"),
        (["{run}", "--samples", "0"], "samples: 0 is out of range; expected value >= 1"),
        (["{run}", "--temperature", "0", "--samples", "2"], "greedy decoding, which knows no samples"),
        (["{run}", "--top-p", "1.5"], "top_p: 1.5 is out of range; expected 0 < value <= 1"),
        (["{run}", "--set", "evaluation.truth_ratio=x"], "expected one of geometric, arithmetic"),
        (["{run}", "--question", "word " * 3000], "tokens as a prompt, the model's context is"),
    ],
)
def test_a_users_mistake_is_one_message_and_exit_code_2(finished, arguments, message):
    result = call("chat", *(a.format(run=finished[1].path) for a in arguments))
    assert result.code == 2 and message in " ".join(result.err.split())
    assert "Traceback" not in result.err and result.out == ""


def test_a_run_without_a_finished_stage_or_checkpoint(finished, tmp_path):
    _, run = new_run(tmp_path, "begun")
    with pytest.raises(ChatError, match="no stage is finished yet; continue with: oblivionis simulate --resume"):
        Chat(run.path)
    run.finish_stage("finetune", {"stage": "finetune", "metrics": {}}, None)
    with pytest.raises(RunError, match="no readable checkpoint of stage finetune"):
        Chat(run.path)


def test_help_of_the_command():
    result = call("chat", "--help")
    assert result.code == 0 and "side by side" in result.out and "--confidence" in result.out


@pytest.mark.slow
def test_the_real_command_on_a_pipe(finished):
    _, run = finished
    command = [sys.executable, "-m", "oblivionis.cli.main", "chat", str(run.path)]
    asked = f"{FREE}\n\xff/bogus\n".encode("latin-1")
    done = subprocess.run(command, input=asked, capture_output=True, env=environment(COLUMNS=160), timeout=120)
    out = done.stdout.decode()
    assert done.returncode == 0 and out.count("│ unlearned") == 2, "bytes that are no UTF-8 are a question, too"


@pytest.mark.slow
def test_the_real_command_on_a_terminal(finished):
    _, run = finished
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "oblivionis.cli.main", "chat", str(run.path)]
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(COLUMNS=160),
    )
    os.close(theirs)
    seen = ""

    def wait_for(text, times=1):
        nonlocal seen
        while seen.count(text) < times:
            ready, _, _ = select.select([ours], [], [], 120)
            assert ready, seen
            seen += os.read(ours, 4096).decode(errors="replace")

    try:
        wait_for("> ")
        os.write(ours, b"/set\n")
        wait_for("greedy", 2)
        wait_for("> ", 2)
        time.sleep(1)  # a signal between the prompt and the read of the terminal waits for the next key
        process.send_signal(signal.SIGINT)
        wait_for("dropped")
        wait_for("> ", 3)
        os.write(ours, FREE.encode() + b"\n")
        wait_for("retrained", 2)
        wait_for("> ", 4)
        os.write(ours, b"\x04")
        assert process.wait(60) == 0
    finally:
        process.kill()
        os.close(ours)
    assert "talk: finetuned, unlearned, retrained" in seen and "Traceback" not in seen
