"""Event notifications over HTTP: formats of all stores, repetition, access and refusals."""

import orjson
import pytest

from headrace.jobs.access import Scope
from headrace.jobs.trigger import Trigger, Triggers
from jobs.service_support import key_of, served_jobs

TRIGGERS = Triggers([Trigger("in", "s3://b/in/", "s3://b/out/", model="m")])
KEYS = [key_of("store", Scope.EVENTS), key_of("shop", Scope.SUBMIT, Scope.READ), key_of("ops", Scope.ADMIN)]


def notice(*keys, source="aws:s3", **more):
    records = [
        {
            "eventSource": source,
            "eventName": "ObjectCreated:Put",
            "s3": {"bucket": {"name": "b"}, "object": {"key": key, "size": 1, "eTag": "e"}},
        }
        for key in keys
    ]
    return {"Records": records, **more}


@pytest.fixture(scope="module")
def served():
    with served_jobs(keys=KEYS, triggers=TRIGGERS) as made:
        yield made


@pytest.fixture
def store(served):
    with served.client(KEYS[0][0]) as http:
        yield http


def outcomes(http, document):
    response = http.post("/v1/events/s3", json=document)
    assert response.status_code == 200, response.text
    return [(o["uri"], o["created"], bool(o["reason"])) for o in response.json()["outcomes"]]


def test_notifications_of_every_sender_make_one_job(store):
    aws = notice("in/a+b%2Fc.csv")
    minio = notice(
        "in%2Fa+b%2Fc.csv", source="minio:s3", EventName="s3:ObjectCreated:Put", Key="b/in/a b/c.csv"
    )
    ceph = notice("in/a b/c.csv", source="ceph:s3")
    sns = {"Type": "Notification", "Message": orjson.dumps(aws).decode()}
    seen = [outcomes(store, document) for document in (aws, minio, ceph, sns, aws)]
    uri = "s3://b/in/a b/c.csv"
    assert seen == [[(uri, number == 0, False)] for number in range(5)]


def test_unmatched_objects_make_no_job(store):
    found = outcomes(store, notice("out/x.out", "elsewhere/x", "in/../x"))
    assert [(created, reason) for _, created, reason in found] == [(False, True)] * 3


def test_notifications_need_the_events_scope(served):
    """Otherwise a client with the scope `submit` could run jobs on the objects of others."""
    for key, status in ((KEYS[1][0], 403), (KEYS[2][0], 200), ("", 401)):
        with served.client(key) as http:
            assert http.post("/v1/events/s3", json=notice("elsewhere/x")).status_code == status


def test_events_scope_permits_nothing_else(store):
    assert store.get("/v1/jobs").status_code == 403
    assert store.post("/v1/jobs", json={"model": "m", "input": 1}).status_code == 403
    assert store.get("/v1/queues").status_code == 403


def test_malformed_notifications_are_refused_and_subscriptions_not_confirmed(store):
    for body in (b"", b"x", b"[]", b'{"a": 1}'):
        assert store.post("/v1/events/s3", content=body).status_code == 400
    assert store.post("/v1/events/s3", content=b" " * (1 << 21)).status_code == 413
    requested = {"Type": "SubscriptionConfirmation", "SubscribeURL": "http://127.0.0.1:1/", "Token": "x"}
    assert outcomes(store, requested) == []
