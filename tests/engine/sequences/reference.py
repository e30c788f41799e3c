"""A plain reference of sequences, written from the promises of the engine.

The test passes in which steps share a call, and on which instance (`taken`); all else follows.
"""

from collections import Counter
from dataclasses import dataclass, field
from math import inf


@dataclass(eq=False)
class Request:
    """One request. `result`: ("rows", diaries, failures), or ("error", names of errors); None while
    it runs.
    """

    name: str
    strict: bool = True
    deadline: float | None = None
    stream: "Stream | None" = None
    parts: list["Part"] = field(default_factory=list)
    is_started: bool = False
    left: bool = False
    errors: set = field(default_factory=set)
    whole: str | None = None
    failures: set = field(default_factory=set)
    parameters: dict | None = None
    by_rows: bool = False
    own: "ReferenceSequence | None" = field(default=None, repr=False)
    result: tuple | None = None


@dataclass(eq=False)
class Part:
    """Rows of a request for one sequence: (row of the request, token, kind)."""

    request: Request = field(repr=False)
    rows: list
    ends: bool = False
    row: int = 0
    times: int = 0
    given: list = field(default_factory=list)
    deaths: int = 0
    over: bool = False
    seen: bool = False

    @property
    def is_started(self):
        return self.row > 0 or self.times > 0

    @property
    def next(self):
        """Token and kind of the next step."""
        return self.rows[self.row][1:]


@dataclass(eq=False)
class ReferenceSequence:
    """One sequence; `parts` are its requests, the current one first."""

    id: str | None
    anonymous: bool
    born_s: float
    parts: list = field(default_factory=list)
    diary: list = field(default_factory=list)
    steps: int = 0
    at: int | None = None
    known: bool = False
    doing: bool = False
    held: bool = False
    left: bool = False
    has_final_steps: bool = False
    replaced: bool = False
    """True if another sequence has its id by now."""
    idle_s: float = 0.0
    rested: int = 0
    why: str | None = None
    doing_part: Part | None = field(default=None, repr=False)
    doing_row: tuple | None = None
    doing_times: int = 0
    late: bool = False
    """True if the step was unwanted when it was to begin: it is not done, but ends with its call."""


@dataclass(eq=False)
class ReportedEnd:
    """An ended sequence that is reported to the model, and its diary, unless its instance has died."""

    sequence: ReferenceSequence
    diary: list

    @property
    def shown(self):
        """The end as a model reports it."""
        return (self.sequence.id or "", self.sequence.why, self.sequence.steps, str(self.diary))


@dataclass(eq=False)
class Stream:
    """A stream: messages that wait to be sent, and responses that wait to be read."""

    single: bool
    messages: list = field(default_factory=list)
    pending: list = field(default_factory=list)
    items: list = field(default_factory=list)
    own: ReferenceSequence | None = None
    closed: bool = False
    over: bool = False
    ending: bool = False
    error: set | None = None


class Refused(Exception):  # noqa: N818 - not an error of headrace
    """A refused request, with the name of its error."""


class Reference:
    """All sequences of a model."""

    def __init__(self, limits, *, requests_max, items_max):
        self.limits, self.requests_max, self.items_max = limits, requests_max, items_max
        self.living: list[ReferenceSequence] = []
        self.ends: dict[str, str] = {}
        self.reported: list[ReportedEnd] = []
        self.unreported: list[ReportedEnd] = []
        self.rests = 0
        self.late: list[tuple] | None = None
        self.finished: list[Request] = []

    def find(self, id):
        return next(
            (sequence for sequence in self.living if id and sequence.id == id and not sequence.replaced), None
        )

    # Requests

    def ask(self, request, asks, now):
        """Send a request of (id, start, end, rows) for each part. Raises Refused for a strict one."""
        started = []
        taken = []
        request.parts = [Part(request, rows, end) for *_, end, rows in asks]
        for part, (id, start, *_) in zip(request.parts, asks, strict=True):
            self.expire(now)
            before = None if start is True else self.find(id)
            try:
                sequence = self._offer(part, id, start, now)
            except Refused as refused:
                if request.strict:
                    for other in taken:
                        self._withdraw(other, now)
                    for sequence in started:
                        if sequence in self.living:
                            self.end(sequence, "cancelled", now)
                    request.parts.clear()
                    raise
                self._finish(part, str(refused))
                continue
            taken.append(part)
            if sequence is not before and not sequence.anonymous:
                started.append(sequence)

    def _offer(self, part, id, start, now):
        sequence = None if start is True else self.find(id)
        if sequence is not None and max(len(sequence.parts) - 1, 0) >= self.requests_max:
            raise Refused("SequenceFullError")
        if sequence is None:
            old = self.find(id)
            # One whose end is requested already ends by itself.
            ending = old is not None and old.parts and old.parts[-1].ends
            if old is not None and not ending:
                self.end(old, "restarted", now)
            if id and not start:
                raise Refused(_error_of(self.ends.get(id)))
            self._make_room(now)
            if old is not None:
                old.replaced = True
            sequence = ReferenceSequence(id or None, not id and start is not True, now, idle_s=now)
            self.living.append(sequence)
        sequence.parts.append(part)
        if len(sequence.parts) == 1:
            self._go_on(sequence, now)
        return sequence

    def add(self, sequence, request, rows, ends, now):
        """Add a request to a live sequence."""
        part = Part(request, rows, ends)
        request.parts.append(part)
        sequence.parts.append(part)
        if len(sequence.parts) == 1:
            self._go_on(sequence, now)

    def _make_room(self, now):
        if len(self.living) < self.limits.live_max:
            return
        idle = [sequence for sequence in self.living if not sequence.parts]
        first = min(idle, key=lambda sequence: sequence.rested, default=None)
        evict_ms = self.limits.evict_idle_ms
        if first is None or evict_ms is None or now < first.idle_s + evict_ms / 1000:
            raise Refused("TooManySequencesError")
        self.end(first, "evicted", now)

    def _go_on(self, sequence, now):
        """Finish requests without a step that are next."""
        while sequence.parts and not sequence.parts[0].rows:
            part = sequence.parts.pop(0)
            if part.ends or sequence.anonymous:
                self.end(sequence, "ended", now, keep=part)
                self._finish(part, None, sequence)
                return
            self._finish(part, None, sequence)
        if not sequence.parts and sequence.replaced:
            self.end(sequence, "restarted", now)
        elif not sequence.parts:
            sequence.idle_s, self.rests = now, self.rests + 1
            sequence.rested = self.rests

    def withdraw(self, request, now):
        """Withdraw the request of a client that has left."""
        if request.result is None:
            request.left = True
            request.result = ("left",)
            for part in request.parts:
                self._withdraw(part, now)

    def _withdraw(self, part, now):
        sequence = next((sequence for sequence in self.living if part in sequence.parts), None)
        if sequence is None:
            return
        if sequence.anonymous:
            self.end(sequence, "cancelled", now)
        elif sequence.doing and sequence.parts[0] is part:
            sequence.left = True
        else:
            first = sequence.parts[0] is part
            self._drop(sequence, part)
            if first:
                sequence.held = False
                self._go_on(sequence, now)

    def _drop(self, sequence, part):
        if part is sequence.parts[0]:
            sequence.left = False
        sequence.parts.remove(part)
        sequence.has_final_steps |= sequence.steps > 0 and part.is_started

    def _finish(self, part, error, sequence=None):
        """Finish a part."""
        request = part.request
        if self.late is not None:
            self.late.append((part, error, sequence))
            return
        if part.over:
            return
        part.over = True
        whole = ("DeadlineError", "StoppedError", "CancelledRequestError")
        if error is not None and (request.strict or not part.rows or error in whole):
            request.errors.add(error)
            request.whole = request.whole or error
        elif error is not None:
            request.failures.update(place for place, _, _ in part.rows[part.row :])
        if sequence is not None and not sequence.anonymous:
            request.parameters = {"id": sequence, "end": sequence.why is not None}
        if request.result is None and all(other.over for other in request.parts):
            self._answer(request)

    def _answer(self, request):
        if request.errors:
            request.result = ("error", request.errors)
        else:
            given = sorted((one for part in request.parts for one in part.given), key=lambda one: one[0])
            if not request.strict:
                counts = [place for place, _ in given]
                every = [place for part in request.parts for place, _, _ in part.rows]
                request.failures.update(place for place in every if counts.count(place) != 1)
                given = [one for one in given if one[0] not in request.failures]
            request.result = ("rows", [diary for _, diary in given], request.failures)
        self.finished.append(request)

    # Steps

    def taken(self, sequence, at, *, late=False):
        part = sequence.parts[0]
        sequence.doing = sequence.known = part.request.is_started = True
        sequence.at, sequence.doing_part, sequence.late = at, part, late
        sequence.doing_row, sequence.doing_times = part.rows[part.row], part.times

    def stepped(self, sequences, now):
        """Do one step of each sequence of a released call."""
        self.late = []
        over = [self._stepped(sequence, sequence.doing_part, now) for sequence in sequences]
        # Those whose steps these were hear first, and then whoever waited behind them.
        late, self.late = self.late, None
        for part, error, sequence in [*[one for one in over if one is not None], *late]:
            self._finish(part, error, sequence)

    def expired(self, sequence, now):
        """Expire a step before it began, without another one."""
        self.taken(sequence, sequence.at, late=True)
        self.stepped([sequence], now)

    def _stepped(self, sequence, part, now):
        place, token, kind = sequence.doing_row
        sequence.doing = False
        if sequence.late:
            return self._expired(sequence, part, now)
        good = kind not in ("fail", "refuse")
        again = sequence.doing_times
        if good:
            sequence.diary = [*sequence.diary, [token, again]]
            sequence.steps += 1
            part.deaths = 0
        if sequence not in self.living:
            self._tell(sequence)
            return None
        goes_on = kind.startswith("on") and again < int(kind[2:])
        finished = held = False
        if not good and part.request.strict:
            finished = True
        elif not good:
            part.request.failures.add(place)
        elif kind != "silent":
            finished, held = self._give(sequence, part, place, goes_on)
        if goes_on:
            part.times = again + 1
        else:
            part.times = 0
            part.row += 1
        last = finished or part.row == len(part.rows)
        ends = good and kind == "over"
        if not (last or ends or sequence.left):
            sequence.held = held
            if not held:
                self._turn(sequence)
            return None
        error = None
        late = part.request.deadline is not None and part.request.deadline <= now
        if not good and finished:
            # A model may raise because it noticed the deadline, so the deadline is the reason that counts.
            failed = "DeadlineError" if late else "PredictError"
            error = failed if kind == "fail" else "RefusedRowsError"
        elif ends and part.row < len(part.rows):
            error = "SequenceGoneError"
        self._complete(sequence, part, now, last=last, ends=ends)
        return part, error, sequence

    def _expired(self, sequence, part, now):
        if sequence not in self.living:
            self._tell(sequence)
            return None
        # What was done of it before counts; it ends nothing.
        part.row += 1
        self._complete(sequence, part, now, last=False)
        part.row -= 1
        return part, "DeadlineError", sequence

    def _complete(self, sequence, part, now, *, last, ends=False):
        self._drop(sequence, part)
        if ends or sequence.anonymous or (last and part.ends):
            sequence.doing = False
            self.end(sequence, "ended", now)
        else:
            self._go_on(sequence, now)

    def _give(self, sequence, part, place, goes_on):
        stream = part.request.stream
        if stream is None:
            part.given.append((place, sequence.diary))
            return False, False
        if stream.over:
            return True, False
        part.seen = True
        stream.items.append((sequence, sequence.diary))
        return False, goes_on and len(stream.items) >= self.items_max

    def _turn(self, sequence):
        """Move a rescheduled request behind those that may interleave with it."""
        part, *others = sequence.parts
        together = []
        for other in others:
            if other.ends or not other.rows:
                break
            together.append(other)
        if self.limits.interleave and part.times and not part.ends:
            sequence.parts = [*together, part, *others[len(together) :]]

    def room(self, stream):
        """Resume sequences after a read of their stream."""
        for sequence in self.living:
            if sequence.held and sequence.parts[0].request.stream is stream:
                sequence.held = False
                self._turn(sequence)

    # Ends

    def end(self, sequence, why, now, keep=None):
        sequence.why = why
        self.living.remove(sequence)
        if sequence.id and not sequence.replaced:
            self.ends[sequence.id] = why
        for part in sequence.parts:
            self._finish(part, _error_of(why), sequence)
        if not sequence.doing:
            sequence.parts = []
            self._tell(sequence)

    def _tell(self, sequence):
        if sequence.known:
            end = ReportedEnd(sequence, sequence.diary)
            self.reported.append(end)
            self.unreported.append(end)

    def receive(self, ended):
        """Match the ends that were reported to the model: id, reason, steps, diary.

        Equal ends are interchangeable.
        """
        more = Counter((id, why, steps, str(diary)) for id, why, steps, diary in ended)
        more -= Counter(end.shown for end in self.reported if end not in self.unreported)
        unreported, self.unreported = self.unreported, []
        for end in unreported:
            if more[end.shown]:
                more[end.shown] -= 1
            else:
                self.unreported.append(end)

    def expire(self, now):
        while late := [sequence for sequence in self.living if self._due(sequence)[0] <= now]:
            first = min(late, key=self._due)
            self.end(first, self._due(first)[1], now)

    def _due(self, sequence):
        idle_s = inf if sequence.parts else sequence.idle_s + self.limits.idle_ms / 1000
        total_ms = self.limits.time_ms_max
        lived_s = inf if total_ms is None else sequence.born_s + total_ms / 1000
        return min((idle_s, "idle"), (lived_s, "timed_out"))

    def cancel(self, id, now):
        self.expire(now)
        sequence = self.find(id)
        if sequence is not None:
            self.end(sequence, "cancelled", now)
        return sequence is not None

    # Deaths

    def died(self, at, sequences, died_in, now):
        """Kill an instance during these steps; `died_in` are the tokens of the call."""
        over, before = [], len(self.finished)
        for sequence in sequences:
            if sequence.doing_row[1] in died_in:
                part = sequence.doing_part
                part.deaths += 1
                if part.deaths == 2 and not part.over:
                    over.append(part)
                    self._finish(part, "InstanceLostError", sequence)
        # Their results are delivered after those of the lost sequences.
        exhausted = self.finished[before:]
        del self.finished[before:]
        for sequence in sequences:
            sequence.doing = False
            if sequence not in self.living:
                self._lose(sequence)
                self._tell(sequence)
            elif sequence.left:
                if sequence.replaced:
                    # Nobody can ask anything of it any more: it may end here.
                    self._lose(sequence)
                self._withdraw(sequence.parts[0], now)
        for sequence in [sequence for sequence in self.living if sequence.at == at and sequence.steps]:
            started = [part for part in sequence.parts if part.is_started]
            if sequence.has_final_steps or any(part.seen for part in started):
                self._lose(sequence)
                self.end(sequence, "instance_lost", now)
                continue
            for part in started:
                part.row = part.times = 0
                if part.over:
                    continue
                part.given = []
                part.request.failures -= {place for place, _, _ in part.rows}
            sequence.diary, sequence.steps, sequence.held = [], 0, False
        for part in over:
            self._withdraw(part, now)
        # The states are lost, also of sequences that have ended by now.
        for end in self.unreported:
            if end.sequence.at == at:
                end.diary = []
        self.finished += exhausted

    def _lose(self, sequence):
        sequence.diary = []


def _error_of(why):
    return {"instance_lost": "SequenceLostError", "stopped": "StoppedError"}.get(why, "SequenceGoneError")
