"""The commands `audit exchange` and `audit training`: spot checks of what clients sent."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from oblivionis.cli import audit_exit_codes
from oblivionis.cli.arguments import AllowCode
from oblivionis.cli.as_json import Answer, AsJson, answering

if TYPE_CHECKING:
    from collections.abc import Sequence

    from oblivionis.audits.replay import Finding

Run = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, or a copy.")]
NodeDirs = Annotated[
    list[Path] | None,
    typer.Option(
        "--node-dir",
        metavar="DIR",
        help="Folder of a client that was served then, or a copy; repeatable (default: those of a simulated run).",
    ),
]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override, e.g. model.device=cpu.")
]
Pieces = Annotated[
    int | None,
    typer.Option(min=1, help="Of an exact erasure hold only so many stored rounds again, drawn at random."),
]


def audit_exchange(
    run: Run,
    request: Annotated[str, typer.Argument(metavar="REQUEST", help="Id of a served request.")],
    round_: Annotated[
        int | None,
        typer.Option("--round", min=1, help="A later round in which its client looked at it again: that exchange."),
    ] = None,
    node_dir: NodeDirs = None,
    allow_code: AllowCode = None,
    set_: Overrides = None,
    pieces: Pieces = None,
    as_json: AsJson = False,
) -> None:
    """Compute the exchange that served a request again, and compare with the ledgers.

    Of an exact erasure all rounds that led to the present model are held again, without the records of any request.

    The model must come out equal to the last bit, and so must what the client told of it; the run must be as its
    ledger sealed it, and its configuration the one that both ledgers name. No code of the run is executed without
    --allow-code. Exit code 0 only where all of that was tested and is equal, 1 if anything differs, 3 if something
    could not be tested.
    """
    from oblivionis.audits.exchange_replay import replay_exchange

    with answering(as_json) as answer:
        found = replay_exchange(
            run, request, node_dir or (), set_ or (), server_round=round_, code=allow_code, pieces=pieces
        )
        _tell(run, found, answer if as_json else None)


def audit_training(
    run: Run,
    client: Annotated[int, typer.Option(min=0, help="Partition id of the client.")],
    round_: Annotated[int, typer.Option("--round", min=1, help="Round in which it trained.")],
    stage: Annotated[str, typer.Option(help="finetune or unlearn.")] = "unlearn",
    node_dir: Annotated[
        Path | None, typer.Option("--node-dir", metavar="DIR", help="Folder of the client, or a copy.")
    ] = None,
    set_: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Train a client again as in a round, without what it must withhold, and compare.

    The run must keep the clients' updates of the round: unlearning.updates.keep. Exit codes as of `audit exchange`.
    """
    from oblivionis.audits.exchange_replay import replay_training

    with answering(as_json) as answer:
        _tell(run, replay_training(run, client, round_, node_dir, stage, set_ or ()), answer if as_json else None)


def _tell(run: Path, findings: list[Finding], answer: Answer | None) -> None:
    from oblivionis.audits.replay import machine_remarks

    remarks = machine_remarks(run) if _outcomes(findings)[0] else []
    if answer is not None:
        answer({**as_answer(findings), "machine": remarks})
    else:
        lines = finding_lines(findings)
        if remarks:
            lines.append(f"this machine may compute other last bits than the run's: {'; '.join(remarks)}")
        Console().print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
    end_with(findings)


def as_answer(findings: Sequence[Finding]) -> dict[str, object]:
    """What a replay found, as JSON values."""
    differs, untested = _outcomes(findings)
    return {"findings": findings, "differs": differs, "untested": untested}


def _outcomes(findings: Sequence[Finding]) -> tuple[bool, bool]:
    """Whether anything differs, and whether something could not be tested."""
    from oblivionis.audits.replay import DIFFERS, EQUAL

    return any(f.outcome == DIFFERS for f in findings), any(f.outcome not in (DIFFERS, EQUAL) for f in findings)


def finding_lines(findings: Sequence[Finding]) -> list[str]:
    """A line for each finding of a replay."""
    return [f"{f.what}: {f.outcome}{f' ({f.why})' if f.why else ''}" for f in findings]


def end_with(findings: Sequence[Finding]) -> None:
    """End the command by what a replay found; see `audit_exit_codes.end`."""
    differs, untested = _outcomes(findings)
    audit_exit_codes.end(differs=differs, untested=untested)
