from headrace.server.observation import ResponseCounters


def test_responses_are_counted_by_action_and_status():
    counters = ResponseCounters("rest")
    for status in (200, 200, 404):
        counters.sent["infer", status] += 1
    counters.sent["infer_stream", 200] += 1
    counters.broken["infer_stream", 500] += 1
    assert counters.protocol == "rest"
    assert counters.sent == {("infer", 200): 2, ("infer", 404): 1, ("infer_stream", 200): 1}
    assert counters.broken == {("infer_stream", 500): 1}
