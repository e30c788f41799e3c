"""What sequences should come to, as plainly as it can be said: written from what the engine promises.

Which steps share a call, and which instance does them, is told to it (`taken`); all else follows.
"""

from collections import Counter
from dataclasses import dataclass, field
from math import inf


@dataclass(eq=False)
class Request:
    """One request. `result`: ("rows", diaries, failures), or ("error", names of errors); None while it is on its way."""

    name: str
    strict: bool = True
    deadline: float | None = None
    stream: "Stream | None" = None
    parts: list["Part"] = field(default_factory=list)
    begun: bool = False
    left: bool = False
    errors: set = field(default_factory=set)
    whole: str | None = None
    failures: set = field(default_factory=set)
    told: dict | None = None
    by_rows: bool = False
    own: "Tale | None" = field(default=None, repr=False)
    result: tuple | None = None


@dataclass(eq=False)
class Part:
    """Rows of a request for one sequence: (place in the request, token, kind)."""

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
    def begun(self):
        return self.row > 0 or self.times > 0

    @property
    def next(self):
        """Token and kind of the step that is next."""
        return self.rows[self.row][1:]


@dataclass(eq=False)
class Tale:
    """One sequence; `parts` are what is asked of it, whoever's turn it is first."""

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
    settled: bool = False
    replaced: bool = False
    """Whether another one has its id by now."""
    idle_s: float = 0.0
    rested: int = 0
    why: str | None = None
    doing_part: Part | None = field(default=None, repr=False)
    doing_row: tuple | None = None
    doing_times: int = 0
    late: bool = False
    """Whether nobody wanted the step when it was to be begun: then it is not done, but over with the call that the others are in."""


@dataclass(eq=False)
class Told:
    """What the model hears of a sequence that is over; its diary, if its instance has not died meanwhile."""

    tale: Tale
    diary: list

    @property
    def shown(self):
        """How a model tells it."""
        return (self.tale.id or "", self.tale.why, self.tale.steps, str(self.diary))


@dataclass(eq=False)
class Stream:
    """A stream: messages that wait to be asked, and responses that wait to be taken."""

    single: bool
    messages: list = field(default_factory=list)
    pending: list = field(default_factory=list)
    items: list = field(default_factory=list)
    own: Tale | None = None
    closed: bool = False
    over: bool = False
    ending: bool = False
    error: set | None = None


class Refused(Exception):  # noqa: N818 - it is no error of headrace's
    """A request that was not taken, and the name of the error that says so."""


class Reference:
    """All sequences of a model."""

    def __init__(self, limits, *, requests_max, items_max):
        self.limits, self.requests_max, self.items_max = limits, requests_max, items_max
        self.living: list[Tale] = []
        self.ends: dict[str, str] = {}
        self.told: list[Told] = []
        self.untold: list[Told] = []
        self.rests = 0
        self.late: list[tuple] | None = None
        self.finished: list[Request] = []

    def find(self, id):
        return next((tale for tale in self.living if id and tale.id == id and not tale.replaced), None)

    # Requests

    def ask(self, request, asks, now):
        """`asks`: (id, start, end, rows) of each part; raises Refused for a strict one that is not taken."""
        begun = []
        taken = []
        request.parts = [Part(request, rows, end) for *_, end, rows in asks]
        for part, (id, start, *_) in zip(request.parts, asks, strict=True):
            self.expire(now)
            before = None if start is True else self.find(id)
            try:
                tale = self._offer(part, id, start, now)
            except Refused as refused:
                if request.strict:
                    for other in taken:
                        self._withdraw(other, now)
                    for tale in begun:
                        if tale in self.living:
                            self.end(tale, "cancelled", now)
                    request.parts.clear()
                    raise
                self._finish(part, str(refused))
                continue
            taken.append(part)
            if tale is not before and not tale.anonymous:
                begun.append(tale)

    def _offer(self, part, id, start, now):
        tale = None if start is True else self.find(id)
        if tale is not None and max(len(tale.parts) - 1, 0) >= self.requests_max:
            raise Refused("SequenceFullError")
        if tale is None:
            old = self.find(id)
            # One that was asked for its end already comes to it by itself.
            ending = old is not None and old.parts and old.parts[-1].ends
            if old is not None and not ending:
                self.end(old, "restarted", now)
            if id and not start:
                raise Refused(_error_of(self.ends.get(id)))
            self._make_room(now)
            if old is not None:
                old.replaced = True
            tale = Tale(id or None, not id and start is not True, now, idle_s=now)
            self.living.append(tale)
        tale.parts.append(part)
        if len(tale.parts) == 1:
            self._go_on(tale, now)
        return tale

    def add(self, tale, request, rows, ends, now):
        """One more request of a sequence that lives."""
        part = Part(request, rows, ends)
        request.parts.append(part)
        tale.parts.append(part)
        if len(tale.parts) == 1:
            self._go_on(tale, now)

    def _make_room(self, now):
        if len(self.living) < self.limits.live_max:
            return
        idle = [tale for tale in self.living if not tale.parts]
        first = min(idle, key=lambda tale: tale.rested, default=None)
        evict_ms = self.limits.evict_idle_ms
        if first is None or evict_ms is None or now < first.idle_s + evict_ms / 1000:
            raise Refused("TooManySequencesError")
        self.end(first, "evicted", now)

    def _go_on(self, tale, now):
        """Whoever asks for no step, and is next, is over."""
        while tale.parts and not tale.parts[0].rows:
            part = tale.parts.pop(0)
            if part.ends or tale.anonymous:
                self.end(tale, "ended", now, keep=part)
                self._finish(part, None, tale)
                return
            self._finish(part, None, tale)
        if not tale.parts and tale.replaced:
            self.end(tale, "restarted", now)
        elif not tale.parts:
            tale.idle_s, self.rests = now, self.rests + 1
            tale.rested = self.rests

    def withdraw(self, request, now):
        """Its caller has left."""
        if request.result is None:
            request.left = True
            request.result = ("left",)
            for part in request.parts:
                self._withdraw(part, now)

    def _withdraw(self, part, now):
        tale = next((tale for tale in self.living if part in tale.parts), None)
        if tale is None:
            return
        if tale.anonymous:
            self.end(tale, "cancelled", now)
        elif tale.doing and tale.parts[0] is part:
            tale.left = True
        else:
            first = tale.parts[0] is part
            self._drop(tale, part)
            if first:
                tale.held = False
                self._go_on(tale, now)

    def _drop(self, tale, part):
        if part is tale.parts[0]:
            tale.left = False
        tale.parts.remove(part)
        tale.settled |= tale.steps > 0 and part.begun

    def _finish(self, part, error, tale=None):
        """A part is over."""
        request = part.request
        if self.late is not None:
            self.late.append((part, error, tale))
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
        if tale is not None and not tale.anonymous:
            request.told = {"id": tale, "end": tale.why is not None}
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

    def taken(self, tale, at, *, late=False):
        part = tale.parts[0]
        tale.doing = tale.known = part.request.begun = True
        tale.at, tale.doing_part, tale.late = at, part, late
        tale.doing_row, tale.doing_times = part.rows[part.row], part.times

    def stepped(self, tales, now):
        """A call was let go: one step of each."""
        self.late = []
        over = [self._stepped(tale, tale.doing_part, now) for tale in tales]
        # Those whose steps these were hear first, and then whoever waited behind them.
        late, self.late = self.late, None
        for part, error, tale in [*[one for one in over if one is not None], *late]:
            self._finish(part, error, tale)

    def expired(self, tale, now):
        """Its time was over before the step was begun, and no other was taken with it."""
        self.taken(tale, tale.at, late=True)
        self.stepped([tale], now)

    def _stepped(self, tale, part, now):
        place, token, kind = tale.doing_row
        tale.doing = False
        if tale.late:
            return self._expired(tale, part, now)
        good = kind not in ("fail", "refuse")
        again = tale.doing_times
        if good:
            tale.diary = [*tale.diary, [token, again]]
            tale.steps += 1
            part.deaths = 0
        if tale not in self.living:
            self._tell(tale)
            return None
        goes_on = kind.startswith("on") and again < int(kind[2:])
        finished = held = False
        if not good and part.request.strict:
            finished = True
        elif not good:
            part.request.failures.add(place)
        elif kind != "silent":
            finished, held = self._give(tale, part, place, goes_on)
        if goes_on:
            part.times = again + 1
        else:
            part.times = 0
            part.row += 1
        last = finished or part.row == len(part.rows)
        ends = good and kind == "over"
        if not (last or ends or tale.left):
            tale.held = held
            if not held:
                self._turn(tale)
            return None
        error = None
        if not good and finished:
            error = "PredictError" if kind == "fail" else "RefusedRowsError"
        elif ends and part.row < len(part.rows):
            error = "SequenceGoneError"
        self._complete(tale, part, now, last=last, ends=ends)
        return part, error, tale

    def _expired(self, tale, part, now):
        if tale not in self.living:
            self._tell(tale)
            return None
        # What was done of it before counts; it ends nothing.
        part.row += 1
        self._complete(tale, part, now, last=False)
        part.row -= 1
        return part, "DeadlineError", tale

    def _complete(self, tale, part, now, *, last, ends=False):
        self._drop(tale, part)
        if ends or tale.anonymous or (last and part.ends):
            tale.doing = False
            self.end(tale, "ended", now)
        else:
            self._go_on(tale, now)

    def _give(self, tale, part, place, goes_on):
        stream = part.request.stream
        if stream is None:
            part.given.append((place, tale.diary))
            return False, False
        if stream.over:
            return True, False
        part.seen = True
        stream.items.append((tale, tale.diary))
        return False, goes_on and len(stream.items) >= self.items_max

    def _turn(self, tale):
        """The current request, if it goes on, goes behind all that may take turns with it."""
        part, *others = tale.parts
        together = []
        for other in others:
            if other.ends or not other.rows:
                break
            together.append(other)
        if self.limits.interleave and part.times and not part.ends:
            tale.parts = [*together, part, *others[len(together) :]]

    def room(self, stream):
        """What a stream gave was taken."""
        for tale in self.living:
            if tale.held and tale.parts[0].request.stream is stream:
                tale.held = False
                self._turn(tale)

    # Ends

    def end(self, tale, why, now, keep=None):
        tale.why = why
        self.living.remove(tale)
        if tale.id and not tale.replaced:
            self.ends[tale.id] = why
        for part in tale.parts:
            self._finish(part, _error_of(why), tale)
        if not tale.doing:
            tale.parts = []
            self._tell(tale)

    def _tell(self, tale):
        if tale.known:
            told = Told(tale, tale.diary)
            self.told.append(told)
            self.untold.append(told)

    def heard(self, ended):
        """The model was told of these by now: id, reason, steps and diary of each. Of those that are equal any are meant."""
        more = Counter((id, why, steps, str(diary)) for id, why, steps, diary in ended)
        more -= Counter(told.shown for told in self.told if told not in self.untold)
        untold, self.untold = self.untold, []
        for told in untold:
            if more[told.shown]:
                more[told.shown] -= 1
            else:
                self.untold.append(told)

    def expire(self, now):
        while late := [tale for tale in self.living if self._due(tale)[0] <= now]:
            first = min(late, key=self._due)
            self.end(first, self._due(first)[1], now)

    def _due(self, tale):
        idle_s = inf if tale.parts else tale.idle_s + self.limits.idle_ms / 1000
        total_ms = self.limits.time_ms_max
        lived_s = inf if total_ms is None else tale.born_s + total_ms / 1000
        return min((idle_s, "idle"), (lived_s, "timed_out"))

    def cancel(self, id, now):
        self.expire(now)
        tale = self.find(id)
        if tale is not None:
            self.end(tale, "cancelled", now)
        return tale is not None

    # Deaths

    def died(self, at, tales, died_in, now):
        """The instance there died, in the middle of these steps; `died_in` are the tokens of the call."""
        for told in self.untold:
            if told.tale.at == at:
                told.diary = []
        over = []
        for tale in tales:
            if tale.doing_row[1] in died_in:
                part = tale.doing_part
                part.deaths += 1
                if part.deaths == 2 and not part.over:
                    over.append(part)
                    self._finish(part, "InstanceLostError", tale)
        for tale in tales:
            tale.doing = False
            if tale not in self.living:
                self._lose(tale)
                self._tell(tale)
            elif tale.left:
                if tale.replaced:
                    # Nobody can ask anything of it any more: it may end here.
                    self._lose(tale)
                self._withdraw(tale.parts[0], now)
        for tale in [tale for tale in self.living if tale.at == at and tale.steps]:
            begun = [part for part in tale.parts if part.begun]
            if tale.settled or any(part.seen for part in begun):
                self._lose(tale)
                self.end(tale, "instance_lost", now)
                continue
            for part in begun:
                part.row = part.times = 0
                if part.over:
                    continue
                part.given = []
                part.request.failures -= {place for place, _, _ in part.rows}
            tale.diary, tale.steps, tale.held = [], 0, False
        for part in over:
            self._withdraw(part, now)

    def _lose(self, tale):
        tale.diary = []


def _error_of(why):
    return {"instance_lost": "SequenceLostError", "stopped": "StoppedError"}.get(why, "SequenceGoneError")
