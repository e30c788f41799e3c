"""The deliverer on a manual clock: schedule, concurrency, leases, and faults of the outbox."""

import threading
from dataclasses import dataclass, field

import pytest
import standardwebhooks

from cases import for_each
from headrace.core.errors import ConfigError, HeadraceError
from headrace.jobs.notify import (
    Delivered,
    Notification,
    RetryLater,
    WebhookTarget,
    decode_secret,
    make_secret,
    verify,
)
from headrace.jobs.notify.deliverer import Deliverer, DelivererSettings, _Run
from headrace.jobs.notify.delivery import Dead, DeliveryPolicy, Done, RetryDelivery
from headrace.jobs.notify.notifiers import WebhookNotifier
from headrace.jobs.outbound import OutboundPolicy, OutboundTimeouts, parse_network
from headrace.jobs.outbound.client import OutboundClient
from headrace.testing import ManualClock, check_service
from jobs.memory_outbox import MemoryOutbox
from servers.receiver import Receiver, Reply, free_port

START_S = 1_700_000_000
SECRET = make_secret()
EXACT = DeliveryPolicy(jitter=0)
WAIT_S = 20.0
SELDOM = DelivererSettings(threads=4, poll_s=10**6)


@dataclass
class ScriptedNotifier:
    """A notifier with scripted answers for each receiver, which counts concurrent sends.

    A send to a receiver in `held` waits for the receiver's event.
    """

    answers: dict = field(default_factory=dict)
    held: dict = field(default_factory=dict)

    def __post_init__(self):
        self.sent = []
        self.concurrent_max = {}
        self.concurrent_total_max = 0
        self._now = {}
        self._changed = threading.Condition()

    def send(self, notification, target):
        name = target.receiver_id
        with self._changed:
            self.sent.append((name, notification.event_id))
            self._now[name] = self._now.get(name, 0) + 1
            self.concurrent_max[name] = max(self.concurrent_max.get(name, 0), self._now[name])
            self.concurrent_total_max = max(self.concurrent_total_max, sum(self._now.values()))
            self._changed.notify_all()
        try:
            if name in self.held:
                assert self.held[name].wait(WAIT_S)
            answer = self.answers.get(name, Delivered("HTTP 200"))
            if isinstance(answer, Exception):
                raise answer
            return answer
        finally:
            with self._changed:
                self._now[name] -= 1

    def wait_for(self, count):
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.sent) >= count, WAIT_S), self.sent


@pytest.fixture
def outbox():
    return MemoryOutbox(ManualClock(START_S))


@pytest.fixture
def run(outbox):
    """Return a function that starts deliverers over the outbox; stop them at the end."""
    running = []

    def start(notifier, *, settings=SELDOM, over=None, clock=None):
        deliverer = Deliverer(
            over or outbox, notifier, policy=EXACT, settings=settings, clock=clock or outbox.clock, seed=1
        )
        deliverer.start()
        running.append(deliverer)
        return deliverer

    yield start
    for deliverer in running:
        deliverer.stop()


def put(outbox, receiver_id, number=0, url="https://hooks.example/"):
    if outbox.receiver(receiver_id) is None:
        outbox.add_receiver(WebhookTarget(receiver_id, url, (SECRET,)))
    return outbox.put(
        Notification(f"evt_{receiver_id}_{number}", "job.completed", "job-1", START_S * 1000), receiver_id
    )


def wait_for(outbox, deliverer, count):
    """Return the first `count` decisions.

    Wake the deliverer repeatedly, because the test may move the clock before the deliverer sleeps.
    """
    for _ in range(int(WAIT_S / 0.02)):
        deliverer.wake()
        try:
            return outbox.wait_for_decisions(count, 0.02)
        except AssertionError:
            continue
    return outbox.wait_for_decisions(count, 0)


def test_deliverer_is_a_service(outbox):
    put(outbox, "a")
    check_service(lambda: Deliverer(outbox, ScriptedNotifier(), settings=SELDOM))


@for_each("wrong", [{"threads": 0}, {"lease_s": 0}, {"poll_s": 0}])
def test_invalid_settings_are_refused(wrong):
    with pytest.raises(ConfigError):
        DelivererSettings(**wrong)


def test_due_delivery_is_sent_and_recorded(outbox, run):
    ids = [put(outbox, name, n) for n in range(3) for name in "abc"]
    notifier = ScriptedNotifier()
    wait_for(outbox, run(notifier), 9)
    assert {outbox.delivery(i).state for i in ids} == {"delivered"}
    assert len(set(notifier.sent)) == len(notifier.sent) == 9
    # Notifications of one receiver are sent in the order of their due times.
    assert [event for name, event in notifier.sent if name == "a"] == ["evt_a_0", "evt_a_1", "evt_a_2"]


def test_failing_receiver_is_retried_on_schedule_until_http_410_disables_it(outbox, run):
    """One receiver is unreachable for an hour, then answers HTTP 500, then HTTP 410.

    All attempts have one event id. Other receivers are not affected.
    """
    port = free_port()
    with Receiver() as good:
        policy = OutboundPolicy(True, frozenset({port, good.port}), (parse_network("127.0.0.1"),))
        with OutboundClient(policy, timeouts=OutboundTimeouts(1, 1, 2)) as client:
            notifier = WebhookNotifier(client, wall_s=outbox.clock.now)
            bad_id = put(outbox, "bad", url=f"http://127.0.0.1:{port}/hook")
            waiting_id = put(outbox, "bad", 1)
            # Postpone the second delivery, so that all attempts are those of the first.
            outbox._deliveries[waiting_id].record = outbox.delivery(waiting_id).__class__(
                waiting_id, "bad", "evt_bad_1", "waiting", 0, (START_S + 10**6) * 1000
            )
            deliverer = run(notifier)
            at_s = []

            def attempt(number):
                """Send to `bad` and `good` at the same time. Return the decision for `bad`."""
                put(outbox, "good", number, url=good.url)
                decisions = wait_for(outbox, deliverer, 2 * number)[-2:]
                at_s.append(outbox.clock.now() - START_S)
                by_receiver = {claim.target.receiver_id: (claim, decision) for claim, decision in decisions}
                assert isinstance(by_receiver["good"][1].outcome, Done)
                claim, decision = by_receiver["bad"]
                assert (claim.attempt, claim.notification.event_id) == (number, "evt_bad_0")
                return decision

            def pass_until(decision):
                outbox.clock.advance(decision.outcome.at_ms / 1000 - outbox.clock.now())

            for number in range(1, 4):
                decision = attempt(number)
                assert "could not be reached" in decision.outcome.why
                pass_until(decision)
            decision = attempt(4)
            with Receiver(port=port) as bad:
                bad.replies = [Reply(500), Reply(500), Reply(410)]
                # The deliverer sends as soon as the clock moves, so the receiver must listen
                # before.
                pass_until(decision)
                assert outbox.clock.now() - START_S > 3600
                for number in range(5, 7):
                    decision = attempt(number)
                    assert decision.outcome.why == "HTTP 500"
                    pass_until(decision)
                decision = attempt(7)
                assert isinstance(decision.outcome, Dead)
                assert {r.headers["webhook-id"] for r in bad.requests} == {"evt_bad_0"}
                stamps = [int(r.headers["webhook-timestamp"]) - START_S for r in bad.requests]
                assert stamps == at_s[4:]
            assert at_s == [0, 5, 305, 2105, 9305, 27_305, 63_305]
            assert "410" in outbox.receiver("bad").disabled_why
            assert [r.delivery_id for r in outbox.dead_letters(9)] == [bad_id]
            # The waiting delivery of the disabled receiver stays. The good receiver still receives.
            outbox.clock.advance(10**7)
            put(outbox, "good", 99, url=good.url)
            wait_for(outbox, deliverer, 15)
            assert outbox.delivery(waiting_id).state == "waiting"
            assert len(good.requests) == 8


def test_dead_letter_is_redelivered_with_its_event_id(outbox, run):
    notifier = ScriptedNotifier({"a": RetryLater("HTTP 500")})
    delivery_id = put(outbox, "a")
    deliverer = run(notifier)
    for number in range(1, 11):
        (_, decision) = wait_for(outbox, deliverer, number)[-1]
        if isinstance(decision.outcome, RetryDelivery):
            outbox.clock.advance(decision.outcome.at_ms / 1000 - outbox.clock.now())
    assert outbox.delivery(delivery_id).state == "dead"
    notifier.answers.clear()
    assert outbox.redeliver(delivery_id)
    claim, decision = wait_for(outbox, deliverer, 11)[-1]
    assert (claim.attempt, isinstance(decision.outcome, Done)) == (1, True)
    assert {event for _, event in notifier.sent} == {"evt_a_0"}


def test_hanging_receiver_does_not_delay_others(outbox, run):
    held = threading.Event()
    notifier = ScriptedNotifier(held={"slow": held})
    for number in range(5):
        put(outbox, "slow", number)
        put(outbox, "quick", number)
    deliverer = run(notifier, settings=DelivererSettings(threads=2, poll_s=10**6))
    decisions = wait_for(outbox, deliverer, 5)
    assert {claim.target.receiver_id for claim, _ in decisions} == {"quick"}
    assert [name for name, _ in notifier.sent].count("slow") == 1
    held.set()
    wait_for(outbox, deliverer, 10)
    assert notifier.concurrent_max == {"slow": 1, "quick": 1}


def test_threads_limit_concurrent_attempts(outbox, run):
    held = threading.Event()
    names = [f"e{n}" for n in range(9)]
    notifier = ScriptedNotifier(held=dict.fromkeys(names, held))
    for name in names:
        put(outbox, name)
    deliverer = run(notifier, settings=DelivererSettings(threads=3, poll_s=10**6))
    notifier.wait_for(3)
    deliverer.wake()
    held.set()
    wait_for(outbox, deliverer, 9)
    # Claims are limited to free threads, so that no lease expires in a queue.
    assert (notifier.concurrent_total_max, outbox.most_claimed) == (3, 3)


def test_two_deliverers_share_an_outbox(outbox, run):
    notifier = ScriptedNotifier()
    ids = [put(outbox, f"e{n % 7}", n) for n in range(70)]
    first, second = run(notifier), run(notifier)
    for _ in range(70):
        second.wake()
    wait_for(outbox, first, 70)
    assert {outbox.delivery(i).state for i in ids} == {"delivered"}
    assert len(notifier.sent) == len(set(notifier.sent)) == 70
    assert set(notifier.concurrent_max.values()) == {1}


def test_late_response_is_delivered_twice_with_one_id(outbox, run):
    """The receiver answers after the timeout. The id marks the second delivery as a repetition."""
    gave_up = threading.Event()
    with Receiver() as receiver:

        def slow_then_quick(request):
            if len(receiver.requests) == 1:
                # The receiver holds its lock meanwhile, and no other request needs the lock.
                assert gave_up.wait(WAIT_S)
            return Reply(200)

        receiver.answer = slow_then_quick
        policy = OutboundPolicy(True, frozenset({receiver.port}), (parse_network("127.0.0.1"),))
        with OutboundClient(policy, timeouts=OutboundTimeouts(1, 0.3, 0.5)) as client:
            put(outbox, "a", url=receiver.url)
            deliverer = run(WebhookNotifier(client, wall_s=outbox.clock.now))
            (_, decision) = wait_for(outbox, deliverer, 1)[-1]
            assert isinstance(decision.outcome, RetryDelivery)
            gave_up.set()
            outbox.clock.advance(5)
            (_, decision) = wait_for(outbox, deliverer, 2)[-1]
            assert isinstance(decision.outcome, Done)
            deliverer.stop()
    assert [r.headers["webhook-id"] for r in receiver.requests] == ["evt_a_0"] * 2


@pytest.mark.parametrize("off_s", [0, 600, -600])
def test_signature_has_outbox_time_instead_of_host_time(outbox, run, off_s, monkeypatch):
    """The timestamp is correct even if the host's clock is ten minutes wrong."""
    monkeypatch.setattr("time.time", lambda: START_S + off_s)
    with Receiver() as receiver:
        policy = OutboundPolicy(True, frozenset({receiver.port}), (parse_network("127.0.0.1"),))
        with OutboundClient(policy) as client:
            put(outbox, "a", url=receiver.url)
            wait_for(outbox, run(WebhookNotifier(client, wall_s=lambda: outbox.now_ms() / 1000)), 1)
    (request,) = receiver.requests
    assert verify([decode_secret(SECRET)], request.headers, request.body, now_s=START_S) == "evt_a_0"
    with pytest.raises(standardwebhooks.WebhookVerificationError, match="old"):
        standardwebhooks.Webhook(SECRET).verify(request.body, request.headers)


def test_raising_notifier_costs_an_attempt_only(outbox, run, caplog):
    put(outbox, "a")
    put(outbox, "b")
    deliverer = run(
        ScriptedNotifier({"a": RuntimeError("hunter2")}), settings=DelivererSettings(threads=1, poll_s=10**6)
    )
    decisions = {
        claim.target.receiver_id: decision.outcome for claim, decision in wait_for(outbox, deliverer, 2)
    }
    assert decisions["a"] == RetryDelivery(START_S * 1000 + 5000, "internal error")
    assert isinstance(decisions["b"], Done)
    assert "failed unexpectedly" in caplog.text


class FailingOutbox(MemoryOutbox):
    """An outbox whose methods fail as many times as `faults` says."""

    def __post_init__(self):
        super().__post_init__()
        self.faults = {}

    def fail(self, verb):
        if self.faults.get(verb, 0) > 0:
            self.faults[verb] -= 1
            raise HeadraceError(f"{verb}: the database is away") if self.faults[verb] % 2 else OSError(verb)

    def claim(self, limit, lease_ms):
        self.fail("claim")
        return super().claim(limit, lease_ms)

    def next_due_at_ms(self):
        self.fail("next_due")
        return super().next_due_at_ms()

    def record(self, claim, decision):
        self.fail("record")
        return super().record(claim, decision)


def test_unavailable_outbox_is_retried_until_it_is_back(run, caplog):
    outbox = FailingOutbox(ManualClock(START_S, auto=True))
    outbox.faults = {"claim": 50, "next_due": 20}
    put(outbox, "a")
    deliverer = run(ScriptedNotifier(), over=outbox, clock=outbox.clock, settings=DelivererSettings(poll_s=1))
    wait_for(outbox, deliverer, 1)
    assert outbox.faults["claim"] == 0
    assert max(outbox.clock.slept_s) <= 30


@pytest.mark.parametrize("times", [1, 2])
def test_unrecorded_attempt_is_repeated_after_its_lease_with_its_id(run, times):
    outbox = FailingOutbox(ManualClock(START_S))
    outbox.faults = {"record": times}
    put(outbox, "a")
    notifier = ScriptedNotifier()
    deliverer = run(notifier, over=outbox, clock=outbox.clock)
    for sent in range(1, times + 1):
        notifier.wait_for(sent)
        outbox.clock.wait_for_sleepers()
        for _ in range(1000):
            if outbox.faults["record"] == times - sent:
                break
            deliverer.wake()
            outbox.clock.wait_for_sleepers()
        outbox.clock.advance(SELDOM.lease_s)
        deliverer.wake()
    claim, _ = wait_for(outbox, deliverer, 1)[-1]
    assert claim.attempt == times + 1
    assert set(notifier.sent) == {("a", "evt_a_0")}


def test_notification_whose_leases_all_expired_is_given_up(outbox, run):
    """The leases of ten earlier attempts expired without a recorded result."""
    delivery_id = put(outbox, "a")
    for _ in range(10):
        assert outbox.claim(1, 1000)
        outbox.advance(1000)
    notifier = ScriptedNotifier()
    (claim, decision) = wait_for(outbox, run(notifier), 1)[-1]
    assert (claim.attempt, notifier.sent) == (11, [])
    assert isinstance(decision.outcome, Dead)
    assert outbox.delivery(delivery_id).state == "dead"


def test_attempt_beyond_its_lease_records_nothing(outbox, run, caplog):
    held = threading.Event()
    notifier = ScriptedNotifier(held={"a": held})
    delivery_id = put(outbox, "a")
    deliverer = run(notifier)
    notifier.wait_for(1)
    outbox.clock.advance(SELDOM.lease_s)
    (other,) = outbox.claim(1, 10**9)
    held.set()
    deliverer.stop()
    assert (outbox.decisions, outbox.delivery(delivery_id).state, other.attempt) == ([], "claimed", 2)
    assert "exceeded its lease" in caplog.text


@pytest.mark.parametrize("drain", [True, False])
def test_stop_waits_for_running_attempts_and_claims_nothing(outbox, run, drain):
    held = threading.Event()
    notifier = ScriptedNotifier(held={"a": held})
    first, second = put(outbox, "a", 0), put(outbox, "a", 1)
    deliverer = run(notifier)
    notifier.wait_for(1)
    stopping = threading.Thread(target=deliverer.stop, kwargs={"drain": drain})
    stopping.start()
    held.set()
    stopping.join(WAIT_S)
    assert not stopping.is_alive()
    assert outbox.delivery(first).state == "delivered"
    # The deliverer may claim the second delivery just before the stop. It then delivers or releases
    # this delivery.
    assert outbox.delivery(second).state in {"waiting", "delivered"}


def test_stop_without_drain_releases_claims_that_have_not_begun(outbox):
    delivery_id = put(outbox, "a")
    notifier = ScriptedNotifier()
    (claim,) = outbox.claim(1, 60_000)
    ended = _Run(1)
    ended.end(drain=False)
    Deliverer(outbox, notifier)._deliver(ended, claim)
    record = outbox.delivery(delivery_id)
    assert (record.state, record.attempts, notifier.sent) == ("waiting", 0, [])


def test_wake_before_start_does_nothing(outbox):
    Deliverer(outbox, ScriptedNotifier()).wake()
