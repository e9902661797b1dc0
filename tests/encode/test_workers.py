"""Workers share the shards of one output: the same bytes, whoever writes which."""

import hashlib
import json
import signal
import subprocess
import sys

import numpy as np
import pytest
from helpers.command_line import refused, worked
from helpers.dummy_encoder import DummyEncoder
from helpers.tiny_sentences import sentence
from pyarrow import parquet

from contrasent.encode import workers
from contrasent.encode.sentences import Sentences, open_sentences
from contrasent.encode.shards import Shards, write_embeddings
from contrasent.encode.workers import Worker, commands, run_processes
from contrasent.errors import CheckpointError, ConfigError, ContrasentError
from contrasent.files import exclusive
from contrasent.options import Sharding
from contrasent.search.index import Index

TEXTS = [sentence(n, 3 + n % 5) for n in range(50)]


def expected():
    return np.stack([DummyEncoder().vector(text) for text in TEXTS])


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n")
    return path


@pytest.fixture
def write(source, tmp_path):
    def run(worker=None, encoder=None, name="rows.npy", **settings):
        with open_sentences(str(source)) as sentences:
            how = Sharding(**{"shard_size": 6, **settings})
            encoder = encoder or DummyEncoder()
            return write_embeddings(encoder, sentences, tmp_path / name, how, worker=worker)

    return run


@pytest.mark.parametrize("kind", [".npy", ".parquet"])
def test_the_worker_that_finishes_last_makes_the_output_of_one(kind, write, tmp_path):
    write(name=f"alone{kind}")
    missing = [write(Worker(n, 3), name=f"shared{kind}").missing for n in (2, 3, 1)]
    assert missing == [6, 3, 0]
    alone, shared = (tmp_path / f"{name}{kind}" for name in ("alone", "shared"))
    assert shared.read_bytes() == alone.read_bytes()
    assert not list(tmp_path.glob(".*.parts"))


@pytest.mark.parametrize("keep", [None, "npy"])
def test_of_two_that_finish_at_once_one_makes_the_output(keep, write, tmp_path, monkeypatch):
    name = "rows" if keep else "rows.npy"
    look, others = Shards.look, [lambda: write(Worker(2, 2), name=name, shards=keep)]

    def look_before_the_other_ends(shards, *numbers):
        look(shards, *numbers)
        if shards.missing == 4 and others:
            assert others.pop()().missing == 0

    monkeypatch.setattr(Shards, "look", look_before_the_other_ends)
    written = write(Worker(1, 2), name=name, shards=keep)
    assert (written.missing, written.rows, others) == (0, 50, [])
    files = sorted((tmp_path / name).glob("*.npy")) if keep else [tmp_path / name]
    assert (np.concatenate([np.load(path) for path in files]) == expected()).all()
    assert not list(tmp_path.glob(".*.parts"))


@pytest.mark.parametrize("keep", [None, "npy"])
def test_what_others_made_while_a_worker_read_the_input_stays(keep, write, tmp_path, monkeypatch):
    count, name, late = Sentences.count, "rows" if keep else "rows.npy", DummyEncoder()
    others = [lambda: [write(Worker(n, 2), name=name, shards=keep) for n in (1, 2)]]

    def count_while_others_write(sentences):
        if others:
            others.pop()()
        return count(sentences)

    monkeypatch.setattr(Sentences, "count", count_while_others_write)
    written = write(Worker(2, 2), late, name=name, shards=keep)
    assert (written.already, written.rows, written.missing) == (True, 50, 0)
    assert (tmp_path / name).exists() and not late.embedded


@pytest.mark.parametrize(("name", "keep"), [("rows", "npy"), ("rows.npy", None)])
def test_a_worker_leaves_what_was_made_from_something_else(name, keep, write):
    for number in (1, 2):
        write(Worker(number, 2), name=name, shards=keep)
    assert write(Worker(1, 2), name=name, shards=keep).already
    with pytest.raises(ConfigError, match=r"rows.* was made with another encoder; remove it"):
        write(Worker(1, 2), DummyEncoder(salt="x"), name=name, shards=keep)


def test_each_shard_is_computed_once_by_whatever_number_of_workers(write):
    encoders = [DummyEncoder() for _ in range(3)]
    write(Worker(2, 3), encoders[0])
    write(Worker(1, 2), encoders[1])
    write(Worker(), encoders[2])
    embedded = [text for encoder in encoders for text in encoder.embedded]
    assert sorted(embedded) == sorted(TEXTS)


def test_a_shard_that_another_worker_writes_is_left_to_it(write, tmp_path):
    with exclusive(tmp_path / ".rows.npy.parts" / "000002.npy"):
        assert write(Worker(1, 2)).missing == 9 - 4
        with pytest.raises(ConfigError, match=r"1 shards .* being written by other processes"):
            write()
    assert write().resumed == 44


def test_a_damaged_shard_is_named_and_can_be_had_again(write, tmp_path):
    write(Worker(1, 2))
    shard = tmp_path / ".rows.npy.parts" / "000002.npy"
    shard.write_bytes(shard.read_bytes()[:-4] + b"1234")
    with pytest.raises(CheckpointError, match=r"000002.npy is damaged.* remove .*000002.json and"):
        write()
    shard.with_suffix(".json").unlink()
    write()
    assert (np.load(tmp_path / "rows.npy") == expected()).all()


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_a_folder_of_shards_lists_them_with_their_hashes(kind, write, tmp_path):
    write(Worker(2, 2), name="rows", shards=kind)
    assert write(Worker(1, 2), name="rows", shards=kind).missing == 0
    folder = tmp_path / "rows"
    manifest = json.loads((folder / "manifest.json").read_text())
    files = [folder / shard["file"] for shard in manifest["shards"]]
    assert sorted(path.name for path in folder.iterdir()) == [
        *(path.name for path in files),
        "manifest.json",
    ]
    for path, shard in zip(files, manifest["shards"], strict=True):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == shard["sha256"]
    if kind == "npy":
        rows = np.concatenate([np.load(path) for path in files])
    else:
        rows = np.array(parquet.read_table(files)["embedding"].to_pylist(), np.float32)
        assert parquet.read_table(files)["text"].to_pylist() == TEXTS
    assert (rows == expected()).all() and manifest["rows"] == 50
    with pytest.raises(ConfigError, match="exists already"):
        write(name="rows", shards=kind)


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_a_folder_of_shards_is_resumed_and_a_folder_of_something_else_left_alone(
    kind, write, tmp_path
):
    write(Worker(2, 2), name="rows", shards=kind)
    assert write(name="rows", shards=kind).resumed == 24
    index = Index.build(DummyEncoder(), TEXTS, tmp_path / "index")
    before = (index.folder / "manifest.json").read_bytes()
    with open_sentences(str(tmp_path / "texts.txt")) as sentences:
        for name, content in (("index", before), ("listed", b'{"shards": []}'), ("cut", b"{")):
            folder = tmp_path / name
            folder.mkdir(exist_ok=True)
            (folder / "manifest.json").write_bytes(content)
            (folder / "000001.json").touch()
            how = Sharding(shards=kind)
            for overwrite in (False, True):
                with pytest.raises(ConfigError, match="holds other files; name a new folder"):
                    write_embeddings(DummyEncoder(), sentences, folder, how, overwrite=overwrite)
            assert (folder / "manifest.json").read_bytes() == content
    assert len(Index.open(index.folder)) == 50


def test_the_command_line_starts_workers(source, tiny_bert, tmp_path, monkeypatch):
    def run(lines, devices):
        assert devices == 0
        for line in lines:
            worked(*line[3:])

    worked("encode", tiny_bert, source, tmp_path / "alone.npy")
    monkeypatch.setattr(workers, "run_processes", run)
    words = ["encode", tiny_bert, source, tmp_path / "rows.npy", "--shard-size", 7]
    said = worked(*words, "--workers", 2)
    assert "made by the worker that finishes last" not in said.err
    np.testing.assert_allclose(
        np.load(tmp_path / "rows.npy"), np.load(tmp_path / "alone.npy"), atol=1e-6
    )
    for shard in ("1/1", "3/2000"):
        said = worked(*words, "--shard", shard)
        assert "rows.npy is made already" in said.err and "--overwrite" not in said.err
    shared = "workers share a file"
    assert shared in refused(*words, "--workers", 2, "--shard", "1/2")
    assert shared in refused("encode", tiny_bert, "-", "o.npy", "--shard", "1/2")
    assert shared in refused(*words, "--workers", 2, "--overwrite")


def test_a_worker_gets_the_words_of_the_command_without_those_that_start_it():
    words = ["encode", "m", "t", "o", "--workers", "2", "--ray", "--shard-size=3", "--workers=2"]
    assert [line[3:] for line in commands(words, 2)] == [
        ["encode", "m", "t", "o", "--shard-size=3", "--shard", f"{n}/2"] for n in (1, 2)
    ]


def in_python(code):
    return [sys.executable, "-c", code]


WAITING = """
import sys, time
from contrasent.encode.workers import end_with_parent
end_with_parent()
sys.stderr.write("ready\\n")  # one write, which the other worker cannot cut in two
time.sleep(600)
"""
STARTING = """
import sys
from contrasent.encode.workers import run_processes
run_processes([[sys.executable, "-c", sys.argv[1]]] * 2, 0)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_with_the_process_that_started_them(number):
    process = subprocess.Popen([*in_python(STARTING), WAITING], stderr=subprocess.PIPE, text=True)
    assert [process.stderr.readline() for _ in range(2)] == ["ready\n"] * 2
    process.send_signal(number)
    said = process.communicate(timeout=60)[1]  # until all have closed their standard error
    assert process.returncode and said.count("ready") == 0


def test_workers_get_the_devices_that_the_command_may_use(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    told = "import os; open({!r}, 'w').write(os.environ['CUDA_VISIBLE_DEVICES'])"
    run_processes([in_python(told.format(str(tmp_path / name))) for name in "abc"], 2)
    assert [(tmp_path / name).read_text() for name in "abc"] == ["5", "7", "5"]


def test_workers_that_fail_are_named_and_the_others_finish(tmp_path):
    done = tmp_path / "done"
    ends = ["exit(3)", "import os; os.kill(os.getpid(), 9)", f"open({str(done)!r}, 'w')"]
    said = r"of 3 workers these failed: 1 \(status 3\), 2 \(SIGKILL\)"
    with pytest.raises(ContrasentError, match=f"{said}; .* run the command again for the rest"):
        run_processes([in_python(code) for code in ends], 0)
    assert done.exists()
