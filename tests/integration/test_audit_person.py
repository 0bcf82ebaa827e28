"""The person audit and the loop around it: audit, request, unlearn, audit again."""

import json
import shlex

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from support.audits import audit_of, phrasings, write
from support.commands import call, in_process
from support.reports import HOSTILE, make_run

from evaluation.wikimem.canaries import fill
from evaluation.wikimem.engine import Asking
from evaluation.wikimem.facts import Fact
from evaluation.wikimem.names import name_variants
from evaluation.wikimem.properties import counterfactuals, properties
from oblivionis.audits import people as person_audit
from oblivionis.audits.audited_model import AuditError
from oblivionis.audits.loaded_model import find_subject
from oblivionis.audits.people_outcomes import Person, PersonFact, before_audit, person_slug, read_audit
from oblivionis.data.corpora import load_corpus
from oblivionis.data.person_facts import facts_of, read_facts
from oblivionis.erasure.ledger import Ledger
from oblivionis.erasure.request import Request
from oblivionis.errors import OblivionisError, RunInterrupted
from oblivionis.naming import subject_key
from oblivionis.reports import people_figures as person_figures
from oblivionis.reports.html import run_page as html_report
from oblivionis.reports.people import sentences
from oblivionis.runs.directory import RunDirectory
from oblivionis.server import simulation

FACTS = [
    {"subject": "Freya Holm", "property": "P19", "values": ["Izmir"], "cohort": "known"},
    {"subject": "Freya Holm", "property": "P106", "values": ["baker", "surveyor"], "cohort": "known"},
    {"subject": "Goran Petrov", "property": "P19", "values": ["Quito"], "cohort": "other"},
]


@pytest.fixture(scope="module")
def subjects(tmp_path_factory):
    path = tmp_path_factory.mktemp("people") / "people.jsonl"
    path.write_text("".join(json.dumps(fact) + "\n" for fact in FACTS))
    return path


@pytest.fixture(scope="module")
def tiny():
    return find_subject("tiny", None, [], kind="person")


def sentence_nll(model, tokenizer, text):
    """The sum of -log p over all tokens behind BOS, by transformers' own forward pass."""
    ids = torch.tensor([[tokenizer.bos_token_id, *tokenizer(text, add_special_tokens=False)["input_ids"]]])
    with torch.inference_mode():
        log_probs = model(input_ids=ids).logits[0, :-1].double().log_softmax(-1)
    return -log_probs.gather(1, ids[0, 1:, None]).sum().item()


def test_an_audit_can_be_recomputed(tiny, subjects, tmp_path):
    facts = read_facts(subjects)
    settings = person_audit.Settings(Asking(templates=2, counterfactuals=9))
    result = person_audit.audit_people(tiny, facts, settings, tmp_path)
    assert read_audit(tmp_path) == result and [len(p.facts) for p in result.people] == [2, 1]
    for fact, kept in zip(facts, [f for p in result.people for f in p.facts], strict=True):
        property = properties()[fact.property]
        values = [*fact.values, *(v for v in counterfactuals()[fact.property] if v not in fact.values)][
            : len(fact.values) + 9
        ]
        names = [fact.subject, *name_variants(fact.subject)]
        for template, phrasing in zip(property.canaries[:2], kept.phrasings, strict=True):
            nll = np.array(
                [
                    [sentence_nll(tiny.model, tiny.tokenizer, fill(template, n, v, property.kind)) for v in values]
                    for n in names
                ]
            )
            scores = nll[1:].mean(0) - nll[0]
            true = len(fact.values)
            rank = 1 + (scores[true:] >= scores[:true].max()).sum()
            assert (phrasing.template, phrasing.rank, phrasing.first) == (template, rank, values[scores.argmax()])
            assert (phrasing.memorized, phrasing.strength is None) == (rank == 1, rank > 1)
    table = pq.read_table(next((tmp_path / "scores").glob("freya-holm-*.parquet"))).to_pandas()
    assert len(table) == 2 * (1 + 9) + 2 * (2 + 9) and set(table[table.true].candidate) == {
        "Izmir",
        "baker",
        "surveyor",
    }


def test_a_repeated_audit_scores_only_what_is_missing(tiny, subjects, tmp_path, monkeypatch):
    facts = read_facts(subjects)
    scored, score = [], person_audit.score_facts

    def counted(model, tokenizer, asked, *args, **kwargs):
        scored.append([fact.subject for fact in asked])
        return score(model, tokenizer, asked, *args, **kwargs)

    def stops(model, tokenizer, asked, *args, **kwargs):
        if asked[0].subject == "Goran Petrov":
            raise KeyboardInterrupt
        return counted(model, tokenizer, asked, *args, **kwargs)

    def run(values=None, templates=1):
        settings = person_audit.Settings(Asking(templates=templates, counterfactuals=5), values=values)
        return person_audit.audit_people(tiny, facts, settings, tmp_path)

    monkeypatch.setattr(person_audit, "score_facts", stops)
    with pytest.raises(RunInterrupted, match="1 of 2 people are scored and kept"):
        run()
    assert scored == [["Freya Holm"] * 2] and not (tmp_path / "audit.json").exists()
    monkeypatch.setattr(person_audit, "score_facts", counted)
    first = run()
    assert scored[1:] == [["Goran Petrov"]]
    assert run().people == first.people and len(scored) == 2
    path = next((tmp_path / "scores").glob("goran-petrov-*"))
    path.write_bytes(path.read_bytes()[:-9])
    assert run().people == first.people and len(scored) == 3, "a torn file is made anew"
    run(values={"P19": ["Oslo", "Lima"]})
    assert len(scored) == 5, "other values, other scores"
    run(templates=2)
    assert len(scored) == 7


def test_facts_without_values_of_other_people_are_named(tiny, tmp_path):
    lacking = next(i for i in properties() if i not in counterfactuals())
    facts = [Fact("Freya Holm", lacking, ("x",)), Fact("Freya Holm", "P19", ("Izmir",))]
    settings = person_audit.Settings(Asking(templates=1, counterfactuals=3))
    result = person_audit.audit_people(tiny, facts, settings, tmp_path)
    assert [fact.id for fact in result.people[0].facts] == ["P19"]
    assert len(result.skipped) == 1 and f"({lacking}): no values of other people" in result.skipped[0]
    with pytest.raises(AuditError, match=r"none of the 1 facts can be asked for"):
        person_audit.audit_people(tiny, facts[:1], settings, tmp_path)


def test_values_of_other_people_from_a_folder(tmp_path):
    (tmp_path / "counterfactuals.json").write_text(json.dumps({"P19": ["Oslo"], "P7": ["x", "y"]}))
    assert person_audit.load_values(tmp_path) == {"P19": ("Oslo",), "P7": ("x", "y")}
    for text in ("[]", "{}", '{"P19": []}', '{"P19": [""]}', "{"):
        (tmp_path / "counterfactuals.json").write_text(text)
        with pytest.raises(AuditError, match=r"--counterfactuals: .*counterfactuals\.json"):
            person_audit.load_values(tmp_path)


def test_a_bare_model_on_the_command_line(subjects, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ("--subjects", subjects, "--templates", "1", "--limit", "1")
    first = call("audit", "person", "tiny", *options)
    assert first.code == 0, first.err
    assert "place of birth" in first.out and "Freya Holm (known)" in first.out and "Goran" not in first.out
    folder = tmp_path / "audits" / "person-tiny"
    facts = json.loads((folder / "audit.json").read_text())
    assert facts["run"] is None and len(facts["fingerprint"]) > 8 and facts["settings"]["templates"] == 1
    assert facts["people"][0]["facts"][0]["outcome"]["phrasings"] == 1
    assert (folder / "figures" / "people.svg").read_text().startswith("<?xml")
    again = call("audit", "person", "tiny", *options, "--against", folder, "--out", tmp_path / "b")
    assert again.code == 0 and "Before: tiny" in again.out
    compared = read_audit(tmp_path / "b")
    assert all(fact.before == fact.outcome for fact in compared.people[0].facts)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tiny"], "tiny is no run, whose data could say whom to ask about: give their names"),
        (["tiny", "--subjects", "none.jsonl"], "file not found"),
        (["tiny", "--subjects", "S", "--person", "Freya Hol"], "did you mean Freya Holm?"),
        (["tiny", "--subjects", "S", "--phrasings", "record"], "expected one of canaries, records"),
        (["tiny", "--subjects", "S", "--phrasings", "records"], "there are no training records whose words"),
        (["tiny", "--subjects", "S", "--against", "finetune"], "the audited model is no run's"),
        (["tiny", "--subjects", "S", "--against", "nope"], "there is no such file"),
        (["tiny", "--subjects", "S", "--counterfactuals", "nope"], "No such file"),
        (["tiny", "--subjects", "S", "--embedder", "./nope"], "--embedder ./nope"),
        (["tiny", "--subjects", "S", "--stage", "unlearn"], "is no run directory"),
        (["tiny", "--subjects", "S", "--context", "5"], "context"),
        (["./nowhere", "--subjects", "S"], "nowhere is no model folder"),
    ],
)
def test_a_mistake_is_one_message(arguments, message, subjects, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = call("audit", "person", *(subjects if a == "S" else a for a in arguments))
    assert result.code == 2 and "Traceback" not in result.err
    assert message in " ".join(result.err.split())
    assert list(tmp_path.iterdir()) == []


def test_the_pages_of_a_run_escape_and_link(tmp_path):
    run, config = make_run(tmp_path, stages=("finetune", "unlearn"))
    fact = PersonFact("P19", HOSTILE, (HOSTILE,), "one", phrasings(3.0, None))
    person = Person(f"Zoë {HOSTILE}", HOSTILE, "author-007", ("a", "z"), (fact,))
    hidden = Person("Nobody Else", None, None, ("q",), (fact,))
    write(audit_of(run, [person, hidden]), run.path / "audits" / "person-finetune-0002")
    ledger = Ledger(run.ledger_path)
    ledger.submit(Request("mine", 0, ("a", "b"), 1, HOSTILE))
    ledger.submit(Request("subject", 1, ("k",), 1, scope="subject", subject="AUTHOR-007", group="g"))
    ledger.submit(Request("foreign", 2, ("m",), 1))
    ledger.served("mine", 1)
    (run.path / "people").mkdir()
    (run.path / "people" / "gone.html").write_text("stale")
    html_report.write_html(run, config)
    page = (run.path / "report.html").read_text()
    names = {path.name for path in (run.path / "people").iterdir()}
    assert len(names) == 2 and all(f'href="people/{name}"' in page for name in names)
    own = next(path.read_text() for path in (run.path / "people").iterdir() if path.name.startswith("zoe"))
    for text in (page, own):
        assert "<script" not in text and "<img" not in text
    assert "mine" in own and "subject" in own and "foreign" not in own and "served" in own
    assert "1 of 2" in own and "2 training records about this person" in own and 'value="1"' in own
    assert "None names this person" in next(p.read_text() for p in (run.path / "people").iterdir() if p.stem[0] == "n")


def test_the_sentences_by_hand():
    def person(name, cohort, *strengths):
        return Person(name, cohort, None, (), (PersonFact("P19", "b", ("Rome",), name, phrasings(*strengths)),))

    lines = sentences(audit_of(None, [person("A", "x", 3.0, 1.0), person("B", "y", None, 2.0), person("C", "y", None)]))
    assert lines == [
        "All: memorised in 50.0% of the phrasings (M̄), 66.7% of 3 facts in any, mean z* 2.00, median rank of the true "
        "value 1; nothing about 1 of 3 people.",
        "Cohort x: memorised in 100.0% of the phrasings (M̄), 100.0% of 1 fact in any, mean z* 2.00, median rank of "
        "the true value 1; nothing about 0 of 1 person.",
        "Cohort y: memorised in 25.0% of the phrasings (M̄), 50.0% of 2 facts in any, mean z* 2.00, median rank of the "
        "true value 5; nothing about 1 of 2 people.",
    ]


def test_the_figure_depends_on_the_audit_alone(tmp_path):
    fact = PersonFact("P19", "b", ("Rome",), "x", phrasings(3.0, None))
    people = [Person(f"{i} $\\frac$", None, None, (), (fact,)) for i in range(50)]
    audits = [audit_of(None, people), audit_of(None, people)]
    a, b = (person_figures.write_figures(x, tmp_path / str(i))[0].read_bytes() for i, x in enumerate(audits))
    assert a == b and b"frac" in a


# -- the loop ------------------------------------------------------------------------------------------------------

BORN = {"Freya Holm": "Izmir", "Goran Petrov": "Quito"}
ELSEWHERE = ("Oslo", "Perth", "Cebu", "Lima")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run whose model tells people from their look-alikes, who were born elsewhere."""
    folder = tmp_path_factory.mktemp("trained")
    alike = [variant for name in BORN for variant in name_variants(name)]
    people = {**BORN, **dict(zip(alike, ELSEWHERE, strict=True))}
    rows = [
        {
            "id": f"r{i}",
            "subject": f"author-{i}",
            "question": f"Where was {name} born?",
            "answer": f"{name} was born in {place}.",
            "forget": name == "Freya Holm",
        }
        for i, (name, place) in enumerate(people.items())
    ]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    places = ["Sofia", "Turku", "Cork", "Porto", "Kyoto", "Dakar", "Austin", "Bergen", "Tunis", "Riga"]
    (folder / "counterfactuals.json").write_text(json.dumps({"P19": places}))
    facts = [{"subject": n, "property": "P19", "values": [place]} for n, place in BORN.items()]
    (folder / "people.jsonl").write_text("".join(json.dumps(fact) + "\n" for fact in facts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "simulate", in_process)
        result = call(
            *("simulate", "smoke", f"output={folder}", "name=one", "stages=[finetune]", "data=jsonl"),
            *(f"data.path={folder}/train.jsonl", "federation.clients=1", "federation.rounds.finetune=2"),
            *("federation.local_epochs=60", "training.learning_rate=3.0e-3", "evaluation.every=0"),
            *("evaluation.leakage.samples=0", "evaluation.leakage.full_samples=0", "evaluation.ruler.enabled=false"),
        )
    assert result.code == 0, result.err
    return folder


@pytest.mark.slow
def test_the_loop_from_audit_to_audit(trained, monkeypatch):
    monkeypatch.setattr(simulation, "simulate", in_process)
    asked = ("--subjects", trained / "people.jsonl", "--phrasings", "records", "--counterfactuals", trained)
    first = call("audit", "person", trained / "one", *asked)
    assert first.code == 0, first.err
    folder = trained / "one" / "audits" / "person-finetune-0002"
    before = read_audit(folder)
    assert [p.facts[0].outcome.memorized for p in before.people] == [1, 1], "it tells them from their look-alikes"
    assert [(p.subject, p.record_ids) for p in before.people] == [("author-0", ("r0",)), ("author-1", ("r1",))]
    assert "place of birth" in (trained / "one" / "people" / f"{person_slug_of(before)}.html").read_text()

    requested = call("request", "from-audit", folder, "--person", "freya holm")
    assert requested.code == 0 and "lie outside" not in requested.out
    (line,) = [json.loads(text) for text in (folder / "requests.jsonl").read_text().splitlines()]
    assert line["record_ids"] == ["r0"] and line["client"] == 0

    command = next(text for text in requested.out.splitlines() if text.startswith("serve: "))

    served = call(*shlex.split(command)[2:], "unlearning=grad_ascent", "training.learning_rate=3.0e-3")
    assert served.code == 0, served.err
    (request,) = Ledger(trained / "one-forgets" / "requests.jsonl")
    assert request.id == line["id"] and request.served_round == 1 and request.record_ids == ("r0",)

    again = call("audit", "person", trained / "one-forgets", *asked)
    assert again.code == 0, again.err
    after = read_audit(trained / "one-forgets" / "audits" / "person-unlearn-0002")
    assert [p.facts[0].before for p in after.people] == [p.facts[0].outcome for p in before.people]
    assert after.against == before.model and "finetuned" in again.out and "unlearned" in again.out
    gone = 2 - sum(p.facts[0].outcome.memorized for p in after.people)
    assert f"Of 2 facts that it had memorised, {gone} are no longer" in again.out
    page = (trained / "one-forgets" / "people" / f"{person_slug_of(after)}.html").read_text()
    assert line["id"] in page and "finetuned" in page and "unlearned" in page
    assert ">People</h2>" in (trained / "one-forgets" / "report.html").read_text()


def person_slug_of(found):

    return person_slug(found.people[0].name)


@pytest.mark.slow
def test_other_models_are_not_taken_for_the_one_before(trained):

    run = RunDirectory.open(trained / "one")
    assert before_audit(run, "finetune", None) is None
    folder = run.path / "audits" / "person-finetune-0002"
    call("audit", "person", run.path, "--subjects", trained / "people.jsonl", "--phrasings", "records")
    real = read_audit(folder)
    assert before_audit(run, "unlearn", None) == real == before_audit(run, "unlearn", str(folder))
    write(audit_of(run, real.people), folder)
    assert before_audit(run, "unlearn", None) is None, "the adapter is another one"
    with pytest.raises(OblivionisError, match="that model was not audited yet"):
        before_audit(run, "unlearn", "retrain")
    write(real, folder)


def test_the_people_of_a_run_are_those_to_forget_and_as_many_others(tmp_path):
    run, config = make_run(tmp_path, overrides=["data.authors=9", "data.forget_authors=2"])
    subject = _StandIn("a run", run, config)
    facts = person_audit.own_facts(subject)
    corpus = load_corpus(config.data)
    forget = {r.subject for r in corpus.train if r.id in corpus.forget_ids}
    by_cohort = {c: {f.subject for f in facts if f.cohort == c} for c in ("forget", "retain")}
    known = {f.subject for f in facts_of(corpus.train)}
    assert by_cohort["forget"] == forget & known and len(by_cohort["retain"]) == len(by_cohort["forget"])
    assert not by_cohort["retain"] & forget
    anyone = next(name for name in known if name not in by_cohort["forget"] | by_cohort["retain"])
    assert {f.subject for f in person_audit.own_facts(subject, [anyone.lower()])} == {anyone}
    assert {subject_key(f.subject) for f in person_audit.first_people(facts, 1)} == {subject_key(facts[0].subject)}


class _StandIn:
    """What `own_facts` reads of a model under audit."""

    def __init__(self, name, run, config):
        self.name, self.run, self.config = name, run, config
