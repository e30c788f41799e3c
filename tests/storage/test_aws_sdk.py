"""The door to boto3. Asking servers for a bucket's region: one that says (moto), one that does not (SeaweedFS), and answers as Amazon's."""

import sys

import pytest

from headrace.core.errors import AccessDeniedError, MissingExtraError
from headrace.storage.aws_sdk import bucket_region, sdk_session
from servers.receiver import Receiver, Reply, free_port


def test_a_server_that_says_is_believed(moto_server):
    s3 = moto_server.client("s3")
    s3.create_bucket(Bucket="region-us")
    s3.create_bucket(Bucket="region-eu", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    for name, region in (("region-us", "us-east-1"), ("region-eu", "eu-west-1")):
        assert bucket_region(name, moto_server.environ, timeout_s=5) == region
    with pytest.raises(Exception, match="404"):
        bucket_region("region-none", moto_server.environ, timeout_s=5)


def test_a_server_without_regions_says_none(s3_server):
    name = s3_server.bucket()
    assert bucket_region(name, s3_server.environ, timeout_s=5) is None
    with pytest.raises(Exception, match="403"):
        bucket_region(name, s3_server.denied_environ, timeout_s=5)


KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "HOME": "/nonexistent"}


def test_who_is_refused_is_told_the_region_all_the_same():
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


@pytest.mark.parametrize(
    ("constraint", "region"), [("eu-north-1", "eu-north-1"), ("EU", "eu-west-1"), ("", None)]
)
def test_the_location_is_asked_for_where_the_header_is_missing(constraint, region):
    body = f'<LocationConstraint xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{constraint}</LocationConstraint>'
    with Receiver() as server:
        # The receiver closes after each answer; whoever is not told so may send the next request into that.
        closes = {"Connection": "close"}
        location = Reply(200, {"Content-Type": "application/xml"} | closes, body.encode())
        server.answer = lambda request: location if request.method == "GET" else Reply(headers=closes)
        assert bucket_region("box", KEYS | {"AWS_ENDPOINT_URL": server.url}, timeout_s=5) == region


def test_without_credentials_nothing_is_asked(tmp_path):
    environ = {"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"}
    with pytest.raises(AccessDeniedError, match="AWS_ACCESS_KEY_ID"):
        bucket_region("box", environ, timeout_s=5)


def test_a_server_that_is_gone_is_asked_once():
    environ = KEYS | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}"}
    with pytest.raises(Exception, match="Could not connect"):
        bucket_region("box", environ, timeout_s=5)


def test_without_boto3_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(
        MissingExtraError, match=r"asking S3 for a bucket's region needs an extra: .*headrace\[aws\]"
    ):
        bucket_region("box", KEYS, timeout_s=5)
    with pytest.raises(MissingExtraError, match=r"the AWS profile 'work' .*headrace\[aws\]"):
        sdk_session("the AWS profile 'work'")
