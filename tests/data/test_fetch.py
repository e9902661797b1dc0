"""Downloading from a server on this machine: a made-up archive with its own manifest."""

import hashlib
import io
import tarfile
from functools import partial

import pytest
from helpers.answering import answering
from helpers.command_line import call, tree

from contrasent.data import senteval
from contrasent.data.senteval import TRAINING_FILES, fetch
from contrasent.errors import DataError
from contrasent.evaluation.task_names import STS, STS_TASKS

said = partial(call, "data", "fetch")
CONTENT = {
    "STS/STSBenchmark/sts-test.csv": b"g\tf\ty\t1\t5.000\ta\tb\n",
    "STS/STSBenchmark/LICENSE.txt": b"free\n",
    "SICK/SICK_trial.txt": b"header\n",
}


@pytest.fixture(autouse=True)
def manifest(monkeypatch, tmp_path):
    """The manifest of the made-up archive, and nothing of this machine's own data in reach."""
    sums = {path: hashlib.sha256(data).hexdigest() for path, data in CONTENT.items()}
    monkeypatch.setattr(senteval, "manifest", lambda: sums)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    for proxy in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(proxy, raising=False)
        monkeypatch.delenv(proxy.upper(), raising=False)


def archive(path, content, mode="w"):
    with tarfile.open(path, mode) as tar:
        for name, data in content.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


TEXT = b"".join(b"sentence %d\n" % n for n in range(500))


def files_of(folder):
    return {path: content for path, content in tree(folder).items() if content is not None}


@pytest.mark.parametrize(("prefix", "mode"), [("", "w"), ("./", "w"), ("data/downstream/", "w:gz")])
def test_the_archive_is_unpacked_from_where_sts_lies(tmp_path, prefix, mode):
    content = {prefix + name: data for name, data in CONTENT.items()} | {f"{prefix}MR/a": b"b"}
    packed = archive(tmp_path / "senteval.tar", content, mode)
    fetch(tmp_path / "new/data", str(packed))
    assert files_of(tmp_path / "new/data") == CONTENT | {"MR/a": b"b"}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["data"]


@pytest.mark.parametrize("named_by", ["option", "variable", "default"])
def test_the_command_fills_the_folder_that_evaluate_reads(tmp_path, monkeypatch, named_by):
    packed = archive(tmp_path / "a.tar", CONTENT)
    folder = tmp_path / "somewhere"
    if named_by == "default":
        folder = tmp_path / "home/contrasent/senteval"
    if named_by == "variable":
        monkeypatch.setenv("CONTRASENT_DATA", str(folder))
    option = ["--data-dir", folder] if named_by == "option" else []
    if option:
        folder.mkdir()
    result = said("--url", packed, *option)
    assert result.code == 0, result.err
    assert result.out == f"{folder}: 3 files are the published ones\n"
    assert senteval.senteval_root(folder if option else None).resolve() == folder
    again = said("--url", "http://nowhere.invalid/", *option)
    assert again.out == result.out
    (folder / "SICK/SICK_trial.txt").write_text("other")
    wrong = said(*option)
    assert wrong.code == 2
    assert f"1 of 3 files under {folder} are missing or not" in wrong.err
    assert f"{folder}/SICK/SICK_trial.txt: differs" in wrong.err


def test_the_manifest_needs_exactly_what_the_tasks_read(monkeypatch):
    monkeypatch.undo()
    tasks = [STS_TASKS[name] for name in STS]
    paths = {path for task in tasks for path in task.files.values()}
    for task in tasks:
        for subset in task.subsets:
            paths |= {f"{task.folder}/STS.{kind}.{subset}.txt" for kind in ("input", "gs")}
    listed = senteval.manifest()
    assert {*listed} == paths
    assert all(len(sha256) == 64 for sha256 in listed.values())


def test_a_training_file_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    def answer(path, *_):  # under /cut less than is announced
        return (200, {"Content-Length": 5000}, TEXT[:1200]) if path == "/cut" else (200, {}, TEXT)

    monkeypatch.setitem(TRAINING_FILES, "wiki1m", ("wiki.txt", 500))
    words = ("wiki1m", "--data-dir", str(tmp_path / "new"), "--url")
    with answering(answer) as address:
        cut = said(*words, f"{address}/cut")
        assert "got only 1200 out of 5000 bytes" in cut.err
        assert not files_of(tmp_path / "new")
        for url, message in (("http://127.0.0.1:9/a", r"[Errno"), ("nowhere", "unknown url type")):
            assert message in said(*words, url).err
        whole = said(*words, f"{address}/wiki.txt")
    assert whole.code == 0, whole.err
    assert files_of(tmp_path / "new") == {"wiki.txt": TEXT}
    assert f"500 rows, sha256 {hashlib.sha256(TEXT).hexdigest()}" in whole.out
    assert said(*words, "http://nowhere.invalid/").out == whole.out


def test_triplets_of_other_rows_are_refused(monkeypatch, tmp_path):
    monkeypatch.setitem(TRAINING_FILES, "nli", ("nli.csv", 2))
    mirror = tmp_path / "mirror.csv"
    words = ("nli", "--data-dir", str(tmp_path / "d"), "--url", str(mirror))
    mirror.write_text("sent0,sent1,hard_neg\n1,2,3\n")
    assert "has 1 rows" in said(*words).err and not files_of(tmp_path / "d")
    mirror.write_text('sent0,sent1,hard_neg\n1,2,3\n"4\n",5,6\n')
    done = said(*words)
    assert done.code == 0 and "2 rows" in done.out


ANCHOR = "STS/STSBenchmark/sts-test.csv"
DAMAGED = [
    ({**CONTENT, ANCHOR: b"other\n"}, f"1 files .* nothing was kept: {ANCHOR} differs"),
    ({**CONTENT, "../outside.txt": b"gotcha"}, "unsafe or no whole tar archive"),
    ({**CONTENT, "STS/../../outside.txt": b"gotcha"}, "unsafe or no whole tar archive"),
    ({**CONTENT, "SICK/link": None}, "unsafe or no whole tar archive"),
    ({"README": b"hello"}, f"3 files .* nothing was kept: {ANCHOR} missing"),
    (b"no tar at all", "unsafe or no whole tar archive"),
    (b"", "unsafe or no whole tar archive"),
]


@pytest.mark.parametrize(("content", "said"), DAMAGED, ids=range(len(DAMAGED)))
def test_an_archive_that_is_not_the_published_one_is_refused(tmp_path, content, said):
    packed = tmp_path / "a.tar"
    if isinstance(content, bytes):
        packed.write_bytes(content)
    else:
        archive(packed, {name: data for name, data in content.items() if data is not None})
    if "SICK/link" in {*content}:
        with tarfile.open(packed, "a") as tar:
            link = tarfile.TarInfo("SICK/link")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc"
            tar.addfile(link)
    with pytest.raises(DataError, match=said):
        fetch(tmp_path / "data", str(packed))
    assert not list(tmp_path.rglob("outside.txt")) and not (tmp_path / "data").exists()
    assert not list(tmp_path.glob(".data*"))
