"""Your own records, from files in any format and shape that `oblivionis.data.own_records` reads."""

from __future__ import annotations

from pathlib import Path

from oblivionis.config.schema import Data
from oblivionis.data import own_records
from oblivionis.data.records import Corpus

NAMES = ("records", "jsonl")
ORDER = 3
ABOUT = "your own, in any format of [data.md](data.md#your-own-records) (`jsonl` is an older name of it)"
READS = ("path", "forget_file", "holdout_file", "reference_file")
REFERENCES = "reference_file"


def configured(data: Data) -> Corpus:
    """The corpus of these settings."""
    assert data.source is not None, "the configuration check demands data.path for your own records"
    files = {name: getattr(data, name) for name in READS[1:]}
    given = {name: Path(file).expanduser() for name, file in files.items() if file}
    return own_records.load(data.source, **given, fields=data.fields.given(), revision=data.revision)
