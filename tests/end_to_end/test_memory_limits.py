"""Too little memory ends a command with a message that names the way out."""

import errno
import re
import resource
from pathlib import Path

import pytest
import torch
from helpers.command_line import refused
from helpers.crash import run
from helpers.crash_commands import through
from helpers.tiny_sentences import sentence, write

from contrasent.model.encoder import SentenceEncoder


def out_of(kind):
    """Ask for more memory than there is."""
    if kind == "torch":
        return torch.empty(2**50)
    if kind == "python":
        return bytearray(2**60)
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


@pytest.mark.parametrize("kind", ["torch", "python", "system"])
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("encode", "text.txt", "rows.npy"), "try smaller batches or another --dev"),
        (("index", "build", "text.txt", "index"), "try smaller batches or another --dev"),
        (("train", "unsup-simcse"), "--train.gradcache_chunk 128 takes .* a smaller --batch-size"),
    ],
    ids=lambda it: it[0],
)
def test_an_allocation_that_fails_names_what_to_lower(
    words, said, kind, shelf, tiny_bert, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for name in ("text.txt", "pairs.tsv"):
        (tmp_path / name).symlink_to(shelf / name)
    monkeypatch.setattr(SentenceEncoder, "forward", lambda *_, **__: out_of(kind))
    command, rest = words[: 1 + (words[0] == "index")], words[1 + (words[0] == "index") :]
    if words[0] == "train":
        rest = (*rest, "--encoder", tiny_bert, "--data", "text.txt", "--batch-size", 8)
        rest += ("--evaluation.task", "none", "--evaluation.final", "none")
        message = refused(*command, *rest)
    else:
        message = refused(*command, tiny_bert, *rest)
    assert message.startswith("out of memory")
    assert re.search(said, message)


def limited(megabytes, *words):
    """Run a command with so much more memory than it starts with."""
    status = Path("/proc/self/status").read_text()
    data = int(re.search(r"VmData:\s+(\d+)", status)[1]) * 1024
    resource.setrlimit(resource.RLIMIT_DATA, (data + megabytes * 2**20,) * 2)
    through(lambda: None, *words)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("megabytes", "words"),
    [
        (150, "encode bert text.txt rows.npy --batch-tokens 2000000"),
        (20, "index build bert text.txt out"),
    ],
    ids=["encode", "index"],
)
def test_a_real_limit_is_told(megabytes, words, tiny_bert, tmp_path):
    work = tmp_path / "desk" / "work"
    work.mkdir(parents=True)
    (work / "bert").symlink_to(tiny_bert)
    write(work / "text.txt", [sentence(n, 30) for n in range(20_000)])
    ended = run((limited, megabytes, *words.split(), "--precision", "fp32"), work)
    assert ended.code == 2, ended.said
    assert "\nerror: out of memory" in ended.said
    assert "Traceback" not in ended.said
