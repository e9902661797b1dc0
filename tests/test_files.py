"""Files and folders that are written whole or not at all, what recovers them, and locks."""

import errno
import multiprocessing
import os
import platform
import re
import tempfile
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest

from contrasent import files
from contrasent.errors import CheckpointError, ConfigError


def listing(folder):
    return {p.name: p.read_bytes() if p.is_file() else listing(p) for p in folder.iterdir()}


def make(folder, **contents):
    folder.mkdir()
    for name, text in contents.items():
        (folder / name).write_text(text)


def test_a_file_appears_when_it_is_whole(tmp_path):
    with files.writing(tmp_path / "new" / "a.txt") as partial:
        partial.write_text("half")
        assert partial.parent == tmp_path / "new"
        assert not (tmp_path / "new" / "a.txt").exists()
    assert listing(tmp_path / "new") == {"a.txt": b"half"}


@pytest.fixture(params=[files.writing, files.writing_folder])
def replacing(request, tmp_path):
    """The block that replaces what is there, and what writes something in it."""
    path, is_file = tmp_path / "out", request.param is files.writing
    path.write_text("old") if is_file else make(path, old="1")
    return request.param(path), lambda it: (it if is_file else it / "new").write_text("new")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, OSError])
def test_a_failure_keeps_what_was_there_and_leaves_nothing(replacing, error, tmp_path, monkeypatch):
    (block, write), before = replacing, listing(tmp_path)
    if error is OSError:
        full = OSError(errno.ENOSPC, "No space left on device")
        monkeypatch.setattr(os, "fsync", Mock(side_effect=full))
    with pytest.raises(error), block as partial:
        write(partial)
        if error is not OSError:
            raise error
    assert listing(tmp_path) == before


def test_a_folder_for_what_passes_goes_with_its_process(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    node, nobody = platform.node(), 2**22 + 1
    for name in (f"{node}-{nobody}-a", f"{node}-{os.getpid()}-b", f"other{node}-{nobody}-c"):
        make(tmp_path / f"contrasent-x-{name}", left="1")
    with files.scratch("x") as folder:
        there = {path.name[-1] for path in tmp_path.iterdir() if path != Path(folder)}
        assert there == {"b", "c"} and not [*Path(folder).iterdir()]
    assert not Path(folder).exists()


def test_a_file_is_on_the_disk_before_it_gets_its_name(tmp_path, monkeypatch):
    order = []
    monkeypatch.setattr(os, "fsync", lambda _: order.append("sync"))
    replace = Path.replace

    def noted(self, target):
        order.append("rename")
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", noted)
    files.write_text(tmp_path / "a.txt", "new")
    assert order == ["sync", "rename"]


def test_a_folder_appears_when_it_is_whole(tmp_path):
    with files.writing_folder(tmp_path / "deep" / "out") as partial:
        assert list(partial.iterdir()) == []
        make(partial / "inner", a="1")
        assert not (tmp_path / "deep" / "out").exists()
    assert listing(tmp_path) == {"deep": {"out": {"inner": {"a": b"1"}}}}


def test_a_folder_replaces_another_as_a_whole(tmp_path):
    make(tmp_path / "out", old="1", both="1")
    with files.writing_folder(tmp_path / "out") as partial:
        (partial / "both").write_text("2")
        assert listing(tmp_path / "out") == {"old": b"1", "both": b"1"}
    assert listing(tmp_path) == {"out": {"both": b"2"}}


@pytest.mark.parametrize("failing", [1, 2])
def test_a_rename_that_fails_keeps_the_old_folder(failing, tmp_path, monkeypatch):
    make(tmp_path / "out", old="1")
    rename, calls = Path.rename, []

    def fails(self, target):
        calls.append(self.name)
        if len(calls) == failing:
            raise PermissionError(errno.EACCES, "Permission denied")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails)
    with pytest.raises(PermissionError), files.writing_folder(tmp_path / "out") as partial:
        (partial / "new").write_text("2")
    assert listing(tmp_path) == {"out": {"old": b"1"}}


def test_a_reader_that_recovers_between_the_renames_does_no_harm(tmp_path, monkeypatch):
    make(tmp_path / "out", old="1")
    rename, seen = Path.rename, []

    def with_a_reader(self, target):
        done = rename(self, target)
        if self.name == "out" and not seen:
            seen.append(True)
            files.recover_folder(tmp_path / "out")
            assert listing(tmp_path / "out") == {"old": b"1"}
        return done

    monkeypatch.setattr(Path, "rename", with_a_reader)
    with files.writing_folder(tmp_path / "out") as partial:
        (partial / "new").write_text("2")
    assert seen
    assert listing(tmp_path) == {"out": {"new": b"2"}}


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    make(tmp_path / "real", old="1")
    (tmp_path / "out").symlink_to(tmp_path / "real")
    for text in (b"2", b"3"):
        with files.writing_folder(tmp_path / "out") as partial:
            (partial / "new").write_bytes(text)
        assert (tmp_path / "out").is_symlink()
        assert listing(tmp_path) == {"real": {"new": text}, "out": {"new": text}}


def test_a_folder_does_not_replace_a_file(tmp_path):
    (tmp_path / "out").write_text("mine")
    said = re.escape(f"{tmp_path / 'out'} is a file; name a folder to write, or remove the file")
    with pytest.raises(ConfigError, match=said), files.writing_folder(tmp_path / "out"):
        pytest.fail("the block was entered")
    assert listing(tmp_path) == {"out": b"mine"}


OLD, NEW = {"a": "old"}, {"a": "new"}


@pytest.mark.parametrize(
    ("path", "previous", "partial", "expected"),
    [
        (None, None, None, None),
        (OLD, None, None, OLD),
        (OLD, None, NEW, OLD),  # died while writing
        (None, OLD, NEW, OLD),  # died between the renames
        (NEW, OLD, None, NEW),  # died while removing the old one
        (NEW, {}, None, NEW),
        (None, OLD, None, OLD),
    ],
)
def test_recovery_from_states_a_killed_writer_leaves(path, previous, partial, expected, tmp_path):
    for name, contents in (("out", path), (".out.previous", previous), (".out.partial", partial)):
        if contents is not None:
            make(tmp_path / name, **contents)
    for _ in range(2):
        files.recover_folder(tmp_path / "out")
        assert (tmp_path / "out").exists() == (expected is not None)
        if expected:
            assert listing(tmp_path / "out") == {"a": expected["a"].encode()}
        assert not (tmp_path / ".out.previous").exists()
    with files.writing_folder(tmp_path / "out") as folder:
        (folder / "a").write_text("newer")
    assert listing(tmp_path) == {"out": {"a": b"newer"}}


def test_a_folder_is_removed_with_all_that_could_bring_it_back(tmp_path):
    for name in ("out", ".out.previous", ".out.partial", "other"):
        make(tmp_path / name, a="1")
    files.remove_folder(tmp_path / "out")
    files.recover_folder(tmp_path / "out")
    assert listing(tmp_path) == {"other": {"a": b"1"}}
    files.remove_folder(tmp_path / "out")


def test_a_removal_that_is_cut_off_leaves_nothing_under_the_name(tmp_path, monkeypatch):
    make(tmp_path / "out", a="1", b="2")

    def cut(path, **_):
        if path.exists():
            (path / "a").unlink()
            raise KeyboardInterrupt

    monkeypatch.setattr(files.shutil, "rmtree", cut)
    with pytest.raises(KeyboardInterrupt):
        files.remove_folder(tmp_path / "out")
    assert listing(tmp_path) == {".out.partial": {"b": b"2"}}


def test_only_paths_inside_a_folder_are_followed(tmp_path):
    root = tmp_path / "models--me--tiny" / "snapshots" / "0a1b"
    make(tmp_path / "outside", secret="s")
    (root / "part").mkdir(parents=True)
    (root.parent.parent / "blobs").mkdir()
    (root.parent.parent / "blobs" / "weights").write_text("w")
    for link, target in (("out", tmp_path / "outside"), ("loop", "loop"), ("in", root / "part")):
        (root / link).symlink_to(target)
    (root / "weights").symlink_to(root.parent.parent / "blobs" / "weights")
    for name in ("", "part", "part/new", "part/../new", "in/new", "weights"):
        assert files.inside(root, name) == root / name
    outside = ("..", "part/../../x", str(tmp_path), "out", "out/secret", "loop", "a\0b", None, 3)
    for name in outside:
        with pytest.raises(CheckpointError, match=re.escape(repr(name))):
            files.inside(root, name)


def _count(folder, counter, times):
    done = 0
    while done < times:
        try:
            with files.exclusive(folder):
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
