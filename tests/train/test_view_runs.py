"""Runs over edited and following sentences: from one command, bit-equal after a cut, refused."""

import json

import pytest
import yaml
from helpers.command_line import worked
from helpers.run_files import logged_losses
from helpers.tiny_sentences import PLAIN

from contrasent.training.run import train


def sentence(number):
    return " ".join(PLAIN[(number * 7 + k * 3) % len(PLAIN)] for k in range(3 + number % 6))


@pytest.fixture
def documents(tmp_path):
    """Forty sentences in documents of four."""
    path = tmp_path / "documents.txt"
    lines = [sentence(n) + ("\n" if n % 4 == 3 else "") for n in range(40)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def command(encoder, text, output, *words):
    return (
        *("train", "unsup-simcse", "--encoder", encoder, "--data", text, "--output", output),
        *("--evaluation.task", "none", "--evaluation.final", "none", "--max-steps", "3"),
        *("--train.batch_size", "8", "--train.precision", "fp32", *words),
    )


def test_one_command_trains_on_cropped_sentences(tmp_path, tiny_bert, text_file):
    words = ("--view.name", "crop", "--view.share", "0.2")
    worked(*command(tiny_bert, text_file, tmp_path / "crop", *words))
    worked(*command(tiny_bert, text_file, tmp_path / "again", *words))
    worked(*command(tiny_bert, text_file, tmp_path / "dropout"))
    assert (
        logged_losses(tmp_path / "crop")
        == logged_losses(tmp_path / "again")
        != logged_losses(tmp_path / "dropout")
    )
    kept = yaml.safe_load((tmp_path / "crop" / "recipe.yaml").read_text(encoding="utf-8"))
    assert (kept["view"]["name"], kept["view"]["share"]) == ("crop", 0.2)


def test_one_command_trains_on_following_sentences(tmp_path, tiny_bert, documents):
    words = ("--view.name", "next_sentence")
    worked(*command(tiny_bert, documents, tmp_path / "run", *words))
    info = json.loads((tmp_path / "run" / "last" / "contrasent.json").read_text(encoding="utf-8"))
    assert (info["data"]["examples"], info["data"]["documents"]) == (30, 10)


def test_the_example_is_told(recipe, tmp_path, caplog, documents):
    caplog.set_level("INFO", "contrasent")
    train(recipe(view__name="next_3_sentences", data__file=str(documents)), tmp_path / "run")
    told = [record.getMessage() for record in caplog.records]
    assert "10 documents of 4.0 sentences in the mean" in told
    assert "an example: a sentence and one of the next 3 of its document" in told
