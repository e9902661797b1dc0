from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from contrasent.model.precision import WeightCache


class Maker:
    """Makes something new each time, and counts."""

    def __init__(self):
        self.times = 0

    def __call__(self):
        self.times += 1
        return object()


def test_threads_hold_together():
    kept, make, threads = WeightCache(), Maker(), 8
    inside, asked = Barrier(threads), Barrier(threads)

    def hold(_):
        with kept:
            inside.wait(timeout=10)
            found = kept.get("key", make)
            asked.wait(timeout=10)
            return found, kept.get("key", make) is kept.get("key", make), kept.is_open

    with kept:
        first = kept.get("key", make)
        with ThreadPoolExecutor(threads) as pool:
            results = list(pool.map(hold, range(threads)))
    assert results == [(first, True, True)] * threads
    assert make.times == 1
    assert not kept.is_open
