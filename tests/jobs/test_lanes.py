"""Lanes: their text, limits, fair shares between tenants, and ageing; as properties."""

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from headrace.jobs.job import NewJob
from headrace.jobs.lanes import (
    LANES_MAX,
    Candidate,
    ClaimLimit,
    Lane,
    QueueShares,
    choose,
    claim_state,
    lane_text,
    lanes_to_read,
    parse_lane,
)

names = st.text(alphabet="ab|%7C@.", max_size=4)
lanes = st.builds(
    Lane,
    tenant=st.sampled_from(("a", "b", "c")),
    api_key=st.sampled_from(("", "k")),
    endpoint=st.sampled_from(("", "e")),
    model=st.sampled_from(("m", "m@2", "n")),
    region=st.just(""),
)
candidate_lists = st.lists(
    st.builds(Candidate, st.uuids().map(str), lanes, st.integers(0, 5), st.booleans()),
    max_size=12,
    unique_by=lambda each: each.job_id,
)
limit_lists = st.lists(
    st.one_of(
        st.builds(ClaimLimit, st.sampled_from(("model",)), st.sampled_from(("m", "n")), st.integers(0, 3)),
        st.builds(ClaimLimit, st.just("key"), st.just("k"), st.integers(0, 3)),
        st.builds(ClaimLimit, st.just("endpoint"), st.just("e"), st.integers(0, 3)),
        st.builds(
            ClaimLimit, st.just("tenant"), st.sampled_from(("a", "b")), weight=st.sampled_from((0.5, 3.0))
        ),
    ),
    max_size=4,
    unique_by=lambda limit: (limit.kind, limit.name),
)


def lane(tenant="a", model="m", api_key="", endpoint=""):
    return Lane(tenant, api_key, endpoint, model, "")


def candidates_of(tenant, count, *, first=0):
    return [Candidate(f"{tenant}{n:03}", lane(tenant), first + n) for n in range(count)]


def pick(candidates, most, *, limits=(), running=(), shares=None, taken=0):
    counts = Counter({("q", lane_text_of(each)): jobs for each, jobs in running})
    return choose(
        candidates,
        most,
        queue="q",
        taken=taken,
        is_shared=len({each.lane.tenant for each in candidates}) > 1,
        state=claim_state(limits, counts),
        shares=shares or QueueShares(),
    )


def lane_text_of(each: Lane) -> str:
    return lane_text(
        NewJob(each.model, tenant=each.tenant, submitted_by=each.api_key, endpoint=each.endpoint)
    )


@given(names, names, names, names, names)
def test_lane_is_read_back_from_its_text(tenant, api_key, endpoint, model, region):
    text = lane_text(NewJob(model, tenant=tenant, submitted_by=api_key, endpoint=endpoint, region=region))
    assert parse_lane(text) == Lane(tenant, api_key, endpoint, model, region)
    assert parse_lane(text).text == text


@given(candidate_lists, limit_lists, st.integers(0, 8), st.integers(0, 1))
def test_chosen_jobs_keep_every_limit(candidates, limits, most, taken):
    chosen = pick(candidates, most, limits=limits, taken=taken).job_ids
    by_id = {each.job_id: each for each in candidates}
    assert len(chosen) == len(set(chosen)) <= most
    for limit in limits:
        of_limit = [job for job in chosen if (limit.kind, limit.name) in by_id[job].lane.subjects]
        assert limit.running_max is None or len(of_limit) <= limit.running_max
    assert not any(by_id[job].alone for job in chosen[1:])
    assert len(chosen) <= 1 or not by_id[chosen[0]].alone


@given(candidate_lists, limit_lists, st.integers(1, 8))
def test_job_is_left_only_for_a_reason(candidates, limits, most):
    choice = pick(candidates, most, limits=limits)
    if len(choice.job_ids) == most or choice.stopped:
        return
    state = claim_state(limits, {})
    for each in candidates:
        if each.job_id in choice.job_ids:
            state.take("q", each.lane)
    left = [each for each in candidates if each.job_id not in choice.job_ids]
    assert all(state.capacity_of(each.lane, 1) == 0 for each in left)


@given(candidate_lists, limit_lists, st.integers(1, 8))
def test_jobs_of_a_tenant_keep_their_order(candidates, limits, most):
    chosen = pick(candidates, most, limits=limits).job_ids
    by_id = {each.job_id: each for each in candidates}
    for tenant in ("a", "b", "c"):
        places = [by_id[job].place for job in chosen if by_id[job].lane.tenant == tenant]
        assert places == sorted(places)


@given(candidate_lists, limit_lists, st.integers(1, 8))
def test_first_lanes_hold_the_chosen_jobs(candidates, limits, most):
    candidates = [each for each in candidates if not each.alone]
    heads = {}
    for each in candidates:
        heads[each.lane] = min(heads.get(each.lane, each.place), each.place)
    read = lanes_to_read(heads, "q", claim_state(limits, {}), QueueShares(), most)
    found = pick([each for each in candidates if each.lane in read], most, limits=limits).job_ids
    # A lane that a chosen job closes may hide one that is not read; the claim goes on with it.
    assert found == pick(candidates, most, limits=limits).job_ids[: len(found)]
    assert len(read) <= LANES_MAX


def test_tenants_share_free_slots_by_their_weights():
    candidates = candidates_of("a", 20) + candidates_of("b", 20, first=1_000)
    equal = pick(candidates, 8).job_ids
    assert Counter(job[0] for job in equal) == {"a": 4, "b": 4}
    weighted = pick(candidates, 8, limits=[ClaimLimit("tenant", "a", weight=3.0)]).job_ids
    assert Counter(job[0] for job in weighted) == {"a": 6, "b": 2}


def test_running_jobs_count_for_the_share_of_their_tenant():
    candidates = candidates_of("a", 9) + candidates_of("b", 9, first=1_000)
    chosen = pick(candidates, 4, running=[(lane("a"), 4)]).job_ids
    assert Counter(job[0] for job in chosen) == {"b": 4}


def test_single_slot_serves_all_tenants_in_turn():
    shares, served = QueueShares(), []
    for _ in range(12):
        waiting = candidates_of("a", 9) + candidates_of("b", 9, first=50) + candidates_of("c", 9, first=90)
        served += [job[0] for job in pick(waiting, 1, shares=shares).job_ids]
    assert Counter(served) == {"a": 4, "b": 4, "c": 4}
    assert all(one != other for one, other in pairwise(served))


def test_single_slot_serves_tenants_by_their_weights():
    shares, served = QueueShares(), []
    for _ in range(40):
        waiting = candidates_of("a", 9) + candidates_of("b", 9, first=50)
        limits = [ClaimLimit("tenant", "b", weight=3.0)]
        served += [job[0] for job in pick(waiting, 1, shares=shares, limits=limits).job_ids]
    assert Counter(served) == {"a": 10, "b": 30}


def test_absent_tenant_saves_no_credit():
    shares = QueueShares()
    for _ in range(100):
        pick(candidates_of("a", 1) + candidates_of("c", 1), 1, shares=shares)
    served = [
        job[0]
        for _ in range(6)
        for job in pick(candidates_of("a", 9) + candidates_of("b", 9), 1, shares=shares).job_ids
    ]
    assert abs(served.count("a") - served.count("b")) <= 2
    assert len(shares.ends) <= 3


def test_limit_of_a_model_is_of_all_its_versions():
    limits = [ClaimLimit("model", "m", 2)]
    candidates = [Candidate(f"{n}", lane(model=f"m@{n}"), n) for n in range(5)]
    assert pick(candidates, 5, limits=limits).job_ids == ("0", "1")
    assert pick(candidates, 5, limits=limits, running=[(lane(model="m@9"), 1)]).job_ids == ("0",)


def test_closed_lane_does_not_hide_the_jobs_behind_it():
    limits = [ClaimLimit("key", "slow", 1)]
    slow, other = lane(api_key="slow"), lane(api_key="other")
    candidates = [Candidate(f"s{n}", slow, n) for n in range(9)] + [Candidate("o", other, 100)]
    assert pick(candidates, 3, limits=limits).job_ids == ("s0", "o")
