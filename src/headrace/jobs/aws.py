"""The door to boto3, for jobs: clients of SNS and SQS, and what they raise in our words."""

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


class AwsFault(Exception):  # noqa: N818 - a value's worth of facts; each caller makes its own of it
    """A call that failed. `code` is the service's, or the SDK's; `passes` is whether trying again may help."""

    def __init__(self, code: str, why: str, *, passes: bool, throttled: bool = False) -> None:
        super().__init__(f"{code}: {why}")
        self.code = code
        self.passes = passes
        self.throttled = throttled


def aws_client(
    service: str, environ: Mapping[str, str], *, endpoint_url: str = "", read_s: float = READ_S
) -> Any:
    """A client of one service ("sns", "sqs"); safe from any thread, closed by its own `close`.

    Region, keys and profile are those of `environ` (``AWS_REGION``, ``AWS_ACCESS_KEY_ID``, …), and else what the SDK
    finds by itself, such as an instance's role. The endpoint is `endpoint_url`, ``AWS_ENDPOINT_URL_<SERVICE>``,
    ``AWS_ENDPOINT_URL`` or the vendor's. A call is one attempt: whoever calls decides on the next. Raises AwsFault.
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
    """Around calls of a client: what the SDK raises leaves as AwsFault."""
    try:
        yield
    except ClientError as error:
        told: Any = error.response
        status = int(told.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        code, why = str(told["Error"].get("Code", "")), str(told["Error"].get("Message", ""))
        throttled = status in _PASSING_STATUSES or code.startswith(("Throttl", "TooMany", "RequestLimit"))
        raise AwsFault(code, why, passes=throttled or status >= _SERVER_ERROR, throttled=throttled) from error
    except BotoCoreError as error:
        # No connection, no credentials, no region: none says that the request was wrong.
        raise AwsFault(type(error).__name__, str(error), passes=True) from error
