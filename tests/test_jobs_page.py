"""docs/jobs.md beyond its snippets: its TOML file is valid, and its scaling query counts as the API
does.
"""

import re
from pathlib import Path

import pytest
import yaml

from headrace.config.jobs_file import read_jobs_file
from headrace.jobs.job import NewJob
from headrace.jobs.ledger import ClaimRequest
from headrace.jobs.ledgers.database import Statement
from headrace.server.jobs.documents import ScaleDocument
from headrace.testing import ManualWallClock
from jobs.ledger_fixtures import LEDGERS, SQL_LEDGERS

PAGE = (Path(__file__).parent.parent / "docs" / "jobs.md").read_text()


DIGEST_OF_APP = bytes.fromhex("41bd266ab9cd36de30dd3ea3b5c8fc4b2c3a64bf8c2a6e9a5a8dab3b1b1f5b5e")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def trigger(kind: str) -> dict[str, str]:
    """Return the metadata of the one KEDA trigger of a type."""
    scaled, alone = map(yaml.safe_load, blocks("yaml"))
    (found,) = [t for t in (*scaled["spec"]["triggers"], *alone) if t["type"] == kind]
    return found["metadata"]


def test_the_file_is_read_as_it_stands(tmp_path):
    (text,) = blocks("toml")
    path = tmp_path / "jobs.toml"
    path.write_text(text)
    read = read_jobs_file(path, store_uri="s3://headrace/")
    assert not read.access.open
    assert list(read.queues) == ["default", "night"]
    assert [target.receiver_id for target in read.receivers] == ["billing"]
    assert read.endpoints["churn"].notify == ({"receiver": "billing"},)
    assert read.access.find(DIGEST_OF_APP).endpoints == {"churn"}
    assert None not in (read.triggers, read.smtp, read.sagemaker)
    without_keys = re.sub(r"\[keys\.web\].*?(?=# \[anyone\])", "", text, flags=re.DOTALL)
    path.write_text(re.sub("^# ", "", without_keys, flags=re.MULTILINE))
    assert read_jobs_file(path, store_uri="s3://headrace/").access.open


@pytest.mark.parametrize("name", SQL_LEDGERS)
def test_the_query_counts_what_is_due_and_runs(name, request):
    """Both ways of scaling agree: one running and two due jobs count; later jobs and other queues
    do not.
    """
    clock = ManualWallClock()
    ledger = LEDGERS[name](clock, request.getfixturevalue)()
    ledger.start()
    try:
        later = NewJob(delay_ms=60_000)
        ledger.submit([NewJob(), NewJob(), NewJob(), later, NewJob(queue="other")])
        ledger.settle_and_claim([], ClaimRequest("w", ("default",), 1, 60_000))
        assert _counted(ledger) == ledger.counts("default").backlog == 3
        clock.advance(60_000)
        assert _counted(ledger) == ledger.counts("default").backlog == 4
    finally:
        ledger.stop()


def _counted(ledger) -> int:
    query = Statement(*[trigger("postgresql")["query"]] * 2)
    return ledger._database.run(lambda transaction: transaction.run(query), read_only=True)[0][0]


def test_what_the_other_scaler_reads_is_what_the_api_tells():
    asked = trigger("metrics-api")
    assert asked["valueLocation"] in ScaleDocument.__struct_fields__
    assert asked["url"].endswith("/v1/queues/default/scale")
    assert trigger("postgresql")["targetQueryValue"] == asked["targetValue"]
