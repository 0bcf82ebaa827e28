"""The documents say what the code says: links, the places and values of the paper index, the rooms, example data."""

import ast
import re
import runpy
from pathlib import Path

import pytest
from support.commands import call
from support.reports import make_run

from clients import losses
from oblivionis.config import compose as configuration
from oblivionis.data import own_records
from oblivionis.data.corpora import load_corpus, load_partition
from oblivionis.erasure.record_holders import Holdings
from oblivionis.erasure.schedule import FIELDS, policy_of

ROOT = Path(__file__).resolve().parents[3]
INDEX = (ROOT / "docs" / "reference" / "paper-index.md").read_text(encoding="utf-8")
DATA = (ROOT / "docs" / "start" / "data.md").read_text(encoding="utf-8")
REQUESTS = (ROOT / "docs" / "guides" / "requests.md").read_text(encoding="utf-8")
PLACES = sorted(set(re.findall(r"`([\w/]+\.py):([\w.]+)`", INDEX)))
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in INDEX.splitlines() if line.startswith("|")]
CELLS = {row[1]: row for row in ROWS if len(row) == 4}
EXAMPLES = ("my_", "NAME")
"""In the names of files that only the examples of CONTRIBUTING.md have."""


def block(language):
    """The first code block of docs/start/data.md in that language."""
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


VERDICTS = {"reproduced", "reproduced on a small model", "not reproduced", "needs a GPU", "not run"}


def claim_rows():
    """The rows of the tables of docs/results/claims.md: claim, where, our figure, command, verdict."""
    text = (ROOT / "docs" / "results" / "claims.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return [row for row in rows if row[0] != "---" and not row[0].startswith("claim")]


def test_every_claim_has_a_place_a_figure_a_command_and_a_verdict():
    rows = claim_rows()
    assert len(rows) > 100
    assert [row for row in rows if len(row) != 5 or not all(row) or row[-1].strip("*") not in VERDICTS] == []
    assert [row for row in rows if "`" not in row[3] and row[-1] != "**not run**"] == []
    suites = {name for row in rows for name in re.findall(r"oblivionis bench (\w+)", row[3])}
    assert [name for name in suites if not (ROOT / "benchmarks" / "suites" / f"{name}.yaml").is_file()] == []


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
    corpus = own_records.load(file)
    assert len(corpus.train) == 6 and corpus.forget_ids == {"p1-home", "p1-job"}
    assert {name: len(records) for name, records in corpus.evaluation.items()} == {"forget": 2, "retain": 4}


def test_the_page_on_data_shows_what_its_command_prints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/train.jsonl").write_text(block("jsonl"), encoding="utf-8")
    command = re.search(r"^oblivionis (data describe data=records .*?)  +#", DATA, re.MULTILINE).group(1)
    shown = re.search(r"```\n(3 clients, .*?)```", DATA, re.DOTALL).group(1)
    result = call(*command.split())
    assert result.code == 0 and shown in result.out


def test_the_example_schedule_fits_the_example_records(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/train.jsonl").write_text(block("jsonl"), encoding="utf-8")
    lines = re.search(r"```jsonl\n(.*?)```", REQUESTS, re.DOTALL).group(1)
    (tmp_path / "mine/requests.jsonl").write_text(lines, encoding="utf-8")
    command = re.search(r"^oblivionis simulate (data=records .*)$", REQUESTS, re.MULTILINE).group(1)
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
    for name in (*own_records.FIELDS, *own_records.EVALUATION.values()):
        assert re.search(rf"^\| `{name}` \|", DATA, re.MULTILINE), name


PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def relative(page):
    return str(page.relative_to(ROOT))


def anchors(page):
    """The ids that GitHub gives the headings of a page: lower case, white space to hyphens, no other punctuation."""
    found = []
    for heading in re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        found.append(slug if slug not in found else f"{slug}-{sum(s.startswith(slug) for s in found)}")
    return found


def broken_links(page):
    """What a page links to and is not there: files, folders, and headings."""
    missing = []
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or not file.is_relative_to(ROOT) or (anchor and anchor not in anchors(file)):
            missing.append(target)
    return missing


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_link_of_a_page_resolves(page):
    assert broken_links(page) == []


def test_a_link_to_a_missing_file_or_heading_is_found(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    (tmp_path / "there.md").write_text("# A `b` – c\n```\n# no heading [x](nowhere)\n```\n", encoding="utf-8")
    page = tmp_path / "page.md"
    links = [
        "there.md",
        "there.md#a-b--c",
        "https://example.org/x",
        "there.md#no-heading-x",
        "gone.md",
        "#own",
        "#none",
    ]
    page.write_text("# Own\n" + " ".join(f"[l]({link})" for link in links), encoding="utf-8")
    assert broken_links(page) == ["there.md#no-heading-x", "gone.md", "#none"]


def too_long(page):
    """README may have 110 lines, a page 120; reference and results are looked up, not read."""
    most = 110 if page == ROOT / "README.md" else 120
    return len(page.read_text(encoding="utf-8").splitlines()) > most


READ = [ROOT / "README.md", *(p for p in PAGES if {"start", "guides", "concepts"} & set(p.relative_to(ROOT).parts))]


@pytest.mark.parametrize("page", READ, ids=relative)
def test_a_page_can_be_read_in_five_minutes(page):
    assert not too_long(page)


def test_the_outcome_of_the_default_has_the_figures_of_the_results():
    shown = [
        [
            line.split()
            for line in (ROOT / page).read_text(encoding="utf-8").splitlines()
            if re.search(r"(  \d\.\d{3})+$", line)
        ]
        for page in ("README.md", "docs/start/first-run.md")
    ]
    assert len(shown[0]) == 5 and shown[0] == shown[1]
    results = (ROOT / "docs" / "results" / "unlearning.md").read_text(encoding="utf-8")
    finetuned, unlearned, retrained = next(row[-3:] for row in shown[0] if "Prob" in row)
    assert re.search(rf"^\| forget Prob \| {finetuned} \| {unlearned} \|.*\| {retrained} \|$", results, re.MULTILINE)


def test_the_picture_of_readme_is_drawn_from_a_run(tmp_path):
    """That in `docs/images` shows the same."""
    run, _ = make_run(tmp_path)
    draw = runpy.run_path(str(ROOT / "docs" / "images" / "forget_curve.py"))["draw"]
    draw(str(run.path), str(tmp_path / "curve.svg"))
    for picture in (tmp_path / "curve.svg", ROOT / "docs" / "images" / "forget_curve.svg"):
        text = picture.read_text(encoding="utf-8")
        assert [
            word for word in ("retrained model", "forget", "retain", "Prob", "round") if f">{word}</text>" not in text
        ] == []


def test_every_document_can_be_reached_from_the_index():
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / target.partition("#")[0]).resolve() for target in LINK.findall(index.read_text("utf-8"))}
    examples = ROOT / "docs" / "guides" / "examples"
    pages = {page for page in (ROOT / "docs").rglob("*.md") if not page.is_relative_to(examples)}
    assert pages - {index} <= linked
    folders = {"docs", "start", "guides", "concepts", "reference", "results", "details"}
    assert {page.parent.name for page in pages} == folders


@pytest.mark.parametrize("page", [p for p in PAGES if p.name != "CHANGELOG.md"], ids=relative)
def test_files_and_modules_that_a_page_names_exist(page):
    text = page.read_text(encoding="utf-8")
    folders = "benchmarks|clients|conf|docs|evaluation|oblivionis|strategies|tests"
    named = re.findall(rf"(?<![\w/.])((?:{folders})/[\w/-]+\.(?:py|yaml|json|md|toml))\b", text)
    modules = {name.replace(".", "/") for name in re.findall(r"python -m ((?:benchmarks|oblivionis)[\w.]+)", text)}
    named += [f"{name}/__main__.py" if (ROOT / name).is_dir() else f"{name}.py" for name in sorted(modules)]
    made_up = {name for name in named if any(word in name for word in EXAMPLES)}
    assert [name for name in named if name not in made_up and not (ROOT / name).is_file()] == []
    tests = {file.name for file in (ROOT / "tests").rglob("test_*.py")}
    assert set(re.findall(r"`(test_\w+\.py)`", text)) <= tests


THREATS = (ROOT / "docs" / "reference" / "threats.md").read_text(encoding="utf-8")
NAMED = re.compile(r"`([\w/]*test_\w+\.py)?(?:::(\w+))?`")
TIERS = ("unit/", "invariants/", "deployed/")
"""Of tests that such a page names with their folder below `tests`; all others lie in its folder `integration`."""


def named_tests(text):
    """Each test that docs/reference/threats.md names, as a file and a name in it, or none: `::name` alone is in the
    file named last."""
    found, file = [], ""
    for path, name in NAMED.findall(text):
        file = path or file
        if path or name:
            found.append((file, name))
    return found


def missing_tests(text):
    """Those of them that are not there."""
    lacking = []
    for path, name in named_tests(text):
        file = ROOT / "tests" / ("" if path.startswith(TIERS) else "integration") / path
        there = file.is_file() and {
            n.name for n in ast.parse(file.read_text("utf-8")).body if isinstance(n, ast.FunctionDef)
        }
        if not there or (name and not (name in there and name.startswith("test_"))):
            lacking.append(f"{path}::{name}" if name else path)
    return lacking


def claims(text):
    """The rows of all tables of a text, by their last cells, and its paragraphs that claim something by themselves: not
    those that only introduce the page or a table."""
    blocks = [block for block in text.split("\n\n") if not block.startswith("#")]
    rows, paragraphs = [], []
    for number, block in enumerate(blocks):
        if block.startswith("|"):
            rows += [line.strip("|").split("|")[-1] for line in block.splitlines()[2:]]
        elif number and not (blocks[number + 1 :] and blocks[number + 1].startswith("|") and "**" not in block):
            paragraphs.append(block)
    return rows, paragraphs


def test_each_claim_of_the_page_on_threats_names_a_test_that_is_there():
    assert missing_tests(THREATS) == []
    rows, paragraphs = claims(THREATS)
    assert len(rows) > 40 and len(paragraphs) > 5
    assert [text for text in (*rows, *paragraphs) if not any(map(all, named_tests(text)))] == []
    assert [row for row in rows if re.search(r"\b(none|no test|the same)\b", re.sub("`[^`]*`", "", row))] == []


def test_a_claim_without_a_test_is_found():
    text = "# Trust\n\nWhat it is.\n\n## A client\n\n**Sees** all.\n\n| it may | test |\n| --- | --- |\n"
    text += "| lie | `trust/test_people.py::test_it_is_told_in_the_log_of_the_node_and_stands_in_its_ledger` |\n"
    text += "| sing | `test_gone.py`, `unit/oblivionis/test_docs.py::test_gone`, `::block` |"
    rows, paragraphs = claims(text)
    assert len(rows) == 2 and paragraphs == ["**Sees** all."] and not named_tests(paragraphs[0])
    assert missing_tests(text) == [
        "test_gone.py",
        *(f"unit/oblivionis/test_docs.py::{n}" for n in ("test_gone", "block")),
    ]


def test_code_names_documents_that_exist():
    for folder in ("oblivionis", "benchmarks", "strategies", "clients", "evaluation", "conf", "tests"):
        for file in (ROOT / folder).rglob("*.*"):
            if file.suffix in (".py", ".yaml") and file != Path(__file__):
                for name in re.findall(r"docs/[\w/-]+\.md", file.read_text(encoding="utf-8")):
                    assert (ROOT / name).is_file(), f"{file} names {name}"


def test_the_rooms_are_those_of_the_house():
    """In the order of the contract of `pyproject.toml`, which import-linter holds."""
    text = (ROOT / "docs" / "concepts" / "architecture.md").read_text(encoding="utf-8")
    drawn = re.findall(r"^  (\w+)/ ", text.partition("oblivionis/   ")[2].partition("\nevaluation/")[0], re.MULTILINE)
    rooms = {folder.parent.name for folder in (ROOT / "oblivionis").glob("*/__init__.py")}
    assert sorted(drawn) == sorted(rooms)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    layers = re.search(r'id = "oblivionis".*?layers = \[(.*?)\n\]', project, re.DOTALL).group(1)
    assert [name for name in re.findall(r"\w+", layers) if name in rooms] == drawn
