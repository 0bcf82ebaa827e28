"""Each client's own records, which stay on its machine: what the server has are its own questions, if any."""

from __future__ import annotations

from oblivionis.config.schema import Data
from oblivionis.data import own_records
from oblivionis.data.records import Corpus

ORDER = 4
ABOUT = "each client's own records, which stay on its machine"
READS = ("path",)
ON_CLIENTS = True


def configured(data: Data) -> Corpus:
    """The corpus of these settings: questions, and no training record."""
    questions = {} if data.source is None else own_records.read_questions(data.source, data.fields.given())
    return Corpus("node", (), frozenset(), questions)
