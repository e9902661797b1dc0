"""What is asked of the C library, and that nothing is where it is another one."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import torch

from contrasent import profiling
from contrasent.profiling import give_back_freed_memory, keep_freed_memory

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def test_glibc_is_asked_for_what_is_meant(monkeypatch):
    asked = []
    library = SimpleNamespace(
        mallopt=lambda *option: asked.append(option), malloc_trim=asked.append
    )
    monkeypatch.setattr(profiling.sys, "platform", "linux")
    monkeypatch.setattr(profiling.ctypes, "CDLL", lambda _: library)
    keep_freed_memory()
    assert sorted(asked) == [(M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1)]
    give_back_freed_memory()
    assert asked[2:] == [0]


def test_both_can_be_called_anywhere_and_again():
    def work(seed):
        keep_freed_memory()
        x = torch.full((1000, 100), float(seed))
        give_back_freed_memory()
        return x.sum().item()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(8))) == [seed * 100_000 for seed in range(8)]
