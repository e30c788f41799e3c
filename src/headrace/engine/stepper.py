"""The states of a model's sequences, where the model is: each step is done on all of its states, or on none."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, cast

import numpy as np

from headrace.checkpoints.codec import decode_state, encode_state
from headrace.core.errors import ModelContractError, SequenceLostError
from headrace.core.model import Model
from headrace.core.record import record
from headrace.core.sequence import SequenceEnd, SequenceState, States
from headrace.core.tensor import Array
from headrace.engine.outputs import Outputs

_log = logging.getLogger("headrace.engine")

_HOLDERS: Final = frozenset({list, dict, tuple, set, bytearray})
"""Plain values that can be changed where they are, or hold others that can."""


class StepOrder(NamedTuple):
    """One row of a call of `Model.step`: whose step it is. Plain values, but for `restore`."""

    number: int
    """The sequence's, never given twice."""
    id: str
    steps: int
    """Steps it has done."""
    again: bool
    end: bool
    parameters: Mapping[str, Any]
    """Of the request that the row belongs to."""
    restore: bytes | None
    """Its checkpoint, which takes the place of whatever is here; empty: it begins anew. None: what is here counts."""
    save: bool
    """Whether a checkpoint of its state after the step is wanted."""
    request: int = 0
    """Tells the requests of a sequence apart."""


Said = tuple[bool, bool, bool]
"""What the model said of one row: whether it goes on, is silent, ends its sequence."""


class Ending(NamedTuple):
    """A sequence that is over."""

    number: int
    id: str
    steps: int
    why: SequenceEnd


@record
class Stepped:
    """What one call of `Model.step` returned, checked; what it said of each row, and the checkpoints that were asked for."""

    outputs: Outputs
    said: Sequence[Said]
    saved: Sequence[bytes | None]
    input_s: float = 0.0
    infer_s: float = 0.0
    output_s: float = 0.0


Deliver = Callable[[Outputs, Sequence[bytes | None]], None]
"""Hands on the outputs and the checkpoints of a step; the step counts only if it returns."""


class Stepper:
    """Calls `Model.step` with the states of whoever has a step, and keeps them in between. One thread at a time."""

    def __init__(self, model: Model, name: str) -> None:
        self._model = model
        self._name = name
        self._told = getattr(model.sequence_ended, "__func__", None) is not Model.sequence_ended
        self._states: dict[int, SequenceState] = {}

    def __len__(self) -> int:
        """Sequences that have a state here."""
        return len(self._states)

    def step(
        self,
        orders: Sequence[StepOrder],
        call: Callable[[States], Outputs],
        deliver: Deliver | None = None,
    ) -> tuple[Outputs, list[Said], list[bytes | None]]:
        """Do one step of each, all of different sequences; `call` hands the states to the model, and checks what comes back.

        When it raises, every state is as it was; a checkpoint that was to be restored is to be given again. Raises what `call`
        and `deliver` raise, SequenceLostError for a sequence whose state after its `steps` is not here, or whose checkpoint
        cannot be read, and ModelContractError for a state that is to be saved and cannot be.
        """
        states = [self._state(order) for order in orders]
        before = [_snapshot(state) for state in states]
        for state, order in zip(states, orders, strict=True):
            state.begin(
                order.steps,
                again=order.again,
                end=order.end,
                request=order.request,
                parameters=order.parameters,
            )
        try:
            # A list of its own: a model may do with it as it likes.
            outputs = call(States(states))
            saved: list[bytes | None] = []
            for state, values, order in zip(states, before, orders, strict=True):
                _settle(state, values)
                state.steps = order.steps + 1
                saved.append(self._encoded(state) if order.save else None)
            if deliver is not None:
                deliver(outputs, saved)
        except BaseException:
            for state, values, order in zip(states, before, orders, strict=True):
                state.clear()
                state.update(values)
                state.steps = order.steps
            raise
        self._states.update(zip([order.number for order in orders], states, strict=True))
        return outputs, [state.told() for state in states], saved

    def end(self, endings: Sequence[Ending], do: Callable[[Callable[[], Any]], Any]) -> None:
        """These are over: their states are dropped, and the model is told; `do` calls it. What it raises is logged."""
        for ending in endings:
            state = self._states.pop(ending.number, None)
            if not self._told:
                continue
            if state is None:
                state = SequenceState(ending.id)
                state.steps = ending.steps
            try:
                do(partial(self._model.sequence_ended, state, ending.why))
            except BaseException:  # noqa: BLE001 - nothing that a model raises may keep the others from being told
                _log.exception(
                    "a model failed to end a sequence", extra={"model": self._name, "sequence": ending.id}
                )

    def _state(self, order: StepOrder) -> SequenceState:
        if order.restore is not None:
            # In the place of what is here only once the step is done.
            return _restored(order.id, order.restore)
        state = self._states.get(order.number)
        if state is None:
            if order.steps:
                raise _lost(order, "is not here")
            return SequenceState(order.id)
        if state.steps != order.steps:
            raise _lost(order, f"is here after {state.steps}")
        return state

    def _encoded(self, state: SequenceState) -> bytes:
        try:
            return encode_state(state)
        except (TypeError, ValueError) as error:
            raise ModelContractError(
                self._name, f"the state of sequence {state.id!r} cannot be saved: {error}"
            ) from error


def _restored(id: str, checkpoint: bytes) -> SequenceState:
    try:
        state = SequenceState(id, decode_state(checkpoint) if checkpoint else {})
    except ValueError as error:
        raise SequenceLostError(id, f"{error}: start it anew") from error
    _settle(state, {})
    return state


def _lost(order: StepOrder, where: str) -> SequenceLostError:
    return SequenceLostError(
        order.id, f"its state after {order.steps} steps is wanted, and {where}: start it anew"
    )


def _snapshot(state: SequenceState) -> dict[str, Any]:
    """What a step is undone with. Arrays are not copied: nobody writes into them."""
    values = dict(state)
    for name, value in state.items():
        if type(value) in _HOLDERS:
            values[name] = _copied(value)
    return values


def _copied(value: Any) -> Any:
    kind = cast("Any", type(value))
    if kind not in _HOLDERS:
        return value
    if kind is dict:
        return {key: _copied(one) for key, one in value.items()}
    return kind(map(_copied, value) if kind in (list, tuple) else value)


def _settle(state: SequenceState, before: Mapping[str, Any]) -> None:
    """What a step left is the state's alone from here on, and nobody writes into its arrays."""
    for name, value in state.items():
        if before.get(name) is value:
            continue
        if isinstance(value, np.ndarray):
            state[name] = _own_array(cast("Array", value))
        elif type(value) in _HOLDERS:
            state[name] = _own(value)


def _own(value: Any) -> Any:
    """An array that nobody else has, or a plain value with such arrays in it, itself where it can be."""
    kind = cast("Any", type(value))
    if kind is list:
        value[:] = map(_own, value)
    elif kind is dict:
        value.update({key: _own(one) for key, one in value.items()})
    elif kind is tuple:
        return tuple(map(_own, value))
    elif isinstance(value, np.ndarray):
        return _own_array(cast("Array", value))
    return value


def _own_array(array: Array) -> Array:
    # A view keeps what it is a view of alive, and changes with it; so does what its maker can still write into, or has returned.
    if array.base is not None or array.flags.writeable:
        array = array.copy()
        array.setflags(write=False)
    return array
