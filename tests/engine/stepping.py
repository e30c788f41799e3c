"""Drivers of `Model.step`: requests of many sequences, of which random ones share each call."""

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
from headrace.core.errors import RefusedRowsError, SequenceGoneError
from headrace.core.model import current_call
from headrace.core.sequence import SequenceControl
from headrace.engine.backend import CallInputs
from headrace.engine.local_backend import LocalBackend
from headrace.engine.stepper import SequenceEnding, StepOrder

InferFunction = Callable[[InferRequest], Awaitable[InferResponse]]

WAYS = ("engine", "steps", "moving")
"""By an engine, and by `SteppedBackends` without and with a second instance."""


@contextmanager
def open_client(way: str, make: Callable[[], Model]) -> Iterator[InferFunction]:
    """Yield a function that sends requests to a model, which is closed at the end, in one of the
    `WAYS`.
    """
    if way == "engine":
        with serving(make) as engine:
            yield engine.infer
        return
    steps = SteppedBackends(make, moving=way == "moving")
    try:
        yield steps.infer
    finally:
        steps.close()


@dataclass
class _Request:
    infer_request: InferRequest
    ends: bool
    future: asyncio.Future[InferResponse]
    outputs: list[Mapping[str, np.ndarray]] = field(default_factory=list)
    row: int = 0
    again: bool = False


@dataclass
class _Sequence:
    number: int
    steps: int = 0
    waiting: deque[_Request] = field(default_factory=deque)
    saved: bytes | None = None


class SteppedBackends:
    """Backends with the same `infer` as an engine. The steps that share a call are drawn at random.

    With `moving` there are two instances. Before a step, a sequence may move to the other one, with
    nothing but its checkpoint.
    """

    def __init__(self, make: Callable[[], Model], *, seed: int = 0, moving: bool = False):
        self.backends = [LocalBackend(make, "m") for _ in range(1 + moving)]
        self.random = Random(seed)
        self._sequences: dict[str, _Sequence] = {}
        self._numbers = count(1)
        self._turning = False

    async def infer(self, request: InferRequest) -> InferResponse:
        self.backends[0].inputs.check(request)
        flags = SequenceControl.from_parameters(request.parameters)
        id = flags.id or f"made-up-{next(self._numbers)}"
        if flags.start or not flags.id:
            self._sequences[id] = _Sequence(next(self._numbers))
        if id not in self._sequences:
            raise SequenceGoneError(id, "there is none")
        entry = _Request(request, flags.end, asyncio.get_running_loop().create_future())
        self._sequences[id].waiting.append(entry)
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._turn)
        return await entry.future

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
            # The other requests would otherwise wait for ever.
            for sequence in self._sequences.values():
                for request in sequence.waiting:
                    request.future.set_exception(error)
                sequence.waiting.clear()
            raise

    def _step(self, backend: LocalBackend, ids: list[str]) -> None:
        moving = len(self.backends) > 1
        heads = [self._sequences[id].waiting[0] for id in ids]
        parts = [{t.name: t.data[h.row : h.row + 1] for t in h.infer_request.inputs} for h in heads]
        orders = [self._order(id, head, save=moving) for id, head in zip(ids, heads, strict=True)]
        try:
            stepped = backend.call(CallInputs(parts, len(orders), orders=orders), current_call())
        except RowError as refused:
            for row, why in refused.rows.items():
                self._sequences[ids[row]].waiting.popleft()
                heads[row].future.set_exception(RefusedRowsError("m", why))
            if left := [id for row, id in enumerate(ids) if row not in refused.rows]:
                self._step(backend, left)
            return
        for row, id in enumerate(ids):
            sequence, (goes_on, silent, over) = self._sequences[id], stepped.flags[row]
            kept = slice(row, row if silent else row + 1)
            heads[row].outputs.append({name: data[kept] for name, data in stepped.outputs.items()})
            sequence.steps += 1
            sequence.saved = stepped.checkpoints[row]
            self._stepped(backend, id, goes_on=goes_on, ends=over)

    def _order(self, id: str, head: _Request, *, save: bool) -> StepOrder:
        sequence = self._sequences[id]
        last = head.row + 1 == head.infer_request.rows
        return StepOrder(
            sequence.number,
            id,
            sequence.steps,
            head.again,
            head.ends and last,
            head.infer_request.parameters,
            sequence.saved,
            save,
        )

    def _stepped(self, backend: LocalBackend, id: str, *, goes_on: bool, ends: bool) -> None:
        sequence = self._sequences[id]
        head = sequence.waiting[0]
        head.again = goes_on
        head.row += not goes_on
        if head.row == head.infer_request.rows:
            sequence.waiting.popleft()
            tensors = [
                Tensor(name, np.concatenate([o[name] for o in head.outputs])) for name in head.outputs[0]
            ]
            head.future.set_result(InferResponse(tuple(tensors), "m", parameters={"sequence_id": id}))
            ends = ends or head.ends
        if ends:
            del self._sequences[id]
            backend.end_sequences([SequenceEnding(sequence.number, id, sequence.steps, SequenceEnd.ENDED)])
            for left in sequence.waiting:
                left.future.set_exception(SequenceGoneError(id, "it ended"))
