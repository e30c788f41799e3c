"""What a message carries."""

import json

from headrace.jobs.dispatchers.link import Announcement


def test_a_message_carries_queue_and_job_id_and_nothing_else():
    assert json.loads(Announcement("q", "ä-1").encoded()) == {"queue": "q", "job_id": "ä-1"}
