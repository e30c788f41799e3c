"""Samples: the same records for any chunks, ranges, workers and interruptions."""

import gzip

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import levels
from cases import for_each
from formats.framed_files import recordio
from formats.parquet_files import write_parquet
from headrace.core.block import Block, Failure, FailureKind, Position
from headrace.core.errors import ConfigError, ResumeRefusedError
from headrace.formats.read import read_object
from headrace.formats.read_options import ReadOptions
from headrace.runs.output_settings import OutputSettings
from headrace.runs.run import Run
from headrace.runs.settings import MappingOptions, StreamSettings, SubsetSettings, TaskSettings, parse_share
from headrace.runs.subset import RecordSampler
from headrace.runs.tasks import InProcessRunner
from headrace.storage.resolve import Stores
from runs.support import (
    IN,
    OUT,
    FailingPredictor,
    InjectedError,
    allow_small_tasks,
    failed_lines,
    make_settings,
    make_transform,
    outputs,
    put,
    rows,
    shuffle,
    tar,
    transform,
)


def block_of(count: int) -> Block:
    (block,) = read_object(IN + "a.csv", [rows(count)], ReadOptions())
    return block


def numbers(block: Block) -> list[int]:
    return [block.number(entry) for entry in range(block.records)]


def sampler(share: float, seed: int = 0, *, by_byte: bool = True) -> RecordSampler:
    return RecordSampler(share, seed, by_byte=by_byte)


@for_each("by_byte", [True, False])
@for_each("share", [0.001, 0.03, 0.5, 0.9])
def test_share_of_records_is_near_its_expectation(share, by_byte):
    count = 100_000
    block = Block(Position("o"), b"x\n" * count, 2 * np.arange(count), 2 * np.arange(count) + 1)
    found = len(sampler(share, by_byte=by_byte).sample(block))
    spread = (count * share * (1 - share)) ** 0.5
    assert abs(found - count * share) < 5 * spread


def test_gaps_between_chosen_records_are_geometric():
    count, share = 200_000, 0.1
    block = Block(Position("o"), b"x\n" * count, 2 * np.arange(count), 2 * np.arange(count) + 1)
    gaps = np.diff(numbers(sampler(share).sample(block)))
    for length in (1, 2, 5, 10):
        expected = len(gaps) * share * (1 - share) ** (length - 1)
        assert abs(np.count_nonzero(gaps == length) - expected) < 5 * expected**0.5


def test_larger_sample_contains_the_smaller_one():
    block = block_of(2000)
    small, large = (set(numbers(sampler(share).sample(block))) for share in (0.05, 0.2))
    assert small < large
    assert sampler(1.0).sample(block) is block


def test_seeds_objects_and_members_choose_differently():
    block = block_of(2000)
    elsewhere = [
        Block(place, block.data, block.starts, block.ends)
        for place in (Position("o"), Position("o", "m"), Position("o", "m", member_byte=512))
    ]
    found = [numbers(sampler(0.5, seed).sample(block)) for seed in (0, 1, 1 << 70)]
    found += [numbers(sampler(0.5).sample(one)) for one in elsewhere]
    assert len(set(map(tuple, found))) == len(found)
    assert found[0] == numbers(sampler(0.5).sample(block))


def test_failures_are_chosen_as_records_are_but_broken_objects_always():
    block = block_of(2000)
    failures = tuple(block.failure(index, FailureKind.FORMAT, "no") for index in range(len(block)))
    broken = Failure(Position(IN + "a.csv", record=2000), FailureKind.OBJECT, "broken")
    chosen = sampler(0.1).sample(block)
    failed = sampler(0.1).sample(Block(block.first, failures=(*failures, broken)))
    assert numbers(failed) == [*numbers(chosen), 2000]
    assert failed.failures[-1] is broken


@for_each(
    ("text", "share"),
    [("1%", 0.01), ("0.5%", 0.005), ("100 %", 1.0), ("0.01", 0.01), ("1", 1.0), (".5", 0.5), (0.25, 0.25)],
)
def test_shares_are_percentages_or_fractions(text, share):
    assert parse_share(text) == share


@for_each("text", ["", "%", "a", "1%%", "-1%", "1e-3", "nan", "1 in 100"])
def test_other_shares_are_refused(text):
    with pytest.raises(ConfigError, match=r"is not a share: write it as 1% or 0\.01"):
        parse_share(text)


@for_each(
    ("values", "why"),
    [
        ({"sample": 0.0}, "sample must be a share of records above 0 and at most 1"),
        ({"sample": 1.1}, "sample must be a share"),
        ({"limit": 0}, "limit must be a whole number of 1 or more"),
        ({"sample_seed": -1}, "sample_seed must be a whole number of 0 or more"),
    ],
)
def test_invalid_subsets_are_refused(values, why):
    with pytest.raises(ConfigError, match=why):
        SubsetSettings(**values)


def test_sample_of_sequences_is_refused():
    with pytest.raises(ConfigError, match="sample leaves out records of a sequence"):
        StreamSettings(mapping=MappingOptions(sequence=0), subset=SubsetSettings(sample=0.5))


# Runs

QUOTED = b"".join(b'"%d",1\r\n\n' % i if i % 3 else b'%d,"1\n"\n' % i for i in range(60))
OBJECTS = {
    "a.csv": rows(37) + b"x,1\n" * 9 + b"-3,1\n" * 5 + rows(26, 7),
    "b.csv.gz": gzip.compress(rows(49, 20) + b"7\n" * 5, mtime=0),
    "c.csv": b"",
    "d.csv.gz": gzip.compress(rows(48, 40), mtime=0)[:-3],
    "e.tar": tar({"1.csv": rows(20), "2.csv": rows(20), "3.jsonl": b"[1, 2]\n{\n" * 10}),
    "f.csv": QUOTED,
    "g.parquet": write_parquet({"x": [[n, 1][: 1 + bool(n % 3)] for n in range(40)]}),
}
SUBSET = SubsetSettings(sample=0.4, sample_seed=3)


def chosen_places(found: dict[str, bytes]) -> set[tuple]:
    """Return the places of the joined records and the failed records of JSON Lines outputs."""
    failed = [line for name, data in found.items() if "failed" in name for line in failed_lines(data)]
    return {(f["object"], f["member"], f["record"], f["line"], f["byte"], f["reason"]) for f in failed}


def stream_settings(*, task_bytes: int = 64 << 20, subset: SubsetSettings = SUBSET) -> StreamSettings:
    return StreamSettings(
        subset=subset,
        output=OutputSettings(join="input", format="jsonl", checkpoint_s=0.0, part_bytes_max=100),
        tasks=TaskSettings(task_bytes=task_bytes),
    )


def stream(stores, predictor, used, *, by_tasks: bool, destination: str = OUT, **more) -> Run:
    scorer = {"runner": InProcessRunner(predictor)} if by_tasks else {"predictor": predictor}
    return Run(IN, destination, stores=stores, settings=used, model_identity="m", **scorer, **more)


def lines_of(found: dict[str, bytes]) -> list[bytes]:
    return sorted(line for name, data in found.items() if "failed" not in name for line in data.splitlines())


def test_sampled_records_are_records_of_the_whole_run(shared, stores):
    put(stores, OBJECTS)
    used = stream_settings()
    report = stream(stores, shared, used, by_tasks=False).execute()
    whole_settings = stream_settings(subset=SubsetSettings())
    whole = stream(stores, shared, whole_settings, by_tasks=False, destination="memory://whole/").execute()
    found, everything = outputs(stores), outputs(stores, "memory://whole/")
    assert report.records_in == report.rows_out + report.rows_failed
    assert 0.3 * whole.records_in < report.records_in < 0.5 * whole.records_in
    assert report.objects_broken == whole.objects_broken == 1
    assert set(lines_of(found)) <= set(lines_of(everything))
    assert len(lines_of(found)) == report.rows_out
    assert chosen_places(found) < chosen_places(everything)
    assert (report.sample, report.sample_seed, report.limit) == (0.4, 3, None)


@given(st.integers(0, 5), st.sampled_from([0.05, 0.3, 0.7, 1.0]), st.integers(20, 200), st.randoms())
def test_ranges_and_their_order_do_not_change_a_sample(shared, seed, share, task_bytes, random):
    stores, subset = Stores(), SubsetSettings(sample=share, sample_seed=seed)
    put(stores, OBJECTS)
    output = {"join": "input", "format": "jsonl"}
    with pytest.MonkeyPatch.context() as patch:
        allow_small_tasks(patch)
        whole = transform(
            stores,
            predictor=shared,
            settings=make_settings(output=output, subset=subset),
            destination="memory://whole/",
        )
        used = make_settings(output=output, subset=subset, tasks={"task_bytes": task_bytes})
        run = make_transform(stores, predictor=shared, settings=used)
        shuffle(run, random)
        report = run.execute()
    assert outputs(stores) == outputs(stores, "memory://whole/")
    assert (report.records_in, report.failures) == (whole.records_in, whole.failures)


@for_each("by_tasks", [False, True])
def test_stream_with_and_without_workers_chooses_the_same_records(shared, by_tasks, monkeypatch):
    allow_small_tasks(monkeypatch)
    stores = Stores()
    put(stores, OBJECTS)
    stream(stores, shared, stream_settings(task_bytes=80), by_tasks=by_tasks).execute()
    transform(
        stores,
        predictor=shared,
        settings=make_settings(subset=SUBSET, output={"join": "input", "format": "jsonl"}),
        destination="memory://transform/",
    )
    streamed, transformed = outputs(stores), outputs(stores, "memory://transform/")
    assert chosen_places(streamed) == chosen_places(transformed)
    assert len(lines_of(streamed)) == len(lines_of(transformed)) > 50


@settings(max_examples=levels.examples(0.5))
@given(
    st.tuples(st.integers(0, 60), st.integers(0, 60)),
    st.builds(
        SubsetSettings,
        limit=st.sampled_from([None, 1, 40, 70]),
        sample=st.sampled_from([None, 0.1, 0.5]),
        sample_seed=st.integers(0, 3),
    ),
    st.booleans(),
)
def test_interrupted_subsets_resume_to_the_same_bytes(shared, kills, subset, by_tasks):
    used = stream_settings(task_bytes=90, subset=subset)
    with pytest.MonkeyPatch.context() as patch:
        allow_small_tasks(patch)
        whole = Stores()
        put(whole, OBJECTS)
        expected = stream(whole, shared, used, by_tasks=by_tasks).execute()
        stores = Stores()
        put(stores, OBJECTS)
        for at in kills:
            run = stream(stores, FailingPredictor(shared, at=at), used, by_tasks=by_tasks, if_exists="resume")
            try:
                report = run.execute()
            except InjectedError:
                continue
        report = stream(stores, shared, used, by_tasks=by_tasks, if_exists="resume").execute()
    assert outputs(stores) == outputs(whole)
    assert (report.records_in, report.failures) == (expected.records_in, expected.failures)


def test_sample_of_framed_records_has_true_positions():
    data = recordio([b"%d" % i for i in range(100)])
    (block,) = read_object(IN + "a.rec", [data], ReadOptions())
    taken = sampler(0.2, by_byte=False).sample(block)
    assert 5 < len(taken) < 40
    for index in range(len(taken)):
        position = taken.position(index)
        assert taken.record(index) == b"%d" % position.record
        assert data[position.byte :].startswith(b"\x0a\x23\xd7\xce")


def test_resumption_with_another_subset_is_refused(shared, stores):
    put(stores, {"a.csv": rows(40)})
    stream(stores, shared, stream_settings(), by_tasks=False).execute()
    for subset in (SubsetSettings(), SubsetSettings(sample=0.4), SubsetSettings(limit=3)):
        run = stream(stores, shared, stream_settings(subset=subset), by_tasks=False, if_exists="resume")
        with pytest.raises(ResumeRefusedError, match=r"settings\.subset\."):
            run.execute()


def test_drained_sample_resumes(shared, stores):
    put(stores, {"a.csv": rows(4000)})
    used = stream_settings()
    predictor = FailingPredictor(shared, at=3)
    run = stream(stores, predictor, used, by_tasks=False)
    predictor.action = run.drain
    assert run.execute().status == "drained"
    stream(stores, shared, used, by_tasks=False, if_exists="resume").execute()
    other = "memory://other/"
    stream(stores, shared, used, by_tasks=False, destination=other).execute()
    assert outputs(stores) == outputs(stores, other)


def test_watched_objects_are_sampled(shared, stores):
    put(stores, {"a.csv": rows(100)})
    used = stream_settings()
    run = stream(stores, shared, used, by_tasks=False)
    run.append(run.select())
    put(stores, {"b.csv": rows(100)})
    report = run.append(run.select())
    other = "memory://other/"
    whole = stream(stores, shared, used, by_tasks=False, destination=other).execute()
    assert report is not None
    assert report.records_in == whole.records_in
    assert lines_of(outputs(stores)) == lines_of(outputs(stores, other))
