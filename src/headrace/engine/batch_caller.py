"""Calls of a model with batches: one call if nothing fails, more until each guilty row is found.

All kinds of calls take this path: requests of `predict` and `handle`, and steps of sequences.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from typing_extensions import override

from headrace.batching.bisect import Bisection, Group, MemoryLimit, Piece
from headrace.core.clock import Clock
from headrace.core.errors import (
    CancelledRequestError,
    DeadlineError,
    HeadraceError,
    InstanceLostError,
    ModelContractError,
    ModelInputError,
    StoppedError,
)
from headrace.core.model import Call, RowError
from headrace.core.model_traceback import ModelTraceback
from headrace.core.tensor import Array, RowFailure
from headrace.engine.backend import Backend, CallInputs, CallResult
from headrace.engine.broken_model import BrokenModelCheck, broken_model_error
from headrace.engine.counters import EngineCounters
from headrace.engine.model_methods import (
    WHY_CHARS_MAX,
    describe_error,
    is_out_of_memory,
    refused_error,
    reported_error,
)
from headrace.engine.outputs import Outputs, concatenate
from headrace.engine.pending_request import PendingRequest
from headrace.engine.stepper import StepOrder
from headrace.engine.tracebacks import TracebackLog

_log = logging.getLogger("headrace.engine")

_OF_ONE_REQUEST = (ModelContractError, ModelInputError)
"""Errors that end a request, whatever rows are left."""
_NOT_ABOUT_ROWS = (*_OF_ONE_REQUEST, DeadlineError, StoppedError)
"""Errors that end a request, although its rows may fail alone: bisection cannot help."""

EndError = Callable[[PendingRequest], HeadraceError | None]
"""Returns the error that ends a request whose result is no longer wanted, else None."""


class RunningCall(Call):
    """The call in progress, as its model sees it (`headrace.core.model.Call`)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.items: Sequence[CallItem] = ()

    @property
    @override
    def deadline_s(self) -> float | None:
        deadlines = [i.entry.request.deadline for i in self.items if not i.entry.cancelled]
        latest = max((d for d in deadlines if d is not None), default=None)
        return None if latest is None or None in deadlines else latest - self._clock.now()

    @property
    @override
    def cancelled(self) -> bool:
        items, now = self.items, self._clock.now()
        return bool(items) and not any(item.is_wanted(now) for item in items)


class CallItem:
    """The rows of one request that are called together, and their outcome. One thread at a time.

    If `is_whole`, the rows fail together; otherwise bad rows fail alone.
    """

    __slots__ = (
        "entry",
        "error",
        "failures",
        "is_opaque",
        "is_whole",
        "outputs",
        "response",
        "rows",
        "tensors",
    )

    is_step = False
    """True if it is a step of a sequence. A step that was taken ends: done, or failed by the model."""

    def __init__(
        self,
        entry: PendingRequest,
        tensors: Mapping[str, Array],
        rows: int,
        *,
        is_whole: bool,
        is_opaque: bool = False,
    ) -> None:
        self.entry = entry
        self.tensors = tensors
        self.rows = rows
        self.is_whole = is_whole
        self.is_opaque = is_opaque
        """True if the model takes the request itself instead of its tensors; then `rows` is 1."""
        self.outputs: list[Outputs] = []
        """Outputs of the good rows, in order, one entry for each call."""
        self.response: Any = None
        """The model's response to an opaque request."""
        self.failures: tuple[RowFailure, ...] = ()
        self.error: BaseException | None = None

    def order(self) -> StepOrder | None:
        """Return the order of its step; None for a row without a state."""
        return None

    def is_wanted(self, now: float) -> bool:
        """Return True if a client still waits for the outcome."""
        return self.entry.is_wanted(now)

    def request_row(self, row: int) -> int:
        """Return the index in the request of one of these rows."""
        return row

    def withdraw(self, error: BaseException) -> None:
        """End it with an error before any call of its rows: no client wants them."""
        self.error = error

    def fail(self, error: BaseException, why: str, *, finished: bool) -> None:
        """End it with an error.

        `why` is the text for clients that accept missing rows. If `finished`, further rows of the
        request would fail alike.
        """
        del why, finished
        self.error = error

    def add_outputs(self, outputs: Outputs, called: CallResult, at: int) -> None:
        """Add the outputs of its rows in one call, where they begin at row `at`."""
        if self.is_opaque:
            self.response = called.responses[at]
        else:
            self.outputs.append(outputs)


class ModelCall(NamedTuple):
    """A call of the model that returned."""

    items: Sequence[CallItem]
    rows: Sequence[int]
    """Number of rows of each item in this call."""
    result: CallResult

    def apply(self) -> None:
        """Give each item its rows of the outputs."""
        outputs = self.result.outputs
        if len(self.items) == 1:
            self.items[0].add_outputs(outputs, self.result, 0)
            return
        start = 0
        for item, rows in zip(self.items, self.rows, strict=True):
            stop = start + rows
            item.add_outputs({name: data[start:stop] for name, data in outputs.items()}, self.result, start)
            start = stop


class BatchCaller:
    """A caller of one instance's model. One thread at a time, except for `cancel_if_unwanted`."""

    def __init__(
        self,
        backend: Backend,
        name: str,
        clock: Clock,
        counters: EngineCounters,
        *,
        end_error: EndError,
        traceback_log: TracebackLog | None = None,
        broken_model_check: BrokenModelCheck | None = None,
    ) -> None:
        self._traceback_log = traceback_log
        self._broken_model_check = broken_model_check
        self._backend = backend
        self._name = name
        self._clock = clock
        self._counters = counters
        self._end_error = end_error
        self._limit = MemoryLimit(backend.rows_max)
        self._running = RunningCall(clock)
        self._call_lock = threading.Lock()
        """Held while the call in progress is checked or ends, so that no other call is cancelled in
        its place.
        """
        self.died_in: Sequence[CallItem] = ()
        """Items of the last call that raised InstanceLostError."""

    def cancel_if_unwanted(self) -> None:
        """Cancel the call in progress if no client wants it any more. Any thread."""
        with self._call_lock:
            if self._running.cancelled:
                self._backend.cancel()

    def call(self, items: Sequence[CallItem], prepared: CallInputs | None = None) -> list[ModelCall] | None:
        """Call the model for the items that are still wanted.

        `prepared` are the arguments for all items, used if all are wanted.

        Return None without a call. Apply the returned calls to their items (`ModelCall.apply`). An
        item whose calls failed has its error, or its failures. Rows of one item are called in
        order, up to the limit of the model, or of its memory, at once. Only InstanceLostError is
        raised; then no item has an outcome.
        """
        wanted: list[CallItem] = []
        counts: list[int] = []
        for item in items:
            if item.error is not None or not item.rows:
                continue
            if (unwanted := self._end_error(item.entry)) is not None:
                item.withdraw(unwanted)
                continue
            wanted.append(item)
            counts.append(item.rows)
        if not wanted:
            return None
        rows, limit = sum(counts), self._limit
        if rows > limit.rows:
            return self._call_in_parts(wanted, self._new_search(wanted))
        if prepared is None or prepared.rows != rows:
            prepared = _whole_inputs(wanted, rows)
        try:
            result = self._call_model(wanted, prepared)
        except InstanceLostError:
            raise
        except BaseException as error:  # noqa: BLE001 - SystemExit in a model must not kill its thread
            return self._call_again(wanted, error)
        if limit.rows < limit.rows_max:
            limit.record_success(rows)
        return [ModelCall(wanted, counts, result)]

    def _call_again(self, items: Sequence[CallItem], error: BaseException) -> list[ModelCall]:
        """Find the rows at fault after a call with all rows raised."""
        if self._is_broken(items, error):
            return []
        search = self._new_search(items)
        self._handle_error(search, items, search.next() or (), error)
        return self._call_in_parts(items, search)

    def _is_broken(self, items: Sequence[CallItem], error: BaseException) -> bool:
        """Fail the only item if its rows show a broken model. `error` is that of its first call."""
        check, item = self._broken_model_check, items[0]
        if check is None or not check.is_open or len(items) > 1 or item.is_whole or is_out_of_memory(error):
            return False
        traceback = self._backend.traceback_of(error)
        if traceback is None:
            return False

        def try_row(row: int) -> ModelTraceback | None:
            try:
                self._call_model(items, _inputs(items, [Piece(0, np.array([row]), 1)]), is_retry=True)
            except InstanceLostError:
                raise
            except BaseException as raised:  # noqa: BLE001 - SystemExit in a model must not kill its thread
                return self._backend.traceback_of(raised)
            return None

        if not check.fails_alike(item.entry.request.id, item.rows, traceback, try_row):
            return False
        item.fail(broken_model_error(self._name, error, traceback), describe_error(error), finished=True)
        return True

    def _new_search(self, items: Sequence[CallItem]) -> Bisection:
        return Bisection(
            [item.rows for item in items],
            whole={at for at, item in enumerate(items) if item.is_whole},
            rows_max=self._limit.rows,
        )

    def _call_in_parts(self, items: Sequence[CallItem], search: Bisection) -> list[ModelCall]:
        """Make the calls of a search. Give each item that loses rows its failures."""
        calls: list[ModelCall] = []
        while True:
            self._close_unwanted(search, items)
            if self._limit.is_unsettled and not search.is_retrying:
                self._settle_limit(search)
            group = search.next()
            if group is None:
                break
            self._attempt(search, items, group, calls)
        for at, item in enumerate(items):
            if not item.is_whole:
                item.failures = search.failures(at)
        return calls

    def _close_unwanted(self, search: Bisection, items: Sequence[CallItem]) -> None:
        """Close the items that no client wants any more, before a call."""
        for at in search.open_items():
            item = items[at]
            if not item.is_step and (error := self._end_error(item.entry)) is not None:
                item.withdraw(error)
                search.close(at)

    def _settle_limit(self, search: Bisection) -> None:
        lowered = self._limit.settle()
        search.rows_max = self._limit.rows
        if lowered is not None:
            _log.warning(
                "out of memory: the batch size is reduced", extra={"model": self._name, "rows_max": lowered}
            )

    def _attempt(
        self, search: Bisection, items: Sequence[CallItem], group: Group, calls: list[ModelCall]
    ) -> None:
        """Call the model once for some of the rows."""
        chosen = [items[piece.item] for piece in group]
        try:
            inputs = _inputs(items, group)
            result = self._call_model(chosen, inputs, is_retry=group[0].tries > 0)
        except InstanceLostError:
            raise
        except BaseException as error:  # noqa: BLE001 - SystemExit in a model must not kill its thread
            if not calls and self._is_broken(items, error):
                search.mark_succeeded()
                search.close(0)
            else:
                self._handle_error(search, items, group, error)
        else:
            search.mark_succeeded()
            self._limit.record_success(inputs.rows)
            calls.append(ModelCall(chosen, [len(piece.rows) for piece in group], result))

    def _call_model(
        self, items: Sequence[CallItem], inputs: CallInputs, *, is_retry: bool = False
    ) -> CallResult:
        counters = self._counters
        counters.calls += 1
        counters.retries += is_retry
        self._running.items = items
        try:
            result = self._backend.call(inputs, self._running)
        except InstanceLostError:
            self.died_in = items
            raise
        finally:
            with self._call_lock:
                self._running.items = ()
        counters.record_call(inputs.rows, result)
        if self._broken_model_check is not None:
            self._broken_model_check.close()
        return result

    def _handle_error(
        self, search: Bisection, items: Sequence[CallItem], group: Group, error: BaseException
    ) -> None:
        """Handle an error of a call: the search finds the rows at fault."""
        if isinstance(error, RowError):
            reasons = {row: str(why)[:WHY_CHARS_MAX] for row, why in error.rows.items()}
            for at, refused in search.mark_refused(reasons).items():
                search.close(at)
                self._refuse(items[at], refused, error)
        elif isinstance(error, CancelledRequestError):
            self._handle_cancelled(search, items, group, error)
        else:
            self._handle_failure(search, items, group, error)

    def _refuse(self, item: CallItem, refused: Mapping[int, object], error: RowError) -> None:
        rows = {item.request_row(row): why for row, why in refused.items()}
        why = str(next(iter(rows.values()), ""))[:WHY_CHARS_MAX]
        item.fail(refused_error(self._name, rows, error), why, finished=False)

    def _handle_cancelled(
        self, search: Bisection, items: Sequence[CallItem], group: Group, error: CancelledRequestError
    ) -> None:
        """End the items of a cancelled call, or repeat the call if some are still wanted."""
        now = self._clock.now()
        if any(items[piece.item].is_wanted(now) for piece in group):
            # The cancellation was meant for another call, or some clients have left.
            if len(group) > 1:
                search.mark_failed(describe_error(error))
                return
            if search.mark_repeated():
                return
        search.mark_succeeded()
        for piece in group:
            search.close(piece.item)
            item = items[piece.item]
            item.fail(self._end_error(item.entry) or error, describe_error(error), finished=True)

    def _handle_failure(
        self, search: Bisection, items: Sequence[CallItem], group: Group, error: BaseException
    ) -> None:
        rows = sum([len(piece.rows) for piece in group])
        _log.debug("a call failed", extra={"model": self._name, "rows": rows}, exc_info=error)
        out_of_memory = is_out_of_memory(error)
        if out_of_memory:
            self._limit.record_out_of_memory(rows)
        traceback = self._backend.traceback_of(error)
        why = describe_error(error)
        if traceback is not None:
            why = traceback.with_place(why)
        at = search.mark_failed(why, divide=out_of_memory, traceback=traceback)
        if len(group) > 1:
            return
        if at is None and (isinstance(error, _NOT_ABOUT_ROWS) or not isinstance(error, Exception)):
            at = group[0].item
        if at is not None:
            search.close(at)
            # A cancelled model may raise anything.
            item = items[at]
            unwanted = self._end_error(item.entry)
            reported = unwanted or self.reported_error(error, traceback, is_served=item.entry.strict)
            why = describe_error(reported)
            if unwanted is None and traceback is not None:
                why = traceback.with_place(why)
            item.fail(reported, why, finished=isinstance(error, _OF_ONE_REQUEST))

    def reported_error(
        self, error: BaseException, traceback: ModelTraceback | None, *, is_served: bool
    ) -> HeadraceError:
        """Return the error of a whole request whose call raised `error`.

        If it `is_served`, its client receives the message alone, so the traceback is logged.
        """
        if is_served and self._traceback_log is not None:
            self._traceback_log.add(traceback)
        return reported_error(self._name, error, traceback)


def prepare_inputs(items: Sequence[CallItem]) -> CallInputs:
    """Return the arguments of a call of all these items, one row each, ahead of the call."""
    parts = [item.tensors for item in items]
    joined = parts if len(parts) == 1 else (concatenate(parts),)
    return CallInputs(joined, len(items), orders=_orders(items), fresh=len(parts) > 1)


def _whole_inputs(items: Sequence[CallItem], rows: int) -> CallInputs:
    """Return the arguments of a call with all rows of these items."""
    first = items[0]
    if first.is_opaque:
        return _opaque_inputs(items)
    orders = _orders(items) if first.is_step else ()
    if len(items) == 1:
        return CallInputs((first.tensors,), rows, first.entry.request.id, orders)
    return CallInputs([item.tensors for item in items], rows, orders=orders)


def _opaque_inputs(items: Sequence[CallItem]) -> CallInputs:
    entries = [item.entry for item in items]
    return CallInputs(
        (), sum([entry.rows for entry in entries]), requests=[entry.request for entry in entries]
    )


def _inputs(items: Sequence[CallItem], group: Group) -> CallInputs:
    """Return the arguments of a call with these rows."""
    chosen = [items[piece.item] for piece in group]
    if chosen[0].is_opaque:
        return _opaque_inputs(chosen)
    if len(group) == 1:
        part, fresh = _part(chosen[0], group[0])
        request_id = chosen[0].entry.request.id
        return CallInputs((part,), len(group[0].rows), request_id, _orders(chosen), fresh=fresh)
    parts = [_part(item, piece)[0] for item, piece in zip(chosen, group, strict=True)]
    return CallInputs(parts, sum([len(piece.rows) for piece in group]), orders=_orders(chosen))


def _orders(items: Sequence[CallItem]) -> Sequence[StepOrder]:
    return [order for item in items if (order := item.order()) is not None]


def _part(item: CallItem, piece: Piece) -> tuple[Mapping[str, Array], bool]:
    """Return the rows of a piece, and True if they are copies."""
    tensors, rows = item.tensors, piece.rows
    if len(rows) == item.rows:
        return tensors, False
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):
        return {name: data[first : last + 1] for name, data in tensors.items()}, False
    return {name: data.take(rows, axis=0) for name, data in tensors.items()}, True
