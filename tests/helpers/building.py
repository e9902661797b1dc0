"""Building training files through the command line, and reading them back."""

import csv
import json

from helpers.command_line import worked


def write(path, content):
    """Write text, bytes, rows of cells (tabs between) or objects (a line of JSON each)."""
    if isinstance(content, list):
        content = "".join(
            (json.dumps(row) if isinstance(row, dict) else "\t".join(row)) + "\n" for row in content
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def built(kind, *words, folder):
    """Build a file; gives its examples and what the command says as JSON."""
    output = folder / "built.csv"
    said = worked("data", "build", kind, *words, "--output", output, "--json", "--overwrite")
    with output.open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file)
    report = json.loads(said.out)
    report["counts"] |= report["counts"]["left_out"]
    return [tuple(row) for row in rows], report


def premises(*rows):
    """Rows of premise, hypothesis and label under SNLI's header."""
    return [["sentence1", "sentence2", "gold_label"], *map(list, rows)]
