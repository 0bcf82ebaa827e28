"""The guides to deployment do what they say: each of their commands runs, in order, on loopback."""

import json
import os
import re
import shlex
import shutil
import socket
import stat
import subprocess
from pathlib import Path

import pytest
from support.deployed import BRISK
from support.processes import MARK, PROJECT, checkout, end, environment, free_ports, marked, until

from oblivionis.chain import check_chain
from oblivionis.erasure.node_ledger import NodeLedger
from oblivionis.measures.audit_numbers import read_audit
from oblivionis.runs.directory import RunDirectory

pytestmark = [pytest.mark.slow, pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx")]

GUIDES = "".join(
    (PROJECT / "docs" / "guides" / f"{page}.md").read_text(encoding="utf-8")
    for page in ("deployment", "across-machines", "flower")
)
COMMANDS = [
    (heading, line)
    for heading, section in re.findall(r"^#+ ([^\n]+)\n(.*?)(?=^#|\Z)", GUIDES, re.DOTALL | re.MULTILINE)
    for block in re.findall(r"^```sh\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    for line in block.splitlines()
]
SERVICE = re.compile(r"~/lab/\S*/start-(superlink|nginx|supernode)\.sh")
SECRETS = ("Wrenn", "flickering lights", "dark room", "letter of 3 March", "Ilse Okonjo", "insulin pump")
START_S, COMMAND_S = 120, 900


class Reader:
    """Somebody who types the guides' commands; services go on in the background."""

    def __init__(self, home):
        self.home, self.lab, self.exports = home, home / "lab", []
        self.log = home / "services.log"
        self.said, self.checkout = {}, checkout(home / "checkout")
        self.port, self.superlink_port, self.node_port = free_ports(3)
        cache = os.environ.get("OBLIVIONIS_CACHE") or Path.home() / ".cache" / "oblivionis"
        brisk = {"OBLIVIONIS_TEST_PATCH": BRISK, "OMP_NUM_THREADS": 1}
        self.environment = environment(HOME=home, OBLIVIONIS_CACHE=cache, **brisk, **{MARK: home})
        self.services = []

    def type(self, heading, command):
        if command.startswith("export "):
            self.exports.append(command)
        elif SERVICE.fullmatch(command):
            self._start(command)
        else:
            if command == "oblivionis deploy init ~/lab --clients 3":
                command += f" --port {self.port} --superlink-port {self.superlink_port} --node-port {self.node_port}"
            if command == "flwr supernode list lab":
                assert until(self._online, START_S, every=3), self.log.read_text()
            done = self._bash(command)
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{self.log.read_text()[-3000:]}"
            if command.startswith("flwr run"):
                assert set(self.statuses()) == {"finished:completed"}, done.stdout[-6000:]
            self.said.setdefault(heading, []).append(done.stdout)

    def asks(self, *command):
        """The JSON objects that one more command prints."""
        told, decoder, found = self._bash(shlex.join(command)).stdout, json.JSONDecoder(), []
        while (start := told.find("{")) >= 0:
            value, end = decoder.raw_decode(told[start:])
            found.append(value)
            told = told[start + end :]
        return found

    def statuses(self):
        """Of all runs."""
        (told,) = self.asks("flwr", "list", "lab", "--format", "json")
        return [run["status"] for run in told["runs"]]

    def end(self):
        end([*self.services, *marked(self.home)], "terminate")
        until(lambda: not marked(self.home), 30, every=0.1)
        end(marked(self.home), "kill")
        for process in self.services:
            process.wait(30)

    def _online(self):
        (told,) = self.asks("flwr", "supernode", "list", "lab", "--format", "json")
        return [node["status"] for node in told["nodes"]] == ["online"] * 3

    def _start(self, command):
        with self.log.open("ab") as log:
            service = subprocess.Popen(
                [Path(command.replace("~", str(self.home)))],
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.checkout,
                start_new_session=True,
            )
        self.services.append(service)
        port = {"superlink": self.superlink_port, "nginx": self.port}.get(SERVICE.fullmatch(command).group(1))
        assert port is None or until(lambda: self._listens(port), START_S, every=0.1), self.log.read_text()

    def _listens(self, port):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def _bash(self, command):
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", "\n".join([*self.exports, command])],
            env=self.environment,
            cwd=self.checkout,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_S,
        )


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """The reader who has read all of it."""
    reader = Reader(tmp_path_factory.mktemp("guide"))
    try:
        for heading, command in COMMANDS:
            reader.type(heading, command)
        yield reader
    finally:
        reader.end()


def test_all_runs_are_completed(reader):
    assert reader.statuses() == ["finished:completed"] * 3


def test_the_hospital_measured_the_finished_run_again_with_more_samples(reader):
    run = RunDirectory(reader.lab / "server" / "runs" / "forget")
    rows = [r for r in run.metrics() if (r["evaluator"], r["moment"]) == ("client_audit", "end")]
    samples = [row["requests"]["hill-1"]["leakage_samples"] for row in rows]
    assert len(samples) == 2 and samples[0] < samples[1] == 128
    assert read_audit(run.path, "hill-1")["final"]["leakage_samples"] == 128
    assert len([e for e in check_chain(run.ledger_path).entries if e["event"].startswith("verifi")]) == 2
    assert [r.id for r in NodeLedger(reader.lab / "node1").requests()] == ["hill-1"]


def test_the_patient_is_forgotten(reader):
    before, after = reader.said["5. A patient asks to be forgotten"][1], reader.said["6. Was it forgotten?"][0]
    assert "hill-1" in before and "open" in before and "hill-1" in after
    (request,) = reader.asks("oblivionis", "request", "list", "--node-dir", str(reader.lab / "node1"), "--json")
    run = RunDirectory(reader.lab / "server" / "runs" / "forget")
    audit = json.loads((run.path / "audits" / "request-hill-1.json").read_text())
    took_part = [row["clients"] for row in run.metrics() if row["evaluator"] == "federation"]
    assert (request["state"], request["run"], request["served_round"]) == ("verified", "forget", 1), (took_part, audit)
    assert audit["client"] == 1 and audit["before"]["forget_records"] == 2
    limit = 0.5
    assert audit["before"]["request_rouge"] > limit >= audit["final"]["request_rouge"]
    assert audit["final"]["retain_prob"] > audit["final"]["request_prob"]
    certificate = json.loads((reader.home / "certificate/certificate.json").read_text())
    checks = {check["name"]: check["result"] for check in certificate["requests"][0]["checks"]}
    assert checks["ledger"] == checks["rouge"] == "PASS"
    assert f"{certificate['result']}: request hill-1 of client 1" in reader.said["6. Was it forgotten?"][-1]


def test_the_ledgers_agree_until_one_is_altered(reader, tmp_path):
    assert "broken (" not in reader.said["6. Was it forgotten?"][3]
    node, run = tmp_path / "node1", reader.lab / "server/runs/forget"
    node.mkdir()
    lines = (reader.lab / "node1/requests.jsonl").read_text().splitlines(keepends=True)
    (node / "requests.jsonl").write_text("".join(lines[:-1]))
    asked = ["oblivionis", "request", "verify", str(run), "--node-dir", str(node)]
    done = subprocess.run(asked, env=reader.environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout


def test_records_stay_where_they_are(reader):
    for partition, hospital in enumerate(["harbour", "hill", "meadow"]):
        theirs = PROJECT / "docs/guides/examples/three-hospitals" / hospital / "patients.jsonl"
        (own,) = (reader.lab / f"node{partition}/data").iterdir()
        assert own.read_bytes() == theirs.read_bytes()
    files = [p for p in (reader.lab / "server").rglob("*") if p.is_file()]
    assert any(p.name == "superlink.db" for p in files) and any(p.suffix == ".safetensors" for p in files)
    for path in files:
        content = path.read_bytes()
        assert not [s for s in SECRETS if s.encode() in content], path


def test_nobody_else_can_read_what_a_run_leaves(reader):
    for path in [reader.lab, *(p for p in reader.lab.iterdir() if p.is_dir())]:
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    for path in reader.lab.rglob("*"):
        if path.is_file() and b"PRIVATE KEY-----" in path.read_bytes():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_every_command_of_the_guides_was_run(reader):
    assert len(COMMANDS) == 31
    assert (reader.home / "fleet/node2/start-supernode.sh").read_text().count("flower.example.org:9443") == 1
