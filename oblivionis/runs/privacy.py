"""The account of a run's privacy: every noised release is a line of its ledger, and what they add up to is computed.

`privacy.json` says the same for people, and is not read where the ledger has the releases. Those of the stages finetune
and unlearn are about one model, which passes from one to the other: a lineage. That of retrain has its own. Whoever is
given the models of both adds the two up.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from oblivionis.config.schema import Config
from oblivionis.errors import RunError
from oblivionis.files import read_json, write_json
from oblivionis.runs import artifact_binding
from oblivionis.runs.directory import RunDirectory
from oblivionis.runs.epsilon import Event, Events, added, calibrated, epsilon, unsampled
from oblivionis.runs.file_schemas import PrivacyAccount
from oblivionis.runs.ledger_run_events import ACCOUNT, BEGUN, COST, RELEASE, ROLLED_BACK
from strategies.privacy.private_mean import Release

FILE = "privacy.json"
LINEAGES = {"finetune": "finetune and unlearn", "unlearn": "finetune and unlearn", "retrain": "retrain"}
RELATIONS = {
    "client": "all that one client holds is replaced by anything else",
    "record": "one record of one client is added or removed",
}
SECRET = "secret"
Steps = Mapping[int, tuple[float, int]]
"""Record level, by client: with which probability each record takes part in a step, and how many steps there are."""


class Account:
    """The account of one run, by the lines of its ledger. Each release is a line before it is used, so that none is
    lost; ε never goes down.

    Noise from the run's seed is repeatable: a round that is done again releases what it released before, and counts
    once. Secret noise is new every time: then both count.
    """

    def __init__(self, run: RunDirectory, lines: Sequence[Mapping[str, Any]]) -> None:
        """`lines`: of the ledger, the first of them `ACCOUNT`."""
        self._run, self._facts = run, dict(lines[0]["account"])
        self._releases: list[dict[str, Any]] = list(lines[0]["earlier"])
        self._costs: list[tuple[str, int, int]] = []
        for line in lines[1:]:
            self._read(line)

    def _read(self, line: Mapping[str, Any]) -> None:
        """Take up a line."""
        if line["event"] == RELEASE:
            self._releases.append(dict(line["release"]))
        elif line["event"] == COST:
            self._costs += [(request, line["round"], line["place"]) for request in line["requests"]]
        elif line["event"] == ROLLED_BACK:
            if self._facts["noise"] != SECRET:
                self._releases = [r for r in self._releases if not _later(r, line["stage"], line["round"])]
            if line["stage"] == "unlearn":
                self._costs = [cost for cost in self._costs if cost[1] <= line["round"]]

    def _note(self, event: str, **said: Any) -> None:
        self._run.note(event, **said)
        self._read({"event": event, **said})

    @property
    def level(self) -> str:
        """`client` or `record`."""
        return self._facts["level"]

    @property
    def delta(self) -> float:
        """δ at which ε is stated."""
        return self._facts["delta"]

    @property
    def noise_multiplier(self) -> float:
        """Deviation of the noise on a sum, in clipping norms."""
        return self._facts["noise_multiplier"]

    @property
    def sentence(self) -> str:
        """What a run's reader should know of the account before the run."""
        facts = self._facts
        target = facts["target_epsilon"]
        aim = f"ε within {target:g}" if target is not None else "ε as the table says"
        noise = f"noise multiplier {facts['noise_multiplier']:.4g}, clipping norm {facts['clipping_norm']:g}"
        secret = "" if facts["noise"] == SECRET else "; simulated: the noise comes from the run's seed"
        return f"differential privacy: {self.level} level, {aim} at δ = {self.delta:.2g}, {noise}{secret}"

    def spent(self, stage: str) -> float:
        """ε of all releases of the lineage of `stage` so far; of the client whose records lose most."""
        return self._epsilon(self._releases, stage)

    def release(self, stage: str, release: Release) -> None:
        """Enter a release of the server. Raises RunError where it would exceed the target ε."""
        exchange = {"round": release.server_round, "kind": release.kind, "clipping_norm": release.clipping_norm}
        drawn = {"clients": release.clients, "population": release.population}
        self._enter({"stage": stage, **exchange, "noise_multiplier": release.noise_multiplier, **drawn})

    def local(self, stage: str, server_round: int, kind: str, clipping_norm: float, steps: Steps) -> None:
        """Enter an exchange in which clients train with DP-SGD, `steps` by client. Raises as `release`."""
        exchange = {"stage": stage, "round": server_round, "kind": kind, "clipping_norm": clipping_norm}
        parts = {str(client): {"rate": rate, "steps": count} for client, (rate, count) in sorted(steps.items())}
        self._enter({**exchange, "noise_multiplier": self.noise_multiplier, "of_clients": parts})

    def served(self, requests: Collection[str], server_round: int) -> None:
        """Note the ε before and after the exchange that served `requests`: forgetting gives nothing back."""
        exchange = ("unlearn", server_round, False)
        places = [n for n, r in enumerate(self._releases) if (r["kind"], r["round"], "from" in r) == exchange]
        if requests and places:
            self._note(COST, requests=sorted(requests), round=server_round, place=places[-1])
            self.write()

    def roll_back(self, stage: str, server_round: int) -> None:
        """The stage goes on after `round`: what it released later will be released again, if the noise is the same."""
        if any(_later(release, stage, server_round) for release in self._releases):
            self._note(ROLLED_BACK, stage=stage, round=server_round)
        self.write()

    def _enter(self, release: dict[str, Any]) -> None:
        stage, target = release["stage"], self._facts["target_epsilon"]
        spent = self._epsilon([*self._releases, release], stage)
        if target is not None and spent > target * (1 + 1e-9):
            raise RunError(
                f"privacy.epsilon={target:g} is used up: the {release['kind']} exchange of round {release['round']} "
                f"would make it {spent:.4g}, more than was planned for. The model stays as it was; a run with a larger "
                "privacy.epsilon can start from it (start_from)"
            )
        self._note(RELEASE, release={**release, "epsilon": spent})
        self.write()

    def _epsilon(self, releases: Sequence[Mapping[str, Any]], stage: str) -> float:
        return max((epsilon(events, self.delta) for events in _accounts(releases, stage)), default=0.0)

    def write(self) -> None:
        """Write `privacy.json`, for people."""
        write_json(self._run.path / FILE, self.document())

    def document(self) -> dict[str, Any]:
        """What `privacy.json` says."""
        lineages = {}
        for name in dict.fromkeys(LINEAGES[r["stage"]] for r in self._releases):
            stage = next(s for s, lineage in LINEAGES.items() if lineage == name)
            releases = [r for r in self._releases if LINEAGES[r["stage"]] == name]
            accounts = list(_accounts(self._releases, stage))
            lineages[name] = {
                "epsilon": self.spent(stage),
                "epsilon_if_drawing_is_known": max((unsampled(e, self.delta) for e in accounts), default=0.0),
                "releases": len(releases),
                "unlearning_exchanges": sum(r["kind"] == "unlearn" for r in releases),
            }
        return {**self._facts, "lineages": lineages, "releases": self._releases, "requests": self._costs_of_requests()}

    def _costs_of_requests(self) -> list[dict[str, Any]]:
        """The ε before and after the exchange that served each request."""
        known: dict[int, float] = {}
        for place in {place + end for *_, place in self._costs for end in (0, 1)}:
            known[place] = self._epsilon(self._releases[:place], "unlearn")
        return [
            {"id": request, "round": at, "epsilon_before": known[place], "epsilon_after": known[place + 1]}
            for request, at, place in self._costs
        ]


def _later(release: Mapping[str, Any], stage: str, server_round: int) -> bool:
    """Whether it is one of this run's own, of a later round of the stage."""
    return "from" not in release and release["stage"] == stage and release["round"] > server_round


def _accounts(releases: Sequence[Mapping[str, Any]], stage: str) -> Iterator[Events]:
    """The mechanisms behind `releases` of the lineage of `stage`: of all clients alike, or of each client's records."""
    releases = [r for r in releases if LINEAGES[r["stage"]] == LINEAGES[stage]]
    common: dict[Event, int] = {}
    of: dict[str, dict[Event, int]] = {}
    for release in releases:
        z = release["noise_multiplier"]
        if "of_clients" not in release:
            event = Event.of_clients(z, release["clients"], release["population"] or release["clients"])
            common[event] = common.get(event, 0) + 1
        for client, part in release.get("of_clients", {}).items():
            event, events = Event.of_records(z, part["rate"]), of.setdefault(client, {})
            events[event] = events.get(event, 0) + part["steps"]
    yield from ({frozenset(events.items()): events for events in of.values()}.values() if of else [common])


def read_account(run: RunDirectory) -> dict[str, Any] | None:
    """What the releases in a run's ledger add up to; None where it has no differential privacy.

    Of a run that an earlier version made, what `privacy.json` holds. FileError for a damaged file.
    """
    if (account := _of_ledger(run)) is not None:
        return account.document()
    if any(not line["over"] for line in run.lines(BEGUN)):
        return None
    try:
        return read_json(run.path / FILE, PrivacyAccount)
    except FileNotFoundError:
        return None


def _of_ledger(run: RunDirectory) -> Account | None:
    lines = run.lines(ACCOUNT, RELEASE, COST, ROLLED_BACK)
    return Account(run, lines) if lines and lines[0]["event"] == ACCOUNT else None


def rate_and_steps(records: int, batch: int, epochs: int) -> tuple[float, int]:
    """With which probability a record takes part in a step of DP-SGD, and how many steps make `epochs` passes."""
    return min(1.0, batch / max(records, 1)), epochs * math.ceil(max(records, 1) / batch)


def train_steps(config: Config, least: int, most: int) -> tuple[float, int]:
    """At most those of a client's training in one round, on `least` to `most` records: of few each takes part often,
    and many take many steps."""
    training = config.training
    batch, epochs = training.batch_size * training.gradient_accumulation, config.federation.local_epochs
    return rate_and_steps(least, batch, epochs)[0], rate_and_steps(most, batch, epochs)[1]


def unlearn_steps(config: Config, forget: int, retain: int) -> tuple[float, int]:
    """Those of a client's unlearning in one exchange; the rate is that of whichever record takes part more often."""
    unlearning, training = config.unlearning, config.training
    batch = (unlearning.batch_size or training.batch_size) * training.gradient_accumulation
    rate, steps = rate_and_steps(forget, batch, unlearning.epochs)
    return max(rate, rate_and_steps(retain, batch, 1)[0] if retain else 0.0), steps


def open_account(
    config: Config, run: RunDirectory, records: Mapping[int, tuple[int, int]], *, secret: bool
) -> Account | None:
    """The account of `run`, with the releases of a run that it starts from; None without differential privacy.

    `records`: by client how many it holds, and how many of them are to be forgotten. `secret`: the noise is no seed's.
    With a target ε the noise is calibrated to what is planned. Raises RunError where that cannot be kept.
    """
    privacy = config.privacy
    if privacy.level == "none":
        return None
    if (known := _of_ledger(run) or _of_earlier_version(run)) is not None:
        return known
    units = config.federation.clients if privacy.level == "client" else sum(count for count, _ in records.values())
    delta = privacy.delta or 1 / (10 * max(units, 1))
    before = _taken_over(run)
    multiplier = privacy.noise_multiplier
    if multiplier is None:
        assert privacy.epsilon is not None
        spent = {stage: list(_accounts(before, stage)) for stage in LINEAGES}
        try:
            multiplier = calibrated(lambda z: _planned(config, run, records, spent, z), privacy.epsilon, delta)
        except ValueError as error:
            raise RunError(f"privacy.epsilon: {error}") from None
    facts = {
        "level": privacy.level,
        "neighbours": RELATIONS[privacy.level],
        "delta": delta,
        "units": units,
        "target_epsilon": privacy.epsilon,
        "noise_multiplier": multiplier,
        "clipping": privacy.clipping,
        "clipping_norm": privacy.clipping_norm,
        "noise": SECRET
        if secret
        else "from the run's seed, so that the run can be repeated: hides nothing from who knows the seed",
    }
    return _opened(run, facts, before)


def _opened(run: RunDirectory, facts: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> Account:
    """A new account, which goes on from the releases `before`."""
    line = {"account": dict(facts), "earlier": list(before)}
    run.note(ACCOUNT, **line)
    account = Account(run, [line])
    account.write()
    return account


def _of_earlier_version(run: RunDirectory) -> Account | None:
    """The account of a run that goes on, from the file in which an earlier version kept it."""
    account = read_account(run)
    if account is None:
        return None
    facts = {name: value for name, value in account.items() if name not in ("lineages", "releases", "requests")}
    return _opened(run, facts, account["releases"])


def _taken_over(run: RunDirectory) -> list[dict[str, Any]]:
    """The releases of runs that stages come from: all of the lineage of such a stage, which are about the same records.

    RunError where such a run has no account of them, or is not as its ledger says.
    """
    found: list[dict[str, Any]] = []
    for stage in LINEAGES:
        source = (run.stage_summary(stage) or {}).get("reused_from")
        if source is None:
            continue
        theirs = read_account(artifact_binding.opened(Path(source), with_models=False))
        if theirs is None:
            raise RunError(f"start_from: {source} trained without differential privacy: no noise hides that any more")
        found += [{"from": source, **r} for r in theirs["releases"] if LINEAGES[r["stage"]] == LINEAGES[stage]]
    return found


def _planned(
    config: Config,
    run: RunDirectory,
    records: Mapping[int, tuple[int, int]],
    spent: Mapping[str, Sequence[Events]],
    multiplier: float,
) -> Iterator[Events]:
    """What the stages that are left may spend, lineage by lineage, on top of what was `spent`.

    Client level: every round, and an exchange of unlearning in each one of `unlearn`. Record level: a client that takes
    part in every round and forgets its share once; of clients alike one.
    """
    federation, requests = config.federation, config.unlearning.requests
    planned = config.privacy.stages or config.stages
    left = [s for s in planned if s in LINEAGES and run.stage_summary(s) is None]
    extra = 0 if requests.policy == "none" else requests.extra_rounds
    rounds = {s: getattr(federation.rounds, s) + (extra if s == "unlearn" else 0) for s in left}
    for lineage in dict.fromkeys(LINEAGES[s] for s in left):
        stages = [s for s in left if LINEAGES[s] == lineage]
        count = sum(rounds[s] for s in stages)
        asked = "unlearn" in stages and requests.policy != "none"
        before = spent[stages[0]] or [{}]
        if config.privacy.level == "client":
            drawn = federation.per_round
            masked = federation.secure_aggregation.enabled  # against the server itself, which knows whom it draws
            train = {Event.of_clients(multiplier, drawn, drawn if masked else federation.clients): count}
            forget = {Event.of_clients(multiplier): rounds["unlearn"] if asked else 0}
            yield from (added(part, train, forget) for part in before)
            continue
        for held, marked in sorted(set(records.values()) or {(1, 1)}):
            rate, steps = train_steps(config, held, held)
            more = train_steps(config, held - marked, held)[0]
            later = sum(rounds[s] for s in stages if s != "finetune")
            plan = added(
                {Event.of_records(multiplier, rate): steps * (count - later)},
                {Event.of_records(multiplier, more): steps * later},
            )
            if asked:
                rate, steps = unlearn_steps(config, max(marked, 1), held - marked)
                plan = added(plan, {Event.of_records(multiplier, rate): steps})
            yield from (added(part, plan) for part in before)
