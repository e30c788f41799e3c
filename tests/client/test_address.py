"""URLs that name a model, in all forms that a user may give."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.client.address import Address, resolve_address
from headrace.core.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "model", "predict_url"),
    [
        ("http://h:8080/v2/models/m", None, "http://h:8080/v2/models/m/infer"),
        ("http://h/v2/models/m/", None, "http://h/v2/models/m/infer"),
        ("http://h/v2/models/m/infer", None, "http://h/v2/models/m/infer"),
        ("http://h/v2/models/m/versions/3", None, "http://h/v2/models/m/versions/3/infer"),
        ("https://h/gate/way/v2/models/m/versions/3/infer", "m", "https://h/gate/way/v2/models/m/versions/3/infer"),
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
def test_a_url_means_one_address(url, model, predict_url):
    assert resolve_address(url, model=model).predict_url == predict_url


def test_a_root_needs_the_protocol_only_where_it_is_not_oip():
    assert resolve_address("http://h", model="m").protocol == "oip"
    address = resolve_address("http://h", model="m", protocol="torchserve")
    assert address == Address("torchserve", "http://h", "m")


@pytest.mark.parametrize(
    ("url", "more", "why"),
    [
        ("http://h", {}, "names no model: .*--endpoint-model"),
        ("h:8080/v2/models/m", {}, "is no endpoint: write http://"),
        ("ftp://h/v2/models/m", {}, "is no endpoint"),
        ("http://", {}, "is no endpoint"),
        ("http://h:port/v2/models/m", {}, "is no URL"),
        ("http://h/v2/models/m/generate", {}, "is no model's URL: write it as http://host"),
        (
            "http://h/v2/models/m",
            {"model": "other"},
            "names the model 'm', but --endpoint-model says 'other'",
        ),
        ("http://h/v2/models/m", {"protocol": "grpc"}, "choose auto, oip or torchserve"),
        ("http://h/v2/models/m?key=s3cret", {}, "has a query"),
        ("http://user:s3cret@h/v2/models/m", {}, "HEADRACE_ENDPOINT_TOKEN"),
    ],
)
def test_what_is_no_address_says_how_to_write_it(url, more, why):
    with pytest.raises(ConfigError, match=why) as caught:
        resolve_address(url, **more)
    assert "s3cret" not in str(caught.value)


@settings(deadline=None)
@given(st.text(min_size=1, max_size=8), st.none() | st.text("1v.", min_size=1, max_size=4), st.booleans())
def test_any_name_survives_its_own_url(name, version, torchserve):
    try:
        name.encode()
    except UnicodeEncodeError:
        return
    address = Address("torchserve" if torchserve else "oip", "http://h/p", name, version)
    assert resolve_address(address.predict_url) == address
