"""The public Python surface: its names, its page in docs, and data given as examples."""

import inspect
import re
import sys
from pathlib import Path

import pytest
from helpers.tiny_sentences import sentence

import contrasent

PAGE = Path(__file__).parents[1] / "docs/python_api.md"
HABITS = PAGE.with_name("coming_from_sentence_transformers.md")
SIGNATURES = {
    "train": "recipe encoder data output objective resume overwrite device show_progress on_step "
    "on_evaluation settings",
    "pretrain": "encoder data options",
    "adapt": "encoder data output minutes dev test candidates settings seed resume overwrite",
    "fit": "encoder kind data output data_dir show_progress settings",
    "mine": "encoder pairs corpus output negatives margin columns device precision overwrite "
    "show_progress",
    "analyze": "encoder pairs data_dir pooler head device precision show_progress",
}


@pytest.fixture(autouse=True)
def desk(tiny_bert, tmp_path, monkeypatch):
    """A folder with the files that the page names."""
    (tmp_path / "bert-base-uncased").symlink_to(tiny_bert)
    text = "".join(f"{sentence(n, 3 + n % 6)}\n" for n in range(40))
    (tmp_path / "sentences.txt").write_text(text)
    pairs = [f"{sentence(n)}\t{sentence(n + n % 4)}\t{5 - n % 4}" for n in range(24)]
    (tmp_path / "pairs.tsv").write_text("\n".join(pairs) + "\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("CONTRASENT_CACHE", str(tmp_path / "cache"))
    return tmp_path


def test_every_public_name_is_documented_with_what_it_raises_and_an_example():
    assert set(contrasent.__all__) <= set(dir(contrasent))
    for name in set(contrasent.__all__) - {"__version__", "objectives"}:
        documentation = inspect.getdoc(getattr(contrasent, name))
        assert documentation, name
        if inspect.isfunction(getattr(contrasent, name)):
            assert "Raises:" in documentation and "Example:" in documentation, name
        assert f"`{name}`" in PAGE.read_text(), name


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_keep_their_names(name):
    parameters = list(inspect.signature(getattr(contrasent, name)).parameters)
    assert parameters[: len(SIGNATURES[name].split())] == SIGNATURES[name].split()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_page_runs_as_it_stands(desk, monkeypatch):
    names = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        if block.startswith("# my_objective.py"):
            (desk / "my_objective.py").write_text(block)
        else:
            exec(block, names)  # noqa: S102 - the page is ours
    monkeypatch.delitem(sys.modules, "my_objective")
    assert len(names["losses"]) == 3
    assert (desk / "runs/own/last/model.safetensors").is_file()
    assert names["hits"][0].text in names["texts"]
    assert names["whitened"].width == 8


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_page_for_users_of_sentence_transformers_runs_as_it_stands(desk):
    names = {}
    for block in re.findall(r"```python\n(.*?)```", HABITS.read_text(), re.DOTALL):
        exec(block, names)  # noqa: S102 - the page is ours
    assert names["one"].shape == (16,) and names["short"].shape == (1, 8)
    assert (desk / "with-prompts/README.md").is_file()


def test_training_on_examples_equals_training_on_their_file():
    texts = Path("sentences.txt").read_text().splitlines()
    settings = {"train.max_steps": 2, "train.batch_size": 8, "evaluation.task": "none"}
    seen = {"list": [], "file": []}
    for name, data in {"list": texts, "file": "sentences.txt"}.items():
        contrasent.train(
            encoder="bert-base-uncased",
            data=data,
            output=name,
            on_step=seen[name].append,
            **settings,
            **{"evaluation.final": "none"},
        )
    assert [step.loss for step in seen["list"]] == [step.loss for step in seen["file"]]
