"""The OpenAPI document and the documentation page of the REST server."""

import html

from headrace.core import Model, ModelMetadata, TensorSpec
from headrace.server.http import Exchange, HttpTimeouts
from headrace.server.openapi import docs_page, openapi_document
from server.support import MODEL_ROUTES, EchoAll, Linear, Texts, Typed, Words, serving


class Numbers(Model):
    """A model with inputs of several datatypes and shapes."""

    inputs = (
        TensorSpec("a", "INT64", (-1, 2)),
        TensorSpec("b", "FP64", (-1, -1)),
        TensorSpec("c", "UINT8", (-1,)),
        TensorSpec("d", "BOOL", (-1, 1, 2)),
    )
    outputs = (TensorSpec("sums", "FP64", (-1,)), TensorSpec("flags", "BOOL", (-1, 1, 2)))

    def predict(self, a, b, c, d):
        return {"sums": a.sum(axis=1) + b.sum(axis=1) + c, "flags": d}


MODELS = {"linear": Linear, "numbers": Numbers, "any": EchoAll, "words": Words, "texts": Texts}
DESCRIBED = [ModelMetadata(n, "1", m.__name__, m.inputs, m.outputs) for n, m in MODELS.items()]


def test_document_has_exactly_the_described_routes():
    hidden = {"/", "/docs", "/v2/docs", "/openapi.json", "/v2/docs/dataplane.json"}
    with serving({"linear": Linear}, started=False) as server:
        served = {
            (route.shown_path, route.method.lower())
            for route in server.app.routes
            if route.path not in hidden and route.action != "not_offered"
        }
        paths = server.get("/openapi.json").json["paths"]
    documented = {(path, m) for path, item in paths.items() for m in item if m != "parameters"}
    assert documented == served


def test_document_names_the_known_models():
    document = openapi_document(MODEL_ROUTES, "0", DESCRIBED)
    name, version = document["paths"]["/v2/models/{model_name}/versions/{model_version}/infer"]["parameters"]
    assert name["schema"]["enum"] == sorted(MODELS)
    assert version["schema"]["enum"] == ["1"]
    body = document["paths"]["/v2/models/{model_name}/infer"]["post"]["requestBody"]
    assert body["content"]["application/json"]["examples"]["linear"]["value"]["inputs"][0]["shape"] == [1, 4]
    assert "enum" not in str(
        openapi_document(MODEL_ROUTES, "0")["paths"]["/v2/models/{model_name}"]["parameters"]
    )


def test_page_shows_each_model_and_escapes_scripts():
    evil = "<script>alert(1)</script>'$(id)"
    large = TensorSpec(evil, "FP32", (-1, 3, 224, 224))
    page = docs_page(
        MODEL_ROUTES,
        "0",
        [
            *DESCRIBED,
            ModelMetadata(evil, "1", inputs=(large,)),
            ModelMetadata("typed", None, inputs=Typed.inputs),
        ],
        "http://localhost:8080",
    )
    assert "<script" not in page
    assert "n x 3 x 224 x 224" in page
    assert len(page) < 40_000
    for name in MODELS:
        assert f"<h3>{name}" in page


def test_page_shows_paths_as_people_write_them():
    page = docs_page(MODEL_ROUTES, "0", [], "http://localhost:8080")
    assert "/sequences/{sequence_id}" in page
    assert ":path" not in page


def test_page_shows_the_address_of_the_request():
    """A Host header that is no host does not reach the page."""
    with serving({"linear": Linear}) as server:
        own = f"http://127.0.0.1:{server.port}"
        for host, shown in (
            (f"localhost:{server.port}", f"http://localhost:{server.port}"),
            ("models.example.com", "http://models.example.com"),
            ("[::1]:8443", "'http://[::1]:8443/"),
            ("<script>alert(1)</script>", own),
            ("a.example;$(id)", own),
            ("a.example/'\"><b>", own),
            ("", own),
        ):
            page = html.unescape(server.get("/docs", Host=host).body.decode())
            assert f"curl {shown}" in page, host
            assert "<script" not in page
            assert "$(id)" not in page
            assert "<b>" not in page
            assert "localhost:8080" not in page
        assert server.get("/openapi.json").json["servers"] == [{"url": "/"}]


def test_page_of_a_server_with_tls_shows_https():
    scope = {"method": "GET", "path": "/docs", "query_string": b"", "scheme": "https"}
    for headers, server, origin in (
        ([(b"host", b"h.example:8443")], ("10.0.0.1", 8443), "https://h.example:8443"),
        ([], ("10.0.0.1", 8443), "https://10.0.0.1:8443"),
        ([], ("::1", 8443), "https://[::1]:8443"),
        ([], None, "https://localhost"),
    ):
        exchange = Exchange({**scope, "headers": headers, "server": server}, None, None, HttpTimeouts())
        assert exchange.origin == origin
