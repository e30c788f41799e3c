"""From a URL to a dispatcher, without connecting."""

import subprocess
import sys

import pytest

from headrace.core.errors import ConfigError, MissingExtraError
from headrace.jobs.dispatchers.open import open_dispatcher

AWS = {"AWS_REGION": "eu-central-1", "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}


@pytest.mark.parametrize(
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
def test_urls_that_name_one(url, shown):
    assert repr(open_dispatcher(url, environ=AWS)) == f"<Dispatcher {shown}>"


def test_what_stands_in_a_redis_url_arrives(tmp_path):
    authorities = tmp_path / "ca.pem"
    authorities.touch()
    dispatcher = open_dispatcher(f"rediss://u%2F:p%40@h:7000/3?prefix=mine&cafile={authorities}")
    broker = dispatcher._broker
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


def test_what_stands_in_an_amqp_url_arrives():
    parameters = open_dispatcher("amqp://u%2F:p%40@h/v%2Fw?prefix=mine")._broker._parameters
    assert (parameters.credentials.username, parameters.credentials.password) == ("u/", "p@")
    assert (parameters.virtual_host, parameters.ssl_options) == ("v/w", None)
    assert open_dispatcher("amqps://h/")._broker._parameters.ssl_options is not None


@pytest.mark.parametrize(
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
def test_what_cannot_be_is_refused_without_the_password(url):
    with pytest.raises(ConfigError) as found:
        open_dispatcher(url, environ=AWS)
    assert "secret" not in str(found.value)


@pytest.mark.parametrize(
    ("module", "url", "extra"),
    [("redis", "redis://h", "redis"), ("pika", "amqp://h/", "rabbitmq"), ("boto3", "sqs://", "aws")],
)
def test_a_missing_client_is_told_by_the_extra_that_brings_it(module, url, extra):
    program = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from headrace.core.errors import MissingExtraError\n"
        "from headrace.jobs.dispatchers.open import open_dispatcher\n"
        f"try: open_dispatcher({url!r})\n"
        "except MissingExtraError as error: print(error.extra)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == extra, done.stderr
    assert issubclass(MissingExtraError, ConfigError)
