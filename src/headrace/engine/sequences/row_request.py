"""The part of a request that belongs to one sequence, its steps, and the collector of its outputs."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

from typing_extensions import override

from headrace.batching.sequence import LiveSequence
from headrace.core.errors import PredictError
from headrace.core.model_traceback import ModelTraceback
from headrace.core.sequence import SequenceEnd, SequenceInfo
from headrace.core.tensor import Array
from headrace.engine.backend import CallResult
from headrace.engine.batch_caller import CallItem
from headrace.engine.model_methods import describe_error
from headrace.engine.outputs import Outputs
from headrace.engine.pending_request import PendingRequest, RequestResult
from headrace.engine.stepper import SequenceEnding, StepOrder


class OutputCollector(Protocol):
    """The receiver of the outputs of a request's steps.

    One thread at a time calls it, in the order of the steps of each row request.
    """

    def add_output(
        self, row_request: "RowRequest", row: int, outputs: Outputs, wakes: list[Callable[[], None]]
    ) -> bool:
        """Add one row of outputs for `row` of the request.

        Return True while there is space for more.

        Wake-ups are appended to `wakes`, for `headrace.engine.pipe.wake_all`. Raises
        CancelledRequestError if no client wants the outputs.
        """
        ...

    def add_failure(
        self, row_request: "RowRequest", row: int, why: str, traceback: ModelTraceback | None = None
    ) -> bool:
        """Record that the step of this row failed. Return True if the other rows are still wanted."""
        ...

    def close(self, row_request: "RowRequest", error: BaseException | None) -> RequestResult | None:
        """Close a row request.

        Return the result of the whole request, once all row requests are closed.

        Any thread. The first call for a row request counts, and sets its `is_closed`.
        """
        ...

    def when_space(self, wake: Callable[[], None]) -> bool:
        """Call `wake` once there is space, from any thread. Return False if there is space now."""
        ...

    def rewind(self, row_request: "RowRequest") -> bool:
        """Forget the outputs of a row request. Return False if the client has seen some of them."""
        ...


class RowRequest:
    """The steps of one sequence in one request: one step for each of its rows, in order.

    Satisfies `headrace.batching.live_sequence.StepRequest`. Guarded by the lock of its queue,
    except for the calls of its collector.
    """

    __slots__ = (
        "again",
        "collector",
        "deaths",
        "ends",
        "entry",
        "fetched",
        "id",
        "is_closed",
        "key",
        "key_before_isolation",
        "last_step_s",
        "number",
        "parameters",
        "priority",
        "row",
        "row_indices",
        "rows",
        "sequence",
        "sequence_ended",
        "started_s",
        "starts_sequence",
        "tensors",
    )

    def __init__(
        self,
        entry: PendingRequest,
        tensors: Mapping[str, Array],
        rows: int,
        collector: OutputCollector,
        *,
        row_indices: Sequence[int] | None = None,
        ends: bool = False,
    ) -> None:
        self.entry = entry
        self.tensors = tensors
        self.rows = rows
        self.collector = collector
        self.row_indices = row_indices
        """Indices of its rows in the request; None for all rows."""
        self.ends = ends
        self.row = 0
        self.sequence_ended = False
        """True if the step that was just done ended the sequence."""
        self.again = False
        self.key: Hashable = entry.key
        self.priority = entry.priority
        self.parameters: Mapping[str, Any] = entry.request.parameters
        self.deaths = 0
        """Number of instances that died during its next step."""
        self.key_before_isolation: Hashable = None
        """The shared key, while the row request is isolated with a key of its own."""
        self.started_s: float | None = None
        """Time at which its first step began."""
        self.is_closed = False
        """True once its collector was closed for it."""
        self.starts_sequence = False
        """True if it started its sequence."""
        self.last_step_s: float | None = None
        """Time at which its last step ended."""
        self.sequence: LiveSequence[RowRequest] | None = None
        self.fetched: tuple[tuple[int, bytes] | None, ...] = ()
        """The checkpoint for its next step, or None if there is none; empty unless it was fetched."""
        self.id = ""
        self.number = 0
        """Number that tells it apart from other row requests of its sequence."""

    @property
    def request_row(self) -> int:
        """Index of its next row in the request."""
        return self.row if self.row_indices is None else self.row_indices[self.row]

    def request_rows(self, row: int) -> Sequence[int]:
        """Return the indices of its rows in the request, from its own index `row` on."""
        return range(row, self.rows) if self.row_indices is None else self.row_indices[row:]

    def step_tensors(self) -> Mapping[str, Array]:
        """Return the next row by input name."""
        if self.rows == 1 and self.row_indices is None:
            return self.tensors
        request_row = self.request_row
        return {name: data[request_row : request_row + 1] for name, data in self.tensors.items()}

    def is_wanted(self, now: float) -> bool:
        """Return True if a client still waits for its outputs."""
        return not self.is_closed and self.entry.is_wanted(now)

    def isolate(self) -> int:
        """Give it a key of its own after an instance died in its next step: it may be the cause.

        Return the number of deaths so far.
        """
        if not self.deaths:
            self.key_before_isolation, self.key = self.key, self
        self.deaths += 1
        return self.deaths

    def clear_suspicion(self) -> None:
        """Restore the shared key, after a step was done."""
        if self.deaths:
            self.key_before_isolation, self.key = None, self.key_before_isolation
            self.deaths = 0

    def rewind(self) -> bool:
        """Forget the outputs of its steps. Return False if the client has seen some of them."""
        return self.collector.rewind(self)

    def finish_with_entry(self, error: BaseException | None) -> tuple[PendingRequest, RequestResult] | None:
        """Finish as `finish` does, and return the result with its entry."""
        result = self.finish(error)
        return None if result is None else (self.entry, result)

    def finish(self, error: BaseException | None) -> RequestResult | None:
        """Close it, with an error or None.

        Return the result of its request, if this was its last part.

        The first call counts.
        """
        return self.collector.close(self, error)


StepSequence = LiveSequence[RowRequest]


class StepItem(CallItem):
    """One step: a row of outputs or an error, and the model's flags."""

    __slots__ = (
        "checkpoint",
        "done",
        "ends",
        "finished",
        "held",
        "rescheduled",
        "restore",
        "row",
        "row_request",
        "save",
        "sequence",
        "silent",
        "state_changed",
        "undone",
        "why",
        "withdrawn",
    )

    is_step = True

    def __init__(self, sequence: StepSequence, row_request: RowRequest) -> None:
        super().__init__(row_request.entry, row_request.step_tensors(), 1, is_whole=True)
        self.sequence = sequence
        self.row_request = row_request
        self.row = row_request.request_row
        self.why = ""
        """The text of the error, for clients that accept missing rows."""
        self.state_changed = True
        """True if the step changed the state."""
        self.rescheduled = self.silent = self.ends = False
        self.finished = False
        """True if its row request is complete, whatever rows are left."""
        self.withdrawn = False
        """True if its row request can be retried, and ends no sequence."""
        self.held = False
        self.restore: bytes | None = None
        """The checkpoint to begin the step with, if the instance does not have the state."""
        self.save = False
        self.undone = False
        self.checkpoint: bytes | None = None
        self.done: bool | None = None
        """True if the step completed its row request; None until the step is committed."""

    @property
    def traceback(self) -> ModelTraceback | None:
        """The traceback of the unexpected exception that failed the step, if any."""
        return self.error.traceback if isinstance(self.error, PredictError) else None

    @property
    def is_last(self) -> bool:
        """True if the step ends its sequence, by the model or by its client."""
        row_request = self.row_request
        return self.ends or (
            row_request.ends and not self.rescheduled and row_request.row == row_request.rows - 1
        )

    @override
    def order(self) -> StepOrder:
        sequence, row_request = self.sequence, self.row_request
        end = row_request.ends and row_request.row == row_request.rows - 1
        return StepOrder(
            sequence.number,
            sequence.id,
            sequence.steps,
            row_request.again,
            end,
            row_request.parameters,
            self.restore,
            self.save,
            row_request.number,
            sequence.namespace,
        )

    @override
    def is_wanted(self, now: float) -> bool:
        return self.row_request.is_wanted(now)

    @override
    def request_row(self, row: int) -> int:
        return self.row

    @override
    def add_outputs(self, outputs: Outputs, called: CallResult, at: int) -> None:
        self.outputs.append(outputs)
        self.rescheduled, self.silent, self.ends = called.flags[at]
        self.checkpoint = called.checkpoints[at]

    def undo(self) -> None:
        """Undo a step that was done on an outdated state: it is done again."""
        self.undone = True
        self._discard_outputs()

    @override
    def withdraw(self, error: BaseException) -> None:
        """End it with an error; its sequence continues as if the row request had not been sent."""
        self.fail(error, describe_error(error), finished=True)
        self.withdrawn = True

    @override
    def fail(self, error: BaseException, why: str, *, finished: bool) -> None:
        """Fail the step: its state is unchanged, or loaded again."""
        self.error, self.why, self.finished = error, why, finished
        self._discard_outputs()

    def _discard_outputs(self) -> None:
        self.state_changed = self.rescheduled = self.ends = False
        self.outputs.clear()


def sequence_ending(sequence: StepSequence) -> SequenceEnding:
    """Return the ending of a sequence, for the model. One that moves ends as stopped where it was."""
    reason = sequence.end_reason or SequenceEnd.STOPPED
    return SequenceEnding(sequence.number, sequence.qualified_id, sequence.steps, reason)


def sequence_info(sequence: StepSequence, now: float) -> SequenceInfo:
    """Return the current figures of a sequence."""
    return SequenceInfo(
        sequence.id,
        stage=str(sequence.stage),
        instance=sequence.instance,
        steps=sequence.steps,
        requests=len(sequence.waiting) + (sequence.current is not None),
        age_s=now - sequence.started_s,
        idle_s=now - sequence.idle_since_s if sequence.current is None else 0.0,
        namespace=sequence.namespace,
    )
