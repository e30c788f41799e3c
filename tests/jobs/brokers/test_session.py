"""The encoding of announcements."""

import json

from headrace.jobs.brokers.session import Announcement


def test_message_holds_queue_and_job_id_only():
    assert json.loads(Announcement("q", "ä-1").encoded()) == {"queue": "q", "job_id": "ä-1"}
