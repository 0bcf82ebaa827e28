"""The commands `certificate create`, `certificate verify` and `certificate keygen`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from oblivionis.cli.as_json import AsJson, answering
from oblivionis.cli.replay_audits import NodeDirs, Overrides, Pieces, as_answer, end_with, finding_lines
from oblivionis.config import compose as configuration
from oblivionis.errors import OblivionisError
from oblivionis.reports.format import counted

if TYPE_CHECKING:
    from oblivionis.audits.replay import Finding
    from oblivionis.erasure.hidden_requests import Opened

certificate_cli = typer.Typer(help="Certify that a deletion request was served, and how well.", no_args_is_help=True)


def _say(text: str) -> None:
    Console().print(text, markup=False, highlight=False, soft_wrap=True)


@certificate_cli.command("create")
def create(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run directory with a finished stage unlearn.")],
    demand: Annotated[
        str | None,
        typer.Argument(metavar="DEMAND", help="A request of its requests.jsonl, or a demand of several clients."),
    ] = None,
    opened: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE",
            help="Of a sealed request, in the place of DEMAND: what `request open` wrote; repeatable, for one of all.",
        ),
    ] = None,
    node_dir: Annotated[
        Path | None,
        typer.Option("--node-dir", metavar="DIR", help="Open DEMAND, which is sealed, in this node's folder."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Private key to sign with (default: an unsigned certificate).")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder of the certificate (default: in the run).")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write certificate.json and a page for a served request.

    Its result, PASS, FAIL or INCONCLUSIVE, follows from the run's own files by the thresholds of its configuration.
    """
    from oblivionis.reports.certificate import exact
    from oblivionis.reports.certificate import signing as certificates
    from oblivionis.runs import artifact_binding

    directory = artifact_binding.opened(run)
    with answering(as_json) as answer:
        folder, certificate = certificates.create(directory, _demand(demand, opened or (), node_dir), key, out)
        if out is None:
            from oblivionis.reports.html import request_pages

            config = configuration.from_yaml(directory.read_config(), directory.config_place)
            request_pages.write_pages(directory, config)
        if as_json:
            return answer({"folder": folder, "certificate": certificate})
    _say(_summary(certificate))
    signed = "" if certificate["signature"] else "; not signed: give --key"
    rounds = f", {exact.ROUNDS_FILE}" if certificate.get("class") == exact.EXACT else ""
    _say(f"{folder / certificates.JSON_FILE}{rounds} and {certificates.PAGE_FILE}{signed}")


@certificate_cli.command("verify")
def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A certificate.json, or its folder.")],
    public_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The public key that must have signed it.")
    ] = None,
    replay: Annotated[
        bool, typer.Option("--replay", help="Of the class exact: hold the rounds again and compare.")
    ] = False,
    run: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="The run with the stored models (default: where the certificate lies)."),
    ] = None,
    pieces: Pieces = None,
    node_dir: NodeDirs = None,
    set_: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Is a certificate as it was signed, and by whom? Needs no network and no run. Without the key it is not valid.

    With --replay the clients' folders are needed: all rounds are held again, and every model, update and line of a
    client's ledger is compared with what the certificate says. Exit code 0 only where all is equal, 1 if anything
    differs, 3 if something could not be tested.
    """
    from oblivionis.reports.certificate import signing as certificates

    certificate, fingerprint = certificates.verify(file, public_key)
    if public_key is None:
        raise certificates.CertificateError(
            f"{file} is as it was signed and says {certificate['result']}, {certificates.anybody(fingerprint)}"
        )
    if not replay and (given := [name for name, value in _of_replay(run, pieces, node_dir, set_) if value]):
        raise OblivionisError(f"{', '.join(given)}: only with --replay")
    with answering(as_json) as answer:
        findings = None
        if replay:
            from oblivionis.reports.certificate import exact_replay

            findings = exact_replay.replay(file, certificate, run, node_dir or (), set_ or (), pieces)
        if as_json:
            answer(
                {"key": fingerprint, "certificate": certificate} | (as_answer(findings) if findings is not None else {})
            )
        else:
            _say(_summary(certificate))
            _say(f"signed by {public_key} (SHA-256 of the key: {fingerprint})")
            for line in _replayed(findings, pieces) if findings is not None else ():
                _say(line)
    if findings is not None:
        end_with(findings)


@certificate_cli.command("keygen")
def keygen(
    out: Annotated[Path, typer.Option(metavar="FILE", help="The private key; FILE.pub is the public one.")] = Path(
        "certificate.key"
    ),
) -> None:
    """Make a pair of Ed25519 keys. Nothing is overwritten."""
    from oblivionis.reports.certificate import signing as certificates

    public = certificates.generate_key(out)
    shown = certificates.fingerprint(certificates.read_public_key(public))
    _say(f"private key: {out} (keep it secret)\npublic key: {public}\nSHA-256 of the key: {shown}")


def _replayed(findings: Sequence[Finding], pieces: int | None) -> list[str]:
    """What a replay found, line by line, and in short."""
    counts = Counter(finding.outcome for finding in findings)
    drawn = sum(re.match(r"(shard \d+: )?(from )?round \d+ of ", finding.what) is not None for finding in findings)
    part = "" if pieces is None else f", of which {counted(drawn, 'piece')} of the rounds"
    part += ", all that are stored" if pieces is not None and drawn < pieces else ""
    short = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    return [*finding_lines(findings), f"replayed: {counted(len(findings), 'comparison')}{part}: {short}"]


def _of_replay(
    run: Path | None, pieces: int | None, node_dir: list[Path] | None, set_: list[str] | None
) -> list[tuple[str, object]]:
    """The options that only --replay takes, with their values."""
    return [("--run", run), ("--pieces", pieces), ("--node-dir", node_dir), ("--set", set_)]


def _demand(name: str | None, opened: Sequence[Path], node_dir: Path | None) -> str | list[Opened]:
    """What is to be certified. OblivionisError unless exactly one thing is named."""
    from oblivionis.audits.opened_request import open_request
    from oblivionis.erasure.hidden_requests import read_opened

    if (name is None) == (not opened) or (opened and node_dir is not None):
        raise OblivionisError("name what is to be certified: DEMAND, DEMAND with --node-dir DIR, or --opened FILE")
    if opened:
        return [read_opened(file) for file in opened]
    return name or "" if node_dir is None else [open_request(node_dir, name or "")]


def _summary(certificate: dict) -> str:
    demand = certificate["demand"]
    clients = ", ".join(map(str, demand["clients"]))
    lines = [f"{certificate['result']}: {demand['id']}, {counted(demand['records'], 'record')} of client {clients}"]
    for part in certificate["requests"]:
        request, signed = part["request"], part["evidence"]["signed_by"]
        who = part["evidence"]["source"] + (f" (key {', '.join(key[:16] + '…' for key in signed)})" if signed else "")
        how = request["state"] if "class" in certificate else f"measured by {who}"
        lines.append(f"{part['result']}: request {request['id']} of client {request['client']}, {how}")
        for check in part["checks"]:
            mark = "" if check["required"] else " (not required)"
            lines.append(f"  {check['name']}{mark}: {check['result']}, {check['why']}")
    if others := certificate.get("not_covered", []):
        which = "; ".join(m["what"] for m in others)
        lines.append(f"not covered, may still know the records: {which}")
    return "\n".join(lines)
