"""Loads, policies and watched simulations for the tests of the planner."""

from collections import Counter

import numpy as np
from hypothesis import strategies as st

from headrace.scaling.planner.load import Load
from headrace.scaling.planner.machine import Machine
from headrace.scaling.planner.simulation import _Pool
from headrace.scaling.policy import Decision, decide
from headrace.scaling.settings import ScalingSettings, WorkerRange


def load_of(arrived_s, run_s, span_s=1000.0, **values) -> Load:
    """Return a load; one run time holds for all jobs."""
    arrived_s = np.array(arrived_s, dtype=np.float64)
    run_s = np.broadcast_to(np.array(run_s, dtype=np.float64), arrived_s.shape)
    return Load(arrived_s, run_s, span_s, **values)


def policy_of(workers="0..8", **values) -> ScalingSettings:
    return ScalingSettings(**{"workers": WorkerRange.parse(workers), "scale_in_window_s": 60.0, **values})


def always(settings, observed, memory) -> Decision:
    """Decide for the smallest number of workers, quickly."""
    return Decision(settings.workers.least, "", memory)


class WatchedPool(_Pool):
    """A simulation that keeps the attempts of each worker, and checks its own counts at each decision."""

    def __init__(self, load, machine, settings, *, interval_s=5.0, drains=True, decide=decide, seed=0):
        super().__init__(
            load, machine, settings, interval_s=interval_s, drains=drains, decide=self._watch, seed=seed
        )
        self._real_decide = decide
        self.begun = []
        """Each attempt: its job, worker and begin."""
        self.ends = Counter()
        """Ends of each job."""
        self.decisions = []
        """Each decision: its time, the current number of workers, and the wanted one."""

    def _watch(self, settings, observed, memory):
        claiming = [worker for worker in self._workers if worker.claiming]
        living = [worker for worker in self._workers if worker.gone_s == np.inf]
        assert observed.workers == len(claiming)
        assert observed.starting == sum(worker.ready_s == np.inf for worker in living)
        assert observed.draining == len(living) - observed.current
        assert observed.busy == sum(bool(worker.due) for worker in claiming)
        assert observed.running == sum(len(worker.due) for worker in living)
        if observed.due:
            assert all(len(worker.due) == self._machine.concurrency for worker in claiming)
        decision = self._real_decide(settings, observed, memory)
        self.decisions.append((self._now_s, observed.current, decision.wanted))
        return decision

    def _begin(self, worker, job):
        assert worker.ready_s <= self._now_s
        assert worker.claiming
        assert len(worker.due) < self._machine.concurrency
        self.begun.append((job, worker.number, self._now_s))
        super()._begin(worker, job)

    def _finish_job(self, worker):
        before = {job for _, job in worker.due}
        super()._finish_job(worker)
        (job,) = (each for each in before if self._ended_s[each] == self._now_s and each not in self.ends)
        self.ends[job] += 1

    def watch(self):
        """Run, and return the outcome."""
        self.run()
        return self.outcome()


seconds = st.integers(0, 400).map(lambda tenths: tenths / 2)


@st.composite
def loads(draw):
    count = draw(st.integers(1, 25))
    arrived_s = sorted(draw(st.lists(seconds, min_size=count, max_size=count)))
    run_s = draw(st.lists(st.integers(1, 200).map(float), min_size=count, max_size=count))
    due_s = None
    if draw(st.booleans()):
        due_s = np.array(arrived_s) + draw(st.integers(0, 50))
    return load_of(arrived_s, run_s, draw(st.sampled_from([100.0, 1000.0])), due_s=due_s)


@st.composite
def policies(draw):
    most = draw(st.integers(1, 5))
    optional = {
        "backlog_per_worker": st.sampled_from([0.5, 1.0, 2.5]),
        "target_wait_s": st.sampled_from([1.0, 40.0, 200.0]),
        "steps": st.just(((1, 1), (4, 3))),
        "idle_s": st.sampled_from([0.0, 30.0]),
        "tolerance": st.just(0.2),
        "scale_out_window_s": st.just(20.0),
        "scale_out_cooldown_s": st.just(30.0),
        "scale_in_cooldown_s": st.just(30.0),
        "scale_out_step": st.just(1),
        "scale_in_step": st.just(1),
        "scale_in_percent": st.just(50.0),
    }
    names = draw(st.sets(st.sampled_from(sorted(optional)), max_size=4))
    values = {name: draw(optional[name]) for name in sorted(names)}
    least = draw(st.integers(0, most))
    return policy_of(f"{least}..{most}", scale_in_window_s=draw(st.sampled_from([0.0, 15.0])), **values)


@st.composite
def machines(draw, interruptions=False):
    return Machine(
        concurrency=draw(st.integers(1, 4)),
        batch_gain=draw(st.sampled_from([0.0, 0.3, 1.0])),
        start_s=draw(st.sampled_from([0.0, 7.5, 60.0])),
        start_billed=draw(st.booleans()),
        interruptions_per_h=5.0 if interruptions else 0.0,
    )
