import os
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("CONTRASENT_SHARED", Path(__file__).parents[3] / "shared"))


@pytest.fixture
def shared():
    """The folder with real data that the acceptance tests read."""
    if not (SHARED / "data").is_dir():
        pytest.skip(f"no shared data in {SHARED}; name its folder in CONTRASENT_SHARED")
    return SHARED
