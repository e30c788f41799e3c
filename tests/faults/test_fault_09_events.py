"""Fault 9: a store sends each event twice, in any order."""

import itertools

import httpx
import pytest

from faults.bench import Bench

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.timeout(240)]

OBJECTS = 6
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


def test_fault_09_events_arrive_twice_in_any_order(tmp_path, s3_server, record):
    """Fault 9: each object becomes one job, from the first of its events."""
    bucket = s3_server.bucket()
    config = tmp_path / "jobs.toml"
    config.write_text(CONFIG.format(bucket=bucket))
    environ = s3_server.environ
    with Bench(
        tmp_path,
        f"sqlite:///{tmp_path / 'jobs.db'}",
        f"s3://{bucket}/jobs/",
        environ=environ,
        record=record,
        stores_environ=environ,
    ) as bench:
        for number in range(OBJECTS):
            uri = f"s3://{bucket}/in/{number}.json"
            bench.stores.for_uri(uri).put(uri, bench.payload(number))
        api = bench.api(config=config)
        events = [[_event(bucket, f"{n}.json", f"{n:016X}")] for n in range(OBJECTS)]
        # Each event twice, the later ones first, and all of them once more in one request while the jobs run.
        requests = [*reversed(events), *events, list(itertools.chain(*events))]
        created = []
        for index, records in enumerate(requests):
            if index == OBJECTS:
                bench.worker(config=config).wait_ready()
            response = httpx.post(f"{api.url}/v1/events/s3", json={"Records": records}, timeout=30)
            assert response.status_code == 200, response.text
            created += [outcome for outcome in response.json()["outcomes"] if outcome["created"]]
        assert len(created) == OBJECTS
        for outcome in created:
            number = int(outcome["uri"].rpartition("/")[2].removesuffix(".json"))
            bench.add_job(outcome["job_id"], number)
        bench.wait_ended()
        bench.check_single_executions()
