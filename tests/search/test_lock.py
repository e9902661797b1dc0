import multiprocessing
import subprocess
import sys
import threading

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


def test_threads_never_hold_it_together(tmp_path):
    inside, most, entered = 0, 0, 0
    guard = threading.Lock()

    def work():
        nonlocal inside, most, entered
        for _ in range(200):
            try:
                with exclusive(tmp_path / "folder"):
                    with guard:
                        inside, entered = inside + 1, entered + 1
                        most = max(most, inside)
                    with guard:
                        inside -= 1
            except ConfigError:
                continue

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1 and entered > 0


def _count(folder, counter, times):
    done = 0
    while done < times:
        try:
            with exclusive(folder):
                counter.write_text(str(int(counter.read_text()) + 1))
            done += 1
        except ConfigError:
            continue


def test_processes_lose_no_update(tmp_path):
    counter = tmp_path / "counter"
    counter.write_text("0")
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=_count, args=(tmp_path / "folder", counter, 60)) for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert counter.read_text() == "120"
