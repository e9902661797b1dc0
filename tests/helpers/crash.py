"""Commands that end, or find the disk full, at a chosen file operation: each in a forked process.

The operations are those that Python's audit events tell of (opening for writing, renaming,
removing, making folders), ``fsync``, the parts of a file that is appended to, and the calls of
native writers, which stand in :data:`NATIVE`: all below the folder that a command works in.
"""

import builtins
import errno
import io
import multiprocessing
import os
import re
import shutil
import signal
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import connection
from pathlib import Path
from unittest import mock

KILL, FULL, READ_ONLY, PAUSE = "kill", "full", "read-only", "pause"
_ERRORS = {FULL: errno.ENOSPC, READ_ONLY: errno.EROFS}
_FREEING = ("os.remove", "os.rmdir")  # a full disk still removes files
_CHANGING = {"os.rename": 2, "os.remove": 1, "os.mkdir": 1, "os.rmdir": 1, "os.link": 2}
_CHANGING |= {"os.symlink": 2, "os.truncate": 1}
NATIVE = {"safetensors.torch.serialize_file": 1, "faiss.write_index": 1}
"""Writers that are not in Python, with the place of the path among their arguments."""
_CLOCK = re.compile(
    rb'"(examples|overhead|peak_memory|written|[a-z_]*(?:seconds?|speed)[a-z_]*)": [-+.e\d]+'
)
_CHANGES_EVERY_TIME = ("log.txt", ".journal")
_OF_OTHERS = "milvus.db"
"""A folder whose files another library names and counts: what it gives back is compared."""


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit code or negative signal, its words, its file operations."""

    code: int
    said: str
    operations: tuple


class Operations:
    """Counts file operations below a folder, and acts at one of them."""

    def __init__(self, folder, at, act, listed):
        self.folder, self.at, self.act, self.count = str(folder), at, act, 0
        self.listed = listed

    def __call__(self, event, path):
        """Count an operation on ``path``, and act before it if it is the chosen one."""
        if not self.holds(path) or self.changes_nothing(event, path):
            return
        self.count += 1
        if not self.at:
            print(event, path, file=self.listed, flush=True)
        elif self.act in _ERRORS:
            if self.count >= self.at and (self.act == READ_ONLY or event not in _FREEING):
                raise OSError(_ERRORS[self.act], os.strerror(_ERRORS[self.act]), path)
        elif self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL if self.act == KILL else signal.SIGSTOP)

    def changes_nothing(self, event, path):
        """Whether an operation fails, or finds its work done."""
        there = os.path.lexists(path)
        return there if event == "os.mkdir" else event in _FREEING and not there

    def holds(self, path):
        return str(Path(path).absolute()).startswith(self.folder)

    def hear(self, event, args):
        """Take an audit event."""
        if event == "open":
            path, mode, flags = args
            if isinstance(path, str | bytes | os.PathLike):
                writes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
                if writes or set(mode or "") & set("wax+"):
                    self(event, os.fsdecode(path))
        elif event in _CHANGING:
            path, inside = args[_CHANGING[event] - 1], args[-1]
            relative = event in (*_FREEING, "os.mkdir") and inside > 0
            root = _path_of(inside) if relative else Path()
            self(event, str(root / os.fsdecode(path)))

    def install(self):
        """Count from here on, to the end of the process."""
        opened = builtins.open

        def open_file(file, mode="r", *args, **how):
            stream = opened(file, mode, *args, **how)
            appends = "a" in mode and isinstance(file, str | os.PathLike) and self.holds(file)
            return _Torn(stream, self, os.fspath(file)) if appends else stream

        builtins.open = io.open = open_file
        os.fsync = lambda number: self("fsync", _path_of(number))
        for name, place in NATIVE.items():
            module, _, function = name.rpartition(".")
            module = import_module(module)
            native = _native(getattr(module, function), name, place, self)
            setattr(module, function, native)
        sys.addaudithook(self.hear)


def _path_of(number):
    """The file or folder that has a descriptor."""
    return Path(f"/proc/self/fd/{number}").readlink()


class _Torn:
    """A file that is appended to, whose process may end within a line."""

    def __init__(self, stream, operations, path):
        self.__dict__.update(_stream=stream, _operations=operations, _path=path)

    def __getattr__(self, name):
        return getattr(self._stream, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._stream.close()

    def write(self, content):
        half = len(content) // 2
        self._stream.write(content[:half])
        self._stream.flush()
        self._operations("write", self._path)
        return half + self._stream.write(content[half:])


def _native(function, name, place, operations):
    def write(*args, **how):
        path = os.fspath(args[place])
        try:
            operations(name, path)
            result = function(*args, **how)
            if operations.act == KILL and operations.count + 1 == operations.at:
                os.truncate(path, Path(path).stat().st_size // 2)
            operations(f"half of {name}", path)
        except OSError as error:
            raise RuntimeError(f"I/O error: {error.strerror} (os error {error.errno})") from error
        return result

    return write


def run(words, folder, at=0, act=KILL, wait=True):
    """Run a command in ``folder``, with its cache there; act before operation ``at``, from 1.

    ``words`` are those after ``contrasent``, or a function and its arguments. With ``wait=False``
    the process is returned, for :func:`end_of`.
    """
    said = folder.parent / f"said-{os.urandom(4).hex()}"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["helpers.crash_imports"])
    process = context.Process(target=_child, args=(words, folder, at, act, said))
    process.said = said
    process.start()
    return end_of(process) if wait else process


def end_of(process):
    """Wait for a process of :func:`run`."""
    process.join()
    said = process.said.read_text(errors="replace") if process.said.exists() else ""
    listed = process.said.with_suffix(".operations")
    operations = tuple(listed.read_text().splitlines()) if listed.exists() else ()
    for path in (process.said, listed):
        path.unlink(missing_ok=True)
    return Ended(process.exitcode, said, operations)


def stops(process, seconds):
    """Whether a process stops itself within ``seconds``, rather than end."""
    for _ in range(int(seconds * 20)):
        if connection.wait([process.sentinel], 0.05):
            return False
        state = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "T":
            return True
    return False


def _child(words, folder, at, act, said):
    with said.open("wb", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.stdout, sys.stderr = (os.fdopen(number, "w", 1) for number in (1, 2))
    os.chdir(folder)
    os.environ |= {
        "CONTRASENT_CACHE": str(folder / "cache"),
        "XDG_DATA_HOME": str(folder / "share"),
        "PWD": str(folder),
        "COLUMNS": "80",
    }
    listed = said.with_suffix(".operations").open("w")
    operations = Operations(folder, at, act, listed)
    from contrasent.cli.app import main

    with ExitStack() as ending:
        ending.callback(listed.close)
        operations.install()
        if callable(words[0]):
            words[0](*words[1:])
            return
        with mock.patch.object(sys, "argv", ["contrasent", *map(str, words)]):
            main()


def contents(folder):
    """Every path below ``folder``, and the bytes of the files without what the clock decides."""
    return {
        str(path.relative_to(folder)): _bytes(path) if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if _OF_OTHERS not in path.parent.parts
    }


def _bytes(path):
    if path.name.endswith(_CHANGES_EVERY_TIME):
        return b""
    content = path.read_bytes()
    return _CLOCK.sub(rb'"\1": 0', content) if b"\0" not in content else content


def fresh(template, folder):
    """Make ``folder`` what ``template`` is."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(template, folder, symlinks=True)


def differences(found, expected):
    """In words, how two results of :func:`contents` differ."""
    paths = sorted({*found, *expected})
    return [
        *(f"left over: {path}" for path in paths if path not in expected),
        *(f"missing: {path}" for path in paths if path not in found),
        *(
            f"differs: {path} {_first_difference(found[path], expected[path])}"
            for path in paths
            if path in expected and path in found and found[path] != expected[path]
        ),
    ]


def _first_difference(found, expected):
    """What two files have where they begin to differ."""
    pairs = enumerate(zip(found or b"", expected or b"", strict=False))
    start = max(next((n for n, (one, other) in pairs if one != other), 0) - 40, 0)
    return (found or b"")[start : start + 80], (expected or b"")[start : start + 80]
