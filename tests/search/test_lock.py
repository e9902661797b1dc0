import multiprocessing
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from contrasent.errors import ConfigError
from contrasent.files import exclusive


def _count(folder, counter, times):
    done = 0
    while done < times:
        try:
            with exclusive(folder):
                counter.write_text(str(int(counter.read_text()) + 1))
            done += 1
        except ConfigError:
            continue


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_no_update_is_lost(kind, tmp_path):
    counter = tmp_path / "counter"
    counter.write_text("0")
    spawn = multiprocessing.get_context("spawn")
    pool = ThreadPoolExecutor(4) if kind == "threads" else ProcessPoolExecutor(4, spawn)
    with pool:
        for done in [pool.submit(_count, tmp_path / "folder", counter, 30) for _ in range(4)]:
            done.result()
    assert counter.read_text() == "120"
