"""Tasks on a Ray cluster: each worker is an actor with the processors and accelerators that it asks for.

Ray places actors, and asks its autoscaler for machines; who does what, and what is done, it is not asked. Its own retries
are off: a worker that dies is replaced here, so that it is known what it was doing.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import ConfigError, HeadraceError, ModelLoadError
from headrace.transforms.locality import Locality
from headrace.transforms.plan import Task
from headrace.transforms.records import Checkpoint, Spot
from headrace.transforms.runners.actor import Actor
from headrace.transforms.runners.cluster import Cluster, exceptions, how_ended, lost_with_others, ray, where
from headrace.transforms.runners.dispatch import Hand, busy
from headrace.transforms.runners.dispatched import DispatchedRunner
from headrace.transforms.runners.engines import RayWorkers
from headrace.transforms.runners.messages import Message
from headrace.transforms.runners.worker import Opener
from headrace.transforms.work import Work

_log = logging.getLogger("headrace.transform")

_WAIT_S: Final = 0.5
_STOP_S: Final = 10.0
"""How long workers may take to let go of their models at the end."""
_LATE_S: Final = 30.0
"""So often it is said that workers wait for their place in the cluster."""
_METHODS_AT_ONCE: Final = 4
"""`messages`, and beside it `do` and `drain`; one more, for a `stop` that comes while another is under way."""


@dataclass(slots=True, eq=False)
class _Member:
    """One worker of the pool, and the way to it."""

    actor: Any
    stream: Any
    hand: Hand
    calls: list[Any] = field(default_factory=list[Any])
    """What it was asked to do and has not answered yet; an answer says nothing, but that it did not arrive."""
    node: str | None = None
    """Where it is, once it has got a place."""
    leaving: bool = False
    """Whether it was asked to let go of its model, and end."""

    @property
    def idle(self) -> bool:
        return self.hand.ready and not self.hand.assigned and not self.leaving


class RayRunner(DispatchedRunner):
    """Workers, each an actor; as a context manager it joins the cluster, and leaves it whatever happens.

    Args:
        opener: Makes a worker; is sent to the actors.
        pool: How many, and what each takes.
        model: The model's name, for errors.
        locality: Where workers are whose node does not say so, and whether they do others' tasks.
        clock: What waiting for a place is measured by.
    """

    def __init__(
        self,
        opener: Opener,
        pool: RayWorkers,
        *,
        model: str,
        locality: Locality | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(model)
        self._opener = opener
        self._pool = pool
        self._locality = locality or Locality()
        self._clock = clock or SystemClock()
        self._members: list[_Member] = []
        self._sent: Any = None
        """The opener, as the cluster has it: it goes to each machine once."""
        self._cluster = Cluster(pool.address)
        self._workers_max = pool.workers_min
        """Until the cluster has said how many it has room for."""
        self._said_s = 0.0
        self._waited_since_s = 0.0
        self._draining = self._drained = False
        """Whether that was asked for, and whether the workers were told."""

    # Beginning and end

    def start(self) -> None:
        """Join the cluster, start workers, and wait until one has loaded the model.

        Raises what loading raises; ConfigError when the cluster has no place for a worker in time.
        """
        try:
            self._cluster.join()
            self._workers_max = self._most_workers()
            self._sent = ray.put(self._opener)
            self._waited_since_s = self._said_s = self._clock.now()
            while self._dispatcher.metadata is None:
                self._check_wanted()
                self._refill(self._pool.workers_min)
                self._hear(_WAIT_S)
                self._say_if_late()
                self._waited_in_vain()
        except BaseException:
            self.stop()
            raise

    def _check_wanted(self) -> None:
        if self._draining:
            raise ModelLoadError(self._model, "the run was stopped before a worker had loaded it")

    def _most_workers(self) -> int:
        if self._pool.workers_max is not None:
            return self._pool.workers_max
        cpus = self._pool.cpus
        room = self._cluster.resources().get("CPU", 0.0) // cpus if cpus else 1
        return max(self._pool.workers_min, int(room))

    def stop(self) -> None:
        """End the workers: those that idle by themselves, any other at once; leave the cluster if `start` joined it."""
        try:
            for member in list(self._members):
                if member.idle:
                    self._ask_to_leave(member)
                elif not member.leaving:
                    self._let_go(member)
            while self._members and self._hear(_STOP_S):
                pass
        finally:
            for member in list(self._members):
                self._let_go(member)
            self._cluster.leave()

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.stop()

    # Doing

    def run(
        self,
        work: Work,
        tasks: Sequence[Task],
        *,
        begins: Mapping[tuple[int, int], Spot],
        checkpoints: Mapping[int, Checkpoint],
    ) -> bool:
        """See `Runner.run`. Checkpoints are read by the workers themselves, from the ledger.

        A task that kills workers by itself is left out; once all others are done, it raises InstanceLostError. Workers
        that died with their machine cost what they had not committed, however often.
        """
        self._dispatcher.begin(work, tasks, begins, checkpoints)
        self._waited_since_s = self._clock.now()
        self._assign()
        while busy(self._dispatcher.hands) or self._waits():
            self._hear(_WAIT_S)
            self._dispatcher.told()
            self._assign()
            self._say_if_late()
            if self._waited_in_vain():
                break
        return self._dispatcher.complete(drained=self._draining)

    def drain(self) -> None:
        """See `Runner.drain`."""
        # No more than that: it may be called in a signal's handler, in the midst of anything of Ray's. `run` looks.
        self._draining = True

    def _pass_drain_on(self) -> None:
        told, self._drained = self._drained, True
        for member in [] if told else self._members:
            if member.hand.ready:
                member.calls.append(member.actor.drain.remote())

    def _waits(self) -> bool:
        """Whether a task waits for a worker that may do it, or may turn out to."""
        if self._draining or not self._dispatcher.left:
            return False
        return not all(member.hand.ready for member in self._members)

    def _assign(self) -> None:
        """Give every idle worker something to do; have as many workers as there is work for."""
        if self._draining:
            self._pass_drain_on()
            return
        for member in self._members:
            order = None if member.leaving else self._dispatcher.assign(member.hand, of=self._workers_max)
            if order is not None:
                member.calls.append(member.actor.do.remote(order.to_json()))
        wanted = self._wanted()
        self._refill(wanted)
        if not self._dispatcher.left:
            self._dismiss(wanted)

    def _wanted(self) -> int:
        """How many workers there is work for, within the pool's bounds."""
        useful = sum(1 for m in self._members if m.hand.assigned) + self._dispatcher.left
        return max(self._pool.workers_min, min(self._workers_max, useful))

    # Workers

    def _spawn(self) -> None:
        options = {
            "max_restarts": 0,
            "max_task_retries": 0,
            "max_concurrency": _METHODS_AT_ONCE,
            "scheduling_strategy": "SPREAD",
            **self._pool.ray_options(),
        }
        actor = ray.remote(Actor).options(**options).remote(self._sent, self._locality.region, where)
        stream = actor.messages.options(num_returns="streaming").remote()
        hand = Hand(self._locality)
        self._members.append(_Member(actor, stream, hand))
        self._dispatcher.hands.append(hand)

    def _staying(self) -> list[_Member]:
        return [member for member in self._members if not member.leaving]

    def _refill(self, wanted: int) -> None:
        for _ in range(wanted - len(self._staying())):
            self._spawn()

    def _dismiss(self, wanted: int) -> None:
        """Let go of workers that nothing is left for: those first that have not begun."""
        surplus = len(self._staying()) - wanted
        unready = [member for member in self._members if not member.hand.ready]
        idle = [member for member in self._members if member.idle]
        for member in [*unready, *idle][: max(0, surplus)]:
            if member.hand.ready:
                self._ask_to_leave(member)
            else:
                self._let_go(member)

    def _ask_to_leave(self, member: _Member) -> None:
        member.leaving = True
        member.calls.append(member.actor.stop.remote())

    def _let_go(self, member: _Member) -> None:
        self._members.remove(member)
        self._dispatcher.released(member.hand)
        ray.kill(member.actor)

    def _hear(self, timeout_s: float) -> bool:
        """Take what workers have told, something of each that has any; whether any had."""
        waited: dict[Any, _Member] = {}
        for member in self._members:
            waited |= dict.fromkeys([member.stream, *member.calls], member)
        told, _ = ray.wait(list(waited), num_returns=1, timeout=timeout_s)
        if not told:
            return False
        more, _ = ray.wait(list(waited), num_returns=len(waited), timeout=0)
        for one in {*told, *more}:
            member = waited[one]
            if member not in self._members:
                continue  # what it said before was its last
            if one is member.stream:
                self._take(member)
            else:
                self._answered(member, one)
        return True

    def _take(self, member: _Member) -> None:
        try:
            messages: list[Message] = ray.get(next(member.stream))
        except StopIteration:
            self._ended(member, None)
        except exceptions.RayError as error:
            self._ended(member, error)
        else:
            for message in messages:
                self._heard(member, message)

    def _heard(self, member: _Member, message: Message) -> None:
        if "node" in message:
            member.node = message["node"]
            member.hand.locality = replace(self._locality, region=message["region"])
        try:
            self._dispatcher.heard(member.hand, message)
        except HeadraceError:
            if not member.leaving:
                raise
            # It had done all that it was asked, and could not put its model away.
            _log.warning("worker did not end well", exc_info=True)

    def _answered(self, member: _Member, call: Any) -> None:
        """A call that did not arrive, such as when a connection broke, leaves nobody to wait for: the worker is given up."""
        member.calls.remove(call)
        try:
            ray.get(call)
        except exceptions.RayError as error:
            self._ended(member, error)

    def _ended(self, member: _Member, error: Exception | None) -> None:
        """A worker is no more, or cannot be reached."""
        if member.leaving:
            self._let_go(member)
            return
        self._members.remove(member)
        ray.kill(member.actor)
        by_itself = not lost_with_others(member.node, error)
        self._dispatcher.died(member.hand, how_ended(error), by_itself=by_itself)

    # Waiting for a place

    def _say_if_late(self) -> None:
        waiting = sum(1 for member in self._members if member.node is None)
        now_s = self._clock.now()
        if not waiting:
            self._said_s = now_s
        elif now_s - self._said_s >= _LATE_S:
            self._said_s = now_s
            _log.warning(
                "%d workers wait for a place in the cluster: %s",
                waiting,
                self._pool.said_of(self._cluster.resources()),
            )

    def _waited_in_vain(self) -> bool:
        """Whether nobody works, and those that are waited for got no place in all the time that they have.

        Raises ConfigError when there is nobody else; those that are there may not do what is left.
        """
        loading = any(member.node is not None and not member.hand.ready for member in self._members)
        now_s = self._clock.now()
        if loading or busy(self._dispatcher.hands):
            self._waited_since_s = now_s
        if now_s - self._waited_since_s <= self._pool.place_s:
            return False
        if any(member.hand.ready for member in self._members):
            return True
        raise ConfigError(
            f"no worker got a place in the cluster within {self._pool.place_s:g} s: {self._pool.said_of(self._cluster.resources())}"
        )
