"""The built package with the source tree out of the way."""

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
from helpers.report_contents import record

from contrasent.records import write_records
from contrasent.report.contents import Contents
from contrasent.report.page import page

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
import contrasent
from contrasent.records import read_records
from contrasent.report.contents import Contents
from contrasent.report.page import write_report

assert contrasent.__file__.startswith(sys.argv[1]), contrasent.__file__
write_report("r.html", Contents(records=tuple(read_records("scores.jsonl"))))
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    words = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder)
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_every_file_of_the_package_is_in_the_wheel(wheel):
    there = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "contrasent").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert there - set(ZipFile(wheel).namelist()) == set()


def test_a_report_is_written_by_the_installed_package(wheel, tmp_path):
    site, work = tmp_path / "site", tmp_path / "work"
    work.mkdir()
    ZipFile(wheel).extractall(site)
    records = (record(),)
    write_records(work / "scores.jsonl", records)
    program = f"import sys; sys.path.insert(0, {str(site)!r})\n{SCRIPT}"
    words = (sys.executable, "-I", "-W", "error", "-c", program, site)
    subprocess.run(words, cwd=work, check=True)
    assert (work / "r.html").read_text(encoding="utf-8") == page(Contents(records=records))
