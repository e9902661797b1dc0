"""Downloading from a server on this machine: a made-up archive with its own manifest."""

import hashlib
import io
import tarfile
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from typer.testing import CliRunner

from contrasent.cli.app import app
from contrasent.data import senteval
from contrasent.data.senteval import TRAINING_FILES, TrainingFile, fetch
from contrasent.errors import DataError
from contrasent.evaluation.task_names import STS, STS_TASKS

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
    monkeypatch.delenv("CONTRASENT_DATA", raising=False)
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


@pytest.fixture
def serve(tmp_path):
    """Serve ``tmp_path / "web"``, or what a handler says; returns the address."""
    running = []

    def start(handler=None):
        (tmp_path / "web").mkdir(exist_ok=True)
        quiet = type("Quiet", (handler or SimpleHTTPRequestHandler,), {"log_message": _silent})
        if handler is None:
            quiet = partial(quiet, directory=str(tmp_path / "web"))
        server = ThreadingHTTPServer(("127.0.0.1", 0), quiet)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        running.append((server, thread))
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server, thread in running:
        server.shutdown()
        thread.join()
        server.server_close()


def _silent(*_):
    pass


def tree(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("prefix", ["", "./", "downstream/", "senteval/data/downstream/"])
@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_the_archive_is_unpacked_from_where_sts_lies(tmp_path, serve, prefix, mode):
    address = serve()
    content = {prefix + name: data for name, data in CONTENT.items()} | {f"{prefix}MR/a": b"b"}
    packed = archive(tmp_path / "web/senteval.tar", content, mode)
    told = []
    found = fetch(
        tmp_path / "new/data", f"{address}/senteval.tar", lambda *so_far: told.append(so_far)
    )
    assert found == []
    assert tree(tmp_path / "new/data") == CONTENT | {"MR/a": b"b"}
    assert told[-1] == (packed.stat().st_size, packed.stat().st_size)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["data"]


@pytest.fixture
def run():
    return lambda *arguments: CliRunner().invoke(app, ["data", "fetch", *map(str, arguments)])


@pytest.mark.parametrize("named_by", ["option", "variable", "default"])
def test_the_command_fills_the_folder_that_evaluate_reads(tmp_path, run, monkeypatch, named_by):
    packed = archive(tmp_path / "a.tar", CONTENT)
    folder = tmp_path / "somewhere"
    if named_by == "default":
        folder = tmp_path / "home/contrasent/senteval"
    if named_by == "variable":
        monkeypatch.setenv("CONTRASENT_DATA", str(folder))
    option = ["--data-dir", folder] if named_by == "option" else []
    result = run("--url", packed, *option)
    assert result.exit_code == 0, result.output
    assert result.stdout == f"{folder}: 3 files are the published ones\n"
    assert senteval.senteval_root(folder if option else None).resolve() == folder
    again = run("--url", "http://nowhere.invalid/", *option)
    assert again.stdout == result.stdout
    assert run("--check", *option).stdout == result.stdout


def test_the_command_checks_a_folder(tmp_path, run):
    packed = archive(tmp_path / "a.tar", CONTENT)
    folder = tmp_path / "data"
    fetch(folder / "downstream", str(packed))
    (folder / "downstream/STS/STSBenchmark/LICENSE.txt").unlink()
    result = run("--check", "--data-dir", folder)
    assert result.exit_code == 0
    assert f"{folder}/downstream/STS/STSBenchmark/LICENSE.txt: missing" in result.stderr
    assert result.stdout == f"{folder}/downstream: 2 files are the published ones\n"
    (folder / "downstream/SICK/SICK_trial.txt").write_text("other")
    result = run("--check", "--data-dir", folder)
    assert result.exit_code == 2
    assert f"1 of 3 files under {folder}/downstream are missing or not" in result.stderr
    assert f"{folder}/downstream/SICK/SICK_trial.txt: differs" in result.stderr


def test_the_manifest_needs_exactly_what_the_tasks_read(monkeypatch):
    monkeypatch.undo()
    tasks = [STS_TASKS[name] for name in STS]
    paths = {path for task in tasks for path in task.files.values()}
    for task in tasks:
        for subset in task.subsets:
            paths |= {f"{task.folder}/STS.{kind}.{subset}.txt" for kind in ("input", "gs")}
    listed = senteval.manifest()
    assert {path for path in listed if senteval.FileDifference(path, "missing").needed} == paths
    assert all(len(sha256) == 64 for sha256 in listed.values())


# The papers' training files

TEXT = b"".join(b"sentence %d\n" % n for n in range(500))


class Ranged(BaseHTTPRequestHandler):
    """Serves the text from a byte on; the first answer is cut off in the middle."""

    def do_GET(self):
        begin = self.headers.get("Range")
        start = int(begin.removeprefix("bytes=").rstrip("-")) if begin and self.can_begin else 0
        self.asked.append(begin)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(TEXT) - start))
        self.end_headers()
        self.wfile.write(TEXT[start : len(TEXT) // 2 if len(self.asked) == 1 else None])


@pytest.fixture
def wiki(monkeypatch):
    monkeypatch.setitem(TRAINING_FILES, "wiki1m", TrainingFile("wiki.txt", 500))


@pytest.mark.parametrize("can_begin", [True, False])
@pytest.mark.usefixtures("wiki")
def test_a_training_file_goes_on_where_it_was_cut_off(can_begin, serve, tmp_path):
    handler = type("Handler", (Ranged,), {"asked": [], "can_begin": can_begin})
    url = f"{serve(handler)}/wiki.txt"
    half = len(TEXT) // 2
    absent = said("wiki1m", "--data-dir", str(tmp_path / "new"), "--url", url, "--check")
    assert "wiki.txt is not there" in absent.stderr
    assert handler.asked == [] and not (tmp_path / "new").exists()
    cut = said("wiki1m", "--data-dir", str(tmp_path / "new"), "--url", url)
    assert cut.exit_code and f"after {half:,} of {len(TEXT):,} bytes" in cut.stderr
    assert not (tmp_path / "new" / "wiki.txt").exists()
    whole = said("wiki1m", "--data-dir", str(tmp_path / "new"), "--url", url)
    assert whole.exit_code == 0, whole.exception
    assert handler.asked == [None, f"bytes={half}-"]
    assert tree(tmp_path / "new") == {"wiki.txt": TEXT}
    assert f"500 rows, sha256 {hashlib.sha256(TEXT).hexdigest()}" in whole.output
    again = said("wiki1m", "--data-dir", str(tmp_path / "new"), "--check")
    assert again.output == whole.output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b,c\n1,2,3\n", "begins with 'a,b,c'"),
        ("sent0,sent1,hard_neg\n1,2,3\n", "has 1 rows"),
    ],
)
def test_triplets_of_other_rows_are_refused(text, message, monkeypatch, tmp_path):
    triplets = TrainingFile("nli.csv", 2, "sent0,sent1,hard_neg")
    monkeypatch.setitem(TRAINING_FILES, "nli", triplets)
    (tmp_path / "mirror.csv").write_text(text)
    refused = said("nli", "--data-dir", str(tmp_path / "d"), "--url", str(tmp_path / "mirror.csv"))
    assert message in refused.stderr and not tree(tmp_path / "d")
    (tmp_path / "mirror.csv").write_text('sent0,sent1,hard_neg\n1,2,3\n"4\n",5,6\n')
    done = said("nli", "--data-dir", str(tmp_path / "d"), "--url", str(tmp_path / "mirror.csv"))
    assert done.exit_code == 0 and "2 rows" in done.output


def test_a_million_other_lines_are_not_the_million_sentences(monkeypatch, tmp_path):
    known = hashlib.sha256(b"a\nb\n").hexdigest()
    monkeypatch.setitem(TRAINING_FILES, "wiki1m", TrainingFile("wiki.txt", 3, beginning=(2, known)))
    words = ("wiki1m", "--data-dir", str(tmp_path / "d"), "--url", str(tmp_path / "mirror.txt"))
    (tmp_path / "mirror.txt").write_text("1\n2\n3\n")
    assert "begins with '1'" in said(*words).stderr and not tree(tmp_path / "d")
    (tmp_path / "mirror.txt").write_text("a\nb\nc\n")
    assert said(*words).exit_code == 0


def said(*words):
    return CliRunner().invoke(app, ["data", "fetch", *words])


ANCHOR = "STS/STSBenchmark/sts-test.csv"
DAMAGED = [
    ({**CONTENT, ANCHOR: b"other\n"}, f"1 files .* nothing was kept: {ANCHOR} differs"),
    ({**CONTENT, "../outside.txt": b"gotcha"}, "unsafe archive, nothing was kept"),
    ({**CONTENT, "STS/../../outside.txt": b"gotcha"}, "unsafe archive, nothing was kept"),
    ({**CONTENT, "SICK/link": None}, "unsafe archive, nothing was kept"),
    ({"README": b"hello"}, f"no SentEval data; {ANCHOR} should be in it once"),
    (b"no tar at all", "not a whole tar archive"),
    (b"", "not a whole tar archive"),
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


class Truncating(BaseHTTPRequestHandler):
    """Announces more than it sends."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "5000")
        self.end_headers()
        self.wfile.write(b"x" * 1200)


def test_a_server_that_stops_or_is_not_there(tmp_path, serve):
    with pytest.raises(DataError, match=r"stopped after 1,200 of 5,000 bytes; try again"):
        fetch(tmp_path / "data", f"{serve(Truncating)}/senteval.tar")
    for url, said in (
        ("http://127.0.0.1:9/a.tar", r"\[Errno .* fetch --url FILE"),
        ("ftp://h/a", ""),
    ):
        with pytest.raises(DataError, match=f"(cannot download|cannot fetch) {url}.*{said}"):
            fetch(tmp_path / "data", url)
    assert not (tmp_path / "data").exists()
