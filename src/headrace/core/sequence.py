"""State between requests: sequences, their limits, the states for `Model.step`, and their ends."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from math import inf
from typing import Annotated, Any, Final, cast

import numpy as np

from headrace.core.errors import ConfigError, DataError
from headrace.core.frozen import statically_frozen
from headrace.core.settings import Setting, check
from headrace.core.tensor import Array

_NOTHING: Final[Mapping[str, Any]] = {}


class SequenceEnd(StrEnum):
    """The reason for which a sequence ended."""

    ENDED = "ended"
    """The client or the model ended it. An anonymous sequence ends with its request."""
    RESTARTED = "restarted"
    """The client started another sequence with the same id."""
    CANCELLED = "cancelled"
    IDLE = "idle"
    """No request arrived for `SequenceLimits.idle_ms`."""
    TIMED_OUT = "timed_out"
    """The sequence reached `SequenceLimits.time_ms_max`."""
    EVICTED = "evicted"
    """An idle sequence was ended for another one. With a checkpoint, it continues with its next request."""
    INSTANCE_LOST = "instance_lost"
    """The process that held the state died without a checkpoint, or headrace itself failed during a step."""
    STOPPED = "stopped"
    """The model is stopping. A sequence with a checkpoint continues after the next start."""


@dataclass(frozen=True, slots=True)
class SequenceLimits:
    """Limits on the number, lifetime and requests of a model's live sequences.

    Raises:
        ConfigError: A limit is out of range.
    """

    live_max: Annotated[int, Setting("Limit of live sequences, over all instances.", least=1)] = 4096
    """With a checkpoint store that outlives the process, the longest idle saved sequence makes place
    for another one, and continues with its next request.
    """
    idle_ms: Annotated[
        float,
        Setting(
            "Idle time after which a sequence ends, in milliseconds since its last response.",
            above=0,
            most=inf,
        ),
    ] = 60_000.0
    time_ms_max: Annotated[
        float | None,
        Setting("Limit of a sequence's lifetime in milliseconds.", above=0, most=inf, default="no limit"),
    ] = None
    requests_max: Annotated[
        int, Setting("Limit of waiting requests of one sequence, without the running one.", least=1)
    ] = 64
    evict_idle_ms: Annotated[
        float | None,
        Setting(
            "Idle time in milliseconds after which a sequence can be evicted for a new one, "
            "at the limit of live sequences.",
            above=0,
            most=inf,
            default="the new sequence is refused",
        ),
    ] = None
    """The longest idle sequence is evicted; its state is lost unless it has a checkpoint."""
    interleave: Annotated[
        bool,
        Setting("Requests of one sequence alternate, step by step, when an earlier one is rescheduled."),
    ] = False

    def __post_init__(self) -> None:
        check(self)

    def with_values(self, values: Mapping[str, Any]) -> "SequenceLimits":
        """Return these limits with some values replaced, by name.

        Raises:
            ConfigError: A name is unknown, or a value has the wrong type or range.
        """
        known = [f.name for f in fields(self)]
        if unknown := sorted(set(values) - set(known)):
            raise ConfigError(
                f"unknown sequence limit {', '.join(unknown)}; the limits are {', '.join(known)}"
            )
        return replace(self, **values)


@dataclass(frozen=True, slots=True)
class SequenceInfo:
    """The status of a live sequence."""

    id: str
    stage: str
    """A value of `headrace.batching.live_sequence.SequenceStage`."""
    instance: int
    """Number of the instance that holds the state, from 0."""
    steps: int
    requests: int
    """Number of open requests."""
    age_s: float
    idle_s: float
    """Seconds since the last response; 0 while a request is open."""
    namespace: str = ""
    """The namespace of its requests (`InferRequest.namespace`)."""


@dataclass(frozen=True, slots=True)
class SequenceListing:
    """The sequences of one model version: their number, and the status of those with an id."""

    model: str
    version: str
    live: int
    """Number of live sequences, with anonymous ones."""
    live_max: int
    """Limit of live sequences; 0 for a model without a `step`."""
    ends: Mapping[str, int]
    """Number of ended sequences since the load, by reason (`SequenceEnd`)."""
    sequences: tuple[SequenceInfo, ...]
    """Sequences with an id, oldest first. The list may be cut short."""


@statically_frozen
class SequenceControl:
    """The sequence parameters of a request.

    A request without an id is an anonymous sequence of its own, or starts a sequence with a
    generated id.
    """

    id: str = ""
    start: bool = False
    """First request of a new sequence. A live sequence with this id ends."""
    end: bool = False
    """Last request of its sequence."""
    cancel: bool = False
    """End the sequence at once, with all its waiting requests."""
    auto: bool = False
    """Start a sequence if none with this id is live."""
    namespace: str = ""

    @property
    def qualified_id(self) -> str:
        """The id, unique among all namespaces."""
        return qualified_sequence_id(self.namespace, self.id)

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any], namespace: str = "") -> "SequenceControl":
        """Return the sequence parameters among the parameters of a request.

        `sequence_id` is text or a whole number; empty text and 0 mean no id. `sequence_start` is
        true, false or "auto". `sequence_end` and `sequence_cancel` are true or false.

        Raises:
            DataError: A value has another type, or a cancel has no id.
        """
        if not parameters or parameters.keys().isdisjoint(SEQUENCE_PARAMETERS):
            return cls(namespace=namespace) if namespace else NO_SEQUENCE
        auto = parameters.get("sequence_start") == "auto"
        control = cls(
            parse_sequence_id(parameters.get("sequence_id", "")),
            start=not auto and _flag(parameters, "sequence_start"),
            end=_flag(parameters, "sequence_end"),
            cancel=_flag(parameters, "sequence_cancel"),
            auto=auto,
            namespace=namespace,
        )
        if control.cancel and not control.id:
            raise DataError("sequence_cancel needs a sequence_id")
        return control


def may_omit_inputs(parameters: Mapping[str, Any]) -> bool:
    """Return True if a request needs no inputs, because it ends or cancels a sequence.

    Raises:
        DataError: As for `SequenceControl.from_parameters`.
    """
    control = SequenceControl.from_parameters(parameters)
    return control.cancel or (control.end and bool(control.id))


SEQUENCE_PARAMETERS: Final = ("sequence_id", "sequence_start", "sequence_end", "sequence_cancel")
SEQUENCE_ID_CHARS_MAX: Final = 256
NO_SEQUENCE: Final = SequenceControl()


def qualified_sequence_id(namespace: str, id: str) -> str:
    """Return an id that is unique among all namespaces: NAMESPACE/ID.

    Return the id alone without a namespace, and for an anonymous sequence.
    """
    return f"{namespace}/{id}" if namespace and id else id


def parse_sequence_id(value: object) -> str:
    """Return a sequence id from text, UTF-8 bytes or a whole number.

    Raises:
        DataError: The value has another type, is not UTF-8, or is too long.
    """
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise DataError(f"sequence_id {value[:40]!r} is not UTF-8") from None
    if isinstance(value, str):
        id = value
    elif isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        number = int(cast("int", value))
        id = str(number) if number else ""
    else:
        raise DataError(f"sequence_id must be text or a whole number, not {value!r:.40}")
    if len(id) > SEQUENCE_ID_CHARS_MAX:
        raise DataError(
            f"sequence_id {id[:40]!r}... has {len(id)} characters; the limit is {SEQUENCE_ID_CHARS_MAX}"
        )
    return id


def _flag(parameters: Mapping[str, Any], name: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        what = 'true, false or "auto"' if name == "sequence_start" else "true or false"
        raise DataError(f"{name} must be {what}, not {value!r:.40}")
    return value


class SequenceState(dict[str, Any]):
    """The state of one sequence: numpy arrays or plain values by name, empty at first.

    The state belongs to the model between its steps; no other code changes it. A step assigns new
    values. Arrays found here are read-only. An assigned array is copied after the step, unless it
    is read-only and not a view. If a step fails, the state is restored, including the contents of
    lists and dicts.
    """

    __slots__ = (
        "_end_sequence",
        "_reschedule",
        "_skip_output",
        "again",
        "end",
        "id",
        "parameters",
        "request",
        "start",
        "steps",
    )

    def __init__(self, id: str = "", values: Mapping[str, Any] = _NOTHING) -> None:
        super().__init__(values)
        self.id = id
        """Sequence id from the client; empty for an anonymous sequence. On a server with API keys, it is
        TENANT/ID, and for the records of a job JOB/ID: no two live sequences have the same one.
        """
        self.steps = 0
        """Number of steps done before this one."""
        self.start = True
        """True for the first step."""
        self.end = False
        """True if this row is the last one that the client plans to send."""
        self.again = False
        """True if an earlier step with this row called `reschedule`."""
        self.request = 0
        """Number of the request within the sequence, for models with `SequenceLimits.interleave`."""
        self.parameters: Mapping[str, Any] = _NOTHING
        """Parameters of the request of this row."""
        self._reschedule = self._skip_output = self._end_sequence = False

    def reschedule(self) -> None:
        """Request another step with this row, because the model has more output for it.

        A following call of `step` includes the row, next to rows of other sequences.
        """
        self._reschedule = True

    def go_on(self) -> None:
        """Call `reschedule`. Deprecated, removed in the next release."""
        message = "SequenceState.go_on() is deprecated: call reschedule()"
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        self.reschedule()

    def skip_output(self) -> None:
        """Drop the output of this step for this row: the client does not receive it."""
        self._skip_output = True

    def end_sequence(self) -> None:
        """End the sequence with this step, even if the client planned more. Waiting requests fail."""
        self._end_sequence = True

    # For the code that calls the model.

    def begin_step(
        self, steps: int, *, again: bool, end: bool, parameters: Mapping[str, Any], request: int = 0
    ) -> None:
        """Prepare for the next step, after `steps` steps."""
        self.steps, self.start = steps, steps == 0
        self.again, self.end = again, end
        self.request, self.parameters = request, parameters
        self._reschedule = self._skip_output = self._end_sequence = False

    def step_flags(self) -> tuple[bool, bool, bool]:
        """Return the model's requests of this step: reschedule, skip the output, end the sequence."""
        return self._reschedule, self._skip_output, self._end_sequence


@dataclass(frozen=True, slots=True)
class UndoneStep:
    """A step whose changes do not count, for `Model.steps_undone`. Valid during that call."""

    row: int | None
    """Index of the row in the failed call. None for a step of an earlier call, whose state a
    checkpoint replaces now.
    """
    state: SequenceState
    """The state as the step left it, with its `id`, `request` and `parameters`."""
    restored: Mapping[str, Any]
    """The values with which the sequence continues: those before the step, or the checkpoint's."""


class States(list[SequenceState]):
    """The states for one call of `Model.step`: one for each row, each of a different sequence."""

    def stack(self, name: str, shape: Sequence[int] = (), dtype: Any = np.float32, *, axis: int = 0) -> Array:
        """Return one value of every state, stacked along a new axis.

        A missing value counts as zeros of `shape`. The array belongs to the model. Its dtype is
        `dtype`, whichever sequences are in the batch.

        Raises:
            ValueError: The values differ in shape, or `dtype` cannot hold one without loss.
        """
        found: list[Array] = []
        for state in self:
            value = state.get(name)
            if type(value) is not np.ndarray:
                value = self._as_array(value, shape, dtype)
            found.append(value)
        if not found:
            return np.moveaxis(np.zeros((0, *shape), dtype), 0, axis)
        sizes = found[0].shape
        for value in found:
            if value.shape != sizes:
                raise ValueError(
                    f"{name!r} of the states differs in shape: "
                    f"{list(sizes)} and {list(value.shape)} cannot be stacked"
                )
        try:
            if not 0 <= axis < len(sizes):
                return np.stack(found, axis=axis, dtype=dtype, casting="safe")
            # Equal to `np.stack`, without a view of each array.
            joined = np.concatenate(found, axis=axis, dtype=dtype, casting="safe")
        except TypeError as error:
            kinds = ", ".join(sorted({str(value.dtype) for value in found}))
            raise ValueError(
                f"{name!r} of the states is {kinds}, not convertible to {np.dtype(dtype)} without loss: "
                "stack it with its own dtype, or convert it before keep()"
            ) from error
        return joined.reshape(*sizes[:axis], len(found), *sizes[axis:])

    def _as_array(self, value: Any, shape: Sequence[int], dtype: Any) -> Array:
        if value is None:
            return np.zeros(shape, dtype)
        # Python numbers take the requested dtype; numpy values have one of their own.
        return np.asarray(value, None if hasattr(value, "dtype") else dtype)

    def keep(self, name: str, stacked: Array, *, axis: int = 0) -> None:
        """Store one slice of `stacked` in each state, as `stack` returns them.

        Each state gets a copy.

        Raises:
            ValueError: The number of slices is not the number of states.
        """
        rows = stacked if not axis else np.moveaxis(stacked, axis, 0)
        if len(rows) != len(self):
            raise ValueError(f"{name!r} has {len(rows)} slices along axis {axis} for {len(self)} states")
        if rows.ndim == 1:
            for state, value in zip(self, rows, strict=True):
                state[name] = value
            return
        for state, row in zip(self, rows, strict=True):
            own = row.copy()
            # A read-only array is not copied again after the step.
            own.setflags(write=False)
            state[name] = own
