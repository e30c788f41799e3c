"""The boto3 adapter module: bucket regions from moto, SeaweedFS and scripted responses."""

import sys

import pytest

from cases import for_each
from headrace.core.errors import AccessDeniedError, MissingExtraError
from headrace.storage.cloud_credentials import sdk_session
from headrace.storage.regions import bucket_region
from servers.receiver import Receiver, Reply, free_port


def test_bucket_region_returns_the_region_the_server_reports(moto_server):
    s3 = moto_server.client("s3")
    s3.create_bucket(Bucket="region-us")
    s3.create_bucket(Bucket="region-eu", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    for name, region in (("region-us", "us-east-1"), ("region-eu", "eu-west-1")):
        assert bucket_region(name, moto_server.environ, timeout_s=5) == region
    with pytest.raises(Exception, match="404"):
        bucket_region("region-none", moto_server.environ, timeout_s=5)


def test_server_without_regions_returns_none(s3_server):
    name = s3_server.bucket()
    assert bucket_region(name, s3_server.environ, timeout_s=5) is None
    with pytest.raises(Exception, match="403"):
        bucket_region(name, s3_server.denied_environ, timeout_s=5)


KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "HOME": "/nonexistent"}


def test_region_header_of_a_403_response_is_used():
    with Receiver() as server:
        server.reply = Reply(403, {"x-amz-bucket-region": "ap-south-1"})
        environ = KEYS | {"AWS_ENDPOINT_URL": server.url}
        assert bucket_region("box", environ, timeout_s=5) == "ap-south-1"
        anonymous = {
            "AWS_SKIP_SIGNATURE": "true",
            "AWS_ENDPOINT_URL_S3": server.url,
            "HOME": "/nonexistent",
        }
        assert bucket_region("box", anonymous, timeout_s=5) == "ap-south-1"
        signed, unsigned = server.requests
        assert "authorization" in {name.lower() for name in signed.headers}
        assert "authorization" not in {name.lower() for name in unsigned.headers}


@for_each(("constraint", "region"), [("eu-north-1", "eu-north-1"), ("EU", "eu-west-1"), ("", None)])
def test_missing_region_header_falls_back_to_bucket_location(constraint, region):
    namespace = "http://s3.amazonaws.com/doc/2006-03-01/"
    body = f'<LocationConstraint xmlns="{namespace}">{constraint}</LocationConstraint>'
    with Receiver() as server:
        # The receiver closes after each response. Without the header, a client may send its next
        # request on the closing connection.
        closes = {"Connection": "close"}
        location = Reply(200, {"Content-Type": "application/xml"} | closes, body.encode())
        server.answer = lambda request: location if request.method == "GET" else Reply(headers=closes)
        assert bucket_region("box", KEYS | {"AWS_ENDPOINT_URL": server.url}, timeout_s=5) == region


def test_missing_credentials_raise_without_a_request(tmp_path):
    environ = {"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}
    with pytest.raises(AccessDeniedError, match="AWS_ACCESS_KEY_ID"):
        bucket_region("box", environ, timeout_s=5)


def test_unreachable_server_is_not_retried():
    environ = KEYS | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}"}
    with pytest.raises(Exception, match="Could not connect"):
        bucket_region("box", environ, timeout_s=5)


def test_missing_boto3_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(
        MissingExtraError, match=r"asking S3 for a bucket's region needs an extra: .*headrace\[aws\]"
    ):
        bucket_region("box", KEYS, timeout_s=5)
    with pytest.raises(MissingExtraError, match=r"the AWS profile 'work' .*headrace\[aws\]"):
        sdk_session("the AWS profile 'work'")
