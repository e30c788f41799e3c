"""Tasks on a Ray cluster: each worker is an actor with the processors and accelerators that it asks for. The one door to ray.

Ray places actors, and asks its autoscaler for machines; who does what, and what is done, it is not asked. Its own retries
are off: a worker that dies is replaced here, so that it is known what it was doing.
"""

import logging
import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self, cast

from headrace.core.clock import Clock, SystemClock
from headrace.core.errors import ConfigError, MissingExtraError, ModelLoadError
from headrace.core.predictor import PredictorStatistics
from headrace.core.tensor import ModelMetadata
from headrace.transforms.locality import Locality
from headrace.transforms.plan import Task
from headrace.transforms.records import Checkpoint, Spot
from headrace.transforms.runners.dispatch import Dispatcher, Hand, busy
from headrace.transforms.runners.engines import RayWorkers
from headrace.transforms.runners.messages import Assignment, Message, error_json
from headrace.transforms.runners.worker import Opener, Worker
from headrace.transforms.work import Work

try:
    import ray as _ray
    import ray.exceptions as _exceptions
except ImportError as _error:
    raise MissingExtraError("ray", "a transform on Ray") from _error

ray: Any = _ray
exceptions: Any = _exceptions

_log = logging.getLogger("headrace.transform")

_WAIT_S: Final = 0.5
_STOP_S: Final = 10.0
"""How long workers may take to let go of their models at the end."""
_LATE_S: Final = 30.0
"""So often it is said that workers wait for their place in the cluster."""
_MESSAGES_MAX: Final = 1_000
_REGION_LABEL: Final = "ray.io/region"
"""Of a node: where it is, by Ray's own convention."""


class _Actor:
    """A worker in its own process. `messages` runs as long as it lives; the others are called meanwhile."""

    def __init__(self, opener: Opener, region: str | None) -> None:
        self._opener, self._region = opener, region
        self._messages = queue.Queue[Message | None](_MESSAGES_MAX)
        self._stopped = threading.Event()
        self._worker: Worker | None = None

    def messages(self) -> Iterator[Message]:
        """Load the model, and say so; then everything that the worker tells, until it is stopped."""
        context: Any = ray.get_runtime_context()
        region = self._region or context.get_node_labels().get(_REGION_LABEL)
        yield {"node": context.get_node_id(), "region": region}
        try:
            with self._opener(self._messages.put, region) as worker:
                self._worker = worker
                worker.tell_ready()
                while (message := self._messages.get()) is not None:
                    yield message
        except Exception as error:  # noqa: BLE001 - told to the run, which raises it
            yield {"error": error_json(error)}

    def do(self, assignment: Message) -> None:
        assert self._worker is not None, "it has said that it is ready"
        self._worker.do(Assignment.from_json(assignment))

    def drain(self) -> None:
        if self._worker is not None:
            self._worker.drain()

    def stop(self) -> None:
        """Between two assignments."""
        if self._worker is not None:
            self._worker.tell()
        self._messages.put(None)


_METHODS_AT_ONCE: Final = 4
"""`messages`, and beside it `do` and `drain`; one more, for a `stop` that comes while another is under way."""


@dataclass(slots=True, eq=False)
class _Member:
    """One worker of the pool, and the way to it."""

    actor: Any
    stream: Any
    hand: Hand
    node: str | None = None


class RayRunner:
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
        self._opener = opener
        self._pool = pool
        self._model = model
        self._locality = locality or Locality()
        self._clock = clock or SystemClock()
        self._dispatcher = Dispatcher(model)
        self._members: list[_Member] = []
        self._sent: Any = None
        """The opener, as the cluster has it: it goes to each machine once."""
        self._joined = False
        self._workers_max = pool.workers_max or pool.workers_min
        self._said_s = 0.0
        self._draining = False

    # Beginning and end

    def start(self) -> None:
        """Join the cluster, start workers, and wait until one has loaded the model.

        Raises what loading raises; ConfigError when the cluster has no place for a worker in time.
        """
        self._join()
        try:
            self._sent = ray.put(self._opener)
            for _ in range(self._pool.workers_min):
                self._spawn()
            began_s = self._said_s = self._clock.now()
            while self._dispatcher.metadata is None:
                self._hear(_WAIT_S)
                self._refill(self._pool.workers_min)
                self._check_place(self._clock.now() - began_s)
                self._say_if_late()
        except BaseException:
            self.stop()
            raise

    def _join(self) -> None:
        if not ray.is_initialized():
            try:
                ray.init(
                    address=self._pool.address,
                    include_dashboard=None if self._pool.address else False,
                    configure_logging=False,
                    log_to_driver=False,
                )
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise ConfigError(f"Ray cannot be reached or started: {error}") from error
            self._joined = True
        if self._pool.workers_max is None:
            room = ray.cluster_resources().get("CPU", 0.0) // self._pool.cpus if self._pool.cpus else 1
            self._workers_max = max(self._pool.workers_min, int(room))

    def stop(self) -> None:
        """End the workers: those that idle by themselves, any other at once; leave the cluster if `start` joined it."""
        idle = [m for m in self._members if m.hand.ready and not m.hand.assigned]
        leaving = [member.actor.stop.remote() for member in idle]
        if leaving:
            ray.wait(leaving, num_returns=len(leaving), timeout=_STOP_S)
            for member in idle:
                self._last_words(member)
        for member in list(self._members):
            self._let_go(member)
            self._dispatcher.released(member.hand)
        if self._joined:
            ray.shutdown()
            self._joined = False

    def _last_words(self, member: _Member) -> None:
        """What a worker told while it was stopped."""
        while ray.wait([member.stream], timeout=_STOP_S)[0]:
            try:
                self._dispatcher.heard(member.hand, ray.get(next(member.stream)))
            except (StopIteration, exceptions.RayError):
                return

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
        del checkpoints
        self._dispatcher.begin(work, tasks, begins)
        self._assign()
        while busy(self._dispatcher.hands) or self._waits():
            self._hear(_WAIT_S)
            self._dispatcher.told()
            self._assign()
            self._say_if_late()
        return self._dispatcher.complete(drained=self._draining)

    def drain(self) -> None:
        """See `Runner.drain`."""
        self._draining = True
        for member in list(self._members):
            member.actor.drain.remote()

    def _waits(self) -> bool:
        """Whether a task waits for a worker that may do it, or may turn out to."""
        if self._draining or not self._dispatcher.left:
            return False
        return not all(member.hand.ready for member in self._members)

    def _assign(self) -> None:
        """Give every idle worker something to do; have as many workers as there is work for."""
        if self._draining:
            return
        for member in self._members:
            order = self._dispatcher.assign(member.hand, of=self._workers_max)
            if order is not None:
                member.actor.do.remote(order.to_json())
        self._refill(self._wanted())
        for member in [m for m in self._members if m.hand.ready and not m.hand.assigned]:
            if len(self._members) > self._pool.workers_min and not self._dispatcher.left:
                member.actor.stop.remote()
                self._last_words(member)
                self._let_go(member)
                self._dispatcher.released(member.hand)

    def _wanted(self) -> int:
        """How many workers there is work for, within the pool's bounds."""
        useful = sum(1 for m in self._members if m.hand.assigned) + self._dispatcher.left
        return max(self._pool.workers_min, min(self._workers_max, useful))

    # Workers

    def _spawn(self) -> None:
        pool = self._pool
        asked: dict[str, Any] = {"num_cpus": pool.cpus, "num_gpus": pool.gpus}
        if pool.memory_bytes is not None:
            asked["memory"] = pool.memory_bytes
        if pool.resources:
            asked["resources"] = dict(pool.resources)
        if pool.label_selector:
            asked["label_selector"] = dict(pool.label_selector)
        actor = (
            ray.remote(_Actor)
            .options(
                max_restarts=0,
                max_task_retries=0,
                max_concurrency=_METHODS_AT_ONCE,
                scheduling_strategy="SPREAD",
                **asked,
            )
            .remote(self._sent, self._locality.region)
        )
        stream = actor.messages.options(num_returns="streaming").remote()
        hand = Hand(self._locality)
        self._members.append(_Member(actor, stream, hand))
        self._dispatcher.hands.append(hand)

    def _refill(self, wanted: int) -> None:
        while len(self._members) < wanted:
            self._spawn()

    def _let_go(self, member: _Member) -> None:
        self._members.remove(member)
        ray.kill(member.actor)

    def _hear(self, timeout_s: float) -> None:
        """Take what workers have told; one message of each that has any."""
        streams = {member.stream: member for member in self._members}
        told, _ = ray.wait(list(streams), num_returns=1, timeout=timeout_s)
        if not told:
            return
        more, _ = ray.wait(list(streams), num_returns=len(streams), timeout=0)
        for stream in {*told, *more}:
            self._take(streams[stream])

    def _take(self, member: _Member) -> None:
        try:
            message: Message = ray.get(next(member.stream))
        except StopIteration:
            self._died(member, "without a word")
        except exceptions.RayError as error:
            self._died(member, _how(error))
        else:
            if "node" in message:
                member.node = message["node"]
                member.hand.locality = replace(self._locality, region=message["region"])
            self._dispatcher.heard(member.hand, message)

    def _died(self, member: _Member, how: str) -> None:
        self._let_go(member)
        self._dispatcher.died(member.hand, how, by_itself=not self._lost_with_node(member))

    @staticmethod
    def _lost_with_node(member: _Member) -> bool:
        """Whether a worker's whole machine has gone: then it was nothing that it did."""
        nodes = cast("list[dict[str, Any]]", ray.nodes())
        return any(node["NodeID"] == member.node and not node["Alive"] for node in nodes)

    # Waiting for a place

    def _say_if_late(self) -> None:
        waiting = sum(1 for member in self._members if member.node is None)
        now_s = self._clock.now()
        if not waiting:
            self._said_s = now_s
        elif now_s - self._said_s >= _LATE_S:
            self._said_s = now_s
            _log.warning("%d workers wait for a place in the cluster: %s", waiting, self._room())

    def _room(self) -> str:
        pool = self._pool
        wants = {"CPU": pool.cpus, "GPU": pool.gpus, "memory": pool.memory_bytes or 0, **pool.resources}
        has = ray.cluster_resources()
        said = [f"{value:g} {name} of {has.get(name, 0.0):g}" for name, value in wants.items() if value]
        labels = f", on nodes labelled {dict(pool.label_selector)}" if pool.label_selector else ""
        return f"each asks for {', '.join(said) or 'nothing'} that the cluster has{labels}"

    def _check_place(self, waited_s: float) -> None:
        if waited_s <= self._pool.place_s:
            return
        if any(member.node is not None for member in self._members):
            raise ModelLoadError(self._model, f"no worker has loaded it within {self._pool.place_s:g} s")
        raise ConfigError(
            f"no worker got a place in the cluster within {self._pool.place_s:g} s: {self._room()}"
        )

    # Figures

    @property
    def metadata(self) -> ModelMetadata:
        """See `Runner.metadata`."""
        assert self._dispatcher.metadata is not None, "started before"
        return self._dispatcher.metadata

    def statistics(self) -> PredictorStatistics:
        """See `Runner.statistics`."""
        return self._dispatcher.statistics()

    def reading(self) -> Sequence[str]:
        """See `Runner.reading`."""
        return self._dispatcher.reading()

    def cpu_s(self) -> float:
        """See `Runner.cpu_s`."""
        return self._dispatcher.cpu_s()

    def peak_memory_mb(self) -> float:
        """See `Runner.peak_memory_mb`."""
        return self._dispatcher.peak_memory_mb()


def _how(error: Exception) -> str:
    """How a worker ended, in the last line of what Ray says."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"({lines[-1] if lines else type(error).__name__})"
