"""Wakeup brokers opened from URLs, without connecting."""

import subprocess
import sys

import pytest

from cases import for_each
from headrace.core.errors import ConfigError, MissingExtraError
from headrace.jobs.brokers import open_wakeup_broker

AWS = {"AWS_REGION": "eu-central-1", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}


@for_each(
    ("url", "shown"),
    [
        ("redis://localhost", "redis at localhost:6379"),
        ("valkey://u:p%40ss@h:7000/3?prefix=mine", "redis at h:7000"),
        ("redis://[::1]:7000", "redis at ::1:7000"),
        ("amqp://u:p@h/vhost", "rabbitmq at h:5672"),
        ("amqps://u:p@h:5673/%2F", "rabbitmq at h:5673"),
        ("sqs://", "sqs at https://sqs.eu-central-1.amazonaws.com"),
        ("sqs://mine-?region=us-east-1", "sqs at https://sqs.us-east-1.amazonaws.com"),
    ],
)
def test_url_selects_the_broker(url, shown):
    assert repr(open_wakeup_broker(url, environ=AWS)) == f"<WakeupBroker {shown}>"


def test_redis_url_options_are_used(tmp_path):
    authorities = tmp_path / "ca.pem"
    authorities.touch()
    wakeup_broker = open_wakeup_broker(f"rediss://u%2F:p%40@h:7000/3?prefix=mine&cafile={authorities}")
    broker = wakeup_broker._broker
    assert broker._connection == {
        "host": "h",
        "port": 7000,
        "db": 3,
        "username": "u/",
        "password": "p@",
        "ssl": True,
        "ssl_ca_certs": str(authorities),
    }
    assert broker._stream("q") == "mine:q"


def test_amqp_url_options_are_used():
    parameters = open_wakeup_broker("amqp://u%2F:p%40@h/v%2Fw?prefix=mine")._broker._parameters
    assert (parameters.credentials.username, parameters.credentials.password) == ("u/", "p@")
    assert (parameters.virtual_host, parameters.ssl_options) == ("v/w", None)
    assert open_wakeup_broker("amqps://h/")._broker._parameters.ssl_options is not None


@for_each(
    "url",
    [
        "",
        "redis",
        "kafka://u:secret@h",
        "redis://",
        "redis://u:secret@h/name",
        "redis://u:secret@h:port",
        "redis://u:secret@h?ssl_cert_reqs=none",
        "redis://u:secret@h?cafile=x",
        "redis://u:secret@h?prefix=",
        "redis://u:secret@h?prefix=a&prefix=b",
        "redis://u:secret/x@h",
        "amqp:///vhost",
        "amqp://u:secret@h/?heartbeat=0",
        "amqps://u:secret@h/?cafile=/no/such/file",
        "rediss://u:secret@h/?cafile=/no/such/file",
        "sqs://u:secret@h",
        "sqs://a/b",
        "sqs://not.a.name",
        "sqs://x?endpoint=y",
    ],
)
def test_invalid_url_is_refused_without_its_password(url):
    with pytest.raises(ConfigError) as found:
        open_wakeup_broker(url, environ=AWS)
    assert "secret" not in str(found.value)


_WITHOUT_LIBRARIES = """
import sys
sys.modules.update(redis=None, pika=None, boto3=None)
from headrace.core.errors import MissingExtraError
from headrace.jobs.brokers import open_wakeup_broker
for url in ("redis://h", "amqp://h/", "sqs://"):
    try:
        open_wakeup_broker(url)
    except MissingExtraError as error:
        print(error.extra)
"""


def test_missing_client_library_names_its_extra():
    command = [sys.executable, "-c", _WITHOUT_LIBRARIES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["redis", "rabbitmq", "aws"], done.stderr
    assert issubclass(MissingExtraError, ConfigError)
