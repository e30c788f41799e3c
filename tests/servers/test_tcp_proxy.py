"""The proxy that faults of databases and queues are made with, before a real PostgreSQL."""

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


def test_what_is_asked_of_nothing_passes_as_it_is(proxy):
    with _connect(proxy) as session:
        assert session.execute(WIDE).fetchone() == ("x" * 1_000_000,)
        assert proxy.connections == 1
    proxy.wait_until_open(0)
    assert proxy.opened == 1
    assert proxy.passed_bytes[Way.DOWN] > 1_000_000 > proxy.passed_bytes[Way.UP] > 0


@pytest.mark.parametrize("way", Way)
def test_what_is_held_passes_when_it_is_healed(proxy, pool, way):
    with _connect(proxy) as session:
        proxy.hold(way)
        answer = pool.submit(_one, session)
        proxy.wait_until_held(way)
        with pytest.raises(NotYetError):
            answer.result(0.05)
        proxy.heal()
        assert answer.result(10) == (1,)


def test_who_comes_while_it_holds_is_accepted_and_hears_nothing(proxy, pool):
    proxy.hold()
    coming = pool.submit(_connect, proxy)
    proxy.wait_until_held(Way.UP)
    assert not coming.done()
    proxy.heal()
    with coming.result(10) as session:
        assert _one(session) == (1,)


def test_a_held_server_does_not_see_that_its_client_has_gone(proxy, postgres):
    def sessions() -> int:
        with postgres.connect() as behind:
            asked = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'held'"
            return behind.execute(asked).fetchone()[0]

    session = _connect(proxy)
    session.execute("SET application_name = 'held'")
    proxy.hold()
    session.close()
    proxy.wait_until_held(Way.UP)
    assert sessions() == 1
    proxy.heal()
    proxy.wait_until_open(0)


def test_a_reset_ends_what_is_open_and_nothing_else(proxy):
    sessions = [_connect(proxy) for _ in range(3)]
    proxy.reset()
    for session in sessions:
        with pytest.raises(psycopg.OperationalError):
            _one(session)
    with _connect(proxy) as session:
        assert _one(session) == (1,)


def test_a_reset_takes_what_is_held_with_it(proxy, pool):
    session = _connect(proxy)
    proxy.hold(Way.DOWN)
    answer = pool.submit(_one, session)
    proxy.wait_until_held(Way.DOWN)
    proxy.reset()
    with pytest.raises(psycopg.OperationalError):
        answer.result(10)
    proxy.heal()
    proxy.wait_until_open(0)


def test_refused_is_a_closed_port_until_it_is_healed(proxy):
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
def test_an_answer_is_cut_after_so_many_bytes_once(proxy, count):
    session = _connect(proxy)
    before = proxy.passed_bytes[Way.DOWN]
    proxy.cut_after(count, Way.DOWN)
    with pytest.raises(psycopg.OperationalError):
        session.execute(WIDE)
    assert proxy.passed_bytes[Way.DOWN] - before == count
    with _connect(proxy) as later:
        assert later.execute(WIDE).fetchone() == ("x" * 1_000_000,)


def test_an_order_is_cut_before_the_server_has_all_of_it(proxy, postgres, postgres_url):
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


def test_each_piece_is_late_by_the_delay(proxy):
    with _connect(proxy) as session:
        proxy.delay_s = 0.05
        began = time.monotonic()
        assert _one(session) == (1,)
        assert time.monotonic() - began >= 0.1


def test_a_server_that_is_not_there_resets_its_clients(postgres):
    with TcpProxy(1) as proxy, pytest.raises(psycopg.OperationalError):
        _connect(proxy)
