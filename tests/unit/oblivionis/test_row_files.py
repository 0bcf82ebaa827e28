"""Rows of files in every format, against what pandas, `datasets` and the standard library wrote, and every refusal."""

from __future__ import annotations

import csv
import datetime
import decimal
import gzip
import io
import json
import zipfile
from pathlib import Path

import datasets
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import feather

from oblivionis.errors import FileError
from oblivionis.row_files import count_lines, is_hub_name, need_all_parts, read_rows, row_files, shown, table, tables

ROWS = [
    {"id": "007", "question": "When, then?", "answer": "1958-05-03", "wrong": ["1990", "NA"]},
    {"id": "8", "question": "Zoë\u2028asks:\nwhat; or \t when?", "answer": "NA", "wrong": ["x", "y"]},
]


def rows_of(path: Path, **how) -> list:
    problems: list[str] = []
    found = list(read_rows(path, problems, **how))
    assert not problems, problems
    return found


def refusal(path: Path) -> str:
    problems: list[str] = []
    assert list(read_rows(path, problems)) == []
    (problem,) = problems
    return problem.replace(str(path), path.name)


def write_stream(frame: pd.DataFrame, path: Path) -> None:
    found = pa.Table.from_pandas(frame)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, found.schema) as writer:
        writer.write_table(found)


def saved(path: Path) -> None:
    datasets.Dataset.from_list(ROWS).save_to_disk(path)


TYPED = {
    "list.json": lambda p: p.write_text(json.dumps(ROWS)),
    "indented.json": lambda p: p.write_text(json.dumps(ROWS, indent=2, ensure_ascii=False), encoding="utf-8-sig"),
    "list called.jsonl": lambda p: p.write_text(json.dumps(ROWS)),
    "lines.jsonl": lambda p: p.write_text("\n".join(map(json.dumps, ROWS))),
    "lines called.json": lambda p: p.write_text("".join(json.dumps(r) + "\r\n\r\n" for r in ROWS), "utf-8-sig"),
    "lines called.csv": lambda p: p.write_text("\n".join(map(json.dumps, ROWS))),
    "of pandas.jsonl": lambda p: pd.DataFrame(ROWS).to_json(p, orient="records", lines=True),
    "of datasets.json": lambda p: datasets.Dataset.from_list(ROWS).to_json(p),
    "of pandas.parquet": lambda p: pd.DataFrame(ROWS).to_parquet(p),
    "of datasets.parquet": lambda p: datasets.Dataset.from_list(ROWS).to_parquet(p),
    "parquet called.jsonl": lambda p: pd.DataFrame(ROWS).to_parquet(p),
    "file.arrow": lambda p: pd.DataFrame(ROWS).to_feather(p),
    "compressed.feather": lambda p: pd.DataFrame(ROWS).to_feather(p, compression="zstd"),
    "stream.arrow": lambda p: write_stream(pd.DataFrame(ROWS), p),
    "folder": saved,
    "splits": lambda p: datasets.DatasetDict(
        test=datasets.Dataset.from_list([{"a": 1}]), train=datasets.Dataset.from_list(ROWS)
    ).save_to_disk(p),
}


@pytest.mark.parametrize("name", TYPED)
def test_all_formats_with_types_give_the_same_rows(tmp_path: Path, name: str) -> None:
    TYPED[name](tmp_path / name)
    found = rows_of(tmp_path / name)
    assert [dict(row.values) for row in found] == ROWS and not any(row.cells for row in found)


@pytest.mark.parametrize(("delimiter", "name"), [(",", "a.csv"), (";", "a.csv"), ("\t", "a.tsv"), ("|", "a.json")])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_csv_gives_texts_as_they_are_written(tmp_path: Path, delimiter: str, name: str, encoding: str) -> None:
    texts = [{**row, "wrong": json.dumps(row["wrong"]), "none": None} for row in ROWS]
    pd.DataFrame(texts).to_csv(tmp_path / name, sep=delimiter, encoding=encoding)
    found = rows_of(tmp_path / name)
    assert [dict(row.values) for row in found] == texts
    assert [row.value("wrong") for row in found] == [row["wrong"] for row in ROWS]
    assert [row.where for row in found] == [f"{name}:2", f"{name}:3"]


@pytest.mark.parametrize("first", ["sep=;\r\n", '"sep=;"\n', "sep=;\r"])
def test_a_line_for_excel_is_no_header(tmp_path: Path, first: str) -> None:
    (tmp_path / "a.csv").write_text(f"\ufeff{first}a;b,c\n1;x,y\n\n2;z\n", newline="")
    found = rows_of(tmp_path / "a.csv")
    assert [row.values for row in found] == [{"a": "1", "b,c": "x,y"}, {"a": "2", "b,c": "z"}]
    assert [row.where for row in found] == ["a.csv:3", "a.csv:5"]


def test_a_header_may_begin_as_other_files_do(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("ORCID,a\n0000-0002,x\n")
    assert [row.values for row in rows_of(tmp_path / "a.csv")] == [{"ORCID": "0000-0002", "a": "x"}]


def test_a_cell_holds_a_book(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"a,b\n1,{'x' * 200_000}\n")
    assert [len(row.values["b"]) for row in rows_of(tmp_path / "a.csv")] == [200_000]


def test_places_are_lines_or_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('x,y\n1,"two\nlines"\n\n,,\n'.replace(",,", ",") + "2,b\n")
    (tmp_path / "a.jsonl").write_text('{"x": 1}\n\n{"x": 2}')
    (tmp_path / "a.json").write_text('[{"x": 1},\n\n{"x": 2}]')
    datasets.DatasetDict(train=datasets.Dataset.from_list(ROWS)).save_to_disk(tmp_path / "saved")
    pd.DataFrame({"x": range(2500)}).to_parquet(tmp_path / "long.parquet")
    where = {path.name: [row.where for row in rows_of(path)] for path in row_files(tmp_path)}
    assert where["a.csv"] == ["a.csv:2", "a.csv:6"]
    assert where["a.jsonl"] == ["a.jsonl:1", "a.jsonl:3"]
    assert where["a.json"] == ["a.json row 1", "a.json row 2"]
    assert where["saved"] == ["saved/train row 1", "saved/train row 2"]
    assert where["long.parquet"][-1] == "long.parquet row 2500"
    assert rows_of(tmp_path / "a.jsonl", name="data/a.jsonl")[0].where == "data/a.jsonl:1"


@pytest.mark.parametrize("first", ['"x": 1, "y": 2}', "# by me, today"])
def test_a_first_line_that_is_no_json_makes_no_csv_of_json_lines(tmp_path: Path, first: str) -> None:
    (tmp_path / "a.jsonl").write_text(f'{first}\n{{"x": 1, "y": 2}}\n')
    problems: list[str] = []
    assert [row.values for row in read_rows(tmp_path / "a.jsonl", problems)] == [{"x": 1, "y": 2}]
    assert len(problems) == 1 and problems[0].startswith("a.jsonl:1: expected a JSON object on one line, but ")


def test_one_object_is_one_row(tmp_path: Path) -> None:
    for number, text in enumerate((json.dumps(ROWS[0]), json.dumps(ROWS[0], indent=1))):
        (tmp_path / f"{number}.json").write_text(text)
        assert [dict(row.values) for row in rows_of(tmp_path / f"{number}.json")] == [ROWS[0]]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv", "a.txt"])
@pytest.mark.parametrize("text", ["", "\n \n", "\ufeff"])
def test_an_empty_file_has_no_rows(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    assert rows_of(tmp_path / name) == []


def archive(entry: str) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as found:
        found.writestr(entry, "x")
    return data.getvalue()


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("a.json", b"[1, 2.5, true]", "a.json: a JSON list of numbers and true and false, expected a list of objects"),
        ("a.json", b'["x", null]', "a.json: a JSON list of nulls and texts, expected"),
        ("a.json", b'[{"a": 1}, 3', "a.json: cannot be read (it begins as a JSON list, but Expecting ',' delimiter at"),
        ("a.json", b'[{"a": 1},\n{"a" 2}]', "at line 2, column 6)"),
        ("a.json", b'{\n"a": 1\n}\n{\n"a": 2\n}', "a.json: cannot be read (objects that go over several lines"),
        ("a.json", b'{"q": {"0": "x"}, "a": {"0": "y"}}', "one JSON object with an object under each key"),
        ("a.jsonl", b'"text"', 'a.jsonl:1: expected a JSON object, found "text"'),
        ("a.jsonl", b"no, not JSON", "a.jsonl:1: expected a JSON object on one line, but"),
        ("a.csv", b"a,b\n1,2,3", "a.csv:2: expected a cell for each column, 2, found 3; a text with a `,` in it"),
        ("a.csv", b"a;b\n1", "a.csv:2: expected a cell for each column, 2, found 1"),
        ("a.csv", b'a,b\n"1\n2,3\n', "a.csv:2: cannot be read as CSV (unexpected end of data)"),
        ("a.csv", b"a,b,a\n1,2,3", "a.csv: the column 'a' is given twice"),
        ("a.csv", b"a,b\n1,caf\xe9\n", "a.csv:2: expected UTF-8 text, found the byte 0xE9 (Windows-1252 or Latin-1"),
        ("a.csv", "a,b\nä,b\n".encode("utf-16"), "a.csv: UTF-16 text; expected JSON lines, a JSON list, CSV"),
        ("a.csv", "a,b\n1,b\n".encode("utf-16-be"), "a.csv: UTF-16 text; expected"),
        ("a.jsonl", gzip.compress(b"{}", mtime=0), "a.jsonl: a gzip archive; expected JSON lines"),
        ("a.xlsx", archive("xl/workbook.xml"), "a.xlsx: an Excel workbook: save it as CSV (UTF-8); expected"),
        ("a.csv", archive("xl/workbook.xml"), "a.csv: an Excel workbook"),
        ("a.zip", archive("train.jsonl"), "a.zip: a zip archive; expected"),
        ("a.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "a.xls: an old Excel workbook"),
        (
            "a.jsonl",
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
            "a.jsonl: a pointer of Git LFS and not",
        ),
        ("a.csv", b"PARE" + bytes(100), "a.csv: a binary file of no known kind; expected"),
        ("a.db", b"SQLite format 3\x00...", "a.db: an SQLite database; expected"),
        ("a.jsonl", bytes(range(250)), "a.jsonl: a binary file of no known kind; expected"),
        ("a.parquet", b"a,b\n1,2", "a.parquet: cannot be read (text, and no parquet file)"),
        ("a.arrow", b"", "a.arrow: cannot be read (an empty file, and no arrow file)"),
        ("a.jsonl", b"PAR1 and no more", "a.jsonl: cannot be read (a parquet file, but"),
        ("a.arrow", b"ARROW1 and no more", "a.arrow: cannot be read (an Arrow file, but"),
        ("a.arrow", b"\xff\xff\xff\xff\x10\x00\x00\x00....", "a.arrow: cannot be read (an Arrow file, but"),
    ],
)
def test_what_cannot_be_read_is_one_line_that_says_what_it_is(
    tmp_path: Path, name: str, data: bytes, expected: str
) -> None:
    (tmp_path / name).write_bytes(data)
    found = refusal(tmp_path / name)
    assert expected in found and "\n" not in found


def test_a_column_that_parquet_has_twice_is_told(tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table([["x"], ["y"]], names=["a", "a"]), tmp_path / "a.parquet")
    assert refusal(tmp_path / "a.parquet") == "a.parquet: the column 'a' is given twice"


@pytest.mark.parametrize(
    "column",
    [
        pa.array([2**62], pa.timestamp("us")),
        pa.array([0], pa.timestamp("us", "Mars/Olympus")),
        pa.array([10**9], pa.date32()),
    ],
    ids=lambda column: str(column.type),
)
def test_a_time_beyond_those_of_python_is_told(tmp_path: Path, column: pa.Array) -> None:
    feather.write_feather(pa.table({"a": ["x"], "at": column}), str(tmp_path / "a.arrow"))
    assert "a.arrow: cannot be read (an Arrow file, but " in refusal(tmp_path / "a.arrow")
    datasets.Dataset(pa.table({"a": ["x"], "at": pa.array([2**62], pa.timestamp("us"))})).save_to_disk(tmp_path / "b")
    assert "b: cannot be read (a folder of save_to_disk, but " in refusal(tmp_path / "b")


def test_images_of_a_saved_folder_are_not_opened(tmp_path: Path) -> None:
    features = datasets.Features({"a": datasets.Value("string"), "image": datasets.Image()})
    rows = [{"a": "x", "image": {"bytes": b"no image", "path": None}}]
    datasets.Dataset.from_list(rows, features=features).save_to_disk(tmp_path / "saved")
    assert [row.values for row in rows_of(tmp_path / "saved")] == rows


def test_folders_of_save_to_disk_that_cannot_be_read(tmp_path: Path) -> None:
    datasets.DatasetDict(test=datasets.Dataset.from_list(ROWS)).save_to_disk(tmp_path / "splits")
    assert "a saved DatasetDict with test; expected train, or the path of one split" in refusal(tmp_path / "splits")
    assert len(rows_of(tmp_path / "splits" / "test")) == 2
    saved(tmp_path / "damaged")
    next((tmp_path / "damaged").glob("*.arrow")).write_bytes(b"x")
    assert "damaged: cannot be read (a folder of save_to_disk, but " in refusal(tmp_path / "damaged")


def test_other_rows_of_a_list_and_texts(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('[{"a": 1}, 3, "t"]')
    problems: list[str] = []
    assert len(list(read_rows(tmp_path / "a.json", problems))) == 1
    assert problems == ["a.json row 2: expected an object, found 3", 'a.json row 3: expected an object, found "t"']
    problems.clear()
    found = list(read_rows(tmp_path / "a.json", problems, texts=True))
    assert [row.values for row in found] == [{"a": 1}, {"text": "t"}] and len(problems) == 1


def test_the_table_of_a_folder(tmp_path: Path) -> None:
    frame = pd.DataFrame(ROWS)
    with pytest.raises(FileError, match=r"there is no file .*train\.jsonl \(or \.json, .*\)$"):
        table(tmp_path, "train")
    (tmp_path / "other.csv").write_text("a,b")
    with pytest.raises(FileError, match=r"; it holds other\.csv$"):
        table(tmp_path, "train")
    for number in (1, 0):
        frame.to_parquet(tmp_path / f"train-0000{number}-of-00002.parquet")
    assert [path.name[:11] for path in table(tmp_path, "train")] == ["train-00000", "train-00001"]
    (tmp_path / "train.csv").write_text("a,b")
    with pytest.raises(FileError, match=r"holds train\.csv and train-00000-of-00002\.parquet: expected one"):
        table(tmp_path, "train")
    saved(tmp_path / "real_authors")
    assert table(tmp_path, "real_authors") == [tmp_path / "real_authors"] == table(tmp_path / "real_authors", "train")
    assert tables(tmp_path, "world_facts") == []
    assert row_files(tmp_path) == sorted(path for path in tmp_path.iterdir())


def test_a_table_is_read_with_all_its_parts(tmp_path: Path) -> None:
    for number in (0, 1, 3):
        pd.DataFrame(ROWS).to_parquet(tmp_path / f"train-0000{number}-of-00004.parquet")
    with pytest.raises(FileError, match=r"holds 3 of 4 parts train-…-of-00004\.parquet: expected all of them$"):
        table(tmp_path, "train")
    pd.DataFrame(ROWS).to_parquet(tmp_path / "train-00002-of-00004.parquet")
    assert len(table(tmp_path, "train")) == 4
    need_all_parts([Path("patients-2-of-them.csv"), Path("a-00000-of-00001.csv"), Path("a-1.csv")])


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("owner/name", True), ("a-b/c.d_e", True), ("owner/train.jsonl", False), ("owner/name.csv", False),
        ("./name", False), ("/owner/name", False), ("name", False), ("a/b/c", False), ("~/name", False),
    ],
)  # fmt: skip
def test_a_name_of_the_hub_is_no_path_that_exists(tmp_path: Path, monkeypatch, path: str, expected: bool) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_hub_name(path) == expected
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert not is_hub_name("owner/name")


def test_only_of_json_lines_the_lines_are_counted(tmp_path: Path) -> None:
    for name in ("list.json", "indented.json", "of pandas.parquet", "lines called.json"):
        TYPED[name](tmp_path / name)
    (tmp_path / "a.csv").write_text("a,b\n1,2\n")
    pd.DataFrame(ROWS).to_json(tmp_path / "columns.json")
    found = {path.name: count_lines(path) for path in row_files(tmp_path)}
    assert found.pop("lines called.json") == 2 and set(found.values()) == {None}


def test_reading_leaves_no_copy_of_the_records(tmp_path: Path) -> None:
    cache = Path(datasets.config.HF_DATASETS_CACHE)
    before = {path for path in cache.rglob("*")} if cache.is_dir() else set()
    for name, write in TYPED.items():
        write(tmp_path / name)
    held = sorted(path for path in tmp_path.rglob("*"))
    for path in row_files(tmp_path):
        rows_of(path)
    assert sorted(path for path in tmp_path.rglob("*")) == held
    after = {path for path in cache.rglob("*")} if cache.is_dir() else set()
    assert before == after


def test_a_value_that_is_no_text_does_not_look_like_one() -> None:
    values = (decimal.Decimal("1.50"), b"a", datetime.date(2020, 1, 2))
    assert [shown(value) for value in values] == [
        "\"Decimal('1.50')\"", "\"b'a'\"", '"datetime.date(2020, 1, 2)"'
    ]  # fmt: skip
    assert shown("ä\u202e") == '"\\u00e4\\u202e"'


texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"))
columns = st.lists(texts.filter(lambda t: t == t.strip() != ""), min_size=2, max_size=4, unique=True)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), names=columns, delimiter=st.sampled_from(",;\t|"))
def test_csv_survives_a_round_trip(tmp_path: Path, data, names: list[str], delimiter: str) -> None:
    cells = st.lists(texts, min_size=len(names), max_size=len(names)).filter(any)
    table = data.draw(st.lists(cells, min_size=1, max_size=4))
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter, quoting=csv.QUOTE_ALL)
    writer.writerows([names, *table])
    (tmp_path / "a.csv").write_bytes(out.getvalue().encode())
    expected = [{name: cell or None for name, cell in zip(names, row, strict=True)} for row in table]
    assert [row.values for row in rows_of(tmp_path / "a.csv")] == expected


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**60), 2**60),
    st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False),
    texts,
)
values = st.one_of(scalars, st.lists(scalars, max_size=3), st.dictionaries(texts, scalars, max_size=3))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=st.lists(st.dictionaries(texts, values, min_size=1, max_size=3), min_size=2, max_size=4))
@pytest.mark.parametrize("indent", [None, 1])
def test_json_survives_a_round_trip(tmp_path: Path, rows: list, indent: int | None) -> None:
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=indent, ensure_ascii=False), encoding="utf-8")
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert [row.values for row in rows_of(tmp_path / "a.json")] == rows
    assert [row.values for row in rows_of(tmp_path / "a.jsonl")] == rows
