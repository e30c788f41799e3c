"""Properties of decisions over sequences of observations."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

import levels
from headrace.scaling.policy import Observation, ScalingMemory, decide, limits_at
from scaling.policy_support import (
    START_MS,
    WORKERS_MAX,
    NaiveDecider,
    any_settings,
    in_window,
    loads,
    observations,
    schedule_lists,
    settings_without_schedules,
    slowed_settings,
)

histories = st.booleans().flatmap(observations)
rounds_of_one_load = 20 * WORKERS_MAX
"""Rounds of 30 s until any pool has reached its number: one worker for each cooldown of 300 s."""


def decisions(policy, history):
    """Yield each observation with its decision, as one controller takes them."""
    memory = ScalingMemory.resume(history[0])
    for now in history:
        decision = decide(policy, now, memory)
        yield now, decision
        memory = decision.memory


@settings(max_examples=levels.examples(3))
@given(any_settings(), histories)
def test_workers_are_within_the_limits_unless_they_are_busy(policy, history):
    for now, decision in decisions(policy, history):
        limits, _ = limits_at(policy, now.at_ms)
        busy = 0 if now.drains else now.busy
        assert limits.least <= decision.wanted <= max(limits.most, busy)
        assert decision.wanted in (busy, *range(limits.least, limits.most + 1))
        assert decision.wanted >= busy


@settings(max_examples=levels.examples(3))
@given(any_settings(), histories)
def test_change_is_not_sooner_than_all_requests_of_its_window(policy, history):
    requests = [(history[0].at_ms, history[0].current)]
    for now, decision in decisions(policy, history):
        at_ms, request = decision.memory.most[-1]
        assert at_ms == now.at_ms
        requests.append((at_ms, request))
        limits, _ = limits_at(policy, now.at_ms)
        needed = max(in_window(requests, policy.scale_in_window_s))
        assert decision.wanted >= min(now.current, needed, limits.most)
        enough = min(in_window(requests[1:], policy.scale_out_window_s))
        busy = 0 if now.drains else now.busy
        assert decision.wanted <= max(now.current, enough, limits.least, busy)


@settings(max_examples=levels.examples(4))
@given(slowed_settings, schedule_lists, histories)
def test_memory_gives_the_decisions_of_a_full_history(policy, schedules, history):
    policy = replace(policy, schedules=schedules)
    naive = NaiveDecider(policy, history[0])
    for now, decision in decisions(policy, history):
        assert decision.wanted == naive.decide(now), decision.reason


@settings(max_examples=levels.examples(3))
@given(any_settings(), histories)
def test_memory_is_bounded_by_the_number_of_distinct_requests(policy, history):
    requests = {history[0].current}
    for now, decision in decisions(policy, history):
        for asked, sign in ((decision.memory.most, -1), (decision.memory.least, 1)):
            requests.add(asked[-1][1])
            values = [sign * workers for _, workers in asked]
            assert values == sorted(set(values))
            assert len(asked) <= len(requests)
            assert [at_ms for at_ms, _ in asked] == sorted(at_ms for at_ms, _ in asked)
            assert asked[-1][0] == now.at_ms


@settings(max_examples=levels.examples(2))
@given(settings_without_schedules(), loads(), st.integers(0, WORKERS_MAX + 3), st.booleans())
def test_constant_load_leads_to_a_constant_number_without_detours(policy, load, workers, drains):
    memory = None
    numbers = [workers]
    for number in range(2 * rounds_of_one_load):
        busy = min(numbers[-1], load["running"])
        now = Observation(START_MS + 30_000 * number, workers=numbers[-1], busy=busy, drains=drains, **load)
        decision = decide(policy, now, memory or ScalingMemory.resume(now))
        memory = decision.memory
        numbers.append(decision.wanted)
    assert numbers in (sorted(numbers), sorted(numbers, reverse=True))
    assert len(set(numbers[rounds_of_one_load:])) == 1


@settings(max_examples=levels.examples(2))
@given(settings_without_schedules(), histories)
def test_resumed_controller_removes_nothing_for_one_window(policy, history):
    resumed = history[0]
    for now, decision in decisions(policy, history):
        if now.at_ms - resumed.at_ms < policy.scale_in_window_s * 1000:
            assert decision.wanted >= min(now.current, resumed.current, policy.workers.most)


@settings(max_examples=levels.examples(2))
@given(any_settings(), histories)
def test_every_change_has_a_reason_that_begins_with_the_load(policy, history):
    for now, decision in decisions(policy, history):
        first, *others = decision.reason.split("; ")
        assert first == "no jobs" or first.startswith(f"{now.due:,} due and {now.running:,} running jobs")
        assert len(others) == len(set(others)) <= 6
        assert all(others)
