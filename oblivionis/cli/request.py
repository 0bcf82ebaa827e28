"""The commands `request submit`, `withdraw`, `list`, `open`, `audit`, `verify` and `repair`."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from oblivionis.cli import audit_exit_codes
from oblivionis.cli.as_json import AsJson, answering
from oblivionis.reports.format import counted

if TYPE_CHECKING:
    from oblivionis.chain import Checked
    from oblivionis.erasure.request import NodeRequest

_ID_WIDTH = len("20260301-0a1b2c3d")

request_cli = typer.Typer(help="Ask for deletion.", no_args_is_help=True)

NodeDir = Annotated[
    Path, typer.Option("--node-dir", metavar="DIR", help="The node's own folder, whose data/ holds its records.")
]


@request_cli.command("submit")
def submit(
    node_dir: NodeDir,
    ids: Annotated[
        str | None, typer.Option("--ids", metavar="A,B", help="Ids of the records, with commas between.")
    ] = None,
    subject: Annotated[str | None, typer.Option(metavar="NAME", help="All records about this person.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Everything: this client leaves the federation.")] = False,
    include: Annotated[
        str | None,
        typer.Option(metavar="A,B|all", help="Records that are named like the person, and are about them."),
    ] = None,
    exclude: Annotated[
        str | None,
        typer.Option(metavar="A,B|all", help="Records that are named like the person, and are not about them."),
    ] = None,
    twins: Annotated[
        bool,
        typer.Option("--with-twins", help="Also the node's records that say the same, word for word or nearly."),
    ] = False,
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Kept in the node's ledger; it never leaves.")] = "",
    identifier: Annotated[str | None, typer.Option("--id", metavar="ID", help="Name of the request.")] = None,
) -> None:
    """Ask, on the client's own machine, that records be forgotten.

    Records that are named like the person, or name them in their text, are shown, and nothing is asked for until
    --include and --exclude say of each whether it is about the person. Such a demand stands: records about the person
    that come later are not trained on here until `request withdraw`. The request is entered into the node's ledger; the
    server learns of it in the next round of a run with unlearning.requests.policy=nodes.
    """
    from oblivionis.erasure.request_submission import submit as enter

    made = enter(
        node_dir,
        ids=ids,
        subject=subject,
        everything=everything,
        include=include,
        exclude=exclude,
        twins=twins,
        reason=reason,
        identifier=identifier,
    )
    Console().print("\n".join(made.lines()), markup=False, highlight=False, soft_wrap=True)


@request_cli.command("withdraw")
def withdraw(
    node_dir: NodeDir,
    request: Annotated[str, typer.Argument(metavar="ID", help="A request about a person (--subject).")],
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Kept in the node's ledger; it never leaves.")] = "",
) -> None:
    """Say that a demand about a person stands no more: records that come later are trained on.

    The records that it names stay asked for, and are not trained on.
    """
    from oblivionis.erasure.request_submission import withdraw as take_back

    done, others = take_back(node_dir, request, reason)
    held = len(done.held_back)
    said = [
        f"request {done.id} stands no more; what it names stays asked for: {done.forgets}",
        f"{counted(held, 'later record')} held back until now, and all that come, may be trained on",
    ]
    if others:
        said[1:] = [f"later records are held back all the same: {', '.join(r.id for r in others)} about them stand"]
    Console().print("\n".join(said), markup=False, highlight=False, soft_wrap=True)


@request_cli.command("list")
def list_requests(node_dir: NodeDir, as_json: AsJson = False) -> None:
    """The requests that were made on this node, and what became of them, in each model that knew their records."""
    from oblivionis.erasure.lineage import knowing
    from oblivionis.erasure.node_ledger import NodeLedger
    from oblivionis.erasure.request_submission import need_folder

    need_folder(node_dir)
    states = NodeLedger(node_dir).states()
    requests, known = list(states.requests.values()), {name: knowing(states, name) for name in states.requests}
    if as_json:
        with answering(as_json) as answer:
            return answer([{**asdict(r), "models": known[r.id]} for r in requests])
    if not requests:
        print("no request was made on this node")
        return
    table = Table(box=None)
    table.add_column("request", overflow="fold", min_width=_ID_WIDTH)
    table.add_column("made", no_wrap=True)
    for head in ("forgets", "state", "reason"):
        table.add_column(head, overflow="fold")
    for r in requests:
        table.add_row(*_row(r))
    Console().print(table, markup=False, highlight=False)
    for name, models in known.items():
        said = f"models that knew {name}: {', '.join(f'{of.run} {of.state}' for of in models)}" if models else ""
        if said:
            Console().print(said, markup=False, highlight=False, soft_wrap=True)


@request_cli.command("open")
def open_request(
    node_dir: NodeDir,
    request: Annotated[str, typer.Argument(metavar="ID", help="A request that a cover exchange has served.")],
) -> None:
    """Print what opens the commitment to one sealed request, as JSON: for `certificate create --opened`.

    Whoever has it knows that this client asked, and for which records. Other requests of the exchange stay sealed.
    """
    from oblivionis.audits.opened_request import open_request as opened_request

    print(json.dumps(opened_request(node_dir, request).to_json(), ensure_ascii=False, indent=1))


@request_cli.command("audit")
def audit(
    node_dir: NodeDir,
    request: Annotated[str, typer.Argument(metavar="ID", help="A request that a cover exchange has served.")],
    final: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A checkpoint of the run (default: the newest model that this node received)."
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(min=1, help="Answers sampled to a question (default: as many as the run's configuration says)."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure, on the client's own machine, whether the records of a sealed request are forgotten.

    Nothing is sent. The verdict is entered into the node's ledger; the signed numbers are kept for `request open`. Exit
    code 0 where they are (verified), 1 where they are not, 3 where what was measured cannot tell.
    """
    from oblivionis.client.self_audit import audit_request
    from oblivionis.erasure.request_submission import need_folder
    from oblivionis.erasure.verification_rules import INCONCLUSIVE, NOT_TESTABLE, VERIFIED

    need_folder(node_dir)
    with answering(as_json) as answer:
        found, failed = audit_request(node_dir, request, final, samples)
        if as_json:
            answer({"request": request, "outcome": found.outcome, "why": found.why, "rouge": found.recall})
        else:
            said = f"request {request}: {found.outcome}, {found.why} (ROUGE-L {found.recall:.3f})"
            Console().print(said, markup=False, highlight=False, soft_wrap=True)
    if failed:
        said = f"not measured: {'; '.join(failed)}; the lines above say why"
        Console(stderr=True).print(said, style="red", markup=False, highlight=False, soft_wrap=True)
    cannot_tell = bool(failed) or found.outcome in (NOT_TESTABLE, INCONCLUSIVE)
    audit_exit_codes.end(differs=not cannot_tell and found.outcome != VERIFIED, untested=cannot_tell)


@request_cli.command("verify")
def verify(
    places: Annotated[
        list[Path], typer.Argument(metavar="DIR|FILE...", help="Run folders, node folders, or ledgers themselves.")
    ],
    node_dir: Annotated[
        list[Path] | None,
        typer.Option("--node-dir", metavar="DIR", help="Compare the run's ledger with this node's, too; repeatable."),
    ] = None,
    certificate: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Compare with where it says that the run's ledger ended; repeatable."),
    ] = None,
    public_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The public key that must have signed the certificates.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Was a line of a ledger removed, altered or moved? Exit code 1 if so, 3 if something could not be compared.

    Lines cut off at the end show in what others were told, its last hash and how many lines it had: name the run and,
    with --node-dir, its nodes, or with --certificate what was certified of it, whose signer --public-key must name: a
    certificate that anybody could have made shows nothing. The audits of a run folder must then also be signed with the
    keys that the nodes' ledgers know.
    """
    from oblivionis.erasure.ledger_check import check_ledgers, strangers
    from oblivionis.reports.certificate.signing import read_certified

    certified = [read_certified(file, public_key) for file in certificate or []]
    findings = check_ledgers(places, node_dir or [], certified)
    untested = {node.path: strangers(findings[0][0], node) for node, _ in findings[1:]} if node_dir else {}
    if doubts := [doubt for each in certified if (doubt := each.untested(findings[0][0]))]:
        untested[findings[0][0].path] = "; ".join(doubts)
    if node_dir and places[0].is_dir():
        from oblivionis.audits.audit_signatures import foreign_signatures, unknown_signer

        for (checked, faults), node in zip(findings[1:], node_dir, strict=True):
            faults += foreign_signatures(places[0], node)
            untested[checked.path] = untested[checked.path] or unknown_signer(places[0], node)
    if as_json:
        with answering(as_json) as answer:
            answer([_ledger(checked, faults, untested.get(checked.path, "")) for checked, faults in findings])
    for checked, faults in [] if as_json else findings:
        lines = counted(len(checked.entries), "line")
        verdict = f"broken ({counted(len(faults), 'fault')})" if faults else "unbroken"
        said = [f"{checked.path}: {lines}, {verdict}, ends with {checked.head[:12]}…"]
        said += [f"  {text}" for text in (*faults, *filter(None, [untested.get(checked.path)]), *checked.remarks)]
        Console().print("\n".join(said), markup=False, highlight=False, soft_wrap=True)
    audit_exit_codes.end(differs=any(faults for _, faults in findings), untested=any(untested.values()))


@request_cli.command("repair")
def repair(run_dir: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder.")]) -> None:
    """Set lines of a run's ledger aside that make no sense, so that the run can be resumed and shown.

    Runs of older versions can have them: a client's reply could overwrite the ledger's own fields. The ledger as it was
    stays beside it, the lines after such a line are linked anew, and a new last line of the ledger says so. A ledger
    that was altered (`request verify`) is not repaired.
    """
    from oblivionis.erasure.ledger_repair import repair as mend
    from oblivionis.runs.directory import RunDirectory

    run = RunDirectory.open(run_dir)
    with run.lock():
        done = mend(run.ledger_path)
    console = Console()
    if done.kept is None:
        console.print(f"{run.ledger_path}: every line makes sense; nothing was changed", markup=False, soft_wrap=True)
        return
    said = [f"{run.ledger_path}: set aside {counted(len(done.aside), 'line')}, kept in {done.kept}"]
    said += [f"  line {number}: {why}" for number, why in done.aside.items()]
    said += ["the lines after it are linked anew: nodes that noted hashes of these will not find them here"]
    console.print("\n".join(said), markup=False, highlight=False, soft_wrap=True)


def _ledger(checked: Checked, faults: list[str], untested: str) -> dict[str, Any]:
    lines = {"path": checked.path, "lines": len(checked.entries), "head": checked.head}
    return {**lines, "faults": faults, "untested": untested, "remarks": checked.remarks}


def _row(request: NodeRequest) -> list[str]:
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(request.time))
    return [request.id, made, request.forgets, request.progress, request.reason]
