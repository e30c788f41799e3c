"""Observations, histories and a naive decider for the tests of decisions."""

from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

from headrace.scaling.policy import Decision, Observation, ScalingMemory, decide, limits_at
from headrace.scaling.settings import ScalingSettings, ScheduledLimits, WorkerRange

START_MS = 1_800_000_000_000


def wall_ms(text, zone="UTC"):
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * 1000


def observed(at_s=0.0, due=0, **figures) -> Observation:
    """Return an observation `at_s` seconds after the start of the test, with one slot a worker."""
    values = {"running": 0, "slots": 1, **figures}
    return Observation(START_MS + round(at_s * 1000), due, **values)


def settings_of(workers="0..100", **values) -> ScalingSettings:
    """Return settings whose windows are empty unless the test sets them."""
    values = {"scale_in_window_s": 0.0, **values}
    return ScalingSettings(workers=WorkerRange.parse(workers), **values)


def first_decision(settings, due=0, **figures) -> Decision:
    """Return the decision of a controller that has no past at all."""
    return decide(settings, observed(0.0, due, **figures), ScalingMemory())


class FollowingPool:
    """A pool that has the decided number of workers at once. It keeps the last decision."""

    def __init__(self, settings: ScalingSettings, workers: int = 0) -> None:
        self.settings = settings
        self.workers = workers
        self.at_s = 0.0
        self.memory: ScalingMemory | None = None
        self.reason = ""

    def round(self, after_s=0.0, due=0, **figures) -> int:
        """Decide `after_s` seconds after the last round. Return the number of workers."""
        self.at_s += after_s
        figures = {"workers": self.workers, **figures}
        now = observed(self.at_s, due, **figures)
        decision = decide(self.settings, now, self.memory or ScalingMemory.resume(now))
        self.workers, self.memory, self.reason = decision.wanted, decision.memory, decision.reason
        return self.workers


def in_window(requests: list[tuple[int, int]], window_s: float) -> list[int]:
    """Return the last request for workers, and those before it that are not as old as the window."""
    *earlier, (now_ms, last) = requests
    return [*(workers for at_ms, workers in earlier if now_ms - at_ms < window_s * 1000), last]


class NaiveDecider:
    """The rules of `decide` for the backlog policy, over lists of everything that ever happened."""

    def __init__(self, settings: ScalingSettings, first: Observation) -> None:
        self.settings = settings
        self.for_removal = [(first.at_ms, first.current)]
        self.for_addition: list[tuple[int, int]] = []
        self.added: list[int] = []
        self.removed: list[int] = []
        self.loaded = [first.at_ms] if first.current else []

    def decide(self, now: Observation) -> int:
        """Return the wanted number of workers."""
        settings, current = self.settings, now.current
        limits, _ = limits_at(settings, now.at_ms)
        target = int(settings.backlog_per_worker or now.slots)
        request = min(max(-(-now.backlog // target), limits.least), limits.most)
        self.for_removal.append((now.at_ms, request))
        self.for_addition.append((now.at_ms, request))
        if now.backlog:
            self.loaded.append(now.at_ms)
        wanted = request
        if request < current:
            wanted = min(current, max(in_window(self.for_removal, settings.scale_in_window_s)))
            wanted = self._slowed_in(now, wanted)
        elif request > current:
            wanted = max(current, min(in_window(self.for_addition, settings.scale_out_window_s)))
            wanted = self._slowed_out(now, wanted)
        if not wanted and current and settings.idle_s is not None and self.loaded:
            wanted = int(now.at_ms < self.loaded[-1] + settings.idle_s * 1000)
        wanted = min(max(wanted, limits.least), limits.most)
        if not now.drains:
            wanted = max(wanted, now.busy)
        if wanted > current:
            self.added.append(now.at_ms)
        elif wanted < current:
            self.removed.append(now.at_ms)
        return wanted

    def _slowed_in(self, now, wanted):
        settings, current = self.settings, now.current
        if self.removed and now.at_ms < self.removed[-1] + settings.scale_in_cooldown_s * 1000:
            return current
        steps = [settings.scale_in_step or 0]
        if settings.scale_in_percent is not None:
            steps.append(max(1, -int(-current * settings.scale_in_percent // 100)))
        return max(wanted, current - max(steps)) if any(steps) else wanted

    def _slowed_out(self, now, wanted):
        settings, current = self.settings, now.current
        if self.added and now.at_ms < self.added[-1] + settings.scale_out_cooldown_s * 1000:
            return current
        steps = [settings.scale_out_step or 0]
        if settings.scale_out_percent is not None:
            steps.append(max(1, -int(-current * settings.scale_out_percent // 100)))
        return min(wanted, current + max(steps)) if any(steps) else wanted


# Strategies

WORKERS_MAX = 12
ranges = st.tuples(st.integers(0, WORKERS_MAX), st.integers(0, WORKERS_MAX)).map(
    lambda pair: WorkerRange(min(pair), max(pair))
)
windows_s = st.sampled_from([0.0, 1.0, 7.5, 60.0, 300.0])
steps_of_change = st.none() | st.integers(1, 4)
percents = st.none() | st.sampled_from([1.0, 25.0, 100.0])
schedule_lists = st.lists(
    st.builds(ScheduledLimits, st.sampled_from(["*/2 * * * *", "1-59/3 * * * *", "0 * * * *"]), ranges),
    max_size=2,
).map(tuple)
slowed_settings = st.builds(
    ScalingSettings,
    workers=ranges,
    backlog_per_worker=st.none() | st.sampled_from([1.0, 3.0]),
    scale_out_window_s=windows_s,
    scale_in_window_s=windows_s,
    scale_out_cooldown_s=windows_s,
    scale_in_cooldown_s=windows_s,
    scale_out_step=steps_of_change,
    scale_in_step=steps_of_change,
    scale_out_percent=percents,
    scale_in_percent=percents,
    idle_s=st.none() | windows_s,
)
"""Settings with the backlog policy only."""
all_policies = {
    "backlog_per_worker": st.none() | st.sampled_from([0.7, 1.0, 3.0]),
    "target_wait_s": st.none() | st.sampled_from([5.0, 60.0]),
    "steps": st.sampled_from([(), ((1, 2),), ((1, 1), (5, 4), (20, 12))]),
    "tolerance": st.sampled_from([0.0, 0.1, 0.5, 1.0]),
}


@st.composite
def settings_without_schedules(draw) -> ScalingSettings:
    """Draw settings with any policies."""
    return replace(draw(slowed_settings), **{name: draw(values) for name, values in all_policies.items()})


@st.composite
def any_settings(draw) -> ScalingSettings:
    """Draw settings with any policies and schedules."""
    return replace(draw(settings_without_schedules()), schedules=draw(schedule_lists))


@st.composite
def loads(draw) -> dict:
    """Draw the figures of an observation except its workers."""
    return {
        "due": draw(st.just(0) | st.integers(0, 30)),
        "running": draw(st.integers(0, 20)),
        "slots": draw(st.sampled_from([1, 3])),
        "oldest_s": draw(st.sampled_from([0.0, 4.0, 100.0])),
        "run_s": draw(st.none() | st.sampled_from([0.0, 0.5, 10.0])),
        "arrivals_per_s": draw(st.sampled_from([0.0, 0.3, 5.0])),
    }


@st.composite
def observations(draw, drains: bool) -> list[Observation]:
    """Draw what a controller may see, one round after the other. The workers come and go by themselves."""
    rounds = draw(st.integers(1, 25))
    at_ms = START_MS + draw(st.integers(0, 600_000))
    found = []
    for _ in range(rounds):
        load = draw(loads())
        workers = draw(st.integers(0, WORKERS_MAX + 3))
        found.append(
            Observation(
                at_ms,
                workers=workers,
                starting=draw(st.integers(0, 2)),
                busy=draw(st.integers(0, min(workers, load["running"]))),
                drains=drains,
                **load,
            )
        )
        at_ms += draw(st.sampled_from([0, 200, 1_000, 7_500, 30_000, 60_000, 299_999, 300_001]))
    return found
