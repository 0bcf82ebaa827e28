"""What a run's account of differential privacy says, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oblivionis.reports.format import counted
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.privacy import LINEAGES, read_account

UNITS = {"client": "all that one client holds", "record": "a single record"}


def sentences(run: RunDirectory) -> list[str]:
    """A line for each lineage of models, the unlearned one's first; none without differential privacy."""
    account = read_account(run)
    if account is None:
        return []
    lines = []
    for name, spent in account["lineages"].items():
        exchanges = spent["unlearning_exchanges"]
        of = f", of which {counted(exchanges, 'exchange')} of unlearning" if exchanges else ""
        which = "" if name == LINEAGES["unlearn"] else f" ({name})"
        lines.append(
            f"Differential privacy{which}: {account['level']} level, ε = {spent['epsilon']:.4g} at δ = "
            f"{account['delta']:.2g}, {counted(spent['releases'], 'release')}{of}"
        )
        known = spent["epsilon_if_drawing_is_known"]
        if account["level"] == "client" and known > spent["epsilon"] * 1.0001:
            lines[-1] += f"; ε = {known:.4g} for who knows which clients were drawn"
    if account.get("noise") != "secret" and lines:
        lines.append("The noise came from the run's seed, as simulations have it: who knows the seed can take it away.")
    return lines


def of_request(run: RunDirectory, request_id: str) -> dict[str, Any] | None:
    """What a certificate states of the privacy that its request cost; None without differential privacy."""
    account = read_account(run)
    if account is None:
        return None
    spent = account["lineages"].get(LINEAGES["unlearn"], {})
    served = next((r for r in reversed(account["requests"]) if r["id"] == request_id), {})
    known = {"epsilon for who knows who was drawn": spent.get("epsilon_if_drawing_is_known")}
    return {
        "level": account["level"],
        "delta": account["delta"],
        "epsilon before the request": served.get("epsilon_before"),
        "epsilon after its exchange": served.get("epsilon_after"),
        "epsilon of the final model": spent.get("epsilon"),
        **(known if account["level"] == "client" else {}),
        "noise": account.get("noise", ""),
    }


def certified(privacy: Mapping[str, Any]) -> str:
    """The sentence of a certificate."""
    before, after = privacy["epsilon before the request"], privacy["epsilon after its exchange"]
    cost = "" if before is None else f" The exchange that served the request raised ε from {before:.4g} to {after:.4g}."
    known = privacy.get("epsilon for who knows who was drawn")
    more = "" if known is None else f"; who knows which clients took part, as this page tells, at most ε = {known:.4g}"
    return (
        f"Whoever sees the final model learns of {UNITS[privacy['level']]} no more than ε = "
        f"{privacy['epsilon of the final model']:.4g} at δ = {privacy['delta']:.2g} allows (differential privacy, "
        f"{privacy['level']} level){more}.{cost} What was released before stays released: forgetting takes none of "
        "its ε back."
    )
