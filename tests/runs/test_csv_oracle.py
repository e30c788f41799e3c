"""Whole streams and transforms of small CSV files with random dialects, compared with plain Python.

The expected bytes come from Python's csv module, codecs and float alone.
"""

import csv
import io
import json
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from math import nan
from random import Random

import numpy as np
import pytest

import levels
from headrace.core.model import Model
from headrace.core.tensor import TensorSpec
from headrace.runs.settings import StreamSettings
from headrace.storage.resolve import Stores
from runs.support import allow_small_tasks, engine, make_settings, outputs, put, transform

FILES_PER_RUN = 10
NAMES = ["first", "second", "text"]
ENCODINGS = ["utf-8", "utf-8", "utf-8-sig", "latin-1", "cp1252", "utf-16", "utf-16-be", "shift_jis", "ascii"]
NUMBERS = [*(str(n / 4) for n in range(-8, 60)), "7", "+3", " 2 ", "1e2", "-0.0"]
INVALID = ["x", "1_000", "٣", "", "1 2", "0x1", "--1"]
WORDS = ["a", "b c", "NA", "é", "ü", "日", "'", '"', "\\", "^", ";", ",", "\t", "|", "\n", "#", ".", "1,5"]


class Doubler(Model):
    """A model of two numbers: ``y`` is twice the first, plus the second."""

    inputs = (TensorSpec("x", "FP64", (-1, 2)),)
    outputs = (TensorSpec("y", "FP64", (-1,)),)
    max_batch_rows = 8

    def predict(self, x):
        return {"y": x[:, 0] * 2 + x[:, 1]}


@dataclass
class Dialect:
    """A random dialect with the options that describe it."""

    dice: Random
    options: dict = field(default_factory=dict)

    def __post_init__(self) -> None:
        dice = self.dice
        self.delimiter = dice.choice([",", ",", ";", "\t", "|", " "])
        self.quote = dice.choice(['"', '"', "'", ""])
        self.escape = dice.choice([None, None, "\\", "^"])
        self.decimal = dice.choice([".", "."] if self.delimiter == "," else [".", ","])
        self.null_words = tuple(dice.sample(["NA", "null", "", "-999", "9.75"], dice.randint(0, 3)))
        self.comment = dice.choice([None, "#", "//"])
        self.skip_rows = dice.choice([0, 0, 1, 3])
        self.encoding = dice.choice(ENCODINGS)
        self.header = dice.choice(["none", "names", "drop", "auto"])
        self.line_end = dice.choice(["\n", "\n", "\r\n"])
        names = tuple(dice.sample(NAMES, 3)) if self.header == "auto" else ()
        self.options = {
            "delimiter": self.delimiter,
            "quote": self.quote,
            "escape": self.escape,
            "decimal": self.decimal,
            "null_words": self.null_words,
            "comment": self.comment,
            "skip_rows": self.skip_rows,
            "encoding": self.encoding,
            "header": self.header,
            "names": names,
        }
        # A header names the columns in any order; without one, `names` have that of the options.
        self.names = list(names) or NAMES

    @property
    def has_names(self) -> bool:
        return self.header in ("names", "auto")

    def is_encodable(self, text: str) -> bool:
        try:
            text.encode(self.encoding)
        except UnicodeEncodeError:
            return False
        return True

    def cell(self, text: str) -> str:
        """Return a text as a raw cell: quoted, escaped or plain, with the same meaning or another."""
        styles = ["plain"] + ["quoted"] * bool(self.quote) + ["escaped"] * bool(self.escape)
        style = self.dice.choice(styles)
        if style == "quoted":
            if self.escape:
                text = text.replace(self.escape, self.escape * 2)
            return self.quote + text.replace(self.quote, self.quote * 2) + self.quote
        if style == "escaped":
            special = f"{self.delimiter}{self.quote}{self.escape}\n"
            return "".join(f"{self.escape}{c}" if c in special else c for c in text)
        for character in (self.delimiter, self.quote, self.escape, "\n"):
            text = text.replace(character or "\n", "")
        return text

    def cells(self, record: str) -> list[str]:
        """Return the cells of a record as csv.reader does."""
        (row,) = csv.reader(
            io.StringIO(record, newline=""),
            delimiter=self.delimiter,
            quotechar=self.quote or None,
            quoting=csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE,
            escapechar=self.escape,
        )
        return row

    def number(self, text: str) -> float:
        """Return the number of a cell. Raise ValueError for other text."""
        if text.strip() in self.null_words:
            return nan
        if not text.isascii() or "_" in text or (self.decimal == "," and "." in text):
            raise ValueError(text)
        return float(text.replace(",", ".") if self.decimal == "," else text)

    def written(self, number: float, *, joined: bool) -> str:
        text = json.dumps(number).replace("NaN", "nan")
        return text.replace(".", self.decimal) if joined else text


@dataclass
class File:
    """A file with its records: the raw text and the number of its line."""

    data: bytes
    records: list[tuple[str, int]]
    names: list[str]
    ends_open: bool = False


def make_file(dialect: Dialect) -> File:
    dice = dialect.dice
    names = dice.sample(dialect.names, 3) if dialect.has_names else dialect.names
    lines = ['junk "' for _ in range(dialect.skip_rows)]
    has_header = dialect.header in ("names", "drop") or (dialect.header == "auto" and dice.random() < 0.7)
    records: list[tuple[str, int]] = []
    if dialect.header == "auto" and not has_header:
        names = list(dialect.options["names"])
    if has_header:
        lines.append(dialect.delimiter.join(dialect.cell(name) for name in names))
    for _ in range(dice.randint(0, 12)):
        extra = dice.random()
        if extra < 0.1:
            lines.append("")
        elif extra < 0.25 and dialect.comment:
            lines.append(dialect.comment + dice.choice(["", " a,b", '"', "'x", dialect.delimiter + '"']))
        record = make_record(dialect, names)
        if record and not record.startswith(dialect.comment or "\n"):
            records.append((record, 1 + sum(line.count("\n") + 1 for line in lines)))
            lines.append(record)
    text = "".join(line + dialect.line_end for line in lines)
    if dice.random() < 0.3:
        text = text.removesuffix(dialect.line_end)
    return File(text.encode(dialect.encoding), records, names)


def make_record(dialect: Dialect, names: list[str]) -> str:
    dice = dialect.dice
    cells = []
    for name in names if dice.random() < 0.95 else names[1:]:
        if name == "text":
            value = "".join(dice.choices(WORDS, k=dice.randint(0, 4)))
        elif dice.random() < 0.85:
            value = dice.choice(NUMBERS).replace(".", dialect.decimal if dice.random() < 0.95 else ".")
        else:
            value = dice.choice([*INVALID, *dialect.null_words])
        value = "".join(c for c in value if dialect.is_encodable(c))
        cells.append(dialect.cell(value))
    return dialect.delimiter.join(cells)


def expected_lines(
    dialect: Dialect, file: File, *, joined: bool
) -> tuple[list[bytes], list[tuple[int, int, bytes]]]:
    """Return the lines of the output, and the number, line and bytes of each failed record."""
    lines, failed = [], []
    for index, (record, line) in enumerate(file.records):
        cells = dialect.cells(record)
        try:
            if len(cells) != 3:
                raise ValueError(cells)
            first, second = (dialect.number(cells[file.names.index(name)]) for name in NAMES[:2])
        except ValueError:
            failed.append((index, line, record.encode()))
            continue
        written = dialect.written(first * 2 + second, joined=joined)
        parts = [record, written] if joined else [written]
        lines.append((dialect.delimiter.join(parts) + "\n").encode())
    return lines, failed


def expected_header(dialect: Dialect, file: File, *, joined: bool) -> bytes:
    """Return the header of an output with these records, which are not empty."""
    if not dialect.has_names:
        return b""
    names = file.names if joined else []
    return (dialect.delimiter.join([*names, "y"]) + "\n").encode()


def mapping_of(dialect: Dialect) -> dict:
    return {"columns": ("first", "second") if dialect.has_names else (0, 1)}


def runs() -> int:
    """Return the number of runs: 1,000 files at the level all, 10,000 at the level soak."""
    return levels.by_level(30, 100, 1000)


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("task_bytes", [None, 40])
def test_transforms_write_what_plain_python_computes(joined, task_bytes, monkeypatch):
    """Tasks of a few bytes cut the objects into ranges."""
    if task_bytes is not None:
        allow_small_tasks(monkeypatch)
    with engine(Doubler()) as predictor:
        for seed in range(runs()):
            dialect = Dialect(Random(seed))
            files = {f"{i:02}.csv": make_file(dialect) for i in range(FILES_PER_RUN)}
            if not is_scorable(dialect, list(files.values())):
                continue
            stores = Stores()
            put(stores, {name: file.data for name, file in files.items()})
            settings = make_settings(
                read=dialect.options,
                mapping=mapping_of(dialect),
                output={"join": "input" if joined else "none"},
                tasks={} if task_bytes is None else {"task_bytes": task_bytes},
            )
            transform(stores, predictor=predictor, settings=settings)
            written = outputs(stores)
            for name, file in files.items():
                lines, failed = expected_lines(dialect, file, joined=joined)
                header = b"" if failed and not lines else expected_header(dialect, file, joined=joined)
                where = (seed, name, dialect.options, file.data)
                found = written[f"{name}.out"]
                # An object that is cut into ranges without records has no header.
                assert found == header + b"".join(lines) or (task_bytes and not lines and not found), where
                assert failures_of(written.get(f"{name}.out.failed", b"")) == failed, where


def test_streams_write_what_plain_python_computes():
    with engine(Doubler()) as predictor:
        for seed in range(runs()):
            dialect = Dialect(Random(seed))
            files = [make_file(dialect) for _ in range(FILES_PER_RUN)]
            if not is_scorable(dialect, files):
                continue
            stores = Stores()
            put(stores, {f"{i:02}.csv": file.data for i, file in enumerate(files)})
            settings = make_settings(read=dialect.options, mapping=mapping_of(dialect), preset=StreamSettings)
            transform(stores, predictor=predictor, settings=settings)
            found = [expected_lines(dialect, file, joined=False) for file in files]
            header = expected_header(dialect, files[0], joined=False)
            expected = header + b"".join(chain.from_iterable(lines for lines, _ in found))
            written = outputs(stores)
            parts = [data for name, data in sorted(written.items()) if name.endswith(".csv")]
            assert b"".join(parts) == expected, (seed, dialect.options)
            failed = [data for name, data in sorted(written.items()) if name.endswith(".failed.jsonl")]
            assert failures_of(b"".join(failed)) == [f for _, failures in found for f in failures], seed


def failures_of(data: bytes) -> list[tuple[int, int, bytes]]:
    return [(f["record"], f["line"], f["raw"].encode()) for f in map(json.loads, data.splitlines())]


def is_scorable(dialect: Dialect, files: list[File]) -> bool:
    """Return True if a record fits the model, and most records have its columns."""
    good = [expected_lines(dialect, file, joined=False)[0] for file in files]
    widths = Counter(len(dialect.cells(record)) for file in files for record, _ in file.records)
    return any(good) and widths.most_common(1)[0][0] == 3


def test_the_oracle_covers_every_option():
    drawn = [Dialect(Random(seed)) for seed in range(runs())]
    for name in ("delimiter", "quote", "escape", "decimal", "comment", "skip_rows", "encoding", "header"):
        assert len({str(dialect.options[name]) for dialect in drawn}) > 1, name
    assert np.mean([is_scorable(d, [make_file(d)]) for d in drawn]) > 0.3
