"""Notices of objects over a socket: all stores' forms, twice and in disorder; who may post them; what is refused."""

import orjson
import pytest

from headrace.jobs.access import Scope
from headrace.jobs.trigger import Trigger, Triggers
from jobs.desk_support import key_of, served_jobs

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
    answer = http.post("/v1/events/s3", json=document)
    assert answer.status_code == 200, answer.text
    return [(o["uri"], o["created"], bool(o["reason"])) for o in answer.json()["outcomes"]]


def test_aws_minio_ceph_and_sns_tell_of_an_object_and_it_makes_one_job(store):
    aws = notice("in/a+b%2Fc.csv")
    minio = notice(
        "in%2Fa+b%2Fc.csv", source="minio:s3", EventName="s3:ObjectCreated:Put", Key="b/in/a b/c.csv"
    )
    ceph = notice("in/a b/c.csv", source="ceph:s3")
    sns = {"Type": "Notification", "Message": orjson.dumps(aws).decode()}
    seen = [outcomes(store, document) for document in (aws, minio, ceph, sns, aws)]
    uri = "s3://b/in/a b/c.csv"
    assert seen == [[(uri, number == 0, False)] for number in range(5)]


def test_outputs_and_others_fire_nothing(store):
    found = outcomes(store, notice("out/x.out", "elsewhere/x", "in/../x"))
    assert [(created, reason) for _, created, reason in found] == [(False, True)] * 3


def test_only_who_has_the_scope_tells_of_objects(served):
    """Whoever submits jobs of its own could else have those of others' objects done."""
    for key, status in ((KEYS[1][0], 403), (KEYS[2][0], 200), ("", 401)):
        with served.client(key) as http:
            assert http.post("/v1/events/s3", json=notice("elsewhere/x")).status_code == status


def test_the_scope_is_good_for_nothing_else(store):
    assert store.get("/v1/jobs").status_code == 403
    assert store.post("/v1/jobs", json={"model": "m", "input": 1}).status_code == 403
    assert store.get("/v1/queues").status_code == 403


def test_what_is_no_notice_is_refused_and_a_subscription_is_not_confirmed(store):
    for body in (b"", b"x", b"[]", b'{"a": 1}'):
        assert store.post("/v1/events/s3", content=body).status_code == 400
    assert store.post("/v1/events/s3", content=b" " * (1 << 21)).status_code == 413
    asked = {"Type": "SubscriptionConfirmation", "SubscribeURL": "http://127.0.0.1:1/", "Token": "x"}
    assert outcomes(store, asked) == []
