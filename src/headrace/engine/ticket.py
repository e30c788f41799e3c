"""A request on its way through the engine, and how its answer gets back to whoever asked."""

import asyncio
import logging
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from typing import Final, Protocol

from headrace.core.errors import CancelledRequestError
from headrace.core.predictor import settle
from headrace.core.tensor import InferRequest, InferResponse, Tensor

DEATHS_MAX: Final = 2
"""A request in whose calls so many processes died is not asked again."""

_log = logging.getLogger("headrace.engine")

Answer = InferResponse | BaseException


class Reply(Protocol):
    """Where an answer goes."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop that `give` must be called in; None: any thread."""
        ...

    def begin(self) -> bool:
        """The request is about to be run; whether anybody still waits for it. Called once, from an instance."""
        ...

    def give(self, answer: Answer) -> None:
        """Hand the answer over; ignored when nobody waits any more."""
        ...


class RequestTimes:
    """When a request was asked, and when its calls began and ended: seconds of the engine's clock, None until known.

    Filled in only where somebody asks with one; of a request whose instance died, the last time counts.
    """

    __slots__ = ("asked_s", "began_s", "ended_s")

    def __init__(self) -> None:
        self.asked_s: float | None = None
        self.began_s: float | None = None
        self.ended_s: float | None = None


class Ticket:
    """A request with its number of rows and its reply. The engine's lock guards what changes.

    `key` is equal for requests that can share a call of the model. `strict` requests take no answer with rows
    missing: one bad row fails them. `deaths` counts the instances that died while they had it. It is `cancelled` when
    its caller left before it had `ended`; never both.
    """

    __slots__ = (
        "asked_s",
        "cancelled",
        "deaths",
        "ended",
        "key",
        "priority",
        "reply",
        "request",
        "rows",
        "strict",
        "times",
    )

    def __init__(
        self,
        request: InferRequest,
        rows: int,
        asked_s: float,
        reply: Reply,
        *,
        key: Hashable = None,
        strict: bool = False,
        times: RequestTimes | None = None,
    ) -> None:
        self.request = request
        self.rows = rows
        self.asked_s = asked_s
        self.reply = reply
        self.key = key
        self.priority = request.priority
        self.strict = strict
        self.cancelled = False
        self.ended = False
        self.deaths = 0
        self.times = times

    def alive(self, now: float) -> bool:
        """Whether anybody still waits for the answer."""
        deadline = self.request.deadline
        return not self.cancelled and (deadline is None or now < deadline)


def merge_key(tensors: Sequence[Tensor]) -> Hashable:
    """Equal for requests whose tensors can be joined along the first axis and whose answers are made alike."""
    if len(tensors) == 1:
        data = tensors[0].data
        signature: Hashable = (tensors[0].name, data.dtype, data.shape[1:])
    else:
        # In the order given, which counts for a model that takes its inputs by position.
        signature = tuple([(t.name, t.data.dtype, t.data.shape[1:]) for t in tensors])
    return signature


class FutureReply:
    """To a `concurrent.futures.Future`, in whichever thread the answer comes."""

    __slots__ = ("future",)

    loop = None

    def __init__(self, future: Future[InferResponse]) -> None:
        self.future = future

    def begin(self) -> bool:
        """See `Reply`; from then on the future cannot be cancelled any more, but abandoned (`Engine.abandon`)."""
        future = self.future
        if future.running():
            return True
        if future.done() and not future.cancelled():
            return False
        return future.set_running_or_notify_cancel()

    def give(self, answer: Answer) -> None:
        """See `Reply`; what callbacks raise is logged."""
        if not self.begin():
            return
        if (raised := settle(self.future, answer)) is not None:
            _log.error("a callback raised", exc_info=raised)


class LoopReply:
    """To a coroutine that awaits `future` in its event loop."""

    __slots__ = ("future", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.future: asyncio.Future[InferResponse] = loop.create_future()

    def begin(self) -> bool:
        """See `Reply`."""
        return not self.future.done()

    def give(self, answer: Answer) -> None:
        """See `Reply`."""
        if self.future.done():
            return
        if isinstance(answer, InferResponse):
            self.future.set_result(answer)
        else:
            self.future.set_exception(answer)

    def forget(self) -> None:
        """Nobody awaits it any more: an error that is there already was not overlooked."""
        if self.future.done() and not self.future.cancelled():
            self.future.exception()


def deliver(answered: Sequence[tuple[Ticket, Answer]]) -> None:
    """Give each ticket its answer, but for those whose caller has gone, who has ended them. They were settled.

    One hop for each event loop, however many tickets: a hop costs more than an answer.
    """
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Ticket, Answer]]] = {}
    for ticket, answer in answered:
        if ticket.cancelled:
            continue
        loop = ticket.reply.loop
        if loop is None:
            _give(ticket, answer)
        else:
            by_loop.setdefault(loop, []).append((ticket, answer))
    for loop, pairs in by_loop.items():
        try:
            loop.call_soon_threadsafe(_give_all, pairs)
        except RuntimeError:  # the loop is closed: nobody is left who could wait
            _log.debug("answers for a closed event loop", extra={"requests": len(pairs)})


def _give_all(pairs: Sequence[tuple[Ticket, Answer]]) -> None:
    for ticket, answer in pairs:
        _give(ticket, answer)


def _give(ticket: Ticket, answer: Answer) -> None:
    try:
        ticket.reply.give(answer)
    except Exception:  # noqa: BLE001 - others have theirs all the same
        _log.exception("an answer could not be given", extra={"request": ticket.request.id})


def gone(ticket: Ticket) -> CancelledRequestError:
    """What a request comes to whose caller has left."""
    name = f"request {ticket.request.id}" if ticket.request.id else "a request"
    return CancelledRequestError(f"{name} was cancelled by whoever asked")
