"""The built package."""

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_every_file_of_the_package_is_in_the_wheel(tmp_path):
    words = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path)
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    there = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "contrasent").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert there - set(ZipFile(wheel).namelist()) == set()
