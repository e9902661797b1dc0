"""docs/tables.md: every cell of the papers' tables is trained by the settings that it names."""

import json
import re
import shlex
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest
import torch
import yaml
from helpers.command_line import worked
from helpers.tiny_sentences import SENTENCES, sentence, write
from helpers.tiny_wordnet import only_wordnet

from contrasent.recipe import load_recipe, overrides_in
from contrasent.training.embedding import embedding
from contrasent.training.run_folder import complete
from contrasent.training.setup import prepare

PAGE = (Path(__file__).parents[2] / "docs" / "tables.md").read_text(encoding="utf-8")
CELLS = {
    "SimCSE, Table 1": 11,
    "SimCSE, Table 2": 8,
    "SimCSE, Table 3": 8,
    "SimCSE, Table 4": 17,
    "SimCSE, Table 6": 8,
    "SimCSE, Table 7": 5,
    "SimCSE, Table D.1": 6,
    "SimCSE, Table D.2": 4,
    "DiffCSE, Table 3": 9,
    "DiffCSE, Table 4": 4,
    "DiffCSE, Table 5": 4,
    "DiffCSE, Table 6": 8,
    "DiffCSE, Table 7": 6,
    "DiffCSE, Table 8": 8,
    "DiffCSE, Table 15": 10,
}
QUIET = {"evaluation.task": "none", "evaluation.final": "none", "train.precision": "fp32"}


@dataclass(frozen=True)
class Cell:
    table: str
    name: str
    words: tuple
    data: str

    def __str__(self):
        return f"{self.table}, {self.name}"


def rows_of(text):
    """The cells of Markdown tables, without their headings."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip().strip("`") for cell in row] for row in rows]


def cells():
    for section in re.split(r"^## ", PAGE, flags=re.MULTILINE):
        table = section.partition(":")[0]
        if table in CELLS:
            for name, words, data in rows_of(section)[1:]:
                yield Cell(table, name, tuple(shlex.split(words)), data)


def recipe_of(cell, **changes):
    name, *words = cell.words
    named = overrides_in(words, ())
    return load_recipe(name, {**named, **changes}), named


ALL = list(cells())
BUILT = {row[0]: row[2] for row in rows_of(PAGE.partition("## SimCSE")[0])[1:]}


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    """Every file that the cells name, built by the commands of the page from small sources."""
    folder = tmp_path_factory.mktemp("cells")
    documents = [line + "\n" * (n % 4 == 3) for n, line in enumerate(SENTENCES[:40])]
    found = {"sentences": folder / "sentences.txt", "documents": folder / "documents.txt"}
    write(found["sentences"], SENTENCES[:40])
    write(found["documents"], documents)
    labels = ("entailment", "neutral", "contradiction")
    for number, name in enumerate(("snli", "mnli", "anli")):
        rows = [
            {
                "sentence1": sentence(n + 50 * number, 8),
                "sentence2": sentence(n + 50 * number + 7 * k + 1, 5 + k),
                "gold_label": label,
            }
            for n in range(12)
            for k, label in enumerate(labels)
        ]
        write(folder / f"{name}.jsonl", [json.dumps(row) for row in rows])
    asked = [f"{n}\t{sentence(n, 6)}\t{sentence(n + 9, 7)}\t{n % 2}" for n in range(24)]
    write(folder / "train.tsv", ["id\tquestion1\tquestion2\tis_duplicate", *asked])
    captions = [f"{n // 4}.jpg#{n % 4}\t{sentence(n, 6)}" for n in range(24)]
    write(folder / "results.token", captions)
    scored = [f"{sentence(n, 6)}\t{sentence(n + 5, 7)}\t0.8" for n in range(24)]
    write(folder / "para-nmt.txt", scored)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        for name, command in BUILT.items():
            if command:
                program, *words = shlex.split(command)
                assert program == "contrasent"
                worked(*words)
                found[name] = folder / f"{name}.csv"
                sampled = f"{name}-sample.csv"
                worked(*words[:-1], sampled, "--sample", 8)
                found[f"{name} sample"] = folder / sampled
    return found


def test_no_cell_is_missing_and_none_is_there_twice():
    assert Counter(cell.table for cell in ALL) == CELLS
    assert {cell.data.removesuffix(" sample") for cell in ALL} == BUILT.keys()
    for table in CELLS:
        made = [(complete(recipe_of(cell)[0]), cell.data) for cell in ALL if cell.table == table]
        assert not any(one in made[:n] for n, one in enumerate(made))


def test_a_sample_is_of_the_size_in_the_papers_column():
    assert 'A name with "sample" is the same data made with `--sample 134000`.' in PAGE


@pytest.mark.parametrize("cell", ALL, ids=str)
def test_a_cell_is_trained_by_its_settings(cell, files, tmp_path, tiny_masked_lm):
    """All parts of the run are made, and the loss of its first batch has a gradient."""
    changes = {"encoder.name": str(tiny_masked_lm), "data.file": str(files[cell.data]), **QUIET}
    recipe, named = recipe_of(cell, **changes)
    if recipe.objective.get("generator"):
        changes["objective.generator"] = str(tiny_masked_lm)
        recipe, _ = recipe_of(cell, **changes)
    recipe = complete(recipe)
    sections = asdict(recipe)
    for dotted, value in named.items():
        section, key = dotted.split(".")
        if dotted not in changes:
            assert sections[section][key] == yaml.safe_load(value)
    if recipe.view.name == "synonym":
        pytest.importorskip("nltk")
        with only_wordnet(tmp_path / "nltk_data"):
            first_loss(recipe)
    else:
        first_loss(recipe)


def first_loss(recipe):
    parts = prepare(recipe, torch.device("cpu"))
    embed = embedding(
        parts.encoder,
        parts.objective,
        recipe.train,
        "fp32",
        twin=parts.twin,
        fixed_dropout=recipe.view.fixed_dropout,
    )
    for module in (parts.encoder, parts.objective, parts.twin):
        if module is not None:
            module.train()
    (batch,) = parts.loader.stream(0, 1)
    if parts.mlm_view is not None:
        batch = parts.mlm_view(batch)
    batch = parts.objective.prepare(batch)
    encoded, _ = embed(batch)
    loss = sum(parts.objective(encoded, batch).values())
    loss.backward()
    assert loss.isfinite()
    gradients = [p.grad for p in parts.encoder.parameters() if p.grad is not None]
    assert max(gradient.abs().max() for gradient in gradients) > 0
    return loss


TRAINED = [
    "SimCSE, Table 1, crop 20 %",
    "SimCSE, Table 2, next sentence, two encoders",
    "SimCSE, Table 7, contradiction + neutral, alpha 1.0",
    "SimCSE, Table D.2, lambda = 0.1",
    "DiffCSE, Table 3, same + next sentence for x'",
    "DiffCSE, Table 15, additional negatives, insert 15 %",
]


@pytest.mark.parametrize("name", TRAINED)
def test_a_cell_is_trained_from_the_command_line(name, files, tmp_path, tiny_masked_lm):
    (cell,) = [cell for cell in ALL if str(cell) == name]
    words = [*cell.words, "--data", files[cell.data], "--encoder", tiny_masked_lm]
    if cell.table.startswith("DiffCSE"):
        words += ["--objective.generator", tiny_masked_lm]
    words += [word for key, value in QUIET.items() for word in (f"--{key}", value)]
    run = tmp_path / "run"
    worked("train", *words, "--output", run, "--max-steps", 2, "--train.batch_size", 8)
    assert (run / "last" / "model.safetensors").is_file()
    assert len((run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) == 2
