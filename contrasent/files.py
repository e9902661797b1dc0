"""Files, locks and the cache: a name never holds half a file, a folder has one writer at a time."""

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from glob import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from contrasent.errors import CheckpointError, ConfigError, logger

T = TypeVar("T")

_DAMAGE = (OSError, ValueError, LookupError, TypeError)
_PATIENCE = 0.1  # seconds: a lock file that its last holder removes at this moment is made anew


@contextmanager
def writing(path: str | Path) -> Iterator[Path]:
    """Yield a name beside ``path`` to write to; it becomes ``path`` if the block succeeds."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{escape(path.name)}.*.partial"):
        if not _is_running(left.name.split(".")[-2]):
            left.unlink(missing_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        _sync(partial)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text under ``path``, whole or not at all."""
    with writing(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")


@cache
def template(path: Path, **more: bool) -> Callable[..., str]:
    """What fills in a Jinja template, parsed once in a process, with ``more`` settings."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    how: dict[str, Any] = {"trim_blocks": True, "keep_trailing_newline": True, **more}
    how |= {"loader": FileSystemLoader(path.parent), "undefined": StrictUndefined}
    return Environment(**how).get_template(path.name).render


@contextmanager
def writing_folder(path: str | Path) -> Iterator[Path]:
    """Yield an empty folder beside ``path``; it replaces ``path`` when the block succeeds.

    A replaced folder is set aside first, so that one of the two is there at every moment;
    :func:`recover_folder` puts it back after a death between the renames. One process may write.
    """
    path = Path(path)
    if path.is_file():
        raise ConfigError(f"{path} is a file; name a folder to write, or remove the file")
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    partial, previous = beside(path, "partial"), beside(path, "previous")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        yield partial
        mode = partial.stat().st_mode & 0o666  # as the umask says; some writers use 0600
        for file in partial.rglob("*"):
            if file.is_file():
                file.chmod(mode)
                _sync(file)
        while partial.exists():  # also if a reader recovers ``path`` meanwhile
            recover_folder(path)
            if path.exists():
                path.rename(previous)
            _rename_unless_there(partial, path)
    finally:
        recover_folder(path)
        shutil.rmtree(partial, ignore_errors=True)


def recover_folder(path: str | Path) -> None:
    """Finish a replacement of ``path`` by :func:`writing_folder` that was cut off."""
    path = Path(path).resolve()
    previous = beside(path, "previous")
    if previous.exists() and not path.exists():
        _rename_unless_there(previous, path)
    if path.exists():
        shutil.rmtree(previous, ignore_errors=True)


def remove_folder(path: str | Path) -> None:
    """Remove ``path`` if it is there, at one moment, and all that could bring it back."""
    path = Path(path).resolve()
    partial = beside(path, "partial")
    for left in (partial, beside(path, "previous")):
        shutil.rmtree(left, ignore_errors=True)
    if path.exists():
        path.rename(partial)
        shutil.rmtree(partial, ignore_errors=True)  # another process may sweep it up as well


def refuse_existing(path: str | Path, remedy: str) -> None:
    """Refuse a file, or a folder that is not empty; ``remedy`` ends the message."""
    path = Path(path)
    tidy_lock(path)
    is_free = not any(path.iterdir()) if path.is_dir() else not path.exists()
    require_place(path, "" if is_free else f"exists already; {remedy}")


def refuse_existing_file(*paths: str | Path | None, overwrite: bool) -> None:
    """Refuse folders, files that are not to be replaced, and those that cannot be written."""
    for path in (Path(it) for it in paths if it is not None):
        exists = path.is_dir() if overwrite else path.exists()
        require_place(path, "exists already; name another file or add --overwrite" * exists)


def require_place(path: Path, problem: str = "", sources: Sequence[str] = ()) -> None:
    """Refuse a path with a problem, of a source, or below a folder that cannot be written to."""
    if any(path.exists() and Path(it).exists() and path.samefile(it) for it in sources):
        problem = "is one of the sources; name another file to write"
    home = next(it for it in path.absolute().parents if os.path.exists(it))  # noqa: PTH110
    if not (home.is_dir() and os.access(home, os.W_OK)):
        problem = f"cannot be written: {home} is no folder that may be written to"
    if problem:
        raise ConfigError(f"{path} {problem}")


def listed(value: Any) -> Any:
    """Return the parts of a text between commas; the path of a file or folder stays whole."""
    pieces, parts = value.split(",") if isinstance(value, str) else [], list[str]()
    while pieces:
        many = len(pieces)
        while many > 1 and not os.path.exists(",".join(pieces[:many])):  # noqa: PTH110
            many -= 1
        parts.append(",".join(pieces[:many]).strip())
        pieces = pieces[many:]
    return [part for part in parts if part] if isinstance(value, str) else value


def inside(root: str | Path, name: object) -> Path:
    """Return ``root / name``; CheckpointError if that leads out of ``root``, by ``..`` or a link.

    Links of the hub's cache, from a snapshot to its blobs, are followed. The path is not resolved,
    so that whoever removes a link removes nothing behind it.
    """
    folder = Path(root).resolve()
    hub = [part.parent / "blobs" for part in folder.parents if part.name == "snapshots"]
    try:
        path = Path(root, name)  # type: ignore[arg-type]
        within = any(path.resolve().is_relative_to(place) for place in (folder, *hub[:1]))
    except (OSError, RuntimeError, TypeError, ValueError):
        within = False
    if not within:
        raise CheckpointError(
            f"{root} names {name!r}, which is no path inside that folder; if you trust it, put a "
            "copy of what it names inside, and name that"
        )
    return path


@contextmanager
def readable(path: Path, remedy: str) -> Iterator[None]:
    """Tell of a file that is damaged, or does not hold what it should, with the remedy."""
    try:
        yield
    except (*_DAMAGE, EOFError, AttributeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[-200:]
        raise CheckpointError(f"{path} cannot be read ({reason}); {remedy}") from error


def read_json(path: str | Path) -> Any:
    """Return what a JSON file holds; CheckpointError if it is damaged or nested too deeply."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error


def write_json(path: Path, content: Any, **how: Any) -> None:
    """Write a JSON file, whole or not at all, ``how`` as `json.dumps` takes it."""
    write_text(path, json.dumps(content, **{"indent": 2, **how}) + "\n")


def sha256_of(path: str | Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _rename_unless_there(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError:
        if not target.exists():
            raise


def beside(path: Path, what: str) -> Path:
    """The hidden name of ``what`` belongs to ``path``, which is absolute."""
    return path.with_name(f".{path.name}.{what}")


def _is_running(process: str) -> bool:
    with suppress(PermissionError, ValueError, OverflowError):
        try:
            os.kill(int(process), 0)
        except ProcessLookupError:
            return False
    return True


def sweep(folder: Path) -> None:
    """Remove what processes that died left unfinished below ``folder``; its writer may do that."""
    for left in folder.rglob(".*.partial"):
        if left.is_dir() and not left.is_symlink():
            shutil.rmtree(left)
        else:
            left.unlink(missing_ok=True)


@contextmanager
def scratch(what: str) -> Iterator[str]:
    """Yield an empty folder for what passes; those of dead processes of this machine go."""
    name = f"contrasent-{what}-{platform.node()}-"  # many machines may share a TMPDIR
    with TemporaryDirectory(prefix=f"{name}{os.getpid()}-") as folder:
        for left in Path(folder).parent.glob(f"{escape(name)}*"):
            if not _is_running(left.name.removeprefix(name).partition("-")[0]):
                shutil.rmtree(left, ignore_errors=True)
        yield folder


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


class BusyError(ConfigError):
    """Another process writes or holds what this one would write, and may end soon."""


@contextmanager
def exclusive(folder: str | Path, patience: float = _PATIENCE) -> Iterator[None]:
    """Hold the lock of writing to ``folder``, by a file beside it, until the process ends at last.

    BusyError if somebody else still has it after ``patience`` seconds.
    """
    require_place(Path(folder))
    with _locked(beside(Path(folder).resolve(), "lock"), folder, patience):
        sweep(Path(folder))
        yield


def tidy_lock(path: Path) -> None:
    """Remove the lock of a process that died when its work on ``path`` was done."""
    lock = beside(path.resolve(), "lock")
    if lock.exists():
        with suppress(BusyError, OSError), _locked(lock, path, 0):
            recover_folder(path)


@contextmanager
def _locked(path: Path, folder: str | Path, patience: float) -> Iterator[None]:
    """Hold the lock file ``path`` of ``folder``; OSError if it cannot be made."""
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=patience)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire(poll_interval=_PATIENCE / 10)
    except Timeout as error:
        owner = ""
        with suppress(OSError):
            owner = path.read_text(encoding="utf-8").strip()
        raise BusyError(
            f"{folder} is being written by process {owner or 'unknown'}; wait until it has finished"
        ) from error
    with suppress(OSError):  # Windows lets nobody read or write it, a full disk nobody write
        path.write_text(str(os.getpid()), encoding="utf-8")
    try:
        yield
    finally:
        with suppress(OSError):  # Windows, or a disk that became read-only
            path.unlink(missing_ok=True)
        lock.release()


def default_cache() -> Path:
    """Where entries lie if nobody says: ``$CONTRASENT_CACHE``, or below the user's cache folder."""
    shared = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("CONTRASENT_CACHE") or Path(shared, "contrasent"))


def cached(
    folder: str,
    what: str,
    key: Sequence[object],
    read: Callable[[Path], T],
    write: Callable[[Path], None],
) -> T:
    """The entry of a key in ``folder``, computed once by one of the processes that want it.

    ``read`` raises one of :data:`_DAMAGE` for none; ``write`` fills a folder, which becomes it.
    """
    root = default_cache()
    entry = root / folder / hashlib.sha256(json.dumps(key).encode()).hexdigest()
    lock = beside(entry, "lock")
    with suppress(*_DAMAGE):
        whole = read(entry)
        tidy_lock(entry)
        return whole
    try:
        with ExitStack() as stack:
            try:
                stack.enter_context(_locked(lock, entry, _PATIENCE))
            except BusyError:
                logger.info("waiting for another process that computes the same %s", what)
                stack.enter_context(_locked(lock, entry, -1))
            with suppress(*_DAMAGE):
                return read(entry)
            with writing_folder(entry) as partial:
                write(partial)
            return read(entry)
    except (OSError, NotImplementedError) as error:
        raise ConfigError(
            f"cannot keep {what} in {root}: {error}; name a folder with room in the environment "
            "variable CONTRASENT_CACHE"
        ) from error
