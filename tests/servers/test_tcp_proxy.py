"""The proxy before a real PostgreSQL."""

import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYetError

import psycopg
import pytest

from servers.tcp_proxy import TcpProxy, Way

pytestmark = pytest.mark.postgres
WIDE = "SELECT repeat('x', 1000000)"


@pytest.fixture
def proxy(postgres):
    with TcpProxy(postgres.port) as opened:
        yield opened


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as threads:
        yield threads


def _connect(proxy: TcpProxy, timeout_s: int = 10) -> psycopg.Connection:
    return psycopg.connect(
        host=proxy.host, port=proxy.port, user="postgres", autocommit=True, connect_timeout=timeout_s
    )


def _one(session: psycopg.Connection) -> tuple[int]:
    return session.execute("SELECT 1").fetchone()


def test_proxy_without_faults_forwards_all_bytes(proxy):
    with _connect(proxy) as session:
        assert session.execute(WIDE).fetchone() == ("x" * 1_000_000,)
        assert proxy.connections == 1
    proxy.wait_until_open(0)
    assert proxy.opened == 1
    assert proxy.passed_bytes[Way.DOWN] > 1_000_000 > proxy.passed_bytes[Way.UP] > 0


@pytest.mark.parametrize("way", Way)
def test_held_bytes_pass_after_heal(proxy, pool, way):
    with _connect(proxy) as session:
        proxy.hold(way)
        response = pool.submit(_one, session)
        proxy.wait_until_held(way)
        with pytest.raises(NotYetError):
            response.result(0.05)
        proxy.heal()
        assert response.result(10) == (1,)


def test_new_connection_while_held_is_accepted_and_silent(proxy, pool):
    proxy.hold()
    connecting = pool.submit(_connect, proxy)
    proxy.wait_until_held(Way.UP)
    assert not connecting.done()
    proxy.heal()
    with connecting.result(10) as session:
        assert _one(session) == (1,)


def test_server_does_not_see_a_held_close(proxy, postgres):
    def sessions() -> int:
        with postgres.connect() as behind:
            query = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'held'"
            return behind.execute(query).fetchone()[0]

    session = _connect(proxy)
    session.execute("SET application_name = 'held'")
    proxy.hold()
    session.close()
    proxy.wait_until_held(Way.UP)
    assert sessions() == 1
    proxy.heal()
    proxy.wait_until_open(0)


def test_reset_ends_open_connections_only(proxy):
    sessions = [_connect(proxy) for _ in range(3)]
    proxy.reset()
    for session in sessions:
        with pytest.raises(psycopg.OperationalError):
            _one(session)
    with _connect(proxy) as session:
        assert _one(session) == (1,)


def test_reset_ends_held_connections(proxy, pool):
    session = _connect(proxy)
    proxy.hold(Way.DOWN)
    response = pool.submit(_one, session)
    proxy.wait_until_held(Way.DOWN)
    proxy.reset()
    with pytest.raises(psycopg.OperationalError):
        response.result(10)
    proxy.heal()
    proxy.wait_until_open(0)


def test_refused_port_is_closed_until_heal(proxy):
    session, port = _connect(proxy), proxy.port
    proxy.refuse()
    with pytest.raises(psycopg.OperationalError):
        _one(session)
    with pytest.raises(psycopg.OperationalError, match="refused"):
        _connect(proxy)
    proxy.heal()
    assert proxy.port == port
    with _connect(proxy) as later:
        assert _one(later) == (1,)


@pytest.mark.parametrize("count", [0, 1, 70_000])
def test_response_is_cut_once_after_count_bytes(proxy, count):
    session = _connect(proxy)
    before = proxy.passed_bytes[Way.DOWN]
    proxy.cut_after(count, Way.DOWN)
    with pytest.raises(psycopg.OperationalError):
        session.execute(WIDE)
    assert proxy.passed_bytes[Way.DOWN] - before == count
    with _connect(proxy) as later:
        assert later.execute(WIDE).fetchone() == ("x" * 1_000_000,)


def test_statement_is_cut_before_the_server_has_all_of_it(proxy, postgres, postgres_url):
    name = postgres_url.rpartition("/")[2]
    with postgres.connect(name) as behind:
        behind.execute("CREATE TABLE word (word text)")
        with psycopg.connect(
            host=proxy.host, port=proxy.port, user="postgres", dbname=name, autocommit=True
        ) as session:
            proxy.cut_after(10, Way.UP)
            with pytest.raises(psycopg.OperationalError):
                session.execute("INSERT INTO word VALUES ('cut')")
        assert behind.execute("SELECT count(*) FROM word").fetchone() == (0,)


def test_delay_applies_to_each_piece(proxy):
    with _connect(proxy) as session:
        proxy.delay_s = 0.05
        begun_s = time.monotonic()
        assert _one(session) == (1,)
        assert time.monotonic() - begun_s >= 0.1


def test_unreachable_server_resets_clients(postgres):
    with TcpProxy(1) as proxy, pytest.raises(psycopg.OperationalError):
        _connect(proxy)
