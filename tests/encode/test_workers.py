"""Workers share the shards of one output: the same bytes, whoever writes which."""

import hashlib
import json
import signal
import subprocess
import sys

import numpy as np
import pytest
from helpers.command_line import worked
from helpers.dummy_encoder import DummyEncoder
from pyarrow import parquet

from contrasent.cli.search import worker_commands
from contrasent.encode.shards import run_processes
from contrasent.errors import CheckpointError, ConfigError, ContrasentError
from contrasent.files import exclusive
from contrasent.search.index import Index


@pytest.mark.parametrize("kind", [".npy", ".parquet"])
def test_shards_of_several_workers_make_the_output_of_one(kind, write, output):
    write(name=f"alone{kind}")
    missing = [write(worker=(n, 3), name=f"shared{kind}").missing for n in (2, 3, 1)]
    assert missing == [6, 3, 0] and not output.with_name(f"shared{kind}").exists()
    assert write(name=f"shared{kind}").resumed == 50
    alone, shared = (output.with_name(f"{name}{kind}") for name in ("alone", "shared"))
    assert shared.read_bytes() == alone.read_bytes()
    assert not list(output.parent.glob(".*.parts"))


def test_each_shard_is_computed_once_by_whatever_number_of_workers(write, output, texts):
    encoders = [DummyEncoder() for _ in range(3)]
    write(encoders[0], worker=(2, 3))
    with exclusive(output.with_name(".rows.npy.parts") / "000002.npy"):  # another worker writes it
        assert write(encoders[1], worker=(1, 2)).missing == 9 - 3 - 3
        with pytest.raises(ConfigError, match=r"1 shards .* being written by other processes"):
            write(encoders[1])
    write(encoders[2])
    embedded = [text for encoder in encoders for text in encoder.embedded]
    assert sorted(embedded) == sorted(texts)


def test_a_damaged_shard_is_named_and_can_be_had_again(write, output, expected):
    write(worker=(1, 2))
    shard = output.with_name(".rows.npy.parts") / "000002.npy"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-4])
    with pytest.raises(CheckpointError, match=r"000002.npy .*remove the folder to start again"):
        write()
    shard.write_bytes(whole[:-4] + b"1234")
    with pytest.raises(CheckpointError, match=r"000002.npy is damaged.* remove .*000002.json and"):
        write()
    shard.with_suffix(".json").unlink()
    write()
    assert (np.load(output) == expected).all()


@pytest.mark.parametrize("kind", ["npy", "parquet"])
def test_a_folder_of_shards_lists_them_with_their_hashes(kind, write, output, texts, expected):
    write(worker=(2, 2), name="rows", shards=kind)
    assert write(name="rows", shards=kind).resumed == 24
    folder = output.with_name("rows")
    manifest = json.loads((folder / "manifest.json").read_text())
    files = [folder / shard["file"] for shard in manifest["shards"]]
    assert {*folder.iterdir()} == {*files, folder / "manifest.json"}
    for path, shard in zip(files, manifest["shards"], strict=True):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == shard["sha256"]
    if kind == "npy":
        rows = np.concatenate([np.load(path) for path in files])
    else:
        rows = np.array(parquet.read_table(files)["embedding"].to_pylist(), np.float32)
        assert parquet.read_table(files)["text"].to_pylist() == texts
    assert (rows == expected).all() and manifest["rows"] == 50
    with pytest.raises(ConfigError, match="exists already"):
        write(name="rows", shards=kind)


def test_a_folder_of_something_else_is_left_alone(write, output, texts):
    index = Index.build(DummyEncoder(), texts, output.with_name("index"))
    before = (index.folder / "manifest.json").read_bytes()
    for name, content in (("index", before), ("listed", b'{"shards": []}'), ("cut", b"{")):
        folder = output.with_name(name)
        folder.mkdir(exist_ok=True)
        (folder / "manifest.json").write_bytes(content)
        (folder / "000001.json").touch()
        for overwrite in (False, True):
            with pytest.raises(ConfigError, match="holds other files; name a new folder"):
                write(name=name, shards="npy", overwrite=overwrite)
        assert (folder / "manifest.json").read_bytes() == content
    assert len(Index.open(index.folder)) == 50


def test_the_command_line_starts_workers(source, tiny_bert, tmp_path, monkeypatch):
    def run(lines, devices):
        assert devices == 0
        for line in lines:
            said = worked(*line[3:])
        assert "0 shards are missing, and then the command without --shard" in said.err

    worked("encode", tiny_bert, source, tmp_path / "alone.npy")
    monkeypatch.setattr("contrasent.encode.run_processes", run)
    words = ["encode", tiny_bert, source, tmp_path / "rows.npy", "--shard-size", 7]
    worked(*words, "--workers", 2)
    rows, alone = (np.load(tmp_path / f"{it}.npy") for it in ("rows", "alone"))
    np.testing.assert_allclose(rows, alone, atol=1e-6)


def test_a_worker_gets_the_words_of_the_command_and_starts_no_others():
    words = ["encode", "m", "t", "o", "--workers", "2", "--shard-size=3", "--workers=2"]
    assert [line[3:] for line in worker_commands(words, 2)] == [
        [*words[:4], "--shard-size=3", "--shard", f"{n}/2"] for n in (1, 2)
    ]


def in_python(code):
    return [sys.executable, "-c", code]


WAITING = """
import sys, time
from contrasent.encode.shards import end_with_parent
end_with_parent()
sys.stderr.write("ready\\n")  # one write, which the other worker cannot cut in two
time.sleep(600)
"""
STARTING = """
import sys
from contrasent.encode.shards import run_processes
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
