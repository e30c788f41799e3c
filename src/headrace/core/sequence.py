"""State between requests: what a `Model.step` is given for each sequence, how long a sequence may live, and how it ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from math import inf
from typing import Any, Final, cast

import numpy as np

from headrace.core.errors import ConfigError, DataError
from headrace.core.record import record
from headrace.core.tensor import Array

_NOTHING: Final[Mapping[str, Any]] = {}
_MAY_BE_NONE: Final = ("time_ms_max", "evict_idle_ms")


class SequenceEnd(StrEnum):
    """Why a sequence ended."""

    ENDED = "ended"
    """Its client, or its model, said so; a request by itself ends its own."""
    RESTARTED = "restarted"
    """Its client began another one of the same id."""
    CANCELLED = "cancelled"
    IDLE = "idle"
    """Nobody asked for `SequenceLimits.idle_ms`."""
    TIMED_OUT = "timed_out"
    """It had lived for `SequenceLimits.time_ms_max`."""
    EVICTED = "evicted"
    """It was the idlest, and made room for a new one."""
    INSTANCE_LOST = "instance_lost"
    """The process that held its state died, and there was no checkpoint; or headrace itself failed while its step was done."""
    STOPPED = "stopped"
    """The model is being stopped; what has a checkpoint goes on when it is started again."""


@dataclass(frozen=True, slots=True)
class SequenceLimits:
    """How many sequences of one model may live, for how long, and what may wait for each.

    Raises ConfigError for what leaves no room.
    """

    live_max: int = 4096
    """Sequences that may live at once, over all instances."""
    idle_ms: float = 60_000.0
    """A sequence ends when nobody has asked for so long, counted from its last answer."""
    time_ms_max: float | None = None
    """How long a sequence may live in all; None: as long as it is used."""
    requests_max: int = 64
    """Requests that may wait for one sequence, beside the one that is being answered."""
    evict_idle_ms: float | None = None
    """When all places are taken, the sequence that has been idle longest, and for so long at least, makes room for a new one.
    None: the new one is refused."""
    interleave: bool = False
    """Whether a request may be begun while an earlier one of its sequence goes on: they then take turns, step by step."""

    def __post_init__(self) -> None:
        for name in ("live_max", "requests_max"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} of sequences must be a whole number of 1 or more, not {value}")
        for name in ("idle_ms", "time_ms_max", "evict_idle_ms"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= inf:
                raise ConfigError(f"{name} of sequences must be above 0, not {value}")

    def changed(self, values: Mapping[str, Any]) -> "SequenceLimits":
        """These limits with some of them set anew, by name. Raises ConfigError for names and values that do not fit."""
        known = [f.name for f in fields(self)]
        if unknown := sorted(set(values) - set(known)):
            raise ConfigError(f"sequences have no limit {', '.join(unknown)}; there are {', '.join(known)}")
        for name, value in values.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                fits = (
                    isinstance(value, bool)
                    if name == "interleave"
                    else value is None and name in _MAY_BE_NONE
                )
            else:
                fits = name != "interleave"
            if not fits:
                raise ConfigError(f"{name} of sequences cannot be {value!r}")
        return replace(self, **values)


@dataclass(frozen=True, slots=True)
class SequenceInfo:
    """How a living sequence stands."""

    id: str
    stage: str
    """What it is doing; see `headrace.batching.sequence_life.SequenceStage`."""
    instance: int
    """Which instance holds its state, from 0."""
    steps: int
    requests: int
    """Of it that have not come to their end."""
    age_s: float
    idle_s: float
    """Since its last answer; 0 where something is asked of it."""


@dataclass(frozen=True, slots=True)
class SequenceListing:
    """The sequences of one model version: how many there are, and how those stand that have an id."""

    model: str
    version: str
    live: int
    """Those without an id among them."""
    live_max: int
    """How many may live at once; 0 of a model that has no `step`."""
    ends: Mapping[str, int]
    """How many have ended since it was loaded, by the reason (`SequenceEnd`)."""
    sequences: tuple[SequenceInfo, ...]
    """The oldest first; maybe not all."""


@record
class SequenceAsk:
    """What a request says of its sequence. No id: it is a sequence by itself, or begins one whose id is made up for it."""

    id: str = ""
    start: bool = False
    """It is the first of a new sequence; one of this id that lives ends."""
    end: bool = False
    """It is the last of its sequence."""
    cancel: bool = False
    """The sequence ends now, with all that waits for it."""
    auto: bool = False
    """Where no sequence of this id lives, one begins."""

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> "SequenceAsk":
        """What the parameters of these names say. Raises DataError for values of other kinds, and for a cancel without an id.

        `sequence_id` is text or a whole number, of which 0, as the empty text, is no id; `sequence_start` is true, false or "auto",
        `sequence_end` and `sequence_cancel` are true or false.
        """
        if not parameters or parameters.keys().isdisjoint(SEQUENCE_PARAMETERS):
            return NO_SEQUENCE
        auto = parameters.get("sequence_start") == "auto"
        ask = cls(
            sequence_id_of(parameters.get("sequence_id", "")),
            start=not auto and _flag(parameters, "sequence_start"),
            end=_flag(parameters, "sequence_end"),
            cancel=_flag(parameters, "sequence_cancel"),
            auto=auto,
        )
        if ask.cancel and not ask.id:
            raise DataError("sequence_cancel needs the sequence_id of what is to be cancelled")
        return ask


def is_bare_end(parameters: Mapping[str, Any]) -> bool:
    """Whether a request of these parameters need not have inputs: it ends a sequence or cancels it. Raises DataError, as `SequenceAsk.of`."""
    ask = SequenceAsk.of(parameters)
    return ask.cancel or (ask.end and bool(ask.id))


SEQUENCE_PARAMETERS: Final = ("sequence_id", "sequence_start", "sequence_end", "sequence_cancel")
SEQUENCE_ID_CHARS_MAX: Final = 256
NO_SEQUENCE: Final = SequenceAsk()


def sequence_id_of(value: object) -> str:
    """A sequence's id, from text, bytes of UTF-8 or a whole number. Raises DataError."""
    if isinstance(value, bytes):
        try:
            value = value.decode()
        except UnicodeDecodeError:
            raise DataError(f"sequence_id {value[:40]!r} is no UTF-8") from None
    if isinstance(value, str):
        id = value
    elif isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        number = int(cast("int", value))
        id = str(number) if number else ""
    else:
        raise DataError(f"sequence_id must be text or a whole number, not {value!r:.40}")
    if len(id) > SEQUENCE_ID_CHARS_MAX:
        raise DataError(
            f"sequence_id {id[:40]!r}... has {len(id)} characters; at most {SEQUENCE_ID_CHARS_MAX} are taken"
        )
    return id


def _flag(parameters: Mapping[str, Any], name: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        what = 'true, false or "auto"' if name == "sequence_start" else "true or false"
        raise DataError(f"{name} must be {what}, not {value!r:.40}")
    return value


class SequenceState(dict[str, Any]):
    """What a model keeps of one sequence: numpy arrays (or plain values) by name, empty at its start.

    A step replaces values; it does not write into arrays that it finds here, which are read-only. An array that it puts here
    is copied when the step is done, so that nobody else has a hand on it; one that is read-only, and no view of another, is
    not. A step that fails is undone by putting back what was here before, lists and dicts with all that they held. It is the
    model's own between two steps, and nobody else's ever.
    """

    __slots__ = ("_end", "_go_on", "_silent", "again", "end", "id", "parameters", "request", "start", "steps")

    def __init__(self, id: str = "", values: Mapping[str, Any] = _NOTHING) -> None:
        super().__init__(values)
        self.id = id
        """What its client calls it; empty for a request by itself."""
        self.steps = 0
        """How many steps were done before this one."""
        self.start = True
        """Whether this is its first step."""
        self.end = False
        """Whether its client says that nothing follows: this row is its last."""
        self.again = False
        """Whether the model has seen this row before, and asked to go on with it."""
        self.request = 0
        """A number that tells the requests of a sequence apart, for models whose requests take turns (`SequenceLimits.interleave`)."""
        self.parameters: Mapping[str, Any] = _NOTHING
        """The parameters of the request that this row belongs to."""
        self._go_on = self._silent = self._end = False

    def go_on(self) -> None:
        """There is more to come for this row: `step` is called with it again, soon, beside whoever is there then."""
        self._go_on = True

    def skip_output(self) -> None:
        """What this step returns for this row is not for the caller."""
        self._silent = True

    def end_sequence(self) -> None:
        """This was its last step, whatever its client thinks. Requests that wait for it hear so."""
        self._end = True

    # For whoever calls the model

    def begin(
        self, steps: int, *, again: bool, end: bool, parameters: Mapping[str, Any], request: int = 0
    ) -> None:
        """Another step is about to be done, after so many."""
        self.steps, self.start = steps, steps == 0
        self.again, self.end = again, end
        self.request, self.parameters = request, parameters
        self._go_on = self._silent = self._end = False

    def told(self) -> tuple[bool, bool, bool]:
        """What the model said of this step: whether it goes on, is silent, ends the sequence."""
        return self._go_on, self._silent, self._end


class States(list[SequenceState]):
    """The states of one call of `Model.step`: one for each row, each of another sequence."""

    def stack(self, name: str, shape: Sequence[int] = (), dtype: Any = np.float32, *, axis: int = 0) -> Array:
        """One value of every state, stacked along a new axis; zeros of `shape` where a state has none yet.

        The array is the model's own, and of `dtype` whoever is in the batch. Raises ValueError for values that differ in shape,
        and for those that `dtype` cannot hold without loss.
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
                    f"{name!r} of the states differs in shape: {list(sizes)} and {list(value.shape)} cannot be stacked"
                )
        try:
            if not 0 <= axis < len(sizes):
                return np.stack(found, axis=axis, dtype=dtype, casting="safe")
            # The same, without a view of each.
            joined = np.concatenate(found, axis=axis, dtype=dtype, casting="safe")
        except TypeError as error:
            kinds = ", ".join(sorted({str(value.dtype) for value in found}))
            raise ValueError(
                f"{name!r} of the states is {kinds}, which does not become {np.dtype(dtype)} without loss: stack it as what "
                "it is, or convert it before it is kept"
            ) from error
        return joined.reshape(*sizes[:axis], len(found), *sizes[axis:])

    def _as_array(self, value: Any, shape: Sequence[int], dtype: Any) -> Array:
        if value is None:
            return np.zeros(shape, dtype)
        # Python's own numbers take the type that is asked for; numpy's have one.
        return np.asarray(value, None if hasattr(value, "dtype") else dtype)

    def keep(self, name: str, stacked: Array, *, axis: int = 0) -> None:
        """Put one value of each state back: what `stack` gives, a slice for each. Each gets a copy of its own."""
        rows = stacked if not axis else np.moveaxis(stacked, axis, 0)
        if len(rows) != len(self):
            raise ValueError(f"{name!r} has {len(rows)} slices along axis {axis} for {len(self)} states")
        if rows.ndim == 1:
            for state, value in zip(self, rows, strict=True):
                state[name] = value
            return
        for state, row in zip(self, rows, strict=True):
            own = row.copy()
            # Read-only: so it need not be copied once more.
            own.setflags(write=False)
            state[name] = own
