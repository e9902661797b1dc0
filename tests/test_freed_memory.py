"""What is asked of the C library, and that nothing is where it is another one."""

from types import SimpleNamespace

from contrasent.model.backbones import base
from contrasent.model.backbones.base import give_back_freed_memory, keep_freed_memory

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's malloc.h


def test_glibc_is_asked_for_what_is_meant(monkeypatch):
    asked = []
    library = SimpleNamespace(
        mallopt=lambda *option: asked.append(option), malloc_trim=asked.append
    )
    monkeypatch.setattr(base.sys, "platform", "linux")
    monkeypatch.setattr(base.ctypes, "CDLL", lambda _: library)
    keep_freed_memory()
    assert sorted(asked) == [(M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1)]
    give_back_freed_memory()
    assert asked[2:] == [0]
