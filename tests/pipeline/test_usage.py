from headrace.pipeline.usage import cpu_s, peak_memory_mb


def test_work_costs_processor_time():
    before = cpu_s()
    while cpu_s() == before:
        sum(range(10_000))
    assert cpu_s() > before


def test_peak_memory_is_in_mebibytes_and_never_falls():
    before = peak_memory_mb()
    held = bytearray(64 << 20)
    held[:: 1 << 12] = bytes(len(held) >> 12)
    after = peak_memory_mb()
    del held
    assert after > 64
    assert peak_memory_mb() >= after >= before
