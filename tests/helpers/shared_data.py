"""Where the real data is that acceptance tests read."""

import os
from pathlib import Path

SHARED = Path(os.environ.get("CONTRASENT_SHARED", Path(__file__).parents[3] / "shared"))
