"""States that survive: instances and servers killed at random while sequences step; every answer must tell of all steps that were answered."""

import asyncio
import json
import os
import random
import signal
import sys
import time
import urllib.error
import urllib.request
from contextlib import ExitStack
from itertools import accumulate
from pathlib import Path

import pytest

from engine.steps.counted import Sleepy, Slow, asked, engine
from headrace.core.errors import (
    InstanceLostError,
    SequenceLostError,
    UnavailableError,
)
from servers.ports import free_port
from servers.process import ServerProcess

SEQUENCES = 50
REQUESTS = 40
KILLS_MIN = 8
WAIT_S = 60.0

UNKNOWN = (InstanceLostError, UnavailableError)
"""What was asked was done, or not, up to any of its rows; the next answer tells."""


class Followed:
    """One sequence, as its client knows it: what its sum may be, and that it may be over (None)."""

    def __init__(self, id: str, rng: random.Random) -> None:
        self.id, self.rng = id, rng
        self.may_be: set[int | None] = {None}
        self.requests = self.unknown = 0

    async def ask(self, of) -> None:
        """One request, and what it should come to."""
        rng = self.rng
        start = None in self.may_be or rng.random() < 0.02
        end = rng.random() < 0.05
        values = [rng.randrange(1, 10_000) for _ in range(rng.randrange(0 if end and not start else 1, 4))]
        before: set[int | None] = {0} if start else self.may_be
        parameters = {"sequence_id": self.id, "sequence_start": start, "sequence_end": end}
        try:
            response = await asyncio.wait_for(of.ask(asked(*values, **parameters)), WAIT_S)
        except UNKNOWN:
            self.unknown += 1
            done = {sum_ for b in before if b is not None for sum_ in accumulate([b, *values])}
            self.may_be = self.may_be | done | ({None} if end else set())
            return
        told = [int(sum_) for sum_ in response.outputs[0].data] if values else []
        sums = [list(accumulate([b, *values]))[1:] for b in before if b is not None]
        assert told in sums, f"{self.id}: {told}, and not one of {sums}"
        self.may_be = {None} if end else {told[-1]}


def kill_one(engines, rng: random.Random) -> bool:
    """Kill the process of some instance; whether one was there."""
    alive = [slot.backend.pid for of in engines for slot in of._life.slots if slot.alive]
    pids = [pid for pid in alive if pid is not None]
    if not pids:
        return False
    try:
        os.kill(rng.choice(pids), signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def until(true) -> None:
    """Look again and again."""
    while not true():
        time.sleep(0.001)


@pytest.fixture(params=["sqlite", "redis"])
def address(request, tmp_path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/checkpoints.db?synchronous=normal"
    return f"{request.getfixturevalue('valkey_server').url}?prefix={tmp_path.name}"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_killed_instances_lose_no_step_that_was_answered_and_do_none_twice(address):
    """Two engines, as two servers have; each sequence goes to either, as it likes."""
    rng = random.Random(20261122)
    followed = [Followed(f"s{number}", random.Random(number)) for number in range(SEQUENCES)]
    kills = 0

    async def run(engines) -> None:
        nonlocal kills

        async def follow(one: Followed) -> None:
            while kills < KILLS_MIN or one.requests < REQUESTS:
                one.requests += 1
                await one.ask(rng.choice(engines))

        async def kill() -> None:
            nonlocal kills
            # No more: who dies again before it has answered waits ever longer to be started again.
            while kills < KILLS_MIN:
                await asyncio.sleep(rng.uniform(0.05, 0.4))
                kills += kill_one(engines, rng)

        await asyncio.gather(kill(), *(follow(one) for one in followed))

    with ExitStack() as stack:
        engines = [stack.enter_context(engine(address, isolation="process", instances=2)) for _ in range(2)]
        asyncio.run(run(engines))
        assert sum(of.model_statistics().restarts for of in engines) >= KILLS_MIN // 2
    # They could not have been tried, had most requests come to nothing.
    assert sum(one.unknown for one in followed) < SEQUENCES * REQUESTS // 4


def test_without_checkpoints_a_killed_instance_is_told_at_once_and_the_id_can_be_begun_anew():
    async def run(only) -> None:
        for id in "abc":
            await only.ask(asked(1, sequence_id=id, sequence_start=True))
        waiting = [
            asyncio.create_task(only.ask(asked(value, sequence_id=id)))
            for value, id in [(1000, "a"), (1, "a"), (2, "b"), (3, "a"), (4, "c")]
        ]
        await asyncio.to_thread(until, lambda: only.model_statistics().calls > 3)
        assert not any(task.done() for task in waiting)
        began_s = time.monotonic()
        os.kill(only._life.slots[0].backend.pid, signal.SIGKILL)
        ended = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), WAIT_S)
        assert time.monotonic() - began_s < 2.0
        assert [type(each) for each in ended] == [SequenceLostError] * 5
        with pytest.raises(SequenceLostError, match="there is no checkpoint"):
            await only.ask(asked(1, sequence_id="a"))
        response = await only.ask(asked(7, sequence_id="a", sequence_start=True))
        assert response.outputs[0].data.tolist() == [7]

    with engine(None, Sleepy, isolation="process") as only:
        asyncio.run(run(only))


@pytest.mark.timeout(120)
def test_texts_go_on_over_killed_instances_without_a_missing_or_repeated_item(address):
    """Killed as often as it takes: what died in another step each time is no poison."""
    length, texts, kills = 200, 6, 4
    rng = random.Random(5)

    async def run(only) -> None:
        items: list[list[float]] = [[] for _ in range(texts)]

        async def read(at: int) -> None:
            request = asked(1, times=length, sequence_id=f"t{at}", sequence_start=True)
            async for response in only.stream(request):
                items[at] += response.outputs[0].data.tolist()

        reading = asyncio.gather(*(read(at) for at in range(texts)))
        for part in range(1, kills + 1):
            enough = length * part // (kills + 2)
            await asyncio.to_thread(until, lambda enough=enough: min(map(len, items)) >= enough)
            await asyncio.to_thread(until, lambda: kill_one([only], rng))
        await asyncio.wait_for(reading, WAIT_S)
        assert items == [list(range(1, length + 1))] * texts

    with engine(address, Slow, isolation="process", instances=2) as only:
        asyncio.run(run(only))
        assert only.model_statistics().restarts >= kills - 1, "the last may not be back yet"


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


class Served(ServerProcess):
    """`headrace serve`, on the same port each time it is started."""

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

    def leave(self) -> int:
        """As a rolling restart has it: SIGTERM. What it exits with."""
        process, self._process = self._process, None
        process.send_signal(signal.SIGTERM)
        return process.wait(WAIT_S)

    def ask(self, *values: float, **parameters: object) -> list[float] | int:
        """The sums, or the status of the error."""
        tensor = {"name": "x", "shape": [len(values), 1], "datatype": "FP32", "data": values}
        body = {"inputs": [tensor] if values else [], "parameters": parameters}
        asking = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v2/models/total/infer", json.dumps(body).encode()
        )
        try:
            with urllib.request.urlopen(asking, timeout=WAIT_S) as answer:
                outputs = json.loads(answer.read())["outputs"]
                return outputs[0]["data"] if outputs else []
        except urllib.error.HTTPError as error:
            return error.code


@pytest.fixture
def servers(tmp_path, address):
    (tmp_path / "total.py").write_text(MODEL)
    both = [Served(tmp_path / name, address) for name in ("first", "second")]
    with ExitStack() as stack:
        for server in both:
            server.start()
            stack.callback(server.stop)
        yield both


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_client_goes_on_at_the_second_server_when_the_first_is_stopped_or_killed(servers):
    first, second = servers
    assert first.ask(1, 2, sequence_id="s", sequence_start=True) == [1, 3]
    assert first.ask(10, sequence_id="t", sequence_start=True) == [10]
    assert first.leave() == 0
    assert second.ask(3, sequence_id="s") == [6]
    first.start()
    assert first.ask(4, sequence_id="s") == [10]
    assert second.ask(5, sequence_id="s") == [15]
    second.stop()  # SIGKILL, and nothing else
    assert first.ask(6, sequence_id="s") == [21]
    assert first.ask(20, sequence_id="t") == [30]
    second.start()
    assert second.ask(sequence_id="s", sequence_end=True) == []
    assert first.ask(1, sequence_id="s") == second.ask(1, sequence_id="s") == 410


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_sequences_hop_between_two_servers_at_every_request(servers):
    sums = dict.fromkeys(range(1, 9), 0.0)
    for turn in range(25):
        for id in sums:
            value = float(turn * id)
            sums[id] += value
            server = servers[(turn + id) % 2]
            assert server.ask(value, sequence_id=id, sequence_start="auto") == [sums[id]]
    for id, total in sums.items():
        assert servers[id % 2].ask(0, sequence_id=id, sequence_end=True) == [total]
        assert servers[1 - id % 2].ask(0, sequence_id=id) == 410
