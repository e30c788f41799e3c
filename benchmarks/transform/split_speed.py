"""Measure MB/s of cutting chunks into records, without decoding; also newline counts and csv.

    python benchmarks/transform/split_speed.py PATH csv|jsonl --rounds 5

The chunks are in memory before the clock starts, and as large as the reads of a local file.
"""

import argparse
import csv
import io
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from headrace.core.block import Position
from headrace.formats.csv import CsvFormat
from headrace.formats.line import JsonLinesFormat
from headrace.runs.prefetch import LOCAL_RANGE_BYTES

FORMATS = {"csv": CsvFormat, "jsonl": JsonLinesFormat}
CSV_MODULE_BYTES = 20_000_000
"""The csv module is slow, and its rate does not depend on the size."""


def cut(chunks: Sequence[bytes], kind: str) -> int:
    return sum(map(len, FORMATS[kind]().blocks(chunks, Position())))


def count_newlines(chunks: Sequence[bytes]) -> int:
    return sum(chunk.count(b"\n") for chunk in chunks)


def read_by_csv_module(chunks: Sequence[bytes]) -> int:
    text = io.TextIOWrapper(io.BytesIO(b"".join(chunks)), "utf-8", newline="")
    return sum(1 for _ in csv.reader(text))


def mb_per_s(work: Callable[[Sequence[bytes]], int], chunks: Sequence[bytes]) -> tuple[float, int]:
    began = time.perf_counter()
    found = work(chunks)
    return sum(map(len, chunks)) / 1e6 / (time.perf_counter() - began), found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("path", type=Path)
    parser.add_argument("format", choices=sorted(FORMATS))
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    with arguments.path.open("rb") as file:
        chunks = list(iter(lambda: file.read(LOCAL_RANGE_BYTES), b""))
    few = chunks[: max(1, CSV_MODULE_BYTES // LOCAL_RANGE_BYTES)]
    rates: dict[str, list[float]] = {"cut": [], "count": [], "csv": []}
    records = 0
    for _ in range(arguments.rounds):
        rates["count"].append(mb_per_s(count_newlines, chunks)[0])
        speed, records = mb_per_s(lambda chunks: cut(chunks, arguments.format), chunks)
        rates["cut"].append(speed)
        rates["csv"].append(mb_per_s(read_by_csv_module, few)[0])
    print(json.dumps({"records": records, "mb_per_s": rates}))


if __name__ == "__main__":
    main()
