"""The object store's door to boto3: sessions for credentials that only the SDK can get, and in which region a bucket is."""

from collections.abc import Mapping
from typing import Any, Final

from headrace.core.errors import AccessDeniedError, MissingExtraError
from headrace.storage.aws_profile import AwsSettings, CredentialSource, aws_settings

_REGION_HEADER: Final = "x-amz-bucket-region"
_FIRST_REGION: Final = "us-east-1"


def sdk_session(needed_for: str, **settings: str | None) -> Any:
    """A session of boto3 with these settings. Raises MissingExtraError without boto3, and whatever the SDK raises."""
    try:
        # It takes longer to import than all else here.
        import boto3 as _boto3  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("aws", needed_for) from error
    boto3: Any = _boto3  # it carries no types
    return boto3.session.Session(**settings)


def bucket_region(name: str, environ: Mapping[str, str], *, timeout_s: float) -> str | None:
    """The region of an S3 bucket, as its server says; None where that says nothing.

    Mostly one request; each waits `timeout_s` at most to connect and as long for the answer, and is not tried again.
    Endpoint and credentials are those with which the bucket is read. Raises MissingExtraError without boto3,
    AccessDeniedError when there is nothing to sign with, ConfigError for settings that cannot be, and whatever the SDK
    raises, which has dozens of kinds.
    """
    aws = aws_settings(environ)
    if aws.source is CredentialSource.NONE:
        raise AccessDeniedError(f"s3://{name}", f"no credentials found; looked for {aws.looked_for}")
    client = _client(aws, timeout_s)
    try:
        return _header(client, name) or _constraint(client, name, of_amazon=not aws.endpoint)
    finally:
        client.close()


def _header(client: Any, name: str) -> str | None:
    from botocore.exceptions import ClientError  # noqa: PLC0415 - of boto3

    try:
        answer: Any = client.head_bucket(Bucket=name)
    except ClientError as error:
        # Amazon says it also to whom it allows nothing, and to who asks in another region.
        if told := _told(error.response):
            return told
        raise
    return _told(answer)


def _told(answer: Any) -> str | None:
    return answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get(_REGION_HEADER) or None


def _constraint(client: Any, name: str, *, of_amazon: bool) -> str | None:
    constraint = client.get_bucket_location(Bucket=name).get("LocationConstraint")
    if not constraint:
        # At Amazon this is the region that came first; other servers mean that they know none.
        return _FIRST_REGION if of_amazon else None
    return "eu-west-1" if constraint == "EU" else str(constraint)


def _client(aws: AwsSettings, timeout_s: float) -> Any:
    session = sdk_session(
        "asking S3 for a bucket's region",
        profile_name=aws.profile if aws.source is CredentialSource.SDK else None,
        region_name=aws.region,
        aws_access_key_id=aws.access_key_id or None,
        aws_secret_access_key=aws.secret_access_key or None,
        aws_session_token=aws.session_token or None,
    )
    from botocore import UNSIGNED  # noqa: PLC0415 - of boto3
    from botocore.config import Config  # noqa: PLC0415

    unsigned = aws.source is CredentialSource.ANONYMOUS
    config = Config(
        connect_timeout=timeout_s,
        read_timeout=timeout_s,
        retries={"total_max_attempts": 1},
        s3={"addressing_style": "path"} if aws.endpoint else None,
        **({"signature_version": UNSIGNED} if unsigned else {}),
    )
    return session.client(
        "s3", endpoint_url=aws.endpoint or None, verify=aws.ca_bundle or None, config=config
    )
