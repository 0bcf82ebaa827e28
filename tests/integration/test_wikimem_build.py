"""Building from Wikidata dumps: packings, faults in lines and files, interruptions, the command."""

import contextlib
import io
import itertools
import json
import random
import re
import signal
import subprocess
import sys
import time
import tracemalloc
from types import SimpleNamespace

import orjson
import pytest
from support import wikidata_dump as wd

from oblivionis.audits.wikimem_build import CHECKPOINT, SUMMARY, build
from oblivionis.cli import main as cli
from oblivionis.data.wikidata import stream as dump_stream
from oblivionis.data.wikidata.reader import Options
from oblivionis.data.wikidata.stream import Dump
from oblivionis.errors import OblivionisError, RunFailed

FILES = ("counterfactuals.json", "pairs.jsonl", "properties.json", "subjects.jsonl", SUMMARY)
SOME = Options(counterfactuals=8, min_humans=100, subjects=20)


@pytest.fixture(scope="module")
def data():
    return wd.encoded(wd.world())


@pytest.fixture(scope="module")
def dump(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("dump") / "world.json.gz"
    path.write_bytes(wd.packed(data, "gz"))
    return path


@pytest.fixture(scope="module")
def sampled(dump, tmp_path_factory):
    """The folder of a build that was not interrupted."""
    out = tmp_path_factory.mktemp("some")
    build(dump, out, SOME)
    return out


def contents(out, *, dump_differs=False):
    """The bytes of all files, the summary without what names the file of the dump where that differs."""
    assert sorted(path.name for path in out.iterdir()) == sorted(FILES)
    found = {name: (out / name).read_bytes() for name in FILES}
    if dump_differs:
        found["summary.json"] = {k: v for k, v in json.loads(found["summary.json"]).items() if k != "dump"}
    return found


# -- formats -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("format", "members"), [("json", 1), ("gz", 1), ("gz", 7), ("bz2", 1), ("bz2", 9)])
def test_every_packing_gives_the_same(data, sampled, tmp_path, format, members):
    path = tmp_path / "any.name"
    path.write_bytes(wd.packed(data, format, members) + (b"\0" * 512 if format == "gz" else b""))
    build(path, tmp_path / "out", SOME)
    assert contents(tmp_path / "out", dump_differs=True) == contents(sampled, dump_differs=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: data.replace(b",\n", b"\n"),
        lambda data: data.replace(b"[\n{", b"[{", 1).removesuffix(b"\n]\n") + b"]",
        lambda data: data.replace(b"\n{", b"\n\n  {"),
        lambda data: data.rstrip(),
    ],
    ids=["crlf", "json-lines", "brackets-on-lines", "blanks", "no-last-newline"],
)
def test_white_space_commas_and_brackets_do_not_matter(data, sampled, tmp_path, change):
    path = tmp_path / "d.json"
    path.write_bytes(change(data))
    build(path, tmp_path / "out", SOME)
    assert contents(tmp_path / "out", dump_differs=True) == contents(sampled, dump_differs=True)


def test_spaces_between_tokens_and_parsing_every_line_change_nothing(sampled, tmp_path):
    path = tmp_path / "d.json"
    path.write_bytes(wd.encoded(wd.world(), compact=False))
    build(path, tmp_path / "spaced", SOME)
    build(path, tmp_path / "all", Options(counterfactuals=8, subjects=20, every_line=True))
    for name in FILES[:-1]:
        assert (tmp_path / "spaced" / name).read_bytes() == (sampled / name).read_bytes()
        assert (tmp_path / "all" / name).read_bytes() == (sampled / name).read_bytes()


@pytest.mark.parametrize(("format", "members"), [("json", 1), ("gz", 1), ("gz", 7), ("bz2", 9)])
def test_lines_go_on_from_every_position(tmp_path, monkeypatch, format, members):
    monkeypatch.setattr(dump_stream, "CHUNK", 64)
    monkeypatch.setattr(dump_stream, "BLOCK", 100)
    rng = random.Random(0)
    lines = [b"x" * rng.choice((0, 1, 10, 63, 64, 65, 300)) + b"%d" % i for i in range(30)]
    path = tmp_path / "lines"
    path.write_bytes(wd.packed(b"\n".join(lines), format, members))
    batches = list(Dump.open(path).batches())
    assert [line for batch in batches for line in batch.lines] == lines
    assert [batch.unterminated for batch in batches] == [False] * (len(batches) - 1) + [True]
    for end in {batch.end for batch in batches}:
        assert end.offset == min(len(b"\n".join(lines)), sum(len(line) + 1 for line in lines[: end.line]))
        rest = list(Dump.open(path).batches(end))
        assert [line for batch in rest for line in batch.lines] == lines[end.line :]
        assert not rest or rest[-1].end == batches[-1].end


def test_a_bzip2_file_of_many_members_is_entered_near_the_position(tmp_path, monkeypatch):
    monkeypatch.setattr(dump_stream, "CHUNK", 1000)
    path = tmp_path / "many"
    path.write_bytes(wd.packed(b"line\n" * 10_000, "bz2", 50))
    half = next(batch.end for batch in Dump.open(path).batches() if batch.end.line >= 5000)
    skipped = sum(not batch.lines for batch in Dump.open(path).batches(half))
    assert half.member_offset > 20_000 and skipped <= 1


# -- faulty lines ------------------------------------------------------------------------------------------------------

FAULTS = {
    "not_json": b'{"type":"item","id":"Q7","claims":{"P31":,',
    "not_utf8": b'{"type":"item","id":"Q7","labels":{"en":{"language":"en","value":"\xff\xfe"}}},',
    "not_object": b'["Q5", 3],',
    "no_id": b'{"type":"item","labels":{},"claims":{}},',
    "odd_structure": b'{"type":"item","id":"Q7","claims":{"P31":{"id":"Q5"}}},',
}


def with_faults(data, *faults):
    """`data` with these lines after the third."""
    lines = data.split(b"\n")
    return b"\n".join(lines[:3] + list(faults) + lines[3:])


@pytest.mark.parametrize("kind", FAULTS)
def test_faulty_lines_are_counted_with_their_numbers(data, sampled, tmp_path, kind):
    path = tmp_path / "d.json"
    path.write_bytes(with_faults(data, FAULTS[kind], b"", FAULTS[kind]))
    summary = build(path, tmp_path / "out", SOME)
    assert summary["rejected"] == {kind: {"lines": 2, "first": [4, 6]}}
    for name in FILES[:-1]:
        assert (tmp_path / "out" / name).read_bytes() == (sampled / name).read_bytes()


def test_only_the_first_numbers_are_kept(data, tmp_path):
    path = tmp_path / "d.json"
    path.write_bytes(with_faults(data, *[b"oops"] * 40))
    assert build(path, tmp_path / "out", SOME)["rejected"] == {"not_json": {"lines": 40, "first": [4, 5, 6, 7, 8]}}


def test_a_fault_inside_a_line_about_no_human_is_found_where_every_line_is_parsed(data, tmp_path):
    path = tmp_path / "d.json"
    path.write_bytes(with_faults(data, b'{"type":"item","id":"Q7","claims":{"P31":,}},'))
    assert build(path, tmp_path / "quick", SOME)["rejected"] == {}
    summary = build(path, tmp_path / "all", Options(counterfactuals=8, subjects=20, every_line=True))
    assert summary["rejected"] == {"not_json": {"lines": 1, "first": [4]}}


def test_a_last_line_that_is_cut_off_is_counted(data, tmp_path):
    path = tmp_path / "d.json"
    path.write_bytes(data[: data.rindex(b"{") + 5])
    summary = build(path, tmp_path / "out", SOME)
    assert summary["rejected"] == {"cut_off": {"lines": 1, "first": [data.count(b"\n") - 1]}}
    assert not summary["closed"]


def test_a_line_that_is_too_long_is_counted_and_not_kept(data, tmp_path, monkeypatch):
    monkeypatch.setattr(dump_stream, "CHUNK", 1 << 14)
    monkeypatch.setattr(dump_stream, "MAX_LINE", 1 << 16)
    path = tmp_path / "d.json"
    path.write_bytes(with_faults(data, b'{"id":"Q7","x":"' + b"x" * (1 << 18) + b'"},'))
    summary = build(path, tmp_path / "out", SOME)
    assert summary["rejected"] == {"too_long": {"lines": 1, "first": [4]}}
    assert summary["humans"] > 0


# -- faulty files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("format", "members"), [("gz", 1), ("gz", 4), ("bz2", 1), ("bz2", 6)])
def test_a_dump_that_is_cut_off_goes_on_where_the_rest_has_come(data, sampled, tmp_path, format, members):
    whole, path, out = wd.packed(data, format, members), tmp_path / "d", tmp_path / "out"
    path.write_bytes(whole[: len(whole) * 2 // 3])
    with pytest.raises(RunFailed, match=r"cut off.*fetch the rest of it\n.*--resume"):
        build(path, out, SOME)
    position = json.loads((out / CHECKPOINT).read_text())["position"]
    assert 0 < position[1] < len(data) and data[: position[1]].count(b"\n") == position[0]
    with pytest.raises(RunFailed, match="cut off"):
        build(path, out, SOME, resume=True)
    path.write_bytes(whole)
    build(path, out, SOME, resume=True)
    assert contents(out, dump_differs=True) == contents(sampled, dump_differs=True)


@pytest.mark.parametrize("format", ["gz", "bz2"])
def test_a_damaged_dump_keeps_the_checkpoint(data, tmp_path, format):
    packed = bytearray(wd.packed(data, format, 5))
    middle = len(packed) * 3 // 5
    packed[middle : middle + 50] = bytes(50)
    (tmp_path / "d").write_bytes(packed)
    with pytest.raises(RunFailed, match=f"damaged: its {'gzip' if format == 'gz' else 'bzip2'} data cannot be"):
        build(tmp_path / "d", tmp_path / "out", SOME)
    saved = json.loads((tmp_path / "out" / CHECKPOINT).read_text())
    assert saved["survey"]["counts"]["entities"] > 100
    assert list((tmp_path / "out").iterdir()) == [tmp_path / "out" / CHECKPOINT]


def test_a_dump_that_is_shorter_than_the_checkpoint_says_is_refused(data, tmp_path):
    for packing in ("json", "gz"):
        path, out = tmp_path / packing, tmp_path / f"out-{packing}"
        path.write_bytes(wd.packed(data, packing, 3))
        stop_at(4, path, out, small=True)
        saved = json.loads((out / CHECKPOINT).read_text())
        saved["position"][1] = 10**12
        (out / CHECKPOINT).write_text(json.dumps(saved))
        with pytest.raises(RunFailed, match="bytes of JSON; expected more than 1000000000000"):
            build(path, out, SOME, resume=True)


@pytest.mark.parametrize("lines", [20, 5000])
def test_another_kind_of_file_is_refused(tmp_path, lines):
    (tmp_path / "d").write_bytes(b"<http://a> <http://b> <http://c> .\n" * lines)
    with pytest.raises(OblivionisError, match="this is no Wikidata JSON dump"):
        build(tmp_path / "d", tmp_path / "out", SOME)
    assert list((tmp_path / "out").iterdir()) == []


def test_a_dump_without_people_is_refused(tmp_path):
    (tmp_path / "d").write_bytes(wd.encoded([wd.entity("Q7", label="x")]))
    with pytest.raises(OblivionisError, match=re.escape("none of the 1 entities is a human (P31 = Q5)")):
        build(tmp_path / "d", tmp_path / "out", SOME)


def test_memory_does_not_grow_with_the_dump(tmp_path):
    thing = orjson.dumps(wd.entity("Q7", wd.statement(wd.string("P742", "x" * 3000)), label="thing")) + b",\n"
    people = [wd.human(f"Q{100 + i}", wd.statement(wd.string("P742", f"{i}")), label=f"Ada {i}") for i in range(300)]
    path = tmp_path / "d.gz"
    path.write_bytes(wd.packed(b"[\n" + thing * 12_000 + wd.encoded(people)[2:], "gz"))  # 40 MB of JSON
    tracemalloc.start()
    try:
        build(path, tmp_path / "out", Options(min_humans=1, counterfactuals=5))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 12e6


# -- interruptions -----------------------------------------------------------------------------------------------------


class Stopped(Exception):
    pass


def stop_at(moment, dump, out, *, small=False, **more):
    """Build until the `moment`-th batch and fail there; whether it came so far."""
    calls = itertools.count(1)

    def listen(_):
        if next(calls) == moment:
            raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        if small:
            patch.setattr(dump_stream, "CHUNK", 1 << 18)
        try:
            build(dump, out, SOME, every=0, listen=listen, **more)
        except Stopped:
            return True
    return False


@pytest.mark.parametrize("packing", [("gz", 1), ("bz2", 12), ("json", 1)])
def test_interrupted_anywhere_the_result_is_the_same(data, sampled, tmp_path, monkeypatch, packing):
    monkeypatch.setattr(dump_stream, "CHUNK", 1 << 18)
    path, stages = tmp_path / "d", []
    path.write_bytes(wd.packed(data, *packing))
    build(path, tmp_path / "whole", SOME, listen=lambda moment: stages.append(moment.stage))
    people, batches = stages.count("people"), len(stages)
    assert people > 10 and batches > people
    for moment in (1, 2, people // 2, people, people + 1, batches):
        out = tmp_path / f"out{moment}"
        assert stop_at(moment, path, out)
        assert json.loads((out / CHECKPOINT).read_text())["stage"] == stages[moment - 1]
        (out / ".properties.json.0123.tmp").write_text("{")
        build(path, out, SOME, resume=True)
        assert contents(out, dump_differs=True) == contents(sampled, dump_differs=True)


def test_interrupted_again_and_again_the_result_is_the_same(dump, sampled, tmp_path):
    out, moments = tmp_path / "out", itertools.count(4, 6)
    stops = [stop_at(next(moments), dump, out, small=True)]
    while stops[-1]:
        stops.append(stop_at(next(moments), dump, out, small=True, resume=True))
    assert len(stops) >= 4
    assert contents(out) == contents(sampled)


def position_of(out):
    """Where the checkpoint of a build is, None without one."""
    path = out / CHECKPOINT
    return tuple(json.loads(path.read_text())["position"]) if path.exists() else None


@pytest.mark.slow
def test_killed_at_any_time_the_result_is_the_same(tmp_path):
    path, out = tmp_path / "d.json.gz", tmp_path / "out"
    path.write_bytes(wd.packed(wd.encoded(wd.world(40_000, seed=3)), "gz", 30))
    command = [
        sys.executable,
        "-m",
        "oblivionis.cli.main",
        "wikimem",
        "build",
        "--dump",
        path,
        "--out",
        out,
        "--resume",
    ]
    command += ["--checkpoint-every", "0", "--counterfactuals", "20"]
    places = {None}
    for kills in range(1, 6):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while process.poll() is None and position_of(out) in places and time.monotonic() < deadline:
            pass
        time.sleep(0.02 * kills)
        process.kill()
        if process.wait() == 0:  # on a busy machine the last kill can come too late
            break
        places.add(position_of(out))
    else:
        process = subprocess.run(command, stdout=subprocess.DEVNULL)
    assert len(places) >= 4 and process.returncode == 0
    build(path, tmp_path / "whole", Options(counterfactuals=20))
    assert contents(out) == contents(tmp_path / "whole")


@pytest.mark.slow
def test_ctrl_c_says_how_to_continue(tmp_path):
    path, out = tmp_path / "d.json.gz", tmp_path / "out"
    path.write_bytes(wd.packed(wd.encoded(wd.world(25_000, seed=3)), "gz"))
    command = [sys.executable, "-m", "oblivionis.cli.main", "wikimem", "build", "--dump", path, "--out", out]
    process = subprocess.Popen([*command, "--checkpoint-every", "0"], stderr=subprocess.PIPE, text=True)
    while not out.joinpath(CHECKPOINT).exists():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    message = process.communicate()[1]
    assert process.returncode == 130
    assert "--resume" in message and "Traceback" not in message
    assert subprocess.run([*command, "--resume"], stdout=subprocess.DEVNULL).returncode == 0


# -- the command -------------------------------------------------------------------------------------------------------


def call(*arguments):
    """Exit code, standard output and standard error of `oblivionis wikimem build ARGUMENTS`."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["oblivionis", "wikimem", "build", *map(str, arguments)])
        patch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as stop:
            cli.main()
    return SimpleNamespace(code=stop.value.code or 0, out=out.getvalue(), err=err.getvalue())


def test_the_command_builds_and_says_what_it_found(data, dump, sampled, tmp_path):
    options = ["--counterfactuals", 8, "--subjects", 20, "--min-humans", 100, "--checkpoint-every", 0]
    result = call("--dump", dump, "--out", tmp_path / "out", *options)
    assert result.code == 0, result.err
    assert contents(tmp_path / "out") == contents(sampled)
    assert f"{len(wd.Naive(data).humans):,} humans\nrejected lines: 0\n" in result.out
    assert "subjects: 10 well-known, 10 lesser-known" in result.out
    assert re.search(r"people: \d+ of \d+ MB, [\d,]+ humans, 0 rejected lines", result.out)


def test_the_command_warns_of_a_dump_without_end(data, tmp_path):
    (tmp_path / "d").write_bytes(data.removesuffix(b"]\n") + b"oops\n")
    result = call("--dump", tmp_path / "d", "--out", tmp_path / "out")
    assert result.code == 0
    assert "rejected lines: 1; not JSON: 1" in result.out and "it may be cut off" in result.out


@pytest.mark.parametrize(
    ("make", "options", "code", "message"),
    [
        (None, [], 2, "file not found; expected a Wikidata JSON dump (.json.gz, .json.bz2, .json)"),
        (lambda d: d.mkdir(), [], 2, "cannot be read (Is a directory)"),
        (lambda d: d.write_bytes(b""), [], 2, "is empty; expected a Wikidata JSON dump"),
        (lambda d: d.write_bytes(b"\xfd7zXZ\0abc"), [], 2, "packed with xz; expected gzip, bzip2 or plain JSON"),
        (lambda d: d.write_bytes(b"PK\x03\x04abc"), [], 2, "packed with zip; expected gzip, bzip2 or plain JSON"),
        (lambda d: d.write_bytes(b"hello\n" * 9), [], 2, "this is no Wikidata JSON dump: none of its lines"),
        (lambda d: d.write_bytes(b"\x1f\x8bnonsense"), [], 1, "is damaged: its gzip data cannot be decompressed"),
        (None, ["--min-humans", 0], 2, "min-humans"),
        (None, ["--well-known", 3], 2, "well_known is 3; expected more than lesser_known, 3"),
        (None, ["--lesser-known", 0], 2, "lesser_known is 0; expected at least 1"),
        (None, ["--language", "English"], 2, "language is 'English'; expected a code of Wikidata"),
    ],
)
def test_mistakes_are_one_message(tmp_path, make, options, code, message):
    if make is not None:
        make(tmp_path / "d")
    result = call("--dump", tmp_path / "d", "--out", tmp_path / "out", *options)
    assert result.code == code
    assert message in result.err and "Traceback" not in result.err


def test_a_folder_with_something_in_it_is_refused(dump, tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    for options in ([], ["--resume"]):
        result = call("--dump", dump, "--out", tmp_path, *options)
        assert result.code == 2 and "is not an empty folder; choose another --out" in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_folder_that_cannot_be_written_is_named(dump, tmp_path):
    (tmp_path / "file").write_text("")
    result = call("--dump", dump, "--out", tmp_path / "file" / "out")
    assert result.code == 1 and "cannot be written (Not a directory)" in result.err and "Traceback" not in result.err


def test_a_checkpoint_must_fit(data, dump, tmp_path):
    out = tmp_path / "out"
    assert stop_at(5, dump, out, small=True)
    before = (out / CHECKPOINT).read_bytes()
    other = tmp_path / "other.gz"
    other.write_bytes(wd.packed(wd.encoded(wd.world(50, seed=9)), "gz"))
    same = ["--out", out, "--counterfactuals", 8, "--subjects", 20]
    for arguments, message in (
        (["--dump", dump, *same], "continue the build in it with --resume"),
        (["--dump", dump, *same, "--resume", "--seed", 7], "was begun with --seed 0, not 7"),
        (["--dump", other, *same, "--resume"], "belongs to another dump"),
        (["--dump", tmp_path / "gone", *same, "--resume"], "file not found"),
    ):
        result = call(*arguments)
        assert result.code == 2 and message in result.err, result.err
        assert (out / CHECKPOINT).read_bytes() == before
    (out / CHECKPOINT).write_text("{")
    assert "cannot be read" in call("--dump", dump, *same, "--resume").err


def test_a_finished_build_cannot_be_continued(dump, sampled):
    before = contents(sampled)
    result = call("--dump", dump, "--out", sampled, "--resume")
    assert result.code == 2 and "is finished; there is nothing to continue" in result.err
    assert contents(sampled) == before
