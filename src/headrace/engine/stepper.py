"""The states of a model's sequences, next to the model: a step changes all of its states, or none."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, cast

import numpy as np

from headrace.checkpoints.codec import decode_state, encode_state
from headrace.core.errors import ModelContractError, SequenceLostError
from headrace.core.model import Model
from headrace.core.sequence import SequenceEnd, SequenceState, States, UndoneStep, qualified_sequence_id
from headrace.core.tensor import Array
from headrace.engine.outputs import Outputs

_log = logging.getLogger("headrace.engine")

_CONTAINERS: Final = frozenset({list, dict, tuple, set, bytearray})
"""Types of plain values that are mutable, or hold values that are."""


class StepOrder(NamedTuple):
    """One row of a call of `Model.step`, with its sequence. Plain values, except `restore`."""

    number: int
    """Number of the sequence, never reused."""
    id: str
    steps: int
    """Number of steps that the sequence has done."""
    again: bool
    end: bool
    parameters: Mapping[str, Any]
    """Parameters of the row's request."""
    restore: bytes | None
    """The checkpoint that replaces the state here; empty to begin with an empty state. None keeps
    the state here.
    """
    save: bool
    """Return a checkpoint of the state after the step."""
    request: int = 0
    """Number that tells the requests of a sequence apart."""
    namespace: str = ""

    def new_state(self, values: Mapping[str, Any] | None = None) -> SequenceState:
        """Return a state of the sequence with these values."""
        return SequenceState(qualified_sequence_id(self.namespace, self.id), values or {})


StepFlags = tuple[bool, bool, bool]
"""The model's decisions for one row: reschedule, skip the output, end the sequence."""


class SequenceEnding(NamedTuple):
    """A sequence that has ended, for the model."""

    number: int
    id: str
    """The id of the state, unique among all namespaces."""
    steps: int
    reason: SequenceEnd


Deliver = Callable[[Outputs, Sequence[bytes | None]], None]
"""Delivers the outputs of a call, and the checkpoints of its steps. The steps count only if it
returns.
"""


def _call_directly(hook: Callable[[], Any]) -> Any:
    return hook()


class Stepper:
    """A caller of `Model.step` that keeps the states of the sequences. One thread at a time.

    `call_hook` calls a hook of the model, and waits for it if it is asynchronous.
    """

    def __init__(
        self, model: Model, name: str, call_hook: Callable[[Callable[[], Any]], Any] = _call_directly
    ) -> None:
        self._model = model
        self._name = name
        self._call_hook = call_hook
        self._wants_end = getattr(model.sequence_ended, "__func__", None) is not Model.sequence_ended
        self._wants_undone = getattr(model.steps_undone, "__func__", None) is not Model.steps_undone
        self._states: dict[int, SequenceState] = {}
        self._replaced: dict[int, bytes] = {}
        """Checkpoints that replaced a state here, by sequence number, until a step of it succeeds."""

    def __len__(self) -> int:
        """Return the number of sequences that have a state here."""
        return len(self._states)

    def step(
        self,
        orders: Sequence[StepOrder],
        call: Callable[[States], Outputs],
        deliver: Deliver | None = None,
    ) -> tuple[Outputs, list[StepFlags], list[bytes | None]]:
        """Do one step for each order, all of different sequences.

        `call` calls the model with the states.

        If it raises, no state has changed, and a checkpoint to restore must be passed again; the
        model has freed what its rows took (`Model.steps_undone`). Raises the exceptions of `call`
        and `deliver`, SequenceLostError for a sequence whose state after its `steps` is not here,
        or whose checkpoint cannot be read, and ModelContractError for a state that cannot be saved.
        """
        states = [self._state(order) for order in orders]
        self._replace_outdated(orders, states)
        before = [_snapshot(state) for state in states]
        for state, order in zip(states, orders, strict=True):
            state.begin_step(
                order.steps,
                again=order.again,
                end=order.end,
                request=order.request,
                parameters=order.parameters,
            )
        try:
            # A list of its own, since the model may change it.
            outputs = call(States(states))
            checkpoints: list[bytes | None] = []
            for state, values, order in zip(states, before, orders, strict=True):
                _freeze(state, values)
                state.steps = order.steps + 1
                checkpoints.append(self._encode(state) if order.save else None)
            if deliver is not None:
                deliver(outputs, checkpoints)
        except BaseException:
            for state, order in zip(states, orders, strict=True):
                state.steps = order.steps
            self._report_undone(range(len(states)), states, before)
            for state, values in zip(states, before, strict=True):
                state.clear()
                state.update(values)
            raise
        numbers = [order.number for order in orders]
        self._states.update(zip(numbers, states, strict=True))
        if self._replaced:
            for number in numbers:
                self._replaced.pop(number, None)
        return outputs, [state.step_flags() for state in states], checkpoints

    def _replace_outdated(self, orders: Sequence[StepOrder], states: Sequence[SequenceState]) -> None:
        """Replace the states here that checkpoints make outdated, before their resources are needed."""
        outdated: list[SequenceState] = []
        restored: list[SequenceState] = []
        for order, state in zip(orders, states, strict=True):
            number, checkpoint = order.number, order.restore
            if checkpoint is None or number not in self._states or self._replaced.get(number) == checkpoint:
                continue
            outdated.append(self._states[number])
            restored.append(state)
            # An end of the sequence then reports the resources that the checkpoint names.
            self._states[number], self._replaced[number] = state, checkpoint
        self._report_undone([None] * len(outdated), outdated, restored)

    def _report_undone(
        self,
        rows: Iterable[int | None],
        states: Sequence[SequenceState],
        restored: Sequence[Mapping[str, Any]],
    ) -> None:
        """Report undone steps to the model. Exceptions of the model are logged."""
        if not self._wants_undone or not states:
            return
        try:
            # Copies, since the model may change what it is given.
            undone = [
                UndoneStep(row, state, _snapshot(values))
                for row, state, values in zip(rows, states, restored, strict=True)
            ]
            self._call_hook(partial(self._model.steps_undone, undone))
        except BaseException:  # noqa: BLE001 - the states must be restored
            _log.exception("steps_undone of a model failed", extra={"model": self._name})

    def end(self, endings: Sequence[SequenceEnding]) -> None:
        """Drop the states of ended sequences, and report the ends to the model.

        Exceptions of the model are logged.
        """
        for ending in endings:
            state = self._states.pop(ending.number, None)
            self._replaced.pop(ending.number, None)
            if not self._wants_end:
                continue
            if state is None:
                state = SequenceState(ending.id)
                state.steps = ending.steps
            try:
                self._call_hook(partial(self._model.sequence_ended, state, ending.reason))
            except BaseException:  # noqa: BLE001 - the other endings must be reported
                _log.exception(
                    "sequence_ended of a model failed", extra={"model": self._name, "sequence": ending.id}
                )

    def _state(self, order: StepOrder) -> SequenceState:
        if order.restore is not None:
            return _restore(order, order.restore)
        state = self._states.get(order.number)
        if state is None:
            if order.steps:
                raise _lost_error(order, "is not here")
            return order.new_state()
        if state.steps != order.steps:
            raise _lost_error(order, f"is needed, but the state here is after {state.steps}")
        return state

    def _encode(self, state: SequenceState) -> bytes:
        try:
            return encode_state(state)
        except (TypeError, ValueError) as error:
            raise ModelContractError(
                self._name, f"the state of sequence {state.id!r} cannot be saved: {error}"
            ) from error


def _restore(order: StepOrder, checkpoint: bytes) -> SequenceState:
    try:
        state = order.new_state(decode_state(checkpoint) if checkpoint else None)
    except ValueError as error:
        raise SequenceLostError(order.id, f"{error}: restart the sequence") from error
    _freeze(state, {})
    return state


def _lost_error(order: StepOrder, detail: str) -> SequenceLostError:
    return SequenceLostError(order.id, f"its state after {order.steps} steps {detail}: restart the sequence")


def _snapshot(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy to undo a step with. Arrays are not copied, since they are read-only."""
    values = dict(state)
    for name, value in state.items():
        if type(value) in _CONTAINERS:
            values[name] = _copy(value)
    return values


def _copy(value: Any) -> Any:
    kind = cast("Any", type(value))
    if kind not in _CONTAINERS:
        return value
    if kind is dict:
        return {key: _copy(item) for key, item in value.items()}
    return kind(map(_copy, value) if kind in (list, tuple) else value)


def _freeze(state: SequenceState, before: Mapping[str, Any]) -> None:
    """Make the values of a step the state's own, with read-only arrays."""
    for name, value in state.items():
        if before.get(name) is value:
            continue
        if isinstance(value, np.ndarray):
            state[name] = _frozen_array(cast("Array", value))
        elif type(value) in _CONTAINERS:
            state[name] = _frozen(value)


def _frozen(value: Any) -> Any:
    """Return the value with read-only arrays of its own, changed in place where possible."""
    kind = cast("Any", type(value))
    if kind is list:
        value[:] = map(_frozen, value)
    elif kind is dict:
        value.update({key: _frozen(item) for key, item in value.items()})
    elif kind is tuple:
        return tuple(map(_frozen, value))
    elif isinstance(value, np.ndarray):
        return _frozen_array(cast("Array", value))
    return value


def _frozen_array(array: Array) -> Array:
    # A view keeps its base alive and changes with it; a writeable array may change later.
    if array.base is not None or array.flags.writeable:
        array = array.copy()
        array.setflags(write=False)
    return array
