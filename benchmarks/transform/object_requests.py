"""Send one HTTP request for each object, some concurrently, like a service in front of a server.

    PYTHONPATH=benchmarks python benchmarks/transform/object_requests.py FOLDER INFER_URL OUT --in-flight 8

The client does as little as possible: it parses no number, and copies the object's text into the
request.
"""

import argparse
import asyncio
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import orjson
from measure import Measurement


def request_body(lines: list[bytes]) -> bytes:
    """Return an Open Inference request for lines of numbers."""
    shape = b"[%d,%d]" % (len(lines), lines[0].count(b",") + 1)
    head = b'{"inputs":[{"name":"x","datatype":"FP32","shape":%b,"data":[' % shape
    return head + b",".join(lines) + b"]}]}"


async def work(paths: Iterator[Path], client: aiohttp.ClientSession, url: str, out: Path) -> int:
    """Take objects until none is left. Return the number of rows."""
    rows = 0
    for path in paths:
        lines = path.read_bytes().splitlines()
        async with client.post(url, data=request_body(lines)) as response:
            data = await response.read()
            if response.status != 200:
                raise SystemExit(f"{path}: the server returned status {response.status}: {data[:200]!r}")
        numbers = orjson.loads(data)["outputs"][0]["data"]
        scored = b"".join(b"%b,%b\n" % (line, b"%r" % y) for line, y in zip(lines, numbers, strict=True))
        (out / f"{path.name}.out").write_bytes(scored)
        rows += len(lines)
    return rows


async def score(paths: Iterator[Path], url: str, out: Path, in_flight: int) -> int:
    async with aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(60), headers={"Content-Type": "application/json"}
    ) as client:
        return sum(await asyncio.gather(*(work(paths, client, url, out) for _ in range(in_flight))))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("url")
    parser.add_argument("out", type=Path)
    parser.add_argument("--in-flight", type=int, default=8)
    arguments = parser.parse_args()
    measurement = Measurement()
    paths = iter(sorted(arguments.folder.iterdir()))
    measurement.report(asyncio.run(score(paths, arguments.url, arguments.out, arguments.in_flight)))


if __name__ == "__main__":
    main()
