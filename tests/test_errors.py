"""Errors and their words, and records of measured numbers."""

import json

import pytest
from helpers.report_contents import record

from contrasent import errors
from contrasent.errors import ConfigError, ContrasentError, DataError, pick
from contrasent.records import json_lines, read_records

KNOWN = {"mean": 1, "cls": 2}
RECORD = record(value=0.1 + 0.2)
MANY = ["one", "two", "three", "four", "five", "six", "seven", "eight", "on"]


@pytest.mark.parametrize(
    ("name", "known", "said"),
    [
        ("meen", KNOWN, "unknown word 'meen'; choose one of cls, mean. Did you mean 'mean'?"),
        ("", KNOWN, "unknown word ''; choose one of cls, mean."),
        ("ohne", MANY, "unknown word 'ohne'. Did you mean 'one', 'on', 'three'?"),
    ],
)
def test_pick_says_what_is_known_and_what_is_near(name, known, said):
    assert pick("word", next(iter(known)), known) == next(iter(known))
    with pytest.raises(ConfigError) as caught:
        pick("word", name, known)
    assert str(caught.value) == said


def test_every_error_has_one_parent_and_is_also_what_python_would_raise():
    for name in ("ConfigError", "DataError", "CheckpointError", "MissingExtraError"):
        error, usual = getattr(errors, name), ImportError if "Missing" in name else ValueError
        assert issubclass(error, ContrasentError) and issubclass(error, usual)


def test_records_survive_a_file_in_full_precision(tmp_path):
    (tmp_path / "r.jsonl").write_text(json_lines([RECORD, RECORD]))
    assert read_records(tmp_path / "r.jsonl") == [RECORD, RECORD]
    fields = json.loads(json_lines([RECORD]))
    assert fields.pop("classifier", "") != "" and fields["value"] == 0.1 + 0.2  # came later
    (tmp_path / "old.jsonl").write_text(json.dumps(fields) + "\n")
    assert read_records(tmp_path / "old.jsonl") == [RECORD]


@pytest.mark.parametrize("line", ["{", "[]", '{"task": "stsb"}', '{"unknown": 1}'])
def test_a_line_that_is_no_record_is_named(tmp_path, line):
    path = tmp_path / "r.jsonl"
    path.write_text(json_lines([RECORD]) + line + "\n")
    with pytest.raises(DataError, match=r"r.jsonl:2: not a record: "):
        read_records(path)
