import pytest
from helpers.dummy_encoder import DummyEncoder


@pytest.fixture
def encoder():
    return DummyEncoder()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "index"
