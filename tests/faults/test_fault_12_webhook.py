"""Fault 12: receivers of webhooks that are away, fail, or are gone for good."""

import base64
import json
from collections import Counter

import pytest

from faults.bench import SHORT_LEASE_S, Bench, one_ledger
from servers.polling import wait_until
from servers.ports import free_port
from servers.receiver import Receiver, Reply

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), one_ledger()]

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
CONFIG = """
[outbound]
plain_http = true
ports = [{ports}]
networks = ["127.0.0.0/8"]
"""


def _webhook(port: int) -> dict:
    return {"webhook": f"http://127.0.0.1:{port}/hook", "secret": SECRET}


def _notified(receiver: Receiver, bench: Bench) -> Counter:
    """Return the number of the receiver's requests for each job id."""
    ids = set(bench.ids.values())
    found: Counter = Counter()
    for request in receiver.requests:
        text = json.dumps(json.loads(request.body))
        found.update(job_id for job_id in ids if job_id in text)
    return found


def test_fault_12_webhook_receivers_that_are_away_fail_or_are_gone(bench, tmp_path):
    """Fault 12: retries keep the id, a gone receiver gets no more requests, others are notified."""
    late_port = free_port()
    with Receiver() as good, Receiver() as failing, Receiver() as gone:
        failing.replies = [Reply(500), Reply(503)]
        gone.reply = Reply(410)
        config = tmp_path / "jobs.toml"
        ports = [good.port, failing.port, gone.port, late_port]
        config.write_text(CONFIG.format(ports=", ".join(map(str, ports))))
        worker = bench.worker(config=config).wait_ready()
        (away,) = bench.submit(1, notify=(_webhook(late_port),))
        (failed,) = bench.submit(1, notify=(_webhook(failing.port),))
        numbers = bench.submit(10, notify=(_webhook(good.port), _webhook(gone.port)))
        bench.wait_ended()
        good.wait_for(len(numbers))
        gone.wait_for(1)
        bench.fault_happens()
        with Receiver(port=late_port) as late:
            late.wait_for(1)
            failing.wait_for(2)
            assert _notified(late, bench) == {bench.ids[away]: 1}
        assert _notified(good, bench) == Counter(bench.ids[n] for n in numbers)
        ids = {request.headers["webhook-id"] for request in failing.requests}
        assert len(ids) == 1
        assert _notified(failing, bench).keys() == {bench.ids[failed]}
        # The gone receiver pauses after its first response; only requests under way have reached it since.
        after = len(gone.requests)
        later = bench.submit(3, notify=(_webhook(good.port), _webhook(gone.port)))
        bench.wait_ended(later)
        good.wait_for(len(numbers) + len(later))
        assert len(gone.requests) == after
        assert worker.terminate() == 0
    bench.costs()


def test_fault_12_webhook_has_one_id_for_a_job_whose_worker_was_killed(bench, tmp_path):
    """Fault 12, and 19: the end of a job is announced under one id and with one body."""
    with Receiver() as receiver:
        config = tmp_path / "jobs.toml"
        config.write_text(CONFIG.format(ports=receiver.port))
        worker = bench.worker(config=config, lease_s=SHORT_LEASE_S).wait_ready()
        numbers = bench.submit(6, work_ms=200, notify=(_webhook(receiver.port),))
        bench.wait_executions(1)
        bench.fault_happens(worker.name)
        worker.kill()
        heir = bench.worker(config=config).wait_ready()
        bench.wait_ended()
        wait_until(
            lambda: _notified(receiver, bench).keys() == set(bench.ids.values()), "a webhook for each job"
        )
        assert heir.terminate() == 0
        # A worker that dies between the response and its commit sends the request again, under the same id.
        by_id = Counter(request.headers["webhook-id"] for request in receiver.requests)
        assert len(by_id) == len(numbers)
        bodies = {request.headers["webhook-id"]: request.body for request in receiver.requests}
        assert all(bodies[request.headers["webhook-id"]] == request.body for request in receiver.requests)
    bench.costs()
