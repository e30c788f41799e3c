"""One instance: calls the model for batches of requests and makes responses of its outputs.

Takes a batch of pending requests; gives a result for each. A failing batch is bisected, first by
request, then by row, so that only the guilty ones fail. All of it runs in the instance's thread.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from typing_extensions import override

from headrace.batching.bisect import Bisection
from headrace.core.call import Call
from headrace.core.clock import Clock
from headrace.core.errors import (
    CancelledRequestError,
    DeadlineError,
    HeadraceError,
    InstanceLostError,
    ModelContractError,
    ModelInputError,
    RefusedRowsError,
    StoppedError,
)
from headrace.core.model import RowError
from headrace.core.tensor import Array, InferRequest, InferResponse, RowFailure, Tensor
from headrace.engine.backend import Backend, CallResult
from headrace.engine.counters import EngineCounters
from headrace.engine.model_errors import WHY_CHARS_MAX, describe_error, reduced_rows_max, reported_error
from headrace.engine.outputs import Outputs, select_outputs
from headrace.engine.pending_request import PendingRequest, RequestResult

_log = logging.getLogger("headrace.engine")

_NOT_ABOUT_ROWS = (
    ModelContractError,
    ModelInputError,
    DeadlineError,
    StoppedError,
    CancelledRequestError,
    InstanceLostError,
)
"""Errors that end the request: bisection cannot help."""

BeforeCall = Callable[[PendingRequest], None]
"""Raises the error that ends a request whose result is no longer wanted."""


def end_error(entry: PendingRequest, before_call: BeforeCall) -> HeadraceError | None:
    """Return the error that ends a request whose result is no longer wanted, else None."""
    try:
        before_call(entry)
    except HeadraceError as error:
        return error
    return None


class RunningCall(Call):
    """The call in progress, as its model sees it (`headrace.core.call.Call`)."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.entries: Sequence[PendingRequest] = ()

    @property
    @override
    def deadline_s(self) -> float | None:
        deadlines = [t.request.deadline for t in self.entries if not t.cancelled]
        latest = max((d for d in deadlines if d is not None), default=None)
        return None if latest is None or None in deadlines else latest - self._clock.now()

    @property
    @override
    def cancelled(self) -> bool:
        entries = self.entries
        now = self._clock.now()
        return bool(entries) and not any(t.is_wanted(now) for t in entries)


class Instance:
    """One instance: predicts batches of requests with its backend, and counts its calls."""

    def __init__(
        self, backend: Backend, name: str, clock: Clock, counters: EngineCounters | None = None
    ) -> None:
        self._backend = backend
        self._name = name
        self._rows_max = backend.rows_max
        self._whole_requests = backend.metadata.whole_requests
        self._version = backend.metadata.version
        self._running = RunningCall(clock)
        self._clock = clock
        self._call_lock = threading.Lock()
        """Held while the call in progress is checked or ends, so that no other call is cancelled in
        its place.
        """
        self.counters = counters or EngineCounters()
        self.died_in: Sequence[PendingRequest] = ()
        """Requests of the last call that raised InstanceLostError."""

    def cancel_if_unwanted(self) -> None:
        """Cancel the call in progress if no client wants it any more. Any thread."""
        with self._call_lock:
            if self._running.cancelled:
                self._backend.cancel()

    def predict_batch(
        self, entries: Sequence[PendingRequest], before_call: BeforeCall
    ) -> list[tuple[PendingRequest, RequestResult]]:
        """Return the result of every request, from one call of the model if no row fails.

        The requests share one `key`. Only InstanceLostError is raised; then no request has a result
        yet.
        """
        if len(entries) == 1:
            return [(entries[0], self.predict_single(entries[0], before_call))]
        results: list[tuple[PendingRequest, RequestResult]] = []
        groups = [list(entries)]
        while groups:
            group = groups.pop()
            retry = len(group) < len(entries)
            wanted = [t for t in group if not self._resolve_early(t, before_call, results)]
            if len(wanted) == 1:
                results.append((wanted[0], self.predict_single(wanted[0], before_call)))
            elif wanted:
                groups += self._predict_together(wanted, before_call, results, retry=retry)
        return results

    def _resolve_early(
        self,
        entry: PendingRequest,
        before_call: BeforeCall,
        results: list[tuple[PendingRequest, RequestResult]],
    ) -> bool:
        """Return True if a request has a result without a shared call."""
        result = end_error(entry, before_call) if entry.rows else self.predict_single(entry, before_call)
        if result is not None:
            results.append((entry, result))
        return result is not None

    def _predict_together(
        self,
        entries: Sequence[PendingRequest],
        before_call: BeforeCall,
        results: list[tuple[PendingRequest, RequestResult]],
        *,
        retry: bool,
    ) -> list[list[PendingRequest]]:
        """Call the model once for several requests.

        Return the groups to retry after a failure, last first.
        """
        rows = sum(t.rows for t in entries)
        if rows > self._rows_max:
            return _halves(entries)  # split, since memory is enough for smaller batches only
        parts = [{i.name: i.data for i in t.request.inputs} for t in entries]
        try:
            outputs = self._call(entries, parts, rows, "", retry=retry)
        except InstanceLostError:
            raise
        except CancelledRequestError as error:
            if any(t.is_wanted(self._clock.now()) for t in entries):
                return _halves(entries)
            results.extend((t, end_error(t, before_call) or error) for t in entries)
            return []
        except RowError as error:
            return self._predict_apart(entries, error, before_call, results)
        except BaseException as error:  # noqa: BLE001 - splitting the batch finds the guilty requests
            _log.debug("batch failed", extra={"model": self._name, "rows": rows}, exc_info=True)
            self._reduce_rows_max(error, rows)
            return _halves(entries)
        start = 0
        for entry in entries:
            stop = start + entry.rows
            if not self._resolve_early(entry, before_call, results):
                own = {n: d[start:stop] for n, d in outputs.items()}
                results.append((entry, self._checked_response(own, entry)))
            start = stop
        return []

    def _predict_apart(
        self,
        entries: Sequence[PendingRequest],
        refused: RowError,
        before_call: BeforeCall,
        results: list[tuple[PendingRequest, RequestResult]],
    ) -> list[list[PendingRequest]]:
        """Predict the requests of refused rows one by one.

        Return the others, to be retried together.
        """
        refused_entries: list[PendingRequest] = []
        other_entries: list[PendingRequest] = []
        start = 0
        for entry in entries:
            own = range(start, start + entry.rows)
            (refused_entries if any(row in own for row in refused.rows) else other_entries).append(entry)
            start += entry.rows
        if not refused_entries:
            return _halves(entries)
        results.extend((t, self.predict_single(t, before_call)) for t in refused_entries)
        return [other_entries] if other_entries else []

    def _checked_response(self, outputs: Outputs, entry: PendingRequest) -> RequestResult:
        try:
            return self._response(outputs, entry.request, ())
        except ModelInputError as error:
            return error

    def predict_single(self, entry: PendingRequest, before_call: BeforeCall) -> RequestResult:
        """Return the result of one request in calls of its own. Only InstanceLostError is raised."""
        try:
            before_call(entry)
            try:
                result = self.predict(entry, before_call)
            except CancelledRequestError:
                if not entry.is_wanted(self._clock.now()):
                    raise
                # The cancellation was meant for another call.
                result = self.predict(entry, before_call)
            before_call(entry)
        except InstanceLostError:
            raise
        except BaseException as error:  # noqa: BLE001 - SystemExit in a model must not kill its thread
            # A cancelled model may raise anything.
            return end_error(entry, before_call) or self.reported_error(error)
        return result

    def reported_error(self, error: BaseException) -> BaseException:
        """Return the error to report for a request whose call raised `error`."""
        if not isinstance(error, RowError):
            return reported_error(self._name, error)
        refused = self._refused(error)
        refused.__cause__ = error
        return refused

    def predict(self, entry: PendingRequest, before_call: BeforeCall) -> InferResponse:
        """Predict a request of any size, in calls of up to `rows_max` rows. No rows need no call.

        Refused rows are failures in the response. If the request is strict, they raise
        RefusedRowsError instead. `before_call` is called before every call of the model but the
        first; its exception ends the request. Raises ModelContractError if the model does not
        return a row for each row.
        """
        request, rows = entry.request, entry.rows
        if entry.strict and self._whole_requests:
            return self._call_whole(entry)
        tensors = {t.name: t.data for t in request.inputs}
        if 0 < rows <= self._rows_max and entry.strict:
            return self._response(self._call_strictly(entry, tensors, rows), request, ())
        kept: list[Outputs] = []
        failures: list[RowFailure] = []
        start = stop = 0
        while stop < rows:
            start, stop = stop, min(stop + self._rows_max, rows)
            part = tensors if stop - start == rows else {n: d[start:stop] for n, d in tensors.items()}
            if start:
                before_call(entry)
            if entry.strict:
                kept.append(self._call_strictly(entry, part, stop - start))
                continue
            outputs, refused = self._predict_rows(entry, part, stop - start, before_call)
            kept.extend(outputs)
            failures.extend(RowFailure(f.row + start, f.why, f.attempts) for f in refused)
        joined = self._backend.check.joined(kept, request.id)
        return self._response(joined, request, tuple(failures))

    def _call_whole(self, entry: PendingRequest) -> InferResponse:
        """Call a model that takes whole requests."""
        request = entry.request
        self.counters.calls += 1
        self._running.entries = (entry,)
        began_s = self._clock.now()
        try:
            response = self._backend.call_request(request, self._running)
        except RowError as error:
            raise self._refused(error) from error
        finally:
            with self._call_lock:
                self._running.entries = ()
        self.counters.record_call(entry.rows, CallResult({}, infer_s=self._clock.now() - began_s))
        if not request.outputs:
            return response
        names = select_outputs({t.name: t.data for t in response.outputs}, request, self._name)
        return replace(response, outputs=tuple(t for n in names for t in response.outputs if t.name == n))

    def _call_strictly(self, entry: PendingRequest, tensors: Mapping[str, Array], rows: int) -> Outputs:
        try:
            return self._call((entry,), (tensors,), rows, entry.request.id)
        except RowError as error:
            raise self._refused(error) from error

    def _refused(self, error: RowError) -> RefusedRowsError:
        reasons = "; ".join(
            f"row {row}: {str(why)[:WHY_CHARS_MAX]}" for row, why in sorted(error.rows.items())[:8]
        )
        return RefusedRowsError(self._name, reasons or "it raised RowError without a row")

    def _predict_rows(
        self, entry: PendingRequest, tensors: Mapping[str, Array], rows: int, before_call: BeforeCall
    ) -> tuple[list[Outputs], tuple[RowFailure, ...]]:
        """Call once, and bisect the batch if it fails.

        Return the outputs of the good rows, in order.
        """
        search = Bisection(rows)
        kept: list[Outputs] = []
        request = entry.request.id
        while (indices := search.next()) is not None:
            whole = len(indices) == rows
            if not whole:
                before_call(entry)
            part = tensors if whole else {n: d.take(indices, axis=0) for n, d in tensors.items()}
            try:
                outputs = self._call(
                    (entry,), (part,), len(indices), request, fresh=not whole, retry=not whole
                )
            except RowError as error:
                search.mark_refused({row: str(why)[:WHY_CHARS_MAX] for row, why in error.rows.items()})
            except _NOT_ABOUT_ROWS:
                raise
            except Exception as error:  # noqa: BLE001 - whatever a model raises is about its rows
                _log.debug("batch failed", extra={"model": self._name, "rows": len(indices)}, exc_info=True)
                self._reduce_rows_max(error, len(indices))
                search.mark_failed(describe_error(error))
            else:
                kept.append(outputs)
                search.mark_succeeded()
        return kept, search.failures

    def _reduce_rows_max(self, error: BaseException, rows: int) -> None:
        """Lower the batch size after a batch ran out of memory, so that later batches fit at once."""
        if rows <= self._rows_max and (rows_max := reduced_rows_max(self._name, error, rows)) is not None:
            self._rows_max = rows_max

    def _call(
        self,
        entries: Sequence[PendingRequest],
        parts: Sequence[Mapping[str, Array]],
        rows: int,
        request: str,
        *,
        fresh: bool = False,
        retry: bool = False,
    ) -> Outputs:
        self.counters.calls += 1
        self.counters.retries += retry
        self._running.entries = entries
        try:
            called = self._backend.call(parts, rows, request, self._running, fresh=fresh)
        except InstanceLostError:
            self.died_in = entries
            raise
        finally:
            with self._call_lock:
                self._running.entries = ()
        self.counters.record_call(rows, called)
        return called.outputs

    def _response(
        self, outputs: Outputs, request: InferRequest, failures: tuple[RowFailure, ...]
    ) -> InferResponse:
        chosen = select_outputs(outputs, request, self._name) if request.outputs and outputs else outputs
        return InferResponse(
            tuple([Tensor(name, data) for name, data in chosen.items()]),
            self._name,
            self._version,
            request.id,
            failures=failures,
        )


def _halves(entries: Sequence[PendingRequest]) -> list[list[PendingRequest]]:
    half = len(entries) // 2
    return [list(entries[half:]), list(entries[:half])]
