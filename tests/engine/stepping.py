"""A backend's `step`, driven as an engine drives it: requests of many sequences, of which a random few share each call."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from random import Random

import numpy as np

from engine.support import serving
from headrace.core import InferRequest, InferResponse, Model, RowError, SequenceEnd, Tensor
from headrace.core.call import current_call
from headrace.core.errors import RefusedRowsError, SequenceGoneError
from headrace.core.sequence import SequenceAsk
from headrace.engine.backend import LocalBackend
from headrace.engine.stepper import Ending, StepOrder

Ask = Callable[[InferRequest], Awaitable[InferResponse]]

WAYS = ("engine", "steps", "moving")
"""By a real engine; and by `Steps`, without and with a second instance."""


@contextmanager
def asking(way: str, make: Callable[[], Model]) -> Iterator[Ask]:
    """Asks a model, which is closed at the end, in one of the `WAYS`."""
    if way == "engine":
        with serving(make) as engine:
            yield engine.ask
        return
    steps = Steps(make, moving=way == "moving")
    try:
        yield steps.ask
    finally:
        steps.close()


@dataclass
class _Request:
    asked: InferRequest
    ends: bool
    answer: asyncio.Future[InferResponse]
    outputs: list[Mapping[str, np.ndarray]] = field(default_factory=list)
    row: int = 0
    again: bool = False


@dataclass
class _Sequence:
    number: int
    steps: int = 0
    waiting: deque[_Request] = field(default_factory=deque)
    saved: bytes | None = None


class Steps:
    """`ask` is what `Engine.ask` is. Who shares a call is drawn anew for each, so that it differs from seed to seed.

    With `moving` there are two instances, and before a step a sequence may be moved to the other one: with nothing but its
    checkpoint.
    """

    def __init__(self, make: Callable[[], Model], *, seed: int = 0, moving: bool = False):
        self.backends = [LocalBackend(make, "m") for _ in range(1 + moving)]
        self.random = Random(seed)
        self._sequences: dict[str, _Sequence] = {}
        self._numbers = count(1)
        self._turning = False

    async def ask(self, request: InferRequest) -> InferResponse:
        self.backends[0].inputs.check(request)
        said = SequenceAsk.of(request.parameters)
        id = said.id or f"made-up-{next(self._numbers)}"
        if said.start or not said.id:
            self._sequences[id] = _Sequence(next(self._numbers))
        if id not in self._sequences:
            raise SequenceGoneError(id, "there is none")
        asked = _Request(request, said.end, asyncio.get_running_loop().create_future())
        self._sequences[id].waiting.append(asked)
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._turn)
        return await asked.answer

    def close(self) -> None:
        for backend in self.backends:
            backend.close()

    def _turn(self) -> None:
        ready = [id for id, sequence in self._sequences.items() if sequence.waiting]
        self._turning = bool(ready)
        if not ready:
            return
        asyncio.get_running_loop().call_soon(self._turn)
        backend = self.random.choice(self.backends)
        some = self.random.randint(1, min(len(ready), backend.rows_max))
        try:
            self._step(backend, self.random.sample(ready, some))
        except Exception as error:
            # Nobody waits for what will never be, and this would be tried for ever.
            for sequence in self._sequences.values():
                for request in sequence.waiting:
                    request.answer.set_exception(error)
                sequence.waiting.clear()
            raise

    def _step(self, backend: LocalBackend, ids: list[str]) -> None:
        moving = len(self.backends) > 1
        heads = [self._sequences[id].waiting[0] for id in ids]
        parts = [{t.name: t.data[h.row : h.row + 1] for t in h.asked.inputs} for h in heads]
        orders = [self._order(id, head, save=moving) for id, head in zip(ids, heads, strict=True)]
        try:
            stepped = backend.step(parts, orders, current_call())
        except RowError as refused:
            for row, why in refused.rows.items():
                self._sequences[ids[row]].waiting.popleft()
                heads[row].answer.set_exception(RefusedRowsError("m", why))
            if left := [id for row, id in enumerate(ids) if row not in refused.rows]:
                self._step(backend, left)
            return
        for row, id in enumerate(ids):
            sequence, (goes_on, silent, over) = self._sequences[id], stepped.said[row]
            kept = slice(row, row if silent else row + 1)
            heads[row].outputs.append({name: data[kept] for name, data in stepped.outputs.items()})
            sequence.steps += 1
            sequence.saved = stepped.saved[row]
            self._stepped(backend, id, goes_on=goes_on, ends=over)

    def _order(self, id: str, head: _Request, *, save: bool) -> StepOrder:
        sequence = self._sequences[id]
        last = head.row + 1 == head.asked.rows
        return StepOrder(
            sequence.number,
            id,
            sequence.steps,
            head.again,
            head.ends and last,
            head.asked.parameters,
            sequence.saved,
            save,
        )

    def _stepped(self, backend: LocalBackend, id: str, *, goes_on: bool, ends: bool) -> None:
        sequence = self._sequences[id]
        head = sequence.waiting[0]
        head.again = goes_on
        head.row += not goes_on
        if head.row == head.asked.rows:
            sequence.waiting.popleft()
            tensors = [
                Tensor(name, np.concatenate([o[name] for o in head.outputs])) for name in head.outputs[0]
            ]
            head.answer.set_result(InferResponse(tuple(tensors), "m", parameters={"sequence_id": id}))
            ends = ends or head.ends
        if ends:
            del self._sequences[id]
            backend.end_sequences([Ending(sequence.number, id, sequence.steps, SequenceEnd.ENDED)])
            for left in sequence.waiting:
                left.answer.set_exception(SequenceGoneError(id, "it ended"))
