"""What the data are, for the terminal: who holds how much, what cannot be trained on or verified, who is in them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rich.console import Console
from rich.table import Column
from rich.table import Table as RichTable
from rich.text import Text

from oblivionis.config.schema import Config
from oblivionis.data.partition import Partition, describe
from oblivionis.data.records import Corpus
from oblivionis.data.subjects import Alike, Subject, Subjects
from oblivionis.data.twins import left_out
from oblivionis.erasure.retained_twins import twins_of_corpus
from oblivionis.erasure.verification_evidence import measurable_words
from oblivionis.erasure.verification_rules import LEAST_UNITS
from oblivionis.errors import OblivionisError
from oblivionis.models.record_lengths import too_long
from oblivionis.reports.format import counted, printable, shortened

SHOWN_CLIENTS = 40
SHOWN_RECORDS = 20


def print_data(corpus: Corpus, partition: Partition, console: Console) -> None:
    """Sizes of the corpus and of every client's share; beyond SHOWN_CLIENTS clients their spread only.

    Above them, what records say that others say as well.
    """
    facts = describe(corpus, partition)
    table = RichTable(show_header=False)
    table.add_column("what")
    table.add_column("records", justify="right")
    table.add_row("training records", f"{facts['records']:,}")
    table.add_row("  of these to forget", f"{facts['forget_records']:,} ({facts['forget_share']:.1%})")
    table.add_row("subjects", f"{facts['subjects']:,}")
    for name, questions in facts["evaluation"].items():
        table.add_row(f"questions {name.replace('_', ' ')}", f"{questions:,}")
    for name, asked in corpus.choices.items():
        table.add_row(f"multiple choice {name}", f"{len(asked):,}")
    console.print(Text(f"data {corpus.name}", style="bold"))
    for line in repeated(corpus):
        console.print(Text(line, style="yellow"), soft_wrap=True)
    console.print(table)
    shares = RichTable()
    columns = {"records": "records", "subjects": "subjects", "to forget": "forget"}
    if facts["clients"] > SHOWN_CLIENTS:
        shares.add_column("per client")
        for label in ("least", "median", "most"):
            shares.add_column(label, justify="right")
        for label, key in columns.items():
            values = [row[key] for row in facts["per_client"]]
            shares.add_row(label, str(min(values)), f"{statistics.median(values):g}", str(max(values)))
    else:
        for label in ("client", *columns):
            shares.add_column(label, justify="right")
        for row in facts["per_client"]:
            shares.add_row(str(row["client"]), *(str(row[key] or "·") for key in columns.values()))
    title = f"{counted(facts['clients'], 'client')}, {facts['clients_with_forget']} of them with records to forget"
    console.print(Text(title, style="bold"), shares, sep="\n")


def print_unfit(corpus: Corpus, config: Config, console: Console) -> None:
    """Print `unfit`."""
    for line in unfit(corpus, config):
        console.print(Text(line), soft_wrap=True)


def unfit(corpus: Corpus, config: Config) -> list[str]:
    """What of the data cannot be trained on or verified as it is: texts too long, answers too short to be recited."""
    lines = []
    try:
        long, limit = too_long(corpus, config), config.model.max_length
    except OblivionisError as error:
        lines += [f"How long the records are in tokens is not known: {error}"]
    else:
        if long:
            what = "a run refuses them" if config.model.on_overflow == "error" else "their ends are cut off"
            lines += [f"{counted(len(long), 'text')} longer than model.max_length={limit} tokens; {what}:"]
            lines += [f"  {printable(line)}" for line in some(long)]
    short = [record.id for record in corpus.train if measurable_words(record) < LEAST_UNITS]
    if short and not corpus.is_text:
        lines += [
            f"{counted(len(short), 'record')} cannot be verified by recitation, the answer has fewer than "
            f"{LEAST_UNITS} measurable units: ids {', '.join(map(printable, some(short)))}"
        ]
    return lines


def repeated(corpus: Corpus) -> list[str]:
    """What records say that others say as well: those to forget, and those on which nobody was to train."""
    return [printable(line) for line in (twins_of_corpus(corpus).warning(), *left_out(corpus)) if line]


def some(texts: Sequence[str]) -> list[str]:
    """The first `SHOWN_RECORDS` texts, and how many more there are."""
    more = len(texts) - SHOWN_RECORDS
    return [*texts[:SHOWN_RECORDS], *([f"… and {more} more"] if more > 0 else [])]


def print_subjects(subjects: Subjects, console: Console) -> None:
    """A line per subject: how many records are about it, and which clients hold them."""
    table = RichTable("subject", Column("records", justify="right"), Column("clients", overflow="fold"), box=None)
    for subject in subjects:
        table.add_row(Text(shortened(subject.name)), str(subject.count), ", ".join(map(str, subject.records)))
    console.print(table)


def find_subject(subjects: Subjects, name: str) -> Subject:
    """The subject of that name, without a record where some are only named alike. Raises OblivionisError for one that
    no record is about."""
    subject = subjects.find(name)
    if subject is None and not subjects.alike(name):
        raise OblivionisError(f"--subject: {subjects.unknown(name)}")
    return subject or Subject(" ".join(name.split()), {})


def print_subject(subject: Subject, alike: Sequence[Alike], console: Console) -> None:
    """The records about one subject by the client that holds them, and those that are named alike."""
    table = RichTable(Column("client", justify="right"), Column("records", overflow="fold"), box=None)
    for client, record_ids in subject.records.items():
        table.add_row(str(client), Text(", ".join(record_ids)))
    spread = f"{counted(subject.count, 'record')} on {counted(len(subject.records), 'client')}"
    title = f"{shortened(subject.name)}: {spread}"
    console.print(Text(title, style="bold"), table, sep="\n")
    if not alike:
        return
    others = RichTable(Column("client", justify="right"), "record", Column("named alike", overflow="fold"), box=None)
    for record in alike:
        others.add_row(str(record.client), Text(record.record_id), Text(printable(record.how)))
    said = f"named alike: {counted(len(alike), 'record')}; a request says of each whether it is about {subject.name}"
    console.print(Text(printable(said), style="yellow"), soft_wrap=True)
    console.print(others)
