"""What ``data build`` writes: samples, repeats, forms, overlap, and never half a file."""

import pytest
from helpers.building import built, write
from helpers.command_line import refused, worked

from contrasent.data.examples import open_examples

PAIRS = [[f"sentence {k}", f"paraphrase {k}"] for k in range(300)]


def sample(source, count, seed, folder):
    words = ("paraphrases", source, "--sample", count, "--seed", seed)
    return built(*words, folder=folder)


def test_a_sample_follows_from_its_seed_and_not_from_the_order_of_the_rows(tmp_path):
    pairs = write(tmp_path / "pairs.tsv", PAIRS)
    backwards = write(tmp_path / "backwards.tsv", PAIRS[::-1])
    first, report = sample(pairs, 50, 1, tmp_path)
    assert first == [row for row in map(tuple, PAIRS) if row in first] and len(first) == 50
    assert (report["examples"], report["counts"]["unsampled"]) == (50, 250)
    again, same = sample(pairs, 50, 1, tmp_path)
    assert (again, same["sha256"]) == (first, report["sha256"])
    assert sample(backwards, 50, 1, tmp_path)[0] == first[::-1]
    assert sample(pairs, 50, 2, tmp_path)[0] != first
    # A smaller sample of the same seed is a part of the larger one.
    assert set(sample(pairs, 20, 1, tmp_path)[0]) < set(first)


AWKWARD = [['say "x", y', "tab and\u00a0space"], ["comma, here", "émoji 😀"], ["=1", "'"]]


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".jsonl"])
def test_every_form_reads_back_as_it_was(tmp_path, kind):
    source = write(tmp_path / "f.jsonl", [{"sent0": a, "sent1": b} for a, b in AWKWARD])
    output = tmp_path / f"made{kind}"
    worked("data", "build", "paraphrases", source, "--output", output)
    bits = output.read_bytes()
    examples = open_examples(str(output))
    assert list(examples) == [(a, b.replace("\u00a0", " ")) for a, b in AWKWARD]
    assert examples.columns.startswith("sent0 as anchor, sent1 as positive")
    text = bits.decode()
    assert "\r" not in text
    assert text.startswith({".csv": "sent0,sent1\n", ".tsv": "sent0\t"}.get(kind, '{"sent0": '))
    assert refused("data", "build", "paraphrases", source, "--output", output).startswith(
        f"{output} exists already"
    )
