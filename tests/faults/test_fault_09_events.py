"""Fault 9: a store tells of one object twice, and in disorder."""

import itertools

import httpx
import pytest

from faults.bench import Bench

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.timeout(240)]

CONFIG = """
[[triggers]]
name = "incoming"
prefix = "s3://{bucket}/in/"
model = "work_model"
output = "s3://{bucket}/out/"
"""


def _event(bucket: str, name: str, sequencer: str) -> dict:
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventName": "ObjectCreated:Put",
        "eventTime": "2026-01-02T03:04:05.000Z",
        "s3": {
            "s3SchemaVersion": "1.0",
            "bucket": {"name": bucket},
            "object": {"key": f"in/{name}", "size": 3, "eTag": "e" * 32, "sequencer": sequencer},
        },
    }


def test_fault_09_events_told_twice_and_in_disorder(tmp_path, s3_server, record):
    """Fault 9: one job for each object, by whichever of its notices comes first."""
    bucket = s3_server.bucket()
    config = tmp_path / "jobs.toml"
    config.write_text(CONFIG.format(bucket=bucket))
    uri = f"s3://{bucket}/jobs/"
    environ = s3_server.environ
    with Bench(
        tmp_path,
        f"sqlite:///{tmp_path / 'jobs.db'}",
        uri,
        environ=environ,
        record=record,
        stores_environ=environ,
    ) as bench:
        for number in range(6):
            at = f"s3://{bucket}/in/{number}.json"
            bench.stores.for_uri(at).put(at, bench.body(number))
        api = bench.api(config=config)
        notices = [[_event(bucket, f"{n}.json", f"{n:016X}")] for n in range(6)]
        # Each twice, the later ones first; and once more all in one, while the jobs run.
        rounds = [*reversed(notices), *notices, list(itertools.chain(*notices))]
        created = []
        for place, records in enumerate(rounds):
            if place == 6:
                bench.worker(config=config).wait_ready()
            told = httpx.post(f"{api.url}/v1/events/s3", json={"Records": records}, timeout=30)
            assert told.status_code == 200, told.text
            created += [outcome for outcome in told.json()["outcomes"] if outcome["created"]]
        assert len(created) == 6
        for outcome in created:
            bench.posted(
                {"id": outcome["job_id"]}, int(outcome["uri"].rpartition("/")[2].removesuffix(".json"))
            )
        bench.wait_ended()
        assert bench.tally().duplicate_executions == 0
