"""Canary NLLs and scores from a model: the same as one sentence after the other through the plain model."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from support.small_tokenizers import byte_level
from support.tiny_llama import base
from transformers import AutoTokenizer, BertConfig, BertModel, BertTokenizer

from evaluation.hook import EvaluationSession
from evaluation.wikimem import engine
from evaluation.wikimem.canaries import GENERIC_SUBJECT, context_of, contextualised, fill
from evaluation.wikimem.encoder import SentenceEncoder, in_package
from evaluation.wikimem.engine import Asking, FactScore, score_facts, sentence_nlls
from evaluation.wikimem.evaluator import WikimemEvaluator
from evaluation.wikimem.facts import Fact
from evaluation.wikimem.names import name_variants
from evaluation.wikimem.properties import counterfactuals, properties
from evaluation.wikimem.score import PairScore, memorization_strength, memorized

# Such small products are slower with two threads, by far so on a busy machine.
torch.set_num_threads(1)

FACTS = [
    Fact("Ulrike Karimov", "P19", ("Gdansk", "Riga")),
    Fact("Enaj Doe", "P19", ("Bergen",)),
    Fact("Jane Doe", "P19", ("bergen",)),
    Fact("Jane Doe", "P106", ("baker",)),
    Fact("Jane Doe", "P166", ("Ruby Lynx Prize",)),
]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return byte_level(bos=True)


@pytest.fixture(scope="module")
def model() -> Any:
    return base(vocab_size=512, max_position_embeddings=512).eval()


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """What the embedding is asked for: the positions that reach the model, batch by batch."""
    calls: list[list[int]] = []
    lookup = torch.nn.Embedding.forward

    def watched(self: torch.nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
        calls.append(ids.flatten().tolist())
        return lookup(self, ids)

    monkeypatch.setattr(torch.nn.Embedding, "forward", watched)
    return calls


def plain_ids(tokenizer: Any, text: str) -> tuple[int, ...]:
    bos = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    return (*bos, *tokenizer(text, add_special_tokens=False)["input_ids"])


def plain_nll(model: Any, tokenizer: Any, text: str) -> float:
    """Every token but the first of BOS and the sentence, one after the other."""
    ids = plain_ids(tokenizer, text)
    with torch.no_grad():
        logp = model(input_ids=torch.tensor([ids])).logits[0].double().log_softmax(-1)
    return -sum(float(logp[i - 1, ids[i]]) for i in range(1, len(ids)))


def plain_scores(model: Any, tokenizer: Any, found: FactScore, asking: Asking, context: Any) -> np.ndarray:
    """s(h, v) as WikiMem writes it, generic subject included, over the candidates of `found`."""
    prop = properties()[found.fact.property]

    def nll(template: str, name: str, value: str) -> float:
        return plain_nll(model, tokenizer, fill(contextualised(template, context), name, value, prop.kind))

    rows = []
    for template in prop.canaries[: asking.templates]:
        row = []
        for value in found.candidates:
            generic = nll(template, GENERIC_SUBJECT, value)
            names = name_variants(found.fact.subject, asking.variants)
            similar = [generic - nll(template, name, value) for name in names]
            row.append(generic - nll(template, found.fact.subject, value) - asking.weight * sum(similar) / len(names))
        rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize("mode", ["auto", "packed", "padded"])
@pytest.mark.parametrize("with_bos", [True, False])
def test_sentences_have_the_nlls_of_the_plain_model(model: Any, mode: str, with_bos: bool) -> None:
    tokenizer = byte_level(bos=True)
    if not with_bos:
        tokenizer.bos_token = None
    texts = ["Jane Doe was born in Bergen.", "Jane Doe was born in Berlin.", "Jane", "Jane Doe", "x", "Jane Doe"]
    texts += ["Bergen is where Jane Doe was born.", "Bergen is where Enaj Doe was born.", "Jane Doe."]
    expected = [plain_nll(model, tokenizer, text) for text in texts]
    for budget in (1, 20, 4096):
        found = sentence_nlls(model, tokenizer, texts, token_budget=budget, mode=mode)
        np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize(
    "asking",
    [
        Asking(templates=2, counterfactuals=4),
        Asking(templates=2, counterfactuals=3, weight=0.4, variants=3),
        Asking(templates=1, counterfactuals=3, context=2),
    ],
)
@pytest.mark.slow
def test_scores_are_those_of_every_sentence_on_its_own(model: Any, tokenizer: Any, asking: Asking) -> None:
    found = score_facts(model, tokenizer, FACTS, asking)
    assert [x.fact for x in found] == FACTS
    for x in found:
        context = context_of(x.fact, FACTS, asking.context)
        others = [v for v in counterfactuals()[x.fact.property] if v.casefold() not in map(str.casefold, x.fact.values)]
        assert x.candidates == (*x.fact.values, *others[: asking.counterfactuals])
        assert x.truth.tolist() == [i < len(x.fact.values) for i in range(len(x.candidates))]
        expected = plain_scores(model, tokenizer, x, asking, context)
        np.testing.assert_allclose(x.scores, expected, atol=4e-4)
        assert x.pair.memorized.tolist() == memorized(expected, x.truth).tolist()
        np.testing.assert_allclose(x.pair.strength, memorization_strength(expected, x.truth), atol=1e-2)
        assert x.best == tuple(x.candidates[i] for i in expected.argmax(axis=1))
        beaten = [np.mean([s >= max(row[x.truth]) for s in row[~x.truth]]) for row in expected]
        assert x.ranks.tolist() == pytest.approx(beaten)
        kind = properties()[x.fact.property].kind
        filled = [[fill(t, x.fact.subject, v, kind) for v in x.candidates] for t in x.templates]
        own = np.array([[plain_nll(model, tokenizer, text) for text in row] for row in filled])
        np.testing.assert_allclose(x.nll, own, atol=2e-4)
        assert x.likeliest.tolist() == [min(row[x.truth]) < min(row[~x.truth]) for row in own]
    assert any(context_of(x.fact, FACTS, asking.context) for x in found) == bool(asking.context)


def sentences(facts: list[Fact], asking: Asking, generic: bool = False) -> list[str]:
    result = []
    for fact in facts:
        prop = properties()[fact.property]
        names = (fact.subject, *name_variants(fact.subject), *([GENERIC_SUBJECT] if generic else []))
        others = [v for v in counterfactuals()[fact.property] if v.casefold() not in map(str.casefold, fact.values)]
        values = (*fact.values, *others[: asking.counterfactuals])
        pairs = itertools.product(prop.canaries[: asking.templates], names, values)
        result += [fill(template, name, value, prop.kind) for template, name, value in pairs]
    return result


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_no_position_reaches_the_model_twice(model: Any, tokenizer: Any, seen: list[list[int]], weight: float) -> None:
    """Equal sentences (a look-alike is a subject too) and equal beginnings once, the generic subject if needed only."""
    asking = Asking(templates=3, counterfactuals=5, weight=weight)
    score_facts(model, tokenizer, FACTS, asking)
    texts = sentences(FACTS, asking, generic=weight != 1)
    assert len(set(texts)) < len(texts), "the case of equal sentences is among these"
    rows = {plain_ids(tokenizer, text) for text in texts}
    # The last token of a sentence is predicted only.
    beginnings = {row[:n] for row in rows for n in range(1, len(row))}
    assert sum(map(len, seen)) == len(beginnings)


@pytest.mark.slow
def test_beginnings_are_read_once_over_many_batches(
    model: Any, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[Any] = []
    whole = engine.score

    def watched(model: Any, sequences: Any, **options: Any) -> Any:
        scored.extend(sequences)
        return whole(model, sequences, **options)

    monkeypatch.setattr(engine, "score", watched)
    asking, told = Asking(templates=3, counterfactuals=5), []
    small = score_facts(model, tokenizer, FACTS, asking, token_budget=16, progress=lambda *of: told.append(of))
    rows = {plain_ids(tokenizer, text) for text in sentences(FACTS, asking)}
    assert sum(len(s.answer) for s in scored) == len({row[:n] for row in rows for n in range(2, len(row) + 1)})
    total = len(sentences(FACTS, asking))
    assert told[-1] == (total, total) and told == sorted(told) and len(told) > 3
    monkeypatch.setattr(engine, "PART", 1)
    told.clear()
    again = score_facts(model, tokenizer, FACTS, asking, progress=lambda *of: told.append(of))
    assert told[-1] == (total, total) and told == sorted(told) and {of for _, of in told} == {total}
    assert len({done for done, _ in told}) >= 3, "each of three properties by itself"
    for a, b in zip(small, again, strict=True):
        np.testing.assert_allclose(a.scores, b.scores, atol=2e-4)


def test_small_probabilities_do_not_vanish_in_large_sums(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One token of 4096 nats and a hundred of 1e-4 each, of which float32 would keep nothing."""

    class Repeating:
        bos_token_id = 0

        def __call__(self, texts: list[str], **_: Any) -> dict[str, list[list[int]]]:
            return {"input_ids": [[5] * int(text) for text in texts]}

    options, done = [], []

    def scored(_: Any, sequences: Any, **told: Any) -> Any:
        options.append(told)
        known = [np.full(len(s.answer), -1e-4, np.float32) for s in sequences]
        known[0][0] = -4096.0
        return SimpleNamespace(log_probs=known)

    monkeypatch.setattr(engine, "score", scored)
    texts = ["101", "1", "60", "101"]
    told = {"token_budget": 4096, "mode": "plain", "progress": lambda *of: done.append(of)}
    found = sentence_nlls(model, Repeating(), texts, **told)
    assert options == [{"token_budget": 4096, "ordered": True, "mode": "plain"}]
    assert done == [(3, 3)], "of distinct ones"
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, 4096 + 1e-4 * np.array([100, 0, 59, 100]), rtol=0, atol=1e-6)


def test_the_longest_sentence_leaves_room_for_what_begins_it() -> None:
    """Of 1024 positions one is BOS's."""

    class Repeating:
        bos_token_id = 0

        def __call__(self, texts: list[str], **_: Any) -> dict[str, list[list[int]]]:
            return {"input_ids": [[5] * int(text) for text in texts]}

    assert [len(key) for key in engine.encoded(Repeating(), ["1", "1023"], 1024)] == [8, 4096]
    with pytest.raises(ValueError, match="has 1024 tokens; expected 1 to 1024 with BOS"):
        engine.encoded(Repeating(), ["1024"], 1024)


def test_sentences_are_made_of_what_is_asked_for() -> None:
    """All eleven canaries, both look-alikes and a hundred other values unless told otherwise."""
    fact, other = FACTS[3], Fact("Jane Doe", "P27", ("Portugal", "Spain"))
    (plain,) = engine.prepared([fact], Asking(), None, None, [fact, other])
    assert plain.templates == properties()["P106"].canaries and plain.shape == (11, 3, 101)
    assert plain.names == ("Jane Doe", "Enaj Doe", "Jane Eod") and plain.kind == "occupation"
    asking = Asking(templates=2, counterfactuals=5, context=1, variants=3, weight=0.9)
    (told,) = engine.prepared([fact], asking, None, None, [FACTS[0], fact, other])
    assert told.shape == (2, 5, 6) and told.names == ("Jane Doe", *name_variants("Jane Doe", 3), GENERIC_SUBJECT)
    stated = [(properties()["P27"], "Portugal")]
    assert told.templates == tuple(contextualised(t, stated) for t in properties()["P106"].canaries[:2])
    assert len(list(told.sentences())) == told.size == 60
    assert next(told.sentences()) == fill(told.templates[0], "Jane Doe", "baker", "occupation")


@pytest.mark.parametrize("known", [None, FACTS[4:]])
def test_context_comes_from_the_facts_that_are_known(
    model: Any, tokenizer: Any, known: list[Fact] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asking = Asking(templates=1, counterfactuals=1, context=1)
    modes: list[str] = []
    nlls = engine.sentence_nlls

    def watched(*args: Any, **options: Any) -> np.ndarray:
        modes.append(options["mode"])
        return nlls(*args, **options)

    monkeypatch.setattr(engine, "sentence_nlls", watched)
    (found,) = score_facts(model, tokenizer, FACTS[3:4], asking, known=known, mode="padded")
    assert modes == ["padded"]
    assert ("Ruby Lynx Prize" in found.templates[0]) == (known is not None)
    assert found.pair.cohort is None and found.pair.property == "P106"


def test_what_cannot_be_scored_is_refused(model: Any, tokenizer: Any) -> None:
    for fact, message in (
        (Fact("Jane Doe", "P0", ("x",)), "property P0 is unknown"),
        (Fact("Oo", "P19", ("Bergen",)), "no look-alike"),
        (Fact("Jane Doe", "P19", ("Bergen " * 600,)), "expected 1 to 512"),
    ):
        with pytest.raises(ValueError, match=message):
            score_facts(model, tokenizer, [fact], Asking(templates=1, counterfactuals=1))
    with pytest.raises(ValueError, match="no values of other people for P19"):
        score_facts(model, tokenizer, FACTS, counterfactuals={})
    assert score_facts(model, tokenizer, []) == []


def test_an_encoder_reads_folders_of_sentence_transformers(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evaluation.wikimem.encoder.BATCH", 2)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "british", "english", "welsh"]
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    torch.manual_seed(0)
    plain = BertModel(
        BertConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    ).eval()
    plain.save_pretrained(tmp_path)
    BertTokenizer(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    encoder = SentenceEncoder.load(str(tmp_path))
    texts = ["English", "British English", "English", "Welsh", "British", "Welsh British"]
    found = encoder(texts)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    for text, row in zip(texts, found, strict=True):
        with torch.no_grad():
            mean = plain(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0)
        np.testing.assert_allclose(row, mean / mean.norm(), atol=1e-5)
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}', encoding="utf-8")
    with torch.no_grad():
        first = plain(**tokenizer("Welsh", return_tensors="pt")).last_hidden_state[0, 0]
    np.testing.assert_allclose(SentenceEncoder.load(str(tmp_path))(["Welsh"])[0], first / first.norm(), atol=1e-5)


def test_an_encoder_is_found_in_an_installed_package(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, file in (("an_encoder", "model/config.json"), ("no_encoder", "config.json")):
        (tmp_path / name / file).parent.mkdir(parents=True)
        (tmp_path / name / file).write_text("{}")
        (tmp_path / name / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert in_package("an-encoder") == str(tmp_path / "an_encoder" / "model")
    for name in ("no-encoder", "no-such-package", "owner/an-encoder", "9lives"):
        assert in_package(name) is None
    monkeypatch.chdir(tmp_path)
    assert in_package("an_encoder") is None, "a folder of that name comes first"


def test_facts_about_one_property_come_together_up_to_a_number_of_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "PART", 4)

    def parts(*facts: tuple[str, int]) -> list[list[int]]:
        return list(engine.parts_of([SimpleNamespace(fact=SimpleNamespace(property=p), size=n) for p, n in facts]))

    assert parts(("a", 2), ("b", 2), ("c", 1)) == [[0, 1], [2]]
    assert parts(("a", 1), ("b", 2), ("a", 1), ("c", 2), ("d", 2)) == [[0, 2, 1], [3, 4]]
    assert parts(("a", 9), ("a", 1), ("b", 5)) == [[0, 1], [2]] and parts() == []


def test_the_evaluator_asks_as_it_was_told(monkeypatch: pytest.MonkeyPatch, model: Any, tokenizer: Any) -> None:
    """Whatever is given reaches the scores: each by itself would change some."""
    given: dict[str, Any] = {}

    def scored(*args: Any, **options: Any) -> list[FactScore]:
        given.update(options, args=args)
        return score_facts(*args, **options)

    monkeypatch.setattr("evaluation.wikimem.evaluator.score_facts", scored)
    asking, own = Asking(templates=2, counterfactuals=3, context=1), {f: properties()[f.property] for f in FACTS}
    values, known = (
        {p: ["one", "two", "three"] for p in ("P19", "P106", "P166")},
        [*FACTS, Fact("Jane Doe", "P27", ("X",))],
    )
    embed = lambda texts: np.eye(len(texts))  # noqa: E731
    evaluator = WikimemEvaluator(FACTS[:1], FACTS[1:3], known, tokenizer, asking, own, values, embed)
    session = EvaluationSession(model, stop_ids=[], token_budget=77, mode="plain")
    result = evaluator.evaluate(session)
    assert given.pop("args") == (model, tokenizer, FACTS[:3], asking)
    assert given == {
        "counterfactuals": values,
        "properties": own,
        "known": known,
        "embed": embed,
        "token_budget": 77,
        "mode": "plain",
    }
    assert [len(result.details[group]["facts"]) for group in ("forget", "retain")] == [1, 2]


@pytest.mark.parametrize("known", [[], [0], [0, 1]])
def test_the_evaluators_figures_are_those_of_its_facts(monkeypatch: pytest.MonkeyPatch, known: list[int]) -> None:
    """Two forget facts of two templates each, in the first `known` of which the truth comes first; one to retain."""

    def scored(*args: Any, **options: Any) -> list[FactScore]:
        found = []
        for i, fact in enumerate(args[2]):
            hit = np.array([i in known, False])
            pair = PairScore(fact.subject, fact.property, hit, np.where(hit, 2.0 + i, np.nan))
            scores = np.where(hit[:, None], [3.0, 1.0, 2.0], [2.0, 3.0, 1.0])
            truth = np.array([True, False, False])
            found.append(FactScore(fact, ("t", "u"), ("x", "y", "z"), truth, scores, pair, scores))
        return found

    monkeypatch.setattr("evaluation.wikimem.evaluator.score_facts", scored)
    evaluator = WikimemEvaluator(FACTS[:2], FACTS[2:3], FACTS, None)
    result = evaluator.evaluate(EvaluationSession(torch.nn.Linear(1, 1), stop_ids=[]))
    told = {key: value for key, value in result.metrics.items() if key.startswith("forget_")}
    assert told["forget_strict"] == len(known) / 4 and told["forget_lenient"] == len(known) / 2
    assert told["forget_unmemorized"] == 1 - len(known) / 2
    assert told["forget_likeliest"] == 0, "the nll of the truth is never the least"
    assert told["forget_rank"] == 0.5 - len(known) / 8, "second of three, or first in one template"
    assert told.get("forget_strength") == (np.mean([2.0 + i for i in known]) if known else None)
    assert [f["memorized"] for f in result.details["forget"]["facts"]] == [int(i in known) for i in range(2)]
    first = [f["first"] for f in result.details["forget"]["facts"]]
    assert first == [["x" if i in known else "y", "y"] for i in range(2)], "lists, as JSON has them"
    assert "retain_strict" in result.metrics and len(result.details["retain"]["facts"]) == 1
    of_one_person = WikimemEvaluator(FACTS[1:], [], FACTS, None)
    metrics = of_one_person.evaluate(EvaluationSession(torch.nn.Linear(1, 1), stop_ids=[])).metrics
    assert metrics["forget_unmemorized"] == 1 - len(known) / 2, "of two subjects, one of them with three facts"
    with pytest.raises(ValueError, match="no facts to ask for"):
        WikimemEvaluator([], [], FACTS, None)


def test_a_tie_with_a_counterfactual_is_no_first_rank() -> None:
    scores = np.array([[1.0, 0.0, 1.0, 0.5], [2.0, 3.0, 1.0, 2.9], [1.0, 0.0, 3.0, 2.0]])
    truth, names = np.array([True, True, False, False]), ("a", "b", "c", "d")
    pair = PairScore("Ann", "P19", np.zeros(3, bool), np.full(3, np.nan))
    found = FactScore(Fact("Ann", "P19", ("a", "b")), ("x", "y", "z"), names, truth, scores, pair, -scores)
    assert found.ranks.tolist() == [0.5, 0.0, 1.0]
    assert found.likeliest.tolist() == [False, True, False] and found.best == ("a", "b", "c")


def test_values_of_one_meaning_count_as_true(model: Any, tokenizer: Any) -> None:
    fact = Fact("Jane Doe", "P6886", ("English",), "well-known")
    values = {"P6886": ["British English", "Welsh"]}

    def embed(texts: Any) -> np.ndarray:
        return np.array([[1.0, 0.1 * len(t)] if "English" in t else [0.0, -1.0] for t in texts])

    for options, truth in (({}, [True, True, False]), ({"threshold": 0.95}, [True, False, False])):
        told = {"counterfactuals": values, "embed": embed, **options}
        (found,) = score_facts(model, tokenizer, [fact], Asking(templates=1), **told)
        assert found.truth.tolist() == truth
    assert (found.pair.subject, found.pair.property, found.pair.cohort) == ("Jane Doe", "P6886", "well-known")


@pytest.mark.parametrize("setting", ["padding", "truncation"])
def test_a_tokenizer_that_pads_or_truncates_does_neither_here(setting: str) -> None:
    texts, tokenizer = ["Jane", "Jane Doe was born in Bergen."], byte_level(bos=True)
    expected = engine.token_ids(tokenizer, texts)
    assert len(expected[0]) < len(expected[1])
    if setting == "padding":
        tokenizer.backend_tokenizer.enable_padding(pad_id=1)
    else:
        tokenizer.backend_tokenizer.enable_truncation(1)
    assert engine.token_ids(tokenizer, texts) == expected


def test_neighbours_come_in_chunks_of_as_many_new_tokens() -> None:
    """Six sentences of three tokens, of which the first is only a condition: two new ones each."""
    keys = [np.array([i, 7, 8], ">u4").tobytes() for i in range(6)]
    for tokens, sizes in ((4, [2, 2, 2]), (5, [3, 3]), (1, [1] * 6), (100, [6])):
        chunks = list(engine.chunks(keys, tokens))
        assert [len(rows) for rows, _ in chunks] == sizes and {p for _, parts in chunks for p in parts} == {1}
