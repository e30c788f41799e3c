"""URLs of models, in all forms that a user may give."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.client.address import EndpointAddress, resolve_address
from headrace.core.errors import ConfigError


@for_each(
    ("url", "model", "predict_url"),
    [
        ("http://h:8080/v2/models/m", None, "http://h:8080/v2/models/m/infer"),
        ("http://h/v2/models/m/", None, "http://h/v2/models/m/infer"),
        ("http://h/v2/models/m/infer", None, "http://h/v2/models/m/infer"),
        ("http://h/v2/models/m/versions/3", None, "http://h/v2/models/m/versions/3/infer"),
        (
            "https://h/gate/way/v2/models/m/versions/3/infer",
            "m",
            "https://h/gate/way/v2/models/m/versions/3/infer",
        ),
        ("http://h:8080", "m", "http://h:8080/v2/models/m/infer"),
        ("http://h:8080/", "a b/c", "http://h:8080/v2/models/a%20b%2Fc/infer"),
        ("http://h/v2", "m", "http://h/v2/models/m/infer"),
        ("http://h/x/v2/models/", "m", "http://h/x/v2/models/m/infer"),
        ("http://h/v2/models/a%2Fb", None, "http://h/v2/models/a%2Fb/infer"),
        ("http://[::1]:80/v2/models/m", None, "http://[::1]:80/v2/models/m/infer"),
        ("http://h/predictions/m", None, "http://h/predictions/m"),
        ("http://h/p/predictions/m/1.0", None, "http://h/p/predictions/m/1.0"),
        ("http://h/predictions", "m", "http://h/predictions/m"),
    ],
)  # fmt: skip
def test_url_resolves_to_one_address(url, model, predict_url):
    assert resolve_address(url, model=model).predict_url == predict_url


def test_root_url_means_oip_by_default():
    assert resolve_address("http://h", model="m").protocol == "oip"
    address = resolve_address("http://h", model="m", protocol="torchserve")
    assert address == EndpointAddress("torchserve", "http://h", "m")


@for_each(
    ("url", "settings", "message"),
    [
        ("http://h", {}, "names no model: .*--endpoint-model"),
        ("h:8080/v2/models/m", {}, "is not the URL of an endpoint: write http://"),
        ("ftp://h/v2/models/m", {}, "is not the URL of an endpoint"),
        ("http://", {}, "is not the URL of an endpoint"),
        ("http://h:port/v2/models/m", {}, "is not a URL"),
        ("http://h/v2/models/m/generate", {}, "is not the URL of a model: write http://host"),
        (
            "http://h/v2/models/m",
            {"model": "other"},
            "names the model 'm', but --endpoint-model names 'other'",
        ),
        ("http://h/v2/models/m", {"protocol": "grpc"}, "choose auto, oip or torchserve"),
        ("http://h/v2/models/m?key=s3cret", {}, "has a query"),
        ("http://user:s3cret@h/v2/models/m", {}, "HEADRACE_ENDPOINT_TOKEN"),
    ],
)
def test_invalid_url_error_shows_a_correct_form(url, settings, message):
    with pytest.raises(ConfigError, match=message) as caught:
        resolve_address(url, **settings)
    assert "s3cret" not in str(caught.value)


@given(st.text(min_size=1, max_size=8), st.none() | st.text("1v.", min_size=1, max_size=4), st.booleans())
def test_any_name_round_trips_through_its_url(name, version, torchserve):
    try:
        name.encode()
    except UnicodeEncodeError:
        return
    address = EndpointAddress("torchserve" if torchserve else "oip", "http://h/p", name, version)
    assert resolve_address(address.predict_url) == address
