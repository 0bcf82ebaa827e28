"""The documents say what the code says: places in the paper index, values of its tables, the example data."""

import ast
import re
from pathlib import Path

import pytest

from clients import losses
from oblivionis.config import compose as configuration
from oblivionis.data import jsonl
from oblivionis.data.corpora import load_corpus, load_partition
from oblivionis.requests.holdings import Holdings
from oblivionis.requests.schedule import FIELDS, policy_of

ROOT = Path(__file__).resolve().parents[3]
INDEX = (ROOT / "docs" / "paper-index.md").read_text(encoding="utf-8")
DATA = (ROOT / "docs" / "data.md").read_text(encoding="utf-8")
REQUESTS = (ROOT / "docs" / "requests.md").read_text(encoding="utf-8")
PLACES = sorted(set(re.findall(r"`([\w/]+\.py):([\w.]+)`", INDEX)))
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in INDEX.splitlines() if line.startswith("|")]
CELLS = {row[1]: row for row in ROWS if len(row) == 4}


def block(language):
    """The first code block of docs/data.md in that language."""
    return re.search(rf"```{language}\n(.*?)```", DATA, re.DOTALL).group(1)


@pytest.mark.parametrize(("file", "name"), PLACES)
def test_every_place_in_the_paper_index_exists(file, name):
    node = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    for part in name.split("."):
        named = {n.name: n for n in node.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}
        assert part in named, f"{file} has no {name}"
        node = named[part]


def test_every_equation_is_in_the_index():
    found = set()
    for first, last in re.findall(r"\[(\d+)(?:[–-](\d+))?\]", INDEX):
        found.update(range(int(first), int(last or first) + 1))
    assert set(range(1, 40)) <= found, "the paper's equations 1 to 39"


@pytest.mark.parametrize("key", ["seed", "training.weight_decay", "training.learning_rate", "training.batch_size"])
def test_table_5_has_the_values_of_the_configurations(key):
    for column, experiment in ((2, "paper"), (3, "default")):
        value = configuration.compose(experiment)
        for part in key.split("."):
            value = getattr(value, part)
        assert float(CELLS[f"`{key}`"][column]) == value


def test_table_5_has_the_rounds_of_the_configurations():
    paper, default = (configuration.compose(e).federation for e in ("paper", "default"))
    row = CELLS["`federation.rounds`, `local_epochs`"]
    assert row[2] == f"{paper.rounds.unlearn}, {paper.local_epochs}"
    rounds = default.rounds
    assert rounds.finetune == rounds.retrain
    assert row[3] == f"{rounds.finetune} (finetune, retrain), {rounds.unlearn} (unlearn), {default.local_epochs}"


@pytest.mark.parametrize("method", losses.names())
def test_the_losses_have_the_hyperparameters_of_their_files(method):
    row = next(line for line in INDEX.splitlines() if f"losses/{method}.py" in line)
    for name, value in configuration.method_params(method).items():
        assert f"`{name}` {value}" in row


def test_the_example_records_load(tmp_path):
    file = tmp_path / "train.jsonl"
    file.write_text(block("jsonl"), encoding="utf-8")
    corpus = jsonl.load(file)
    assert len(corpus.train) == 6 and corpus.forget_ids == {"p1-home", "p1-job"}
    assert {name: len(records) for name, records in corpus.evaluation.items()} == {"forget": 2, "retain": 4}


def test_the_example_schedule_fits_the_example_records(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/train.jsonl").write_text(block("jsonl"), encoding="utf-8")
    lines = re.search(r"```jsonl\n(.*?)```", REQUESTS, re.DOTALL).group(1)
    (tmp_path / "mine/requests.jsonl").write_text(lines, encoding="utf-8")
    command = re.search(r"^oblivionis simulate (data=jsonl .*)$", REQUESTS, re.MULTILINE).group(1)
    config = configuration.compose("default", command.split())
    corpus = load_corpus(config.data)
    policy = policy_of(config, Holdings.of(corpus, load_partition(corpus, config)))
    asked = [(r.round, r.client, r.scope, r.record_ids) for round in (1, 2, 3) for r in policy.due(round, {})]
    assert asked == [
        (1, 0, "records", ("p3-home",)),
        (2, 0, "subject", ("p1-home",)),
        (2, 1, "subject", ("p1-job",)),
        (3, 2, "client", ("p2-job", "p3-job")),
    ]


def test_the_fields_of_a_schedule_are_all_described():
    for name in FIELDS:
        assert re.search(rf"^\| [^|]*{name}", REQUESTS, re.MULTILINE), name


def test_the_fields_and_files_of_own_records_are_all_described():
    for name in (*jsonl.FIELDS, *jsonl.EVALUATION_FILES.values()):
        assert re.search(rf"^\| `{name}` \|", DATA, re.MULTILINE), name
