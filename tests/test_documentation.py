"""The documentation: its site, snippets and notebooks, and the public names with their examples."""

import inspect
import re
import runpy
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from helpers.tiny_sentences import sentence

import contrasent

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/python_api.md"
HABITS = PAGE.with_name("coming_from_sentence_transformers.md")
TOOLS = dict(
    re.findall(
        r"^## (.*?)\n.*?```python\n(.*?)```",
        (ROOT / "docs/integrations.md").read_text("utf-8"),
        re.DOTALL | re.MULTILINE,
    )
)
NEEDED = {
    "LangChain": "langchain_core",
    "Haystack": "haystack_integrations",
    "Chroma": "chromadb",
    "FAISS": "faiss",
}
NEAREST = {
    "LangChain": lambda names: names["nearest"].page_content,
    "Haystack": lambda names: names["hits"][0].content,
    "Chroma": lambda names: names["found"]["documents"][0][0],
    "FAISS": lambda names: ["A dog runs.", "A cat sleeps."][names["places"][0, 0]],
}
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


@pytest.mark.slow
@pytest.mark.skipif(find_spec("zensical") is None, reason="the docs extra is not installed")
def test_the_site_is_built_without_a_warning_and_its_links_lead_somewhere(tmp_path):
    for name in ("docs", "contrasent"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    site = tmp_path / "site"
    assert len((site / "search.json").read_text("utf-8")) > 100_000
    pages = {path: path.read_text("utf-8") for path in site.rglob("index.html")}
    assert len(pages) == len([*(ROOT / "docs").rglob("*.md")])
    anchors = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in pages.items()}
    assert "contrasent.train" in anchors[site / "reference/index.html"]
    assert not re.search(r":[a-z]+:<code>", pages[site / "reference/index.html"])
    for path, text in pages.items():
        for link in re.findall(r'\b(?:href|src)="([^"]*)"', text):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            assert target.exists(), f"{path}: {link}"
            if parts.fragment and target in anchors and not parts.fragment.startswith("__"):
                assert unquote(parts.fragment) in anchors[target], f"{path}: {link}"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("tool", TOOLS)
def test_other_tools_find_the_nearest_text_as_the_page_says(tool, desk):
    pytest.importorskip(NEEDED[tool], reason=f"{tool} is not installed")
    encoder = contrasent.SentenceEncoder("bert-base-uncased", pooler="mean", head="none")
    encoder.save(desk / "runs/mine/best")
    names = {}
    exec(TOOLS[tool], names)  # noqa: S102 - the page is ours
    rows = encoder.encode(["who runs?", "A dog runs.", "A cat sleeps."], normalize=True)
    expected = ["A dog runs.", "A cat sleeps."][int((rows[1:] @ rows[0]).argmax())]
    assert NEAREST[tool](names) == expected


def notebook(name, **parameters):
    """Run a notebook with other parameters; returns its names."""
    path = Path(f"{name}.py")
    cells = (ROOT / "docs/notebooks" / path).read_text("utf-8").split("\n# %%")
    [place] = [n for n, cell in enumerate(cells) if cell.startswith(' tags=["parameters"]')]
    assert all(f"\n{key} = " in cells[place] for key in parameters)
    cells[place] += "".join(f"{key} = {value!r}\n" for key, value in parameters.items())
    path.write_text("\n# %%".join(cells))
    return runpy.run_path(str(path), run_name="__main__")


SHORT = {"train.batch_size": 4, "evaluation.final": "none"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_notebook_on_adapting_runs(capsys):
    names = notebook("adapt_an_encoder", ENCODER="bert-base-uncased", MINUTES=1, SETTINGS=SHORT)
    assert names["result"].trials
    said = capsys.readouterr().out
    assert "95 % interval" in said and said.count(names["texts"][0]) == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_notebook_on_objectives_runs():
    settings = SHORT | {"evaluation.task": "none"}
    names = notebook("write_an_objective", ENCODER="bert-base-uncased", STEPS=3, SETTINGS=settings)
    assert [set(it) for it in names["terms"]] == [{"contrast", "spread"}] * 3
    assert (names["run"].last / "model.safetensors").is_file()


@pytest.mark.acceptance
def test_the_notebook_on_tables_runs():
    names = notebook("reproduce_a_table", ROWS="dropout 0.5", SEEDS="42")
    assert [cell["published"] for cell in names["cells"]] == ["71.0"]
