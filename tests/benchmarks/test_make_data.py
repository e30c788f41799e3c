"""make_data.py: equal bytes for equal arguments, and rows as described."""

import csv
import io

import make_data


def test_quoted_rows_are_csv_and_every_fourth_needs_its_quotes():
    text = b"".join(make_data.quoted_chunks(1000, seed=3))
    rows = list(csv.reader(io.StringIO(text.decode(), newline="")))
    assert [int(row[0]) for row in rows] == list(range(1000))
    assert {len(row) for row in rows} == {3}
    special = [n for n, row in enumerate(rows) if all(mark in row[2] for mark in (",", '"', "\n"))]
    assert special == list(range(0, 1000, 4))
    assert not any(set(row[2]) & set(',"\n') for n, row in enumerate(rows) if n % 4)
    assert text.endswith(b"\n")


def test_quoted_rows_depend_on_the_seed_alone():
    first, again, other = (b"".join(make_data.quoted_chunks(50, seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_objects_have_the_rows_of_the_file(tmp_path):
    make_data.write_objects(105, tmp_path / "objects", 7, 10)
    make_data.write_csv(105, tmp_path / "whole.csv", 7)
    objects = [path.read_bytes() for path in sorted((tmp_path / "objects").iterdir())]
    assert [text.count(b"\n") for text in objects] == [10] * 10 + [5]
    assert b"".join(objects) == (tmp_path / "whole.csv").read_bytes()
