"""The compose files fit their schema, publish ports on loopback only, and name nothing that is missing."""

import json
import re
from copy import deepcopy
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from servers.compose import FOLDER, interpolate, read_compose

pytestmark = pytest.mark.slow

FILES = [("compose.yaml",), ("compose.gpu.yaml",), ("compose.yaml", "compose.gpu.yaml")]
WHOLE = [FILES[0], FILES[2]]
HEADRACE = ("api", "worker", "server")
PORTS = {"postgres": 5432, "valkey": 6379, "s3": 8333}
"""The ports of services that have a URL."""
TMPFS = ["/tmp", "/var/lib/headrace:uid=10001,gid=10001,mode=0700"]
DRAIN_S = 30 + 40
"""The grace period of running jobs, and the time after it in which a process has ended."""


def compose_problems(compose):
    """Return the wrong references, open ports and missing protections of a compose document."""
    found = []
    used = set()
    for name, service in compose["services"].items():
        found += [f"{name}: {problem}" for problem in [*_protection(name, service), *_published(service)]]
        for needed, how in service.get("depends_on", {}).items():
            target = compose["services"].get(needed, {})
            if "healthcheck" not in target or how != {"condition": "service_healthy"}:
                found.append(f"{name}: depends on {needed}, which has no health check")
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            used.add(source)
            known = (FOLDER / source).is_dir() if source.startswith(".") else source in compose["volumes"]
            if not known:
                found.append(f"{name}: no volume {source}")
        found += [
            f"{name}: no secret {s}"
            for s in service.get("secrets", ())
            if s not in compose.get("secrets", {})
        ]
        found += [
            f"{name}: nothing listens at {url}" for url in _urls(service) if not _is_known(compose, url)
        ]
    return found + [f"no service uses the volume {name}" for name in compose["volumes"].keys() - used]


def _published(service):
    """Return the ports that other machines can reach, and those where nothing listens."""
    for port in service.get("ports", ()):
        if not re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port):
            yield f"port {port} is not on loopback"
    for port in [*service.get("ports", ()), *service.get("expose", ())]:
        if not any(re.search(rf"port={port.rpartition(':')[2]}$", each) for each in service["command"]):
            yield f"the command does not listen on port {port}"


def _protection(name, service):
    if "no-new-privileges:true" not in service.get("security_opt", ()):
        yield "new privileges"
    if service.get("restart") != "unless-stopped":
        yield "restart"
    if name == "s3" and service.get("stop_grace_period") != "30s":
        yield "is killed while it stops, which takes 15 s"
    if name not in HEADRACE:
        return
    if service.get("read_only") is not True or service.get("cap_drop") != ["ALL"] or "cap_add" in service:
        yield "the root file system is writable, or there are capabilities"
    if service.get("tmpfs") != TMPFS or "cache:/var/cache/headrace" not in service["volumes"]:
        yield "no writable folders"
    if "./models:/models:ro" not in service["volumes"]:
        yield "no models, or writable ones"
    if int(service.get("stop_grace_period", "0s").removesuffix("s")) <= DRAIN_S:
        yield "is killed while it drains"
    if "--host=0.0.0.0" in service["command"] and not {
        f"--allow-host={name}",
        "--allow-host=localhost",
    } <= set(service["command"]):
        yield "answers requests for every host name"


def _urls(service):
    """Return the URLs of other servers in the environment and in the command."""
    return urls_in(*service.get("environment", {}).values(), *service.get("command", ()))


def urls_in(*texts):
    return [urlsplit(url) for text in texts for url in re.findall(r"\w+://[^\s=\"]+", str(text))]


def _is_known(compose, url):
    if url.scheme == "s3":
        return url.hostname == "headrace"
    return url.hostname in compose["services"] and url.port == PORTS.get(url.hostname)


def schema_errors(compose):
    # Of the extra dev, which `make test` does not have.
    import check_jsonschema
    import jsonschema

    vendor = Path(check_jsonschema.__file__).parent / "builtin_schemas" / "vendor"
    schema = json.loads((vendor / "compose-spec.json").read_text())
    validator = jsonschema.validators.validator_for(schema)(schema)
    return [error.message for error in validator.iter_errors(compose)]


@pytest.mark.parametrize("names", FILES)
def test_files_fit_the_schema(names):
    assert schema_errors(read_compose(*names)) == []


def test_schema_refuses_misspelt_key():
    compose = read_compose()
    compose["services"]["api"]["helthcheck"] = compose["services"]["api"].pop("healthcheck")
    assert any("helthcheck" in error for error in schema_errors(compose))


@pytest.mark.parametrize("names", WHOLE)
def test_services_are_protected_and_refer_to_what_exists(names):
    assert compose_problems(read_compose(*names)) == []


def test_models_name_servers_of_the_file():
    settings = [path.read_text() for path in (FOLDER / "models").glob("*/model.toml")]
    urls = urls_in(*settings)
    assert urls
    assert all(_is_known(read_compose(), url) for url in urls)


@pytest.mark.parametrize(
    ("place", "value", "problem"),
    [
        ("services.api.ports", ["8090:8090"], "api: port 8090:8090 is not on loopback"),
        ("services.api.ports", ["127.0.0.1:8090:8091"], "api: the command does not listen on port"),
        ("services.api.expose", ["8083"], "api: the command does not listen on port 8083"),
        ("services.s3.ports", ["0.0.0.0:8333:8333"], "s3: port 0.0.0.0:8333:8333 is not on loopback"),
        ("services.api.depends_on", {"redis": {"condition": "service_healthy"}}, "api: depends on redis"),
        ("services.api.depends_on", {"worker": {"condition": "service_healthy"}}, "api: depends on worker"),
        ("services.api.depends_on", {"s3": {"condition": "service_started"}}, "api: depends on s3"),
        ("services.s3.volumes", ["seaweed:/data"], "s3: no volume seaweed"),
        ("services.s3.volumes", [], "no service uses the volume s3"),
        ("services.server.volumes", ["./model:/models:ro"], "server: no volume ./model"),
        ("services.api.secrets", ["encryption.key"], "api: no secret encryption.key"),
        ("services.api.environment.HEADRACE_DISPATCHER", "redis://redis:6379/0", "api: nothing listens at"),
        ("services.api.environment.AWS_ENDPOINT_URL", "http://s3:9000", "api: nothing listens at"),
        ("services.api.environment.HEADRACE_STORE", "s3://jobs/", "api: nothing listens at"),
        ("services.worker.command", ["--dispatcher=redis://valkey"], "worker: nothing listens at"),
        ("services.server.command", ["--host=0.0.0.0"], "server: answers requests for every host name"),
        ("services.worker.read_only", False, "worker: the root file system is writable"),
        ("services.worker.cap_drop", [], "worker: the root file system is writable"),
        ("services.worker.cap_add", ["SYS_PTRACE"], "worker: the root file system is writable"),
        ("services.worker.security_opt", [], "worker: new privileges"),
        ("services.postgres.security_opt", [], "postgres: new privileges"),
        ("services.worker.tmpfs", [], "worker: no writable folders"),
        ("services.worker.stop_grace_period", "10s", "worker: is killed while it drains"),
        ("services.s3.stop_grace_period", "10s", "s3: is killed"),
        ("services.worker.restart", "no", "worker: restart"),
        ("services.worker.volumes", ["./models:/models", "cache:/var/cache/headrace"], "worker: no models"),
    ],
)
def test_problem_is_found(place, value, problem):
    compose = deepcopy(read_compose())
    *path, last = place.split(".")
    target = compose
    for name in path:
        target = target[name]
    target[last] = value
    assert any(each.startswith(problem) for each in compose_problems(compose))


def test_variables_replace_the_defaults():
    values = {
        "HEADRACE_VERSION": "1.2.3",
        "POSTGRES_PASSWORD": "other",
        "S3_ACCESS_KEY": "key",
        "S3_SECRET_KEY": "secret",
        **{
            name: str(number)
            for number, name in enumerate(("API_PORT", "REST_PORT", "GRPC_PORT", "S3_PORT"), 7000)
        },
    }
    services = read_compose(variables=values)["services"]
    assert {services[name]["image"] for name in HEADRACE} == {"headrace:1.2.3"}
    assert services["postgres"]["environment"]["POSTGRES_PASSWORD"] == "other"
    assert "//headrace:other@" in services["api"]["environment"]["HEADRACE_LEDGER"]
    keys = [(name, values[f"S3_{variable}"]) for name, variable in S3_KEYS.items()]
    for name in ("s3", *HEADRACE):
        assert dict(keys).items() <= services[name]["environment"].items()
    ports = [port for service in services.values() for port in service.get("ports", ())]
    assert sorted(port.split(":")[1] for port in ports) == ["7000", "7001", "7002", "7003"]
    assert compose_problems(read_compose(variables=values)) == []


S3_KEYS = {"AWS_ACCESS_KEY_ID": "ACCESS_KEY", "AWS_SECRET_ACCESS_KEY": "SECRET_KEY"}


def test_services_share_passwords_and_keys_by_default():
    services = read_compose()["services"]
    password = services["postgres"]["environment"]["POSTGRES_PASSWORD"]
    assert f"//headrace:{password}@" in services["api"]["environment"]["HEADRACE_LEDGER"]
    for name in HEADRACE:
        assert {key: services[name]["environment"][key] for key in S3_KEYS} == services["s3"]["environment"]
    assert services["api"]["environment"] == services["worker"]["environment"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${A:-b}", "b"),
        ("${A:-}", ""),
        ("${SET:-b}", "value"),
        ("${EMPTY:-b}", "b"),
        ("x:${SET}:y", "x:value:y"),
        ("$$HOME", "$HOME"),
    ],
)
def test_variable_has_its_value_or_default(text, expected):
    assert interpolate({"x": [text]}, {"SET": "value", "EMPTY": ""}) == {"x": [expected]}


@pytest.mark.parametrize("text", ["${A}", "$A", "${A:?needed}", "${A-b}", "${A:-${B}}", "$"])
def test_variable_without_default_or_in_another_form_is_refused(text):
    with pytest.raises(ValueError, match=r"no value|only"):
        interpolate(text, {})


def test_gpu_file_changes_images_and_devices_of_the_models_only():
    plain, gpu = (read_compose(*names)["services"] for names in WHOLE)
    assert {name: each for name, each in gpu.items() if plain[name] != each}.keys() == {"worker", "server"}
    for name in ("worker", "server"):
        (device,) = gpu[name]["deploy"]["resources"]["reservations"]["devices"]
        assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])
        assert gpu[name]["image"] == plain[name]["image"].replace("headrace:", "headrace-cuda:")
    builds = {each["image"]: each["build"]["target"] for each in gpu.values() if "build" in each}
    assert builds == {plain["api"]["image"]: "cpu", gpu["worker"]["image"]: "cuda"}


def test_lines_for_the_encryption_key_work_when_they_are_enabled(tmp_path):
    lines = (FOLDER / "compose.yaml").read_text().splitlines()
    enabled = [re.sub(r"^( *)# (secrets:|  encryption\.key:)", r"\1\2", line) for line in lines]
    assert len([line for line, before in zip(enabled, lines, strict=True) if line != before]) == 3
    (tmp_path / "compose.yaml").write_text("\n".join(enabled))
    compose = read_compose(str(tmp_path / "compose.yaml"))
    assert compose["services"]["api"]["secrets"] == ["encryption.key"]
    assert (schema_errors(compose), compose_problems(compose)) == ([], [])
