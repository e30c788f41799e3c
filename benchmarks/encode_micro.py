"""Measure the encoders in microseconds per row, for pieces of 1024 and 4096 records of 30 numbers.

python benchmarks/encode_micro.py ROWS.csv
"""

import itertools
import json
import sys
import time

import numpy as np

from headrace.core.block import Position
from headrace.formats.contract import BlockSelection
from headrace.formats.csv import CsvFormat
from headrace.formats.csv_encode import CsvEncoder
from headrace.formats.encode import output_columns
from headrace.formats.json_encode import JsonLinesEncoder
from headrace.formats.parquet import ParquetEncoder

ROWS = 65_536
REPEATS = 9


def selections_of(path: str, rows: int, *, crlf: bool, chosen: bool) -> list[BlockSelection]:
    """Return the first ROWS records in pieces of `rows` records, each a part of a block.

    With `chosen`, one record of each piece is missing.
    """
    with open(path, "rb") as file:
        text = b"".join(itertools.islice(file, ROWS))
    if crlf:
        text = text.replace(b"\n", b"\r\n")
    found: list[BlockSelection] = []
    for block in CsvFormat(block_bytes_max=300 * rows).blocks([text], Position()):
        found.extend(
            BlockSelection(block, start, start + rows) for start in range(0, len(block) - rows + 1, rows)
        )
    if chosen:
        return [BlockSelection(p.block, p.start, p.stop, np.arange(p.start + 1, p.stop)) for p in found]
    return found


def seconds_a_row(make, selections, outputs) -> float:
    """Return the fastest of several rounds over all pieces, per row."""
    best = float("inf")
    for _ in range(REPEATS):
        encoder = make()
        encoder.begin()
        began = time.perf_counter()
        for selection in selections:
            encoder.encode([selection], {name: data[: len(selection)] for name, data in outputs.items()})
        encoder.finish()
        best = min(best, time.perf_counter() - began)
    return best / sum(map(len, selections))


def main() -> None:
    path = sys.argv[1]
    rng = np.random.default_rng(0)
    one = {"y": rng.random(4096, np.float32)}
    more = {"label": rng.integers(0, 9, 4096), "p": rng.random((4096, 3), np.float32)}
    columns = [f"c{i}" for i in range(30)]
    joined = {"join": "input", "header": True, "input_columns": columns}
    cases = {
        "csv": (CsvEncoder, one, {}),
        "csv, joined": (lambda c: CsvEncoder(c, **joined), one, {}),
        "csv, joined, CRLF": (lambda c: CsvEncoder(c, **joined), one, {"crlf": True}),
        "csv, joined, a record left out": (lambda c: CsvEncoder(c, **joined), one, {"chosen": True}),
        "csv, joined, label and 3 floats": (lambda c: CsvEncoder(c, **joined), more, {}),
        "jsonl": (JsonLinesEncoder, one, {}),
        "jsonl, joined": (lambda c: JsonLinesEncoder(c, join="input"), one, {}),
        "parquet": (ParquetEncoder, one, {}),
        "parquet, joined": (lambda c: ParquetEncoder(c, join="input"), one, {}),
    }
    for name, (make, outputs, how) in cases.items():
        specs = output_columns(outputs)
        for rows in (1024, 4096):
            selections = selections_of(
                path, rows, crlf=how.get("crlf", False), chosen=how.get("chosen", False)
            )
            s = seconds_a_row(lambda make=make, specs=specs: make(specs), selections, outputs)
            print(json.dumps({"case": name, "piece_rows": rows, "us_per_row": round(s * 1e6, 3)}))


if __name__ == "__main__":
    main()
