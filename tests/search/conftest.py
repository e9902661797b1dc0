import os
from itertools import count

import pytest
from helpers.dummy_encoder import DummyEncoder

from contrasent.search import milvus as milvus_module

SERVER = os.environ.get("CONTRASENT_MILVUS_URI")  # which tests/conftest.py takes away


@pytest.fixture
def encoder():
    return DummyEncoder()


@pytest.fixture
def folder(tmp_path):
    yield tmp_path / "index"
    milvus_module.close_milvus(tmp_path / "index")


@pytest.fixture(params=["lite", pytest.param("server", marks=pytest.mark.acceptance)])
def milvus(request, monkeypatch, tmp_path):
    """For a server what names the collections of a test, of which none may be left over."""
    pytest.importorskip("milvus_lite", reason="contrasent[milvus] is not installed")
    if request.param == "lite":
        yield None
        return
    if SERVER is None:
        pytest.skip("CONTRASENT_MILVUS_URI names no server of Milvus")
    from pymilvus import MilvusClient

    client = MilvusClient(SERVER, token=os.environ.get("CONTRASENT_MILVUS_TOKEN", ""))
    mark, numbers = f"{os.getpid():08x}", count()
    monkeypatch.setenv("CONTRASENT_MILVUS_URI", SERVER)
    monkeypatch.setattr(milvus_module, "token_hex", lambda _: f"{mark}{next(numbers):08x}")

    def collections():
        return {name for name in client.list_collections() if f"_{mark}" in name}

    yield collections
    named = "".join(path.read_text() for path in tmp_path.rglob("manifest.json"))
    for name in (left := collections()):
        client.drop_collection(name)
    assert {name for name in left if name not in named} == set()
