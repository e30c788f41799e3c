"""Fault 12: a receiver of webhooks that is away, that fails, and that has gone for good."""

import base64
import json
from collections import Counter

import pytest

from faults.bench import Bench, one_ledger, until
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


def _notify(port: int) -> dict:
    return {"webhook": f"http://127.0.0.1:{port}/hook", "secret": SECRET}


def _told(receiver: Receiver, bench: Bench) -> Counter:
    ids = set(bench.ids.values())
    found: Counter = Counter()
    for request in receiver.requests:
        text = json.dumps(json.loads(request.body))
        found.update(job_id for job_id in ids if job_id in text)
    return found


def test_fault_12_webhook_receivers_that_are_away_fail_or_have_gone(bench, tmp_path):
    """Fault 12: tried again under the same id; what is gone is asked no more; others are told at once meanwhile."""
    late_port = free_port()
    with Receiver() as good, Receiver() as failing, Receiver() as gone:
        failing.replies = [Reply(500), Reply(503)]
        gone.reply = Reply(410)
        config = tmp_path / "jobs.toml"
        ports = [good.port, failing.port, gone.port, late_port]
        config.write_text(CONFIG.format(ports=", ".join(map(str, ports))))
        worker = bench.worker(config=config).wait_ready()
        (away,) = bench.submit(1, notify=(_notify(late_port),))
        (failed,) = bench.submit(1, notify=(_notify(failing.port),))
        numbers = bench.submit(10, notify=(_notify(good.port), _notify(gone.port)))
        bench.wait_ended()
        good.wait_for(len(numbers))
        gone.wait_for(1)
        bench.wreck()
        with Receiver(port=late_port) as late:
            late.wait_for(1)
            failing.wait_for(2)
            assert _told(late, bench) == {bench.ids[away]: 1}
        assert _told(good, bench) == Counter(bench.ids[n] for n in numbers)
        ids = {request.headers["webhook-id"] for request in failing.requests}
        assert len(ids) == 1
        assert _told(failing, bench).keys() == {bench.ids[failed]}
        # An address that is gone is rested after its first answer: at most what was on its way has been asked too.
        after = len(gone.requests)
        later = bench.submit(3, notify=(_notify(good.port), _notify(gone.port)))
        bench.wait_ended(later)
        good.wait_for(len(numbers) + len(later))
        assert len(gone.requests) == after
        assert worker.end() == 0
    bench.tally()


def test_fault_12_webhook_is_told_once_of_a_job_whose_worker_was_killed(bench, tmp_path):
    """Fault 12, and 19: whoever ends a job, its end is told once, in the words of its end."""
    with Receiver() as receiver:
        config = tmp_path / "jobs.toml"
        config.write_text(CONFIG.format(ports=receiver.port))
        worker = bench.worker(config=config).wait_ready()
        numbers = bench.submit(6, work_ms=200, notify=(_notify(receiver.port),))
        until(lambda: len(bench.executions()) >= 2)
        bench.wreck(worker.name)
        worker.kill()
        heir = bench.worker(config=config).wait_ready()
        bench.wait_ended()
        until(lambda: _told(receiver, bench).keys() == set(bench.ids.values()), what="all webhooks")
        assert heir.end() == 0
        # A worker that dies between an answer and its note asks again, under the same id.
        by_id = Counter(request.headers["webhook-id"] for request in receiver.requests)
        assert len(by_id) == len(numbers)
        bodies = {request.headers["webhook-id"]: request.body for request in receiver.requests}
        assert all(bodies[request.headers["webhook-id"]] == request.body for request in receiver.requests)
    bench.tally()
