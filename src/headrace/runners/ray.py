"""Run tasks on a Ray cluster. Each worker is an actor with its own CPUs and accelerators.

Ray places the actors and scales the cluster. The run assigns the tasks and replaces dead workers;
Ray's own retries are off, because the run must know what a dead worker was doing.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from typing_extensions import override

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import ConfigError, HeadraceError, ModelLoadError
from headrace.runners.cluster import Cluster, exceptions, exit_reason, is_node_failure, ray, worker_location
from headrace.runners.engines import RayWorkers
from headrace.runners.messages import Message
from headrace.runners.scheduler import ScheduledRunner, WorkerHandle, any_busy
from headrace.runners.worker import Actor, Opener
from headrace.runs.plan import Task
from headrace.runs.tasks import Locality
from headrace.runs.work import RunWork

_log = logging.getLogger("headrace.runs")

_WAIT_S: Final = 0.5
_STOP_S: Final = 10.0
"""The maximal duration of the workers' end."""
_WARNING_INTERVAL_S: Final = 30.0
"""The interval of warnings about workers that wait for placement."""
_METHODS_AT_ONCE: Final = 4
"""Concurrent calls of an actor: `messages`, `do`, `drain`, and a `stop` meanwhile."""


@dataclass(slots=True, eq=False)
class _Member:
    """A worker of the pool and its Ray handles."""

    actor: Any
    stream: Any
    handle: WorkerHandle
    calls: list[Any] = field(default_factory=list[Any])
    """Pending calls. Their results are empty; only their failure matters."""
    node: str | None = None
    """The node of the worker, once it is placed."""
    exiting: bool = False
    """True if the worker was requested to end."""

    @property
    def idle(self) -> bool:
        return self.handle.ready and not self.handle.assigned and not self.exiting


class _Placement:
    """The wait of workers for a place in the cluster. Used by one thread."""

    def __init__(self, pool: RayWorkers, cluster: Cluster, clock: Clock) -> None:
        self._pool = pool
        self._cluster = cluster
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Wait from now on."""
        self._warned_s = self._waiting_since_s = self._clock.now()

    def warn(self, members: Sequence[_Member]) -> None:
        """Log a warning at intervals while workers wait."""
        waiting = sum(1 for member in members if member.node is None)
        now_s = self._clock.now()
        if not waiting:
            self._warned_s = now_s
        elif now_s - self._warned_s >= _WARNING_INTERVAL_S:
            self._warned_s = now_s
            _log.warning(
                "%d workers wait to be placed in the cluster: %s",
                waiting,
                self._pool.describe_request(self._cluster.resources()),
            )

    def timed_out(self, members: Sequence[_Member]) -> bool:
        """Return True if no worker is busy and the missing ones were not placed in time.

        Raises ConfigError if there is no ready worker; ready ones may not be allowed to run what is
        left.
        """
        loading = any(member.node is not None and not member.handle.ready for member in members)
        now_s = self._clock.now()
        if loading or any_busy(member.handle for member in members):
            self._waiting_since_s = now_s
        if now_s - self._waiting_since_s <= self._pool.place_s:
            return False
        if any(member.handle.ready for member in members):
            return True
        raise ConfigError(
            f"the cluster placed no worker within {self._pool.place_s:g} s: "
            f"{self._pool.describe_request(self._cluster.resources())}"
        )


class RayRunner(ScheduledRunner):
    """A runner of tasks in Ray actors.

    As a context manager it joins the cluster, and always leaves it.

    Args:
        opener: Opens a worker; it is sent to the actors.
        pool: The number of workers and the resources of each.
        model: The model's name, for errors.
        locality: The region of workers on nodes without a region, and the rule for other regions.
        clock: The clock of the wait for placement.
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
        super().__init__(model, locality)
        self._opener = opener
        self._pool = pool
        self._members: list[_Member] = []
        self._opener_ref: Any = None
        """The reference of the opener in the cluster, which sends it to each machine once."""
        self._cluster = Cluster(pool.address)
        self._workers_max = pool.workers_min
        """The limit of workers; updated from the cluster's capacity."""
        self._placement = _Placement(pool, self._cluster, clock or SystemClock())
        self._drained = False
        """True if the workers were notified of a drain."""

    # Beginning and end

    def start(self) -> None:
        """Join the cluster, start workers, and wait until one has loaded the model.

        Raises the errors of loading; ConfigError if the cluster does not place a worker in time.
        """
        try:
            self._cluster.join()
            self._workers_max = self._workers_limit()
            self._opener_ref = ray.put(self._opener)
            self._placement.begin()
            while self._scheduler.loaded is None:
                self._check_not_draining()
                self._refill(self._pool.workers_min)
                self._process_messages(_WAIT_S)
                self._placement.warn(self._members)
                self._placement.timed_out(self._members)
        except BaseException:
            self.stop()
            raise

    def _check_not_draining(self) -> None:
        if self._draining:
            raise ModelLoadError(self._model, "the run was stopped before a worker had loaded it")

    def _workers_limit(self) -> int:
        if self._pool.workers_max is not None:
            return self._pool.workers_max
        cpus = self._pool.cpus
        capacity = self._cluster.resources().get("CPU", 0.0) // cpus if cpus else 1
        return max(self._pool.workers_min, int(capacity))

    def stop(self) -> None:
        """End the workers, idle ones orderly; leave the cluster if `start` joined it."""
        try:
            for member in list(self._members):
                if member.idle:
                    self._request_exit(member)
                elif not member.exiting:
                    self._kill(member)
            while self._members and self._process_messages(_STOP_S):
                pass
        finally:
            for member in list(self._members):
                self._kill(member)
            self._cluster.leave()

    def __enter__(self) -> Self:
        """Join the cluster and start workers."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the workers and leave the cluster."""
        self.stop()

    # Doing

    @override
    def run(self, work: RunWork, tasks: Sequence[Task]) -> bool:
        """Run the tasks. The workers read their checkpoints from the ledger.

        A task that kills workers is excluded; after all others, InstanceLostError is raised. The
        loss of a machine costs only uncommitted work, however often it happens.
        """
        self._scheduler.begin(work, tasks)
        self._placement.begin()
        self._assign()
        while any_busy(self._scheduler.handles) or self._may_get_work():
            self._process_messages(_WAIT_S)
            self._scheduler.update_progress()
            self._assign()
            self._placement.warn(self._members)
            if self._placement.timed_out(self._members):
                break
        return self._scheduler.complete(drained=self._draining)

    @override
    def drain(self) -> None:
        # A signal handler may call this at any time, so it must not call Ray. `run` acts on the
        # flag.
        self._draining = True

    def _drain_workers(self) -> None:
        ready, self._drained = self._drained, True
        for member in [] if ready else self._members:
            if member.handle.ready:
                member.calls.append(member.actor.drain.remote())

    def _assign(self) -> None:
        """Assign tasks to every idle worker, and adapt the number of workers to the remaining work."""
        if self._draining:
            self._drain_workers()
            return
        for member in self._members:
            order = (
                None if member.exiting else self._scheduler.assign(member.handle, workers=self._workers_max)
            )
            if order is not None:
                member.calls.append(member.actor.do.remote(order.to_json()))
        needed = self._workers_needed()
        self._refill(needed)
        if not self._scheduler.left:
            self._shrink(needed)

    def _workers_needed(self) -> int:
        """Return the number of workers that there is work for, within the pool's limits."""
        useful = sum(1 for m in self._members if m.handle.assigned) + self._scheduler.left
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
        actor = (
            ray.remote(Actor)
            .options(**options)
            .remote(self._opener_ref, self._locality.region, worker_location)
        )
        stream = actor.messages.options(num_returns="streaming").remote()
        handle = WorkerHandle(self._locality)
        self._members.append(_Member(actor, stream, handle))
        self._scheduler.handles.append(handle)

    def _staying(self) -> list[_Member]:
        return [member for member in self._members if not member.exiting]

    def _refill(self, needed: int) -> None:
        for _ in range(needed - len(self._staying())):
            self._spawn()

    def _shrink(self, needed: int) -> None:
        """End surplus workers, those that are not ready first."""
        surplus = len(self._staying()) - needed
        unready = [member for member in self._members if not member.handle.ready]
        idle = [member for member in self._members if member.idle]
        for member in [*unready, *idle][: max(0, surplus)]:
            if member.handle.ready:
                self._request_exit(member)
            else:
                self._kill(member)

    def _request_exit(self, member: _Member) -> None:
        member.exiting = True
        member.calls.append(member.actor.stop.remote())

    def _kill(self, member: _Member) -> None:
        self._members.remove(member)
        self._scheduler.release(member.handle)
        ray.kill(member.actor)

    def _process_messages(self, timeout_s: float) -> bool:
        """Handle one pending message of each worker. Return True if there was any."""
        waited: dict[Any, _Member] = {}
        for member in self._members:
            waited |= dict.fromkeys([member.stream, *member.calls], member)
        ready, _ = ray.wait(list(waited), num_returns=1, timeout=timeout_s)
        if not ready:
            return False
        more, _ = ray.wait(list(waited), num_returns=len(waited), timeout=0)
        for one in {*ready, *more}:
            member = waited[one]
            if member not in self._members:
                continue  # it was removed meanwhile
            if one is member.stream:
                self._take(member)
            else:
                self._on_call_done(member, one)
        return True

    def _take(self, member: _Member) -> None:
        try:
            messages: list[Message] = ray.get(next(member.stream))
        except StopIteration:
            self._on_exit(member, None)
        except exceptions.RayError as error:
            self._on_exit(member, error)
        else:
            for message in messages:
                self._on_message(member, message)

    def _on_message(self, member: _Member, message: Message) -> None:
        if "node" in message:
            member.node = message["node"]
            member.handle.locality = replace(self._locality, region=message["region"])
        try:
            self._scheduler.on_message(member.handle, message)
        except HeadraceError:
            if not member.exiting:
                raise
            # The worker had finished its work and failed to unload the model.
            _log.warning("worker failed to end orderly", exc_info=True)

    def _on_call_done(self, member: _Member, call: Any) -> None:
        """Handle the end of a call.

        A call that failed to arrive, as on a broken connection, ends the worker.
        """
        member.calls.remove(call)
        try:
            ray.get(call)
        except exceptions.RayError as error:
            self._on_exit(member, error)

    def _on_exit(self, member: _Member, error: Exception | None) -> None:
        """Handle a worker that ended or is unreachable."""
        if member.exiting:
            self._kill(member)
            return
        self._members.remove(member)
        ray.kill(member.actor)
        blame_task = not is_node_failure(member.node, error)
        self._scheduler.on_worker_died(member.handle, exit_reason(error), blame_task=blame_task)
