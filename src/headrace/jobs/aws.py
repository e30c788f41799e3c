"""Adapter module of boto3 for jobs: clients of SNS and SQS, and their errors as AwsFault."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from headrace.core.errors import MissingExtraError

try:
    import boto3 as _boto3
    from botocore.config import Config as _Config
    from botocore.exceptions import BotoCoreError, ClientError
except ImportError as error:
    raise MissingExtraError("aws", "Amazon SNS and SQS") from error

boto3: Any = _boto3  # it carries no types
Config: Any = _Config

CONNECT_S: Final = 5.0
READ_S: Final = 10.0
_PASSING_STATUSES: Final = frozenset({408, 425, 429})
_SERVER_ERROR: Final = 500


class AwsFault(Exception):  # noqa: N818 - internal: callers convert it
    """A failed AWS call.

    `code` is the service's or the SDK's; `transient` is True if a retry may succeed.
    """

    def __init__(self, code: str, why: str, *, transient: bool, throttled: bool = False) -> None:
        super().__init__(f"{code}: {why}")
        self.code = code
        self.transient = transient
        self.throttled = throttled


def aws_client(
    service: str, environ: Mapping[str, str], *, endpoint_url: str = "", read_s: float = READ_S
) -> Any:
    """Return a client of one service ("sns", "sqs"). It is thread-safe; close it with `close`.

    Region, keys and profile come from `environ` (``AWS_REGION``, ``AWS_ACCESS_KEY_ID``, …), else
    from the SDK's own search, such as an instance's role. The endpoint is `endpoint_url`,
    ``AWS_ENDPOINT_URL_<SERVICE>``, ``AWS_ENDPOINT_URL`` or Amazon's. A call is one attempt; the
    caller decides about retries. Raises AwsFault.
    """
    with aws_faults():
        session = boto3.session.Session(
            aws_access_key_id=environ.get("AWS_ACCESS_KEY_ID") or None,
            aws_secret_access_key=environ.get("AWS_SECRET_ACCESS_KEY") or None,
            aws_session_token=environ.get("AWS_SESSION_TOKEN") or None,
            region_name=environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or None,
            profile_name=environ.get("AWS_PROFILE") or None,
        )
        known = (f"AWS_ENDPOINT_URL_{service.upper()}", "AWS_ENDPOINT_URL")
        endpoint = endpoint_url or next((environ[name] for name in known if environ.get(name)), None)
        config = Config(connect_timeout=CONNECT_S, read_timeout=read_s, retries={"total_max_attempts": 1})
        return session.client(service, endpoint_url=endpoint, config=config)


@contextmanager
def aws_faults() -> Generator[None]:
    """Convert the SDK's errors to AwsFault, as a context manager around calls of a client."""
    try:
        yield
    except ClientError as error:
        response: Any = error.response
        status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        code, why = str(response["Error"].get("Code", "")), str(response["Error"].get("Message", ""))
        throttled = status in _PASSING_STATUSES or code.startswith(("Throttl", "TooMany", "RequestLimit"))
        raise AwsFault(
            code, why, transient=throttled or status >= _SERVER_ERROR, throttled=throttled
        ) from error
    except BotoCoreError as error:
        # None of these (no connection, credentials or region) means that the request was wrong.
        raise AwsFault(type(error).__name__, str(error), transient=True) from error
