"""What an unlearning method uses, and what it does not go with, from its code files.

A loss says most of it by the names of its function's positional parameters (`clients.batch_quantities.QUANTITIES`);
literals say the rest, those that `clients.losses` and `strategies.protocols` describe. A method may be a loss, a
protocol, or both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from oblivionis.config import extension_traits


def label(method: str) -> str:
    """What people call it: of a loss of the user's own the name of its function, not the path of its file."""
    file = extension_traits.own_loss(method)
    return method if file is None else file.stem


def is_loss(method: str) -> bool:
    """Whether clients minimise a loss; otherwise the server serves requests itself."""
    return bool(_code(method).quantities)


def has_retain_choice(method: str) -> bool:
    """Whether `unlearning.retain_loss` chooses its retain term."""
    return "retain_loss" in _code(method).quantities


def with_retain_choice() -> list[str]:
    """The methods that have it, sorted."""
    return [name for name in extension_traits.names("unlearning") if has_retain_choice(name)]


def sees_forget_likelihood(method: str) -> bool:
    """Whether it asks for something that tells the likelihood of forget records: anything but their states."""
    return any(name.startswith("forget_") and not name.endswith("_states") for name in _code(method).quantities)


def sees_forget_records(method: str) -> bool:
    """Whether it asks for anything of the forget records, their questions with other answers included."""
    return any(name.startswith(("forget_", "alternative_")) for name in _code(method).quantities)


def needs_target(method: str) -> bool:
    """Whether it forgets each record up to an estimate of what a model that never saw it would make of it."""
    return "forget_target_nll" in _code(method).quantities


def ends_recitation(method: str) -> bool:
    """Whether it goes on with a record that greedy decoding still recites."""
    return "forget_recited_lead" in _code(method).quantities


def needs_alternatives(method: str) -> bool:
    """Whether it asks for other answers to the questions that are to be forgotten."""
    return any(name.startswith("alternative_") for name in _code(method).quantities)


def with_alternatives() -> list[str]:
    """The methods that do, sorted."""
    return [name for name in extension_traits.names("unlearning") if needs_alternatives(name)]


def needs_retain(method: str) -> bool:
    """Whether it cannot do without retain records."""
    code = _code(method)
    required = [name for name, optional in code.quantities.items() if not optional]
    return bool(code.literals.get("NEEDS_RETAIN")) or any(name.startswith("retain") for name in required)


def is_per_record(method: str) -> bool:
    """Whether it is a sum of terms about one record each, forget or retain."""
    return bool(_code(method).literals.get("PER_RECORD"))


def per_record() -> list[str]:
    """The methods that are, sorted."""
    return [name for name in extension_traits.names("unlearning") if is_per_record(name)]


def asks_others(method: str) -> bool:
    """Whether the other clients train in the same round as those that unlearn, and their single updates are needed."""
    return bool(_code(method).literals.get("OTHERS"))


def trains_copy(method: str) -> bool:
    """Whether its updates teach a copy the forget records, so that what they do to these says nothing of its end."""
    return "SCALED_BY" in _code(method).literals


def scale(method: str, params: Mapping[str, Any]) -> float:
    """How many times as far as its updates led it goes in the end."""
    return float(params[_code(method).literals["SCALED_BY"]]) if trains_copy(method) else 1.0


def updates(method: str) -> str | None:
    """Which rounds of clients' updates the server must keep for it: all, newest, models (of all, without), or none."""
    return _code(method).literals.get("UPDATES")


def starts_from_others(method: str) -> bool:
    """Whether its clients start from the model of those that do not ask, which the server sends them."""
    return bool(_code(method).literals.get("REFERENCE"))


def replays(method: str) -> bool:
    """Whether past rounds are held again, so that who is drawn must not depend on who has records left."""
    return bool(_code(method).literals.get("REPLAYS"))


def ball(method: str) -> str | None:
    """Which hyperparameter is the radius of a ball that its clients do not leave, None without a ball."""
    return _code(method).literals.get("BALL")


def stops_at_chance(method: str) -> bool:
    """Whether it stops where an answer is as likely as by chance, unless the configuration says where."""
    return bool(_code(method).literals.get("STOPS_AT_CHANCE"))


def not_with(method: str) -> Mapping[str, str]:
    """What it says that it does not go with: the reasons by name."""
    return _code(method).literals.get("NOT_WITH", {})


def _code(method: str) -> extension_traits.CodeFile:
    return extension_traits.code("unlearning", method)
