"""What of the records to forget also lies among records that stay, and so what the retrained model has seen of them.

`twins.json` of a run says it of the forget set, before any stage; `judgements.json` of each request, when the stage
unlearn ends. The ledger binds both. Sentences that take the retrained model for one that never saw the records go by
`oracle_as_text`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TypedDict

from oblivionis.data.records import Corpus
from oblivionis.data.twins import SHOWN, WORD_FOR_WORD, Twin, find_twins, twins_of
from oblivionis.erasure.request import Request
from oblivionis.erasure.verification_rules import of_twins
from oblivionis.files import json_text, read_json
from oblivionis.runs.directory import RunDirectory

FILE = "twins.json"
"""In the run, where the server has the records: how many are to be forgotten, and which twins of them stay."""
NEVER_SAW = "a model that never saw them"
_FOLLOWS = (
    "the retrained model is trained on them as well, and a request for such a record stays inconclusive; "
    "data.forget_twins=true has them forgotten, too"
)


class _Pair(TypedDict):
    forget: str
    kept: str
    how: str
    similarity: float


class _File(TypedDict):
    records: int
    twins: list[_Pair]


@dataclass(frozen=True, slots=True)
class Twins:
    """records: how many are to be forgotten; pairs: of a record to forget with one that stays and says the same."""

    records: int
    pairs: tuple[Twin, ...]

    @property
    def held(self) -> int:
        """How many of the records to forget are also held by records that stay."""
        return len({twin.forget for twin in self.pairs})

    def sentence(self) -> str:
        """The same in words with the first pairs; empty where there are none."""
        if not self.pairs:
            return ""
        count = self.held
        exact = {twin.forget for twin in self.pairs if twin.how == WORD_FOR_WORD}
        how = "word for word" if len(exact) == count else "word for word or nearly" if exact else "nearly word for word"
        first = {twin.forget: twin.kept for twin in reversed(self.pairs)}
        shown = [f"{i} = {first[i]}" for i in islice(dict.fromkeys(t.forget for t in self.pairs), SHOWN)]
        more = ", …" if count > SHOWN else ""
        records = "1 record to forget is" if count == 1 else f"{count} records to forget are"
        return f"{records} also held, {how}, by records that stay ({', '.join(shown)}{more})"

    def warning(self) -> str:
        """The sentence with what follows from it."""
        return f"{self.sentence()}: {_FOLLOWS}" if self.pairs else ""


def twins_of_corpus(corpus: Corpus) -> Twins:
    """The twins of the forget set of a corpus."""
    return Twins(len(corpus.forget_ids), tuple(twins_of(corpus)))


def note_twins(run: RunDirectory, corpus: Corpus) -> Twins:
    """Keep in the run what `twins_of_corpus` finds; a resumed run finds the same."""
    twins = twins_of_corpus(corpus)
    pairs = [{"forget": t.forget, "kept": t.kept, "how": t.how, "similarity": t.similarity} for t in twins.pairs]
    run.keep({FILE: json_text({"records": twins.records, "twins": pairs})})
    return twins


def read_twins(run: RunDirectory) -> Twins | None:
    """What was kept; None where it is not known: the records are the clients' own, or an earlier version made the run.

    FileError, with the key, for a damaged file.
    """
    try:
        content = read_json(run.path / FILE, _File)
    except FileNotFoundError:
        return None
    return Twins(content["records"], tuple(Twin(**pair) for pair in content["twins"]))


def oracle_as_text(run: RunDirectory, never: str = NEVER_SAW) -> str:
    """What a sentence may call the run's retrained model: `never` only where none of the forget set has a twin."""
    twins = read_twins(run)
    if twins is None:
        return "the retrained model"
    if not twins.pairs:
        return never
    return f"the retrained model, which was trained on twins of {twins.held} of the {twins.records} records"


def twins_of_requests(corpus: Corpus, asked: Collection[str]) -> tuple[Mapping[str, Sequence[str]], frozenset[str]]:
    """By id of the records `asked` the ids of their twins among the training records that are not asked for; and those
    that the retrained model was trained on, in these words or nearly."""
    wanted = frozenset(asked)
    twins = _among(corpus, wanted, wanted)
    if wanted == corpus.forget_ids:
        return twins, frozenset(twins)
    own = wanted & corpus.forget_ids
    return twins, wanted - own | _among(corpus, own, corpus.forget_ids).keys()


def scheduled_in_words(corpus: Corpus, requests: Sequence[Request]) -> str:
    """Which of the requests that a schedule will make name records that others hold, which nobody asks for: that is
    known before the run; empty where none does."""
    held, _ = twins_of_requests(corpus, {i for request in requests for i in request.record_ids})
    counts = {request.id: sum(i in held for i in request.record_ids) for request in requests}
    reasons = [f"{name}: {of_twins(count)}" for name, count in counts.items() if count]
    if not reasons:
        return ""
    more = f"; and {len(reasons) - SHOWN} more" if len(reasons) > SHOWN else ""
    which = "the request" if len(reasons) == 1 else "these requests"
    return f"{'; '.join(reasons[:SHOWN])}{more}, word for word or nearly: {which} cannot be verified"


def _among(corpus: Corpus, wanted: Collection[str], without: Collection[str]) -> dict[str, list[str]]:
    """By record of `wanted` its twins among the training records but `without`."""
    records = [record for record in corpus.train if record.id in wanted]
    twins: dict[str, list[str]] = {}
    for twin in find_twins(records, [record for record in corpus.train if record.id not in without]):
        twins.setdefault(twin.forget, []).append(twin.kept)
    return twins
