"""The published results of tenants that share an output prefix, over HTTP."""

import threading

import pytest

from headrace.jobs.access import Scope
from headrace.jobs.paths import UriAllowList
from headrace.jobs.payloads import Publication
from jobs.service_support import WAIT_S, key_of, served_jobs


@pytest.fixture
def shared(tmp_path):
    """Two tenants whose keys permit the same output folder."""
    outputs = UriAllowList.read([str(tmp_path)])
    scopes = (Scope.SUBMIT, Scope.READ)
    keys = [key_of(name, *scopes, outputs=outputs) for name in ("ann", "bob")]
    with served_jobs(keys=keys) as served:
        served.out = f"{tmp_path}/"
        with served.client(keys[0][0]) as ann, served.client(keys[1][0]) as bob:
            yield served, ann, bob


def submit(http, served, **fields):
    document = {"model": "m", "input": [1], "output_uri": served.out, "key": "day 0.csv", **fields}
    return http.post("/v1/jobs", json=document)


def publish(served, job_id):
    return Publication(served.ledger, served.stores).publish_or_record(served.ledger.get(job_id))


def run(served, data=b"42"):
    """Run the next job until its result is to be published. Return its id."""
    job = served.claim()
    served.complete(job, data)
    return job.id


def test_key_of_another_tenant_is_refused(shared, tmp_path):
    """Regression: both jobs completed, and the first tenant read the result of the second."""
    served, ann, bob = shared
    first = submit(ann, served).json()
    for policy in ("fail", "replace", "version"):
        refused = submit(bob, served, if_exists=policy)
        assert (refused.status_code, refused.json()["type"]) == (409, "OutputTakenError")
        assert first["id"] not in refused.text
    assert run(served, b"first") == first["id"]
    assert publish(served, first["id"])
    assert (tmp_path / "day 0.csv.out").read_bytes() == b"first"
    assert ann.get(f"/v1/jobs/{first['id']}/result").content == b"first"
    assert ann.delete(f"/v1/jobs/{first['id']}").status_code == 200
    assert submit(bob, served).status_code == 409, "a deleted job gave its name to another tenant"
    assert submit(ann, served).status_code == 202


def test_second_job_of_a_tenant_replaces_or_adds_a_version(shared, tmp_path):
    served, ann, _ = shared
    first = submit(ann, served).json()["id"]
    run(served, b"first")
    publish(served, first)
    refused = submit(ann, served)
    assert (refused.status_code, refused.json()["job_id"]) == (409, first)
    version = submit(ann, served, if_exists="version").json()["id"]
    run(served, b"version")
    publish(served, version)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "day 0.csv.out": b"first",
        f"day 0.csv~{version}.out": b"version",
    }
    replacing = submit(ann, served, if_exists="replace").json()["id"]
    run(served, b"replacing")
    publish(served, replacing)
    assert (tmp_path / "day 0.csv.out").read_bytes() == b"replacing"
    for job_id, data in ((first, b"first"), (version, b"version"), (replacing, b"replacing")):
        assert ann.get(f"/v1/jobs/{job_id}/result").content == data, "a job has the result of another"


def test_changed_object_is_reported_and_not_served(shared, tmp_path):
    """Regression: a changed object at the published place was served as the result."""
    served, ann, bob = shared
    job_id = submit(ann, served).json()["id"]
    run(served, b"ours")
    path = f"/v1/jobs/{job_id}/published"
    early = ann.get(path)
    assert (early.status_code, early.json()["type"]) == (409, "JobStateError")
    publish(served, job_id)
    same = ann.get(path).json()
    assert (same["status"], same["found_job_id"], same["digest"]) == ("equal", job_id, same["found_digest"])
    published = tmp_path / "day 0.csv.out"
    published.write_bytes(b"theirs")
    other = ann.get(path).json()
    assert (other["status"], other["uri"]) == ("different", str(published))
    assert other["found_digest"] != other["digest"] == same["digest"]
    assert ann.get(f"/v1/jobs/{job_id}/result").content == b"ours"
    published.unlink()
    assert ann.get(path).json()["status"] == "missing"
    assert bob.get(path).status_code == 404


def test_job_is_completed_once_its_object_exists(shared, tmp_path):
    """Regression: jobs were completed, without a `published_uri`, before `KEY.out` existed."""
    served, ann, _ = shared
    job_id = submit(ann, served).json()["id"]
    received = {}

    def wait():
        received["job"] = ann.get(f"/v1/jobs/{job_id}", params={"wait": 15}).json()

    thread = threading.Thread(target=wait)
    thread.start()
    run(served)
    assert served.ledger.get(job_id).state == "publishing"
    (listed,) = ann.get("/v1/jobs").json()["jobs"]
    assert (listed["state"], listed["ended_at_ms"]) == ("publishing", None)
    assert ann.get(f"/v1/jobs/{job_id}/result").status_code == 409
    publish(served, job_id)
    thread.join(WAIT_S)
    assert received["job"]["state"] == "completed"
    assert received["job"]["result"]["published_uri"] == str(tmp_path / "day 0.csv.out")
    assert (tmp_path / "day 0.csv.out").read_bytes() == b"42"


def test_failed_publication_is_visible_and_can_be_retried(shared, tmp_path):
    """Regression: a job whose result could not be published never said so."""
    served, ann, _ = shared
    job_id = submit(ann, served, output_uri=f"{served.out}locked").json()["id"]
    run(served, b"result")
    (tmp_path / "locked").write_bytes(b"a file, not a folder")
    assert publish(served, job_id), "a retry is pointless"
    job = ann.get(f"/v1/jobs/{job_id}").json()
    assert job["state"] == "publish_failed"
    assert job["failure"]["message"].startswith("the result could not be published: ")
    assert ann.get(f"/v1/jobs/{job_id}/result").content == b"result"
    (tmp_path / "locked").unlink()
    again = ann.post(f"/v1/jobs/{job_id}/retry").json()
    assert (again["state"], again["attempt"]) == ("publishing", 1)
    assert publish(served, job_id)
    assert (tmp_path / "locked" / "day 0.csv.out").read_bytes() == b"result"
    assert [entry["event"] for entry in ann.get(f"/v1/jobs/{job_id}/history").json()["history"]] == [
        "claimed",
        "publish_failed",
        "republished",
        "completed",
    ]
