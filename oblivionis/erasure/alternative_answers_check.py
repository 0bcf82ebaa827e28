"""Before a run: are there other answers to what will be asked to be forgotten, where the method learns such answers?"""

from __future__ import annotations

from pathlib import Path

from oblivionis.config import method_traits
from oblivionis.config.schema import Config
from oblivionis.data import alternative_answers, idk_answers
from oblivionis.data.errors import DataError
from oblivionis.data.records import Corpus
from oblivionis.erasure.ledger import AllAtRound, Policy, RandomClientPerRound, Schedule


def asks_alternatives(config: Config) -> bool:
    """Whether a stage unlearns by a method that learns other answers, from records that are known here."""
    unlearns = not {"unlearn", "local"}.isdisjoint(config.stages)
    return unlearns and not config.data.on_clients and method_traits.needs_alternatives(config.unlearning.method)


def check_alternatives(config: Config, corpus: Corpus, policy: Policy | None) -> None:
    """DataError where a record that will be asked for has none, by its id and place, or the sentences cannot be read.

    `policy`: who asks in the stage unlearn. What only a client can tell, it tells when it is asked.
    """
    if not asks_alternatives(config):
        return
    given = config.unlearning.alternatives
    if given.source == "idk":
        if given.idk is not None:
            idk_answers.read_sentences(Path(given.idk).expanduser())
        return
    wanted, known = _planned(config, corpus, policy), alternative_answers.perturbed_answers(corpus)
    if without := [record.id for record in corpus.train if record.id in wanted and record.id not in known]:
        raise DataError(
            alternative_answers.missing_answers(config.unlearning.method, without, corpus.places.get("train"))
        )


def _planned(config: Config, corpus: Corpus, policy: Policy | None) -> set[str]:
    """Ids of the records that may be asked for, as far as that is known beforehand."""
    found = set(corpus.forget_ids) if "local" in config.stages else set()
    if isinstance(policy, Schedule):
        found.update(i for request in policy.requests for i in request.record_ids)
    elif isinstance(policy, RandomClientPerRound | AllAtRound):
        named = policy.clients if isinstance(policy, AllAtRound) else None
        everything = policy.everything
        if everything is None:
            return found | corpus.forget_ids
        leaving = [c for c, ids in everything.items() if not corpus.forget_ids.isdisjoint(ids)]
        found.update(i for client in (leaving if named is None else named) for i in everything.get(client, ()))
    return found
