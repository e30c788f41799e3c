"""Checkpoints of sequences: instances and servers are killed at random between and during steps.

Each response must include all steps that earlier responses have confirmed.
"""

import asyncio
import json
import os
import random
import signal
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path

import pytest

import levels
from engine.sequences.sum_model import HangingModel, SlowModel, engine, sum_request
from headrace.core.errors import (
    InstanceLostError,
    SequenceLostError,
    UnavailableError,
)
from servers.polling import wait_until
from servers.ports import free_port
from servers.process import ServerProcess

SEQUENCES = levels.by_level(20, 20, 50)
REQUESTS = levels.by_level(15, 15, 200)
KILLS = levels.by_level(3, 3, 60)
TEXT_KILLS = levels.by_level(2, 2, 10)
HOPS = levels.by_level(6, 6, 100)
WAIT_S = 60.0

UNKNOWN = (InstanceLostError, UnavailableError)
"""The request was done up to any of its rows, or not; the next response tells."""


class SequenceClient:
    """The client of one sequence, with all sums that the sequence may have; None if it may have ended."""

    def __init__(self, id: str, rng: random.Random) -> None:
        self.id, self.rng = id, rng
        self.possible: set[int | None] = {None}
        self.requests = self.unknown = 0

    async def request(self, engine) -> None:
        """Send one random request and check the sums of its response."""
        rng = self.rng
        start = None in self.possible or rng.random() < 0.02
        end = rng.random() < 0.05
        values = [rng.randrange(1, 10_000) for _ in range(rng.randrange(0 if end and not start else 1, 4))]
        before: set[int | None] = {0} if start else self.possible
        parameters = {"sequence_id": self.id, "sequence_start": start, "sequence_end": end}
        self.requests += 1
        try:
            response = await asyncio.wait_for(engine.infer(sum_request(*values, **parameters)), WAIT_S)
        except UNKNOWN:
            self.unknown += 1
            done = {total for b in before if b is not None for total in accumulate([b, *values])}
            self.possible = self.possible | done | ({None} if end else set())
            return
        received = [int(total) for total in response.outputs[0].data] if values else []
        expected = [list(accumulate([b, *values]))[1:] for b in before if b is not None]
        assert received in expected, f"{self.id}: {received} is none of {expected}"
        self.possible = {None} if end else {received[-1]}


def kill_one(engines, rng: random.Random) -> bool:
    """Kill the process of a random instance. Return False if none is alive."""
    alive = [slot.backend.pid for each in engines for slot in each._session.slots if slot.alive]
    pids = [pid for pid in alive if pid is not None]
    if not pids:
        return False
    try:
        os.kill(rng.choice(pids), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


STORES = ["sqlite", "redis"]


def store_address(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    if kind == "sqlite":
        return f"sqlite:///{folder}/checkpoints.db?synchronous=normal"
    return f"{request.getfixturevalue('valkey_server').url}?prefix={folder.name}"


@pytest.fixture(params=STORES)
def address(request, tmp_path) -> str:
    return store_address(request.param, request, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_instances_lose_no_confirmed_step_and_repeat_none(address):
    """Two engines stand for two servers; each request goes to either of them."""
    rng = random.Random(20261122)
    clients = [SequenceClient(f"s{number}", random.Random(number)) for number in range(SEQUENCES)]
    kills = responses = next_kill = 0

    async def run(engines) -> None:
        async def send(client: SequenceClient) -> None:
            nonlocal kills, responses, next_kill
            while kills < KILLS or client.requests < REQUESTS:
                await client.request(rng.choice(engines))
                responses += 1
                # Not more often: an instance that dies again without a response restarts ever later.
                if kills < KILLS and responses >= next_kill:
                    next_kill = responses + rng.randint(2 * SEQUENCES, 4 * SEQUENCES)
                    kills += kill_one(engines, rng)

        await asyncio.gather(*(send(client) for client in clients))

    with ExitStack() as stack:
        engines = [stack.enter_context(engine(address, isolation="process", instances=2)) for _ in range(2)]
        asyncio.run(run(engines))
        assert sum(each.model_statistics().restarts for each in engines) >= KILLS // 2
    # Requests without a response test nothing.
    assert sum(client.unknown for client in clients) < sum(client.requests for client in clients) // 3


def test_killed_instance_without_checkpoints_fails_at_once_and_the_id_can_start_anew():
    async def run(engine) -> None:
        for id in "abc":
            await engine.infer(sum_request(1, sequence_id=id, sequence_start=True))
        waiting = [
            asyncio.create_task(engine.infer(sum_request(value, sequence_id=id)))
            for value, id in [(1000, "a"), (1, "a"), (2, "b"), (3, "a"), (4, "c")]
        ]
        await asyncio.to_thread(wait_until, lambda: engine.model_statistics().calls > 3, "the long step")
        assert not any(task.done() for task in waiting)
        os.kill(engine._session.slots[0].backend.pid, signal.SIGKILL)
        ended = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), WAIT_S)
        assert engine.model_statistics().restarts == 0, "the errors waited for the restart"
        assert [type(each) for each in ended] == [SequenceLostError] * 5
        with pytest.raises(SequenceLostError, match="lost without a checkpoint"):
            await engine.infer(sum_request(1, sequence_id="a"))
        response = await engine.infer(sum_request(7, sequence_id="a", sequence_start=True))
        assert response.outputs[0].data.tolist() == [7]

    with engine(None, HangingModel, isolation="process") as opened:
        asyncio.run(run(opened))


@pytest.mark.timeout(120)
def test_streams_continue_over_killed_instances_without_a_missing_or_repeated_item(address):
    """Each kill hits another step, so no request is taken for poison."""
    length, texts = 100, 6
    rng = random.Random(5)

    async def run(engine) -> None:
        items: list[list[float]] = [[] for _ in range(texts)]

        async def read(index: int) -> None:
            request = sum_request(1, times=length, sequence_id=f"t{index}", sequence_start=True)
            async for response in engine.stream(request):
                items[index] += response.outputs[0].data.tolist()

        reading = asyncio.gather(*(read(index) for index in range(texts)))
        for kill in range(1, TEXT_KILLS + 1):
            count = length * kill // (TEXT_KILLS + 2)
            await asyncio.to_thread(
                wait_until, lambda count=count: min(map(len, items)) >= count, f"{count} items of each stream"
            )
            await asyncio.to_thread(wait_until, lambda: kill_one([engine], rng), "an instance to kill")
        await asyncio.wait_for(reading, WAIT_S)
        assert items == [list(range(1, length + 1))] * texts

    with engine(address, SlowModel, isolation="process", instances=2) as opened:
        asyncio.run(run(opened))
        # The last instance may not have restarted yet.
        assert opened.model_statistics().restarts >= TEXT_KILLS - 1


# Servers

MODEL = """
from headrace import Model, TensorSpec

class Total(Model):
    inputs = (TensorSpec("x", "FP32", (-1, 1)),)
    isolation = "process"

    def step(self, states, x):
        total = states.stack("total", (1,)) + x
        states.keep("total", total)
        return total
"""


class ModelServer(ServerProcess):
    """`headrace serve` that keeps its port when it is started again."""

    named = "headrace serve"

    def __init__(self, folder: Path, address: str) -> None:
        folder.mkdir()
        super().__init__(folder)
        self.port = free_port()
        self._address = address

    def _command(self):
        return [
            sys.executable, "-m", "headrace", "serve", f"total={self.folder.parent / 'total.py'}",
            "--rest-port", str(self.port), "--no-grpc", "--no-metrics",
            "--checkpoints", self._address, "--instances", "2",
        ]  # fmt: skip

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v2/health/ready", timeout=2):
                return True
        except OSError:
            return False

    def terminate(self) -> int:
        """Send SIGTERM, as a rolling restart does. Return the exit status."""
        process, self._process = self._process, None
        process.send_signal(signal.SIGTERM)
        return process.wait(WAIT_S)

    def infer(self, *values: float, **parameters: object) -> list[float] | int:
        """Return the sums, or the status of an error."""
        tensor = {"name": "x", "shape": [len(values), 1], "datatype": "FP32", "data": values}
        body = {"inputs": [tensor] if values else [], "parameters": parameters}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v2/models/total/infer", json.dumps(body).encode()
        )
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as response:
                outputs = json.loads(response.read())["outputs"]
                return outputs[0]["data"] if outputs else []
        except urllib.error.HTTPError as error:
            return error.code


@pytest.fixture(scope="module", params=STORES)
def servers(request, tmp_path_factory):
    """Two servers over the same checkpoints."""
    folder = tmp_path_factory.mktemp(f"servers-{request.param}")
    (folder / "total.py").write_text(MODEL)
    address = store_address(request.param, request, folder)
    both = [ModelServer(folder / name, address) for name in ("first", "second")]
    with ExitStack() as stack:
        for server in both:
            stack.callback(server.stop)
        threads = [server.start_in_background() for server in both]
        for thread in threads:
            thread.join()
        yield both


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_sequences_switch_the_server_with_every_request(servers):
    sums = dict.fromkeys(range(1, 9), 0.0)
    for hop in range(HOPS):
        for id in sums:
            value = float(hop * id)
            sums[id] += value
            server = servers[(hop + id) % 2]
            assert server.infer(value, sequence_id=id, sequence_start="auto") == [sums[id]]
    for id, total in sums.items():
        assert servers[id % 2].infer(0, sequence_id=id, sequence_end=True) == [total]
        assert servers[1 - id % 2].infer(0, sequence_id=id) == 410


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_client_continues_at_the_other_server_after_a_stop_or_a_kill(servers):
    first, second = servers
    assert first.infer(1, 2, sequence_id="s", sequence_start=True) == [1, 3]
    assert first.infer(10, sequence_id="t", sequence_start=True) == [10]
    assert first.terminate() == 0
    assert second.infer(3, sequence_id="s") == [6]
    first.start()
    assert first.infer(4, sequence_id="s") == [10]
    assert second.infer(5, sequence_id="s") == [15]
    second.stop()  # SIGKILL
    assert first.infer(6, sequence_id="s") == [21]
    assert first.infer(20, sequence_id="t") == [30]
    second.start()
    assert second.infer(sequence_id="s", sequence_end=True) == []
    assert first.infer(1, sequence_id="s") == second.infer(1, sequence_id="s") == 410
