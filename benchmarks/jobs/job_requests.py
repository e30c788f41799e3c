"""Submit jobs over HTTP as fast as possible: `python job_requests.py URL --seconds S --connections
N`.

Requests are written by hand, so that the client costs little. Prints JSON: jobs per second, and the
last job's id.
"""

import argparse
import asyncio
import json
import time
from urllib.parse import urlsplit

BODY = json.dumps(
    {
        "model": "bench",
        "input": {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 0.5, 0, 0]}]},
    }
).encode()


async def connection(host: str, port: int, until_s: float) -> tuple[int, str]:
    """Submit jobs one after another. Return their number and the last id."""
    reader, writer = await asyncio.open_connection(host, port)
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(BODY)}\r\n\r\n"
    )
    request = head.encode() + BODY
    done, last = 0, ""
    while time.perf_counter() < until_s:
        writer.write(request)
        headers = await reader.readuntil(b"\r\n\r\n")
        status, fields = headers.split(b"\r\n", 1)
        length = next(
            int(line.split(b":")[1])
            for line in fields.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        )
        response = await reader.readexactly(length)
        if b" 202" not in status:
            raise SystemExit(f"{status!r}: {response[:300]!r}")
        done, last = done + 1, json.loads(response)["id"]
    writer.close()
    return done, last


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--connections", type=int, default=8)
    arguments = parser.parse_args()
    to = urlsplit(arguments.url)
    began_s = time.perf_counter()
    found = await asyncio.gather(
        *(connection(to.hostname, to.port, began_s + arguments.seconds) for _ in range(arguments.connections))
    )
    wall_s = time.perf_counter() - began_s
    print(json.dumps({"jobs_per_s": sum(done for done, _ in found) / wall_s, "last": found[0][1]}))


if __name__ == "__main__":
    asyncio.run(main())
