import os

from helpers.workers import cores, threads

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.update(threads())

import ipaddress
import signal
import socket

import pytest
import torch
from helpers.shared_data import SHARED

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
# Without a GPU Triton interprets its kernels; it reads this as it is imported.
os.environ.setdefault("TRITON_INTERPRET", str(int(not torch.cuda.is_available())))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """``-n auto``: a worker for each core, up to eight, as each imports and collects for itself."""
    return min(cores(), 8)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Put what takes long first in the part of each worker: it then runs beside other tests.

    A file's long tests are of one worker, which loads once what they share.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    long = ("minutes", "slow")
    items.sort(key=lambda item: [item.get_closest_marker(name) is None for name in long])
    first = sum(any(map(item.get_closest_marker, long)) for item in items)
    files, rest, dealt = list(dict.fromkeys(it.path for it in items[:first])), items[first:], []
    for n in range(workers):
        dealt += [it for it in items[:first] if files.index(it.path) % workers == n]
        count = max(0, len(items) * (n + 1) // workers - len(dealt))
        dealt, rest = dealt + rest[:count], rest[count:]
    items[:] = dealt


@pytest.fixture(scope="session", autouse=True)
def surroundings(tmp_path_factory):
    """A cache of the session's own; and the disk may take its time: no test looks at files that a
    power cut left behind."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: None)
        patched.setenv("CONTRASENT_CACHE", str(tmp_path_factory.mktemp("cache")))
        patched.delenv("CONTRASENT_DATA", raising=False)
        patched.delenv("CONTRASENT_MILVUS_URI", raising=False)
        yield


@pytest.fixture(scope="module")
def uploaded(tmp_path_factory):
    """A folder as SimCSE's authors upload it."""
    from helpers.layouts import published

    path = tmp_path_factory.mktemp("models") / "sup-simcse-tiny"
    published(path)
    return path


@pytest.fixture
def rng():
    """Random normal tensors of a shape, the same in every run."""
    generator = torch.Generator().manual_seed(0)
    return lambda *shape: torch.randn(*shape, generator=generator)


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """Refuse every connection that would leave this machine."""
    connect = socket.socket.connect

    def checked(self, address):
        if self.family != socket.AF_UNIX and not _is_loopback(address[0]):
            raise OSError(f"a test tried to connect to {address}")
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", checked)


def _is_loopback(host):
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@pytest.fixture
def shared():
    """The folder with real data that the acceptance tests read."""
    if not (SHARED / "data").is_dir():
        pytest.skip(f"no shared data in {SHARED}; name its folder in CONTRASENT_SHARED")
    return SHARED


@pytest.fixture
def int8_products():
    """For tests of the engine int8, which some processors do not have."""
    from contrasent.model import int8

    if not int8.has_products():
        pytest.skip("this CPU or this torch has no products of 8-bit integers")


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory):
    """The folder of a tiny BERT with a WordPiece tokenizer; copy it before changing it."""
    from helpers.tiny_models import save_tiny

    return save_tiny(tmp_path_factory.mktemp("tiny") / "bert", "bert")


@pytest.fixture(scope="session")
def tiny_roberta(tmp_path_factory):
    """The folder of a tiny RoBERTa with a byte-level tokenizer; copy it before changing it."""
    from helpers.tiny_models import save_tiny

    return save_tiny(tmp_path_factory.mktemp("tiny") / "roberta", "roberta")


@pytest.fixture(scope="session")
def loaded_tiny_bert(tiny_bert):
    from contrasent.model.encoder import SentenceEncoder

    return SentenceEncoder.load(tiny_bert, pooler="cls", head="none", device="cpu")


@pytest.fixture
def tiny_encoder(loaded_tiny_bert):
    """A fresh copy of a tiny encoder on the CPU: cls, no head, fp32 weights."""
    import copy

    return copy.deepcopy(loaded_tiny_bert)


@pytest.fixture(scope="session")
def sentence_encoder(tiny_bert, tmp_path_factory):
    """The folder of a saved encoder with a pooler of its own, the mean; do not change it."""
    from contrasent.model.encoder import SentenceEncoder

    folder = tmp_path_factory.mktemp("tiny") / "sentence-encoder"
    SentenceEncoder.load(tiny_bert, pooler="mean", head="none", device="cpu").save(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_masked_lm(tmp_path_factory):
    """The folder of a tiny BERT with its masked-LM head; copy it before changing it."""
    from helpers.tiny_models import save_tiny_masked_lm

    return save_tiny_masked_lm(tmp_path_factory.mktemp("tiny") / "masked-lm")


@pytest.fixture
def hub(monkeypatch):
    """A stand-in for the Hugging Face hub, without any data set."""
    from helpers.hub import Hub

    return Hub().install(monkeypatch)


@pytest.fixture(scope="session")
def tiny_starts(tmp_path_factory, tiny_bert, tiny_masked_lm):
    """Whatever a tiny run of a recipe may start from, by name."""
    from helpers.tiny_glove import save_glove

    glove = save_glove(tmp_path_factory.mktemp("glove") / "glove.txt")
    return {"bert": tiny_bert, "masked-lm": tiny_masked_lm, "glove": glove}
