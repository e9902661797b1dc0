import multiprocessing
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from contrasent.errors import ConfigError
from contrasent.files import exclusive

HOLD = """
import sys, time
from contrasent.files import exclusive
with exclusive(sys.argv[1]):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "folder")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_another_process_is_named(holder, tmp_path):
    with (
        pytest.raises(ConfigError, match=f"is being written by process {holder.pid}; wait"),
        exclusive(tmp_path / "folder"),
    ):
        pass


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
