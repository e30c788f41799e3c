"""The adapter module of boto3: SDK sessions and the region of a bucket."""

from collections.abc import Mapping
from typing import Any, Final

from headrace.core.errors import AccessDeniedError, MissingExtraError
from headrace.storage.cloud_credentials import AwsSettings, CredentialSource, aws_settings

_REGION_HEADER: Final = "x-amz-bucket-region"
_FIRST_REGION: Final = "us-east-1"


def sdk_session(needed_for: str, **settings: str | None) -> Any:
    """Return a boto3 session with these settings.

    Raises MissingExtraError without boto3. Exceptions of the SDK propagate.
    """
    try:
        # boto3 takes longer to import than everything else here.
        import boto3 as _boto3  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("aws", needed_for) from error
    boto3: Any = _boto3  # boto3 ships no types
    return boto3.session.Session(**settings)


def bucket_region(name: str, environ: Mapping[str, str], *, timeout_s: float) -> str | None:
    """Return the region that the server of an S3 bucket reports, or None if it reports none.

    Usually one request, never retried. Connecting and the response have `timeout_s` seconds each.
    The endpoint and the credentials are those that read the bucket.

    Raises:
        MissingExtraError: boto3 is not installed.
        AccessDeniedError: There are no credentials to sign with.
        ConfigError: A setting is invalid.
        Exception: The SDK raised one of its dozens of exception types.
    """
    aws = aws_settings(environ)
    if aws.source is CredentialSource.NONE:
        raise AccessDeniedError(f"s3://{name}", f"no credentials found; searched {aws.searched_sources}")
    client = _client(aws, timeout_s)
    try:
        return _region_from_head(client, name) or _region_from_location(
            client, name, of_amazon=not aws.endpoint
        )
    finally:
        client.close()


def _region_from_head(client: Any, name: str) -> str | None:
    from botocore.exceptions import ClientError  # noqa: PLC0415 - of boto3

    try:
        response: Any = client.head_bucket(Bucket=name)
    except ClientError as error:
        # Amazon sends the header also with 403 and with redirects from another region.
        if region := _region_from_headers(error.response):
            return region
        raise
    return _region_from_headers(response)


def _region_from_headers(response: Any) -> str | None:
    return response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get(_REGION_HEADER) or None


def _region_from_location(client: Any, name: str, *, of_amazon: bool) -> str | None:
    constraint = client.get_bucket_location(Bucket=name).get("LocationConstraint")
    if not constraint:
        # Amazon omits the constraint for its first region. Other servers omit it because they know
        # no regions.
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
