"""The commands of deploy/compose as processes of this machine, over real servers."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import ExitStack

import psutil
import pytest

from headrace.core.errors import ForbiddenError
from headrace.jobs.client import Client
from headrace.jobs.client.messages import INLINE_BYTES_MAX
from integration.jobs_process import WAIT_S, wait_completed
from servers.compose import FOLDER, read_compose
from servers.container import ContainerProcess, replace_texts
from servers.polling import wait_until
from servers.seaweed import S3Server, weed_path
from servers.valkey import ValkeyServer

SERVICES = read_compose()["services"]
LISTENERS = {
    "api": {"jobs": "8090", "metrics": "8082"},
    "worker": {},
    "server": {"rest": "8080", "grpc": "8081", "metrics": "8082"},
}
SETOSA, VIRGINICA = [5.1, 3.5, 1.4, 0.2], [6.3, 3.3, 6.0, 2.5]
HEADER = "sepal_length,sepal_width,petal_length,petal_width\n"
SCALE_IN_SOON = "[pools.local]\ninterval_s = 0.3\nscale_in_window_s = 1\n"


class SeaweedService(S3Server):
    """The command of the service s3, on other ports."""

    access_key = SERVICES["s3"]["environment"]["AWS_ACCESS_KEY_ID"]
    secret_key = SERVICES["s3"]["environment"]["AWS_SECRET_ACCESS_KEY"]

    def __init__(self, folder):
        super().__init__(folder)
        for name in ("master.toml", "s3.json"):  # settings of the other tests' server
            (folder / name).unlink()

    def _command(self):
        replaced = {"8333": str(self._ports["s3.port"]), "/data": "data"}
        given = [replace_texts(each, replaced) for each in SERVICES["s3"]["command"]]
        names = {each.partition("=")[0] for each in given}
        ports = [f"-{name}={port}" for name, port in self._ports.items() if f"-{name}" not in names]
        return [weed_path(), *given, *ports]

    def _process_environ(self):
        return SERVICES["s3"]["environment"]


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    server = SeaweedService(tmp_path_factory.mktemp("s3"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def valkey(tmp_path_factory):
    server = ValkeyServer(tmp_path_factory.mktemp("valkey"), *SERVICES["valkey"]["command"][1:])
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def ledger(postgres):
    """Yield the server with the role and the database that the image creates."""
    with postgres.connect() as connection:
        connection.execute("CREATE ROLE headrace LOGIN")
        connection.execute("CREATE DATABASE headrace OWNER headrace TEMPLATE template0")
    yield postgres
    with postgres.connect() as connection:
        connection.execute("DROP DATABASE headrace WITH (FORCE)")
        connection.execute("DROP ROLE headrace")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("compose")


@pytest.fixture(scope="module")
def replaced(folder, ledger, valkey, s3):
    """Return the texts of all services that differ on this machine."""
    (folder / "jobs.toml").write_text(SCALE_IN_SOON)
    servers = {
        "postgres:5432": f"127.0.0.1:{ledger.port}",
        "valkey:6379": f"127.0.0.1:{valkey.port}",
        "http://s3:8333": s3.endpoint,
    }
    models = shutil.copytree(FOLDER / "models", folder / "models")
    for settings in models.glob("*/model.toml"):
        settings.write_text(replace_texts(settings.read_text(), servers))
    return servers | {
        "/models": str(models),
        "/var/cache/headrace": str(folder / "cache"),
        "/etc/jobs.toml": str(folder / "jobs.toml"),
    }


def started(folder, replaced, name):
    """Start the command of a service."""
    # The first variable is the image's. With the other one, workers end soon.
    more = {"HEADRACE_CACHE": "/var/cache/headrace", "HEADRACE_WORK_CONFIG": "/etc/jobs.toml"}
    command, environ = SERVICES[name]["command"], SERVICES[name]["environment"] | more
    return ContainerProcess(folder, command, environ, replaced, listeners=LISTENERS[name])


@pytest.fixture(scope="module")
def deployed(folder, replaced):
    """Yield the services of headrace. At the end, SIGTERM must end each of them with status 0."""
    with ExitStack() as stack:
        services = {name: stack.enter_context(started(folder, replaced, name)) for name in LISTENERS}
        for process in services.values():
            process.wait_until_ready()
        yield services
        statuses = {name: process.terminate() for name, process in services.items()}
        assert statuses == dict.fromkeys(services, 0)


def address(process, listener):
    return f"127.0.0.1:{process.port(listener)}"


def client_of(deployed):
    return Client(f"http://{address(deployed['api'], 'jobs')}")


def infer(server: ContainerProcess, model, rows, **parameters):
    """Return the outputs of a request over REST by name."""
    tensor = {"name": "x", "shape": [len(rows), len(rows[0])], "datatype": "FP64", "data": rows}
    body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
    request = urllib.request.Request(f"http://{address(server, 'rest')}/v2/models/{model}/infer", body)
    with urllib.request.urlopen(request, timeout=WAIT_S) as response:
        return {output["name"]: output["data"] for output in json.load(response)["outputs"]}


def status_of(url, host):
    request = urllib.request.Request(url, headers={"host": host})
    try:
        with urllib.request.urlopen(request, timeout=WAIT_S) as response:
            return response.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def commands_of_the_first_lines():
    """Return the commands that the first comment of the file runs in containers, by service."""
    text = (FOLDER / "compose.yaml").read_text()
    return dict(re.findall(r"docker compose exec (\w+) (headrace .*)", text))


def run_inside(deployed, line):
    """Run a command of headrace as in a container, where servers have their usual ports."""
    environ = {
        "HEADRACE_SERVER": f"http://{address(deployed['api'], 'jobs')}",
        "HEADRACE_URL": f"http://{address(deployed['server'], 'rest')}",
    }
    command = [sys.executable, "-m", *shlex.split(line)]
    done = subprocess.run(
        command, env=os.environ | environ, capture_output=True, text=True, check=False, timeout=2 * WAIT_S
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_commands_of_the_first_lines_need_nothing_else(deployed):
    commands = commands_of_the_first_lines()
    assert "setosa" in run_inside(deployed, commands["api"])
    assert "2" in run_inside(deployed, commands["server"]).split()


def test_health_checks_see_the_services(deployed, ledger, s3):
    for name in ("api", "server"):
        wait_until(lambda name=name: deployed[name].probe(check_of(name)), f"the health of {name}")
    pg_isready, *options = check_of("postgres")
    subprocess.run([ledger.program(pg_isready), *options, "--port", str(ledger.port)], check=True)
    *wget, url = check_of("s3")
    assert wget == ["wget", "-q", "-O", "/dev/null"]
    assert status_of(replace_texts(url, {"8333": s3.endpoint.rpartition(":")[2]}), "localhost") == 200


def check_of(name):
    """Return the command of a health check."""
    kind, *command = SERVICES[name]["healthcheck"]["test"]
    assert kind == "CMD"
    return command


def test_jobs_read_and_write_the_permitted_prefixes(deployed, s3):
    flowers = csv_of(SETOSA, VIRGINICA)
    s3.client().put_object(Bucket="headrace", Key="in/flowers.csv", Body=HEADER + flowers)
    many = flowers * 40_000
    assert len(many) > INLINE_BYTES_MAX
    with client_of(deployed) as client:
        named = {"options": {"header": "names"}, "output_uri": "s3://headrace/out/", "key": "flowers"}
        stored = client.submit("iris", input_uri="s3://headrace/in/flowers.csv", **named)
        uploaded = client.submit("iris", many.encode(), content_type="text/csv")
        for job in (stored, uploaded):
            wait_completed(client, job.id)
        result = client.result(stored.id)
        assert re.fullmatch(rb"species,probability\nsetosa,0.98\d+\nvirginica,0.99\d+\n", result)
        assert client.result(uploaded.id).count(b"virginica") == 40_000
        for job in ({"input_uri": "s3://headrace/other/a.csv"}, {"input_uri": "s3://headrace/jobs/a.csv"}):
            with pytest.raises(ForbiddenError, match="not permitted"):
                client.submit("iris", **job)
        with pytest.raises(ForbiddenError, match="not permitted"):
            client.submit("iris", {"x": [SETOSA]}, output_uri="s3://headrace/in/")
    published = s3.client().get_object(Bucket="headrace", Key="out/flowers.out")["Body"].read()
    assert published == result


def test_large_payloads_go_through_the_api(deployed):
    """Clients of the host cannot resolve the name of the store."""
    request = urllib.request.Request(f"http://{address(deployed['api'], 'jobs')}/v1/uploads", method="POST")
    with urllib.request.urlopen(request, timeout=WAIT_S) as response:
        assert json.load(response)["url"].startswith("/v1/uploads/")


def csv_of(*rows):
    return "".join(",".join(map(str, row)) + "\n" for row in rows)


def test_worker_processes_end_after_the_last_job(deployed):
    worker = deployed["worker"]
    with client_of(deployed) as client:
        wait_completed(client, client.submit("iris", {"x": [SETOSA]}).id)
        wait_until(lambda: not psutil.Process(worker.pid).children(), "no worker process")
        (pool,) = client.pools()
        wanted = [decision["wanted"] for decision in client.decisions(pool["pool"])]
        assert max(wanted) == 1
    assert worker.log[0] == "ready: 0..4 workers"


def test_server_answers_rest_and_grpc(deployed):
    server = deployed["server"]
    assert infer(server, "iris", [SETOSA, VIRGINICA])["species"] == ["setosa", "virginica"]
    url = f"grpc://{address(server, 'grpc')}"
    printed = run_inside(deployed, f"headrace infer iris --url {url} --input {json.dumps([VIRGINICA])!r}")
    assert "virginica" in printed


def test_sequence_continues_in_another_server(deployed, folder, replaced):
    parameters = {"sequence_id": "b", "sequence_start": True}
    assert infer(deployed["server"], "running-sum", [[2]], **parameters) == {"sum": [2]}
    with started(folder, replaced, "server") as second:
        second.wait_until_ready()
        assert second.probe(check_of("server"))
        assert infer(second, "running-sum", [[3]], sequence_id="b") == {"sum": [5]}
        assert second.terminate() == 0
        assert not second.probe(check_of("server"))


@pytest.mark.parametrize(
    ("service", "listener", "path"),
    [
        ("api", "jobs", "/v1/queues"),
        ("api", "metrics", "/metrics"),
        ("server", "rest", "/v2/models/iris"),
        ("server", "metrics", "/metrics"),
    ],
)
def test_requests_for_other_host_names_are_refused(deployed, service, listener, path):
    """A page in a browser of this host must not reach the servers under a name of its own."""
    url = f"http://{address(deployed[service], listener)}{path}"
    found = {host: status_of(url, host) for host in ("localhost", service, "pages.example")}
    assert found == {"localhost": 200, service: 200, "pages.example": 403}


def test_listeners_are_the_ports_of_the_file():
    for name, listeners in LISTENERS.items():
        service = SERVICES[name]
        ports = [*service.get("ports", ()), *service.get("expose", ())]
        assert sorted(port.rpartition(":")[2] for port in ports) == sorted(listeners.values())


def test_other_containers_reach_the_listeners_with_keys_only(deployed, s3):
    """Of SeaweedFS, only S3 checks keys; the other servers must listen on loopback."""
    for name, listeners in LISTENERS.items():
        expected = {int(deployed[name].port(each)) for each in listeners}
        assert open_ports(psutil.Process(deployed[name].pid)) == expected
    assert open_ports(psutil.Process(s3._process.pid)) == {s3._ports["s3.port"], s3._ports["s3.port.grpc"]}


def open_ports(process):
    """Return the ports of a process that are not on loopback."""
    found = [each.laddr for each in process.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    return {each.port for each in found if each.ip != "127.0.0.1"}


def test_killed_valkey_keeps_its_data(tmp_path):
    server = ValkeyServer(tmp_path, *SERVICES["valkey"]["command"][1:])
    try:
        server.start()
        with server.client() as client:
            client.set("state", "kept")
        server.stop()
        server.start()
        with server.client() as client:
            assert client.get("state") == "kept"
    finally:
        server.stop()
