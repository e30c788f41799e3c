"""Many awkward files through an echo model: each record comes back in its file, byte for byte.

The tests do not use headrace's splitting: files are built from records that are known beforehand.
"""

import random
from dataclasses import dataclass
from pathlib import Path

import orjson
import pytest

import levels
from integration.command import headrace
from integration.transform_process import ECHO, leftovers, outputs

FILES = levels.by_level(400, 400, 1_500)
FEW_FILES = levels.by_level(150, 150, 300)
LARGE_ROWS = levels.by_level(1_500, 1_500, 3_000)
BOM = b"\xef\xbb\xbf"
LF, CRLF = b"\n", b"\r\n"
WORDS = [
    "",
    "a",
    "0",
    "-1.50",
    "x y",
    "ä",
    "日本",
    "𝄞",
    "e\u0301",
    "\u2028",
    "\x85",
    "\x0b\x1c",
    "'",
    "\\",
    "\\n",
    "\t",
]
QUOTED = [*WORDS, ",", '"', '""', "\n", "\r\n", "\r", "\n\n", '",\n"', "\n,", "a\nb", '"\n']


@dataclass(frozen=True)
class File:
    """The bytes of a file, and its records."""

    data: bytes
    records: tuple[bytes, ...]

    @property
    def lines(self) -> bytes:
        """The records, each ended by LF."""
        return b"".join(record + LF for record in self.records)


def cell(rng: random.Random) -> bytes:
    if rng.random() < 0.4:
        text = "".join(rng.choices(QUOTED, k=rng.randrange(4)))
        return b'"' + text.replace('"', '""').encode() + b'"'
    if rng.random() < 0.1:
        # Quotes within an unquoted cell are ordinary characters.
        return b'5" disk'
    if rng.random() < 0.05:
        return b"caf\xe9"  # Latin-1, which is no UTF-8
    return "".join(rng.choices(WORDS, k=rng.randrange(3))).encode()


def csv_record(rng: random.Random) -> bytes:
    columns = rng.choice([1, 2, 2, 3, 5])
    # A single empty cell would be a blank line, which is not a record.
    return b",".join(cell(rng) for _ in range(columns)) or b'""'


def value(rng: random.Random, depth: int = 0) -> object:
    kinds = ["text", "number", "none"] if depth > 1 else ["text", "number", "none", "list", "object"]
    match rng.choice(kinds):
        case "text":
            return "".join(rng.choices(QUOTED, k=rng.randrange(3)))
        case "number":
            return rng.choice([0, -1, 1.5, 1e300, 2**60, True, False])
        case "list":
            return [value(rng, depth + 1) for _ in range(rng.randrange(3))]
        case "object":
            keys = rng.sample(["a", "b", 'c"', "ä"], rng.randrange(3))
            return {key: value(rng, depth + 1) for key in keys}
        case _:
            return None


def json_record(rng: random.Random) -> bytes:
    text = orjson.dumps(value(rng))
    if rng.random() < 0.3:
        text = text.replace(b",", b" ,  ").replace(b"1.5", b"1.50e+00")
    return text


def make_file(rng: random.Random, name: str) -> File:
    one = csv_record if name.endswith(".csv") else json_record
    records = tuple(one(rng) for _ in range(rng.choice([0, 1, 1, 2, 3, 10, 40])))
    if rng.random() < 0.01:
        records += (records[0] if records else b'"long"',) * 3_000
    end = rng.choice([LF, LF, CRLF])
    data = b"".join(rng.choice([b"", b"", b"", end]) + record + end for record in records)
    if rng.random() < 0.3 and records:
        data = data.removesuffix(end)
    if rng.random() < 0.2:
        data += end * rng.randrange(3)
    return File(rng.choice([b"", b"", BOM]) + data, records)


def write_files(folder: Path, seed: int, suffixes: tuple[str, ...], count: int) -> dict[str, File]:
    rng = random.Random(seed)
    found = {}
    for number in range(count):
        name = f"{rng.choice(['', 'day/', 'a b/ä/'])}{number:05d}{rng.choice(suffixes)}"
        found[name] = make_file(rng, name)
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(found[name].data)
    return found


def check(output: Path, expected: dict[str, bytes]) -> None:
    found = outputs(output)
    assert found.keys() == {f"{name}.out" for name in expected}
    for name, data in expected.items():
        assert found[f"{name}.out"] == data, name
    assert leftovers(output) == []


WORKERS = {
    "thread": (),
    "processes": ("--workers", "2"),
    "tiny batches": ("--batch-rows-max", "1", "--batch-bytes-max", "1k"),
}


@pytest.mark.parametrize("workers", WORKERS)
def test_each_record_comes_back_in_its_file(tmp_path, workers):
    files = write_files(tmp_path / "in", 1, (".csv", ".jsonl"), FILES if workers == "thread" else FEW_FILES)
    done = headrace(
        "transform", f"{tmp_path}/in/", tmp_path / "out", "--model", ECHO, "--accept", "text", "--json",
        *WORKERS[workers],
    )  # fmt: skip
    assert done.code == 0, done.out[-2_000:] + done.err
    check(tmp_path / "out", {name: file.lines for name, file in files.items()})
    assert done.report["rows_out"] == sum(len(file.records) for file in files.values())
    assert sum(file.data == file.lines for file in files.values()) > len(files) // 10


def test_joined_csv_record_without_its_prediction_is_unchanged(tmp_path):
    """The prediction is the whole record in one cell; the output filter must find its start."""
    files = write_files(tmp_path / "in", 2, (".csv",), 400)
    done = headrace(
        "transform", f"{tmp_path}/in/", tmp_path / "out", "--model", ECHO, "--join", "input",
        "--accept", "csv", "--output-filter", "$[0:-1]", "--json",
    )  # fmt: skip
    assert done.code == 0, done.out[-2_000:] + done.err
    check(tmp_path / "out", {name: file.lines for name, file in files.items()})


def test_joined_csv_is_the_record_and_its_prediction(tmp_path):
    files = write_files(tmp_path / "in", 3, (".csv",), 200)
    done = headrace(
        "transform", f"{tmp_path}/in/", tmp_path / "out", "--model", ECHO, "--join", "input", "--json"
    )
    assert done.code == 0, done.out[-2_000:] + done.err
    check(
        tmp_path / "out",
        {name: b"".join(r + b"," + quoted(r) + LF for r in file.records) for name, file in files.items()},
    )


def quoted(text: bytes) -> bytes:
    """Return a CSV cell, quoted only if necessary."""
    if any(c in text for c in b',"\r\n'):
        return b'"' + text.replace(b'"', b'""') + b'"'
    return text


def test_output_filter_keeps_the_bytes_of_json_records(tmp_path):
    rng = random.Random(4)
    source = tmp_path / "in"
    source.mkdir()
    expected = {}
    for number in range(300):
        records = [b"[" + json_record(rng) + b"]" for _ in range(rng.randrange(30))]
        end = rng.choice([LF, CRLF])
        (source / f"{number}.jsonl").write_bytes(end.join(records) + rng.choice([b"", end]))
        expected[f"{number}.jsonl"] = b"".join(record + LF for record in records)
    done = headrace(
        "transform", f"{source}/", tmp_path / "out", "--model", ECHO, "--join", "input", "--accept", "jsonl",
        "--output-filter", "$.SageMakerInput", "--json",
    )  # fmt: skip
    assert done.code == 0, done.out[-2_000:] + done.err
    check(tmp_path / "out", expected)


@pytest.mark.parametrize("join", ["input", "none"])
def test_echo_of_json_records_is_their_text(tmp_path, join):
    """Another library reads the output: it is JSON with the text of each record."""
    files = write_files(tmp_path / "in", 5, (".jsonl",), 200)
    done = headrace(
        "transform", f"{tmp_path}/in/", tmp_path / "out", "--model", ECHO, "--join", join, "--json",
        "--output-filter", "$.SageMakerOutput.echo" if join == "input" else "$.echo",
    )  # fmt: skip
    assert done.code == 0, done.out[-2_000:] + done.err
    found = outputs(tmp_path / "out")
    for name, file in files.items():
        lines = found[f"{name}.out"].splitlines()
        assert [orjson.loads(line).encode() for line in lines] == list(file.records), name


def test_whole_objects_come_back_with_any_bytes(tmp_path):
    rng = random.Random(6)
    source = tmp_path / "in"
    (source / "x").mkdir(parents=True)
    expected = {}
    for number in range(400):
        size = rng.choice([0, 1, 2, 5, 100, 5_000])
        data = rng.choice(
            [rng.randbytes(size), b"\0" * size, b"\r\n" * size, BOM, b"\xff\xfe", make_file(rng, ".csv").data]
        )
        name = f"{rng.choice(['', 'x/'])}{number}{rng.choice(['.csv', '.bin', '', '.jsonl', '.tar.x'])}"
        (source / name).write_bytes(data)
        expected[name] = data
    (source / "large.bin").write_bytes(rng.randbytes(9 << 20))
    expected["large.bin"] = (source / "large.bin").read_bytes()
    done = headrace(
        "transform", f"{source}/", tmp_path / "out", "--model", ECHO, "--split", "none", "--accept", "text",
        "--assemble", "none", "--json",
    )  # fmt: skip
    assert done.code == 0, done.out[-2_000:] + done.err
    check(tmp_path / "out", expected)


@pytest.mark.parametrize("split", ["csv", "jsonl", "line"])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_large_files_split_into_ranges_come_back_complete(tmp_path, split, workers):
    """Ranges begin within quoted cells, line ends and characters, and are joined again."""
    rng = random.Random(7)
    source = tmp_path / "in"
    source.mkdir()
    expected = {}
    for number in range(8):
        make = csv_record if split == "csv" else json_record
        records = [make(rng) for _ in range(rng.choice([400, LARGE_ROWS]))]
        end = rng.choice([LF, CRLF])
        blank = [rng.choice([b"", b"", b"", end]) for _ in records]
        data = b"".join(b + r + end for b, r in zip(blank, records, strict=True))
        (source / f"{number}.txt").write_bytes(
            rng.choice([b"", BOM]) + data.removesuffix(rng.choice([end, b"-"]))
        )
        expected[f"{number}.txt"] = b"".join(r + LF for r in records)
    done = headrace(
        "transform", f"{source}/", tmp_path / "out", "--model", ECHO, "--accept", "text", "--json",
        "--split", split, "--content-type", "csv" if split == "csv" else "text",
        "--task-bytes", "1500", "--workers", workers,
    )  # fmt: skip
    assert done.code == 0, done.out[-2_000:] + done.err
    check(tmp_path / "out", expected)
    assert done.report["tasks"] > 30
