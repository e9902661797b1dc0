"""What is asked of the C library, and that nothing is where it is another one."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from contrasent import profiling
from contrasent.profiling import give_back_freed_memory, keep_freed_memory

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h


class Musl:
    """A C library without these functions."""


class Glibc:
    def __init__(self):
        self.asked = []

    def mallopt(self, option, value):
        self.asked.append((option, value))

    def malloc_trim(self, pad):
        self.asked.append(("trim", pad))


def test_glibc_is_asked_for_what_is_meant(monkeypatch):
    library = Glibc()
    monkeypatch.setattr(profiling.sys, "platform", "linux")
    monkeypatch.setattr(profiling.ctypes, "CDLL", lambda _: library)
    keep_freed_memory()
    assert sorted(library.asked) == [(M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1)]
    library.asked.clear()
    give_back_freed_memory()
    assert library.asked == [("trim", 0)]


@pytest.mark.parametrize("call", [keep_freed_memory, give_back_freed_memory])
@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_nothing_is_done_on_other_systems(platform, call, monkeypatch):
    monkeypatch.setattr(profiling.ctypes, "CDLL", lambda _: pytest.fail("there is no such library"))
    monkeypatch.setattr(profiling.sys, "platform", platform)
    call()


@pytest.mark.parametrize("call", [keep_freed_memory, give_back_freed_memory])
def test_nothing_is_done_with_another_c_library(call, monkeypatch):
    monkeypatch.setattr(profiling.sys, "platform", "linux")
    monkeypatch.setattr(profiling.ctypes, "CDLL", lambda _: Musl())
    call()


def test_both_can_be_called_anywhere_and_again():
    def work(seed):
        keep_freed_memory()
        x = torch.full((1000, 100), float(seed))
        give_back_freed_memory()
        return x.sum().item()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(8))) == [seed * 100_000 for seed in range(8)]
