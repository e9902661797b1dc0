"""The documentation: its site, snippets and notebooks, and the public names with their examples."""

import inspect
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import typer
from helpers.command_line import in_place, worked
from helpers.tiny_sentences import PAIRS, sentence, write, write_pairs

import contrasent
from contrasent.cli.app import app
from contrasent.model import int8
from contrasent.recipe import load_recipe, overrides_in
from contrasent.reproduce.materials import SMOKE_TASKS

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/python_api.md"
TOOLS = {  # the package of each, and how its snippet on the page names what it found
    "LangChain": ("langchain_core", lambda names: names["nearest"].page_content),
    "Haystack": ("haystack_integrations", lambda names: names["hits"][0].content),
    "Chroma": ("chromadb", lambda names: names["found"]["documents"][0][0]),
    "FAISS": ("faiss", lambda names: ["A dog runs.", "A cat sleeps."][names["places"][0, 0]]),
}


@pytest.fixture(autouse=True)
def desk(tiny_bert, tmp_path, monkeypatch):
    """A folder with the files that the page names."""
    for name in ("bert-base-uncased", "all-MiniLM-L6-v2"):
        (tmp_path / name).symlink_to(tiny_bert)
    write(tmp_path / "sentences.txt", [sentence(n, 3 + n % 6) for n in range(40)])
    write_pairs(tmp_path / "pairs.tsv")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_every_public_name_is_documented_with_what_it_raises_and_an_example():
    assert set(contrasent.__all__) <= set(dir(contrasent))
    reference = PAGE.with_name("reference.md").read_text("utf-8").split()
    for name in set(contrasent.__all__) - {"__version__", "objectives"}:
        assert f"contrasent.{name}" in reference
        documentation = inspect.getdoc(getattr(contrasent, name))
        assert documentation, name
        if inspect.isfunction(getattr(contrasent, name)):
            assert "Raises:" in documentation and "Example:" in documentation, name
        assert f"`{name}`" in PAGE.read_text(), name


def blocks(page):
    """The Python blocks of a page."""
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)


def names_after(blocks, names=None):
    """The names that are known after blocks of a page."""
    names = {} if names is None else names
    for block in blocks:
        exec(block, names)  # noqa: S102 - the page is ours
    return names


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_page_runs_as_it_stands(desk, monkeypatch):
    objective, *others = sorted(
        blocks("docs/python_api.md"), key=lambda it: not it.startswith("# my_objective.py")
    )
    (desk / "my_objective.py").write_text(objective)
    names = names_after(others)
    monkeypatch.delitem(sys.modules, "my_objective")
    assert len(names["losses"]) == 3
    assert (desk / "runs/own/last/model.safetensors").is_file()
    assert names["whitened"].width == 8


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_page_on_search_runs_as_it_stands():
    names = names_after(blocks("docs/search.md"))
    assert names["hits"][0].text in names["texts"]
    assert names["recent"][0].metadata == {"source": "faq", "year": 2021}
    assert sum(map(len, names["clusters"].groups)) == len(names["index"])


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_page_for_users_of_sentence_transformers_runs_as_it_stands(desk):
    names = names_after(blocks("docs/coming_from_sentence_transformers.md"))
    assert names["one"].shape == (16,) and names["short"].shape == (1, 8)
    assert (desk / "with-prompts/README.md").is_file()


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_what_the_readme_trains_in_python_is_read_as_the_first_page_says(desk):
    names = names_after(blocks("README.md"))
    (desk / "runs/mine/best").symlink_to("last")  # nothing selects here
    [block] = blocks("docs/getting_started.md")
    *lines, last = block.rstrip().split("\n")
    names = names_after(["\n".join([*lines, f"rows = {last}"])], names)
    again = names["encoder"].encode(["A dog runs."], precision="fp32")
    assert names["rows"] == pytest.approx(again, abs=1e-5)


def commands(path):
    """The words of every ``contrasent`` command in the shell blocks of a page."""
    blocks = re.findall(r"```bash\n(.*?)```", path.read_text("utf-8"), re.DOTALL)
    waiting = [line for block in blocks for line in block.replace("\\\n", " ").split("\n")]
    variables = {}
    while waiting:
        line = waiting.pop(0)
        for name, value in variables.items():
            line = line.replace(f"${name}", value)
        words = shlex.split(line, comments=True)
        if len(words) == 1 and re.match(r"[A-Z]+=", words[0]):
            name, _, variables[name] = words[0].partition("=")
        if words[:2] == ["srun", "bash"]:
            waiting.insert(0, words[-1])
        places = [n for n, word in enumerate(words) if re.fullmatch(r"(.*/)?contrasent", word)]
        if places and words[0] not in ("docker", "pip"):
            rest = [word for word in words[places[-1] + 1 :] if word != "..."]
            end = next((n for n, word in enumerate(rest) if word in ("&&", ">", "|")), len(rest))
            yield [word.removesuffix("...") for word in rest[:end]]


PAGES = {
    str(path.relative_to(ROOT)): [*commands(path)]
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
}


@pytest.mark.parametrize("page", [page for page, found in PAGES.items() if found])
def test_every_command_of_a_page_is_understood(page):
    tree = typer.main.get_command(app)
    for words in PAGES[page]:
        command, left = tree, list(words)
        while hasattr(command, "commands"):
            command = command.get_command(typer.Context(command), left.pop(0))
        context = command.make_context(command.name, left)
        recipe = context.params.get("recipe", "pretrain-mlm")
        if command.name in ("train", "pretrain") and recipe != "mine.yaml":
            load_recipe(recipe, overrides_in(context.args, ()))


MODELS = (
    *("bert-base-uncased", "all-MiniLM-L6-v2", "minilm-mlm", "small-model", "large-encoder"),
    *("ENCODER", "MODEL", "M", "A", "B", "teacher", "student"),
)
RUN_HERE = ["--max-steps", "6", "--batch-size", "4", "--data.max_tokens", "32"]
TINY = {"train": [*RUN_HERE, "--overwrite"], "pretrain": RUN_HERE}
TINY["tune"] = [*RUN_HERE, "--trials", "2"]
TINY["duplicates"] = TINY["cluster"] = ["--overwrite"]
ELSEWHERE = re.compile(  # minutes, a network, wide or trained embeddings: other tests have it
    r"adapt|quickstart|mteb|data (fetch|mine)|push .* --private|calibrate .* --columns|"
    r".* --(objective.matryoshka|encoder.layers|truncate-dim)\b|"
    r".* --queries (simcse-table8|diffcse-table9)\b"
)
UNTRIED = ("docs/baselines", "docs/figures", "docs/scaling", "docs/serving", "docs/tables")


@pytest.fixture
def named_files(desk, tiny_masked_lm, monkeypatch):
    """Whatever the commands of the pages name, tiny."""
    texts = [sentence(n, 9) for n in range(700)]
    triplets = [f"{it},{sentence(n, 5)},{sentence(n + 17, 7)}" for n, it in enumerate(texts[:60])]
    labels = [f"{it},{sentence(n, 5)},{'enc'[n % 3]}" for n, it in enumerate(texts[:60])]
    lines = {
        ".tsv": PAIRS,
        ".csv": ["sent0,sent1,hard_neg", *triplets],
        "nli.csv": ["sent0,sent1,label", *labels],
        ".txt": texts,
        "documents.txt": [it + "\n" * (n % 6 == 5) for n, it in enumerate(texts)],
        "lists.jsonl": [
            json.dumps({"anchor": a, "candidate_1": b, "candidate_2": c, "scores": [2, 1]})
            for a, b, c in zip(texts, texts[1:], texts[2:40], strict=False)
        ],
    }
    words = " ".join(word for found in PAGES.values() for command in found for word in command)
    for name in set(re.split("[,:> ]", words)):
        ends = [end for end in lines if name.endswith(end)]
        if ends and "/" not in name:
            write(desk / name, lines[max(ends, key=len)])
    write(desk / "faq.jsonl", [json.dumps({"text": it, "year": 2020}) for it in texts[:9]])
    (desk / "notes").mkdir()
    write(desk / "notes/guide.md", ["# Guide", "## Install", *texts[:20], "## Use", *texts[20:40]])
    for name in MODELS:
        (desk / name).unlink(missing_ok=True)
        (desk / name).symlink_to(tiny_masked_lm)
    monkeypatch.setenv("CONTRASENT_DATA", str(SMOKE_TASKS))
    text = ("--encoder", "MODEL", "--data", "sentences.txt", "--output", "runs/mine")
    worked("train", "unsup-simcse", *text, *RUN_HERE)
    measured = (*text[:-1], "RUN", "--evaluation.geometry_every", "2", *RUN_HERE)
    worked("train", "unsup-simcse", *measured)


@pytest.mark.usefixtures("named_files")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if page == "README.md" else pytest.mark.acceptance)
        for page, found in PAGES.items()
        if found and page.removesuffix(".md") not in UNTRIED
    ],
)
def test_every_command_of_a_page_runs(page):
    """The commands in their order, on tiny text and models under the names of the page."""
    for words in PAGES[page]:
        computes = "--engine" not in words or int8.has_products()  # which some processors lack
        if computes and not ELSEWHERE.match(" ".join(words)):
            done = worked(*in_place(words, TINY.get(words[0], ())))
            if words[:2] == ["recipes", "unsup-simcse"]:
                Path("mine.yaml").write_text(done.out)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("zensical") is None, reason="the docs extra is not installed")
def test_the_site_is_built_without_a_warning_and_its_links_lead_somewhere(tmp_path):
    (tmp_path / "contrasent").symlink_to(Path(contrasent.__file__).parent)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    site = tmp_path / "site"
    assert len((site / "search.json").read_text("utf-8")) > 100_000
    pages = {path: path.read_text("utf-8") for path in site.rglob("index.html")}
    assert len(pages) == len([*(ROOT / "docs").rglob("*.md")])
    assert "MINUTES" in pages[site / "notebooks/index.html"]
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
    needed, nearest = TOOLS[tool]
    pytest.importorskip(needed, reason=f"{tool} is not installed")
    page = (ROOT / "docs/integrations.md").read_text("utf-8")
    [snippet] = re.findall(rf"\n## {tool}\n.*?```python\n(.*?)```", page, re.DOTALL)
    encoder = contrasent.SentenceEncoder("bert-base-uncased", pooler="mean", head="none")
    encoder.save(desk / "runs/mine/best")
    names = names_after([snippet])
    rows = encoder.encode(["who runs?", "A dog runs.", "A cat sleeps."], normalize=True)
    expected = ["A dog runs.", "A cat sleeps."][int((rows[1:] @ rows[0]).argmax())]
    assert nearest(names) == expected


def notebook(name, **parameters):
    """Run a notebook with other parameters; returns its names."""
    path = Path(f"{name}.py")
    cells = (ROOT / "docs/notebooks" / path).read_text("utf-8").split("\n# %%")
    [place] = [n for n, cell in enumerate(cells) if cell.startswith(' tags=["parameters"]')]
    assert all(f"\n{key} = " in cells[place] for key in parameters)
    cells[place] += "".join(f"{key} = {value!r}\n" for key, value in parameters.items())
    path.write_text("\n# %%".join(cells))
    return runpy.run_path(str(path), run_name="__main__")


@pytest.mark.acceptance
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_notebook_on_adapting_runs(capsys):
    changed = {"MINUTES": 0.5, "SETTINGS": {"train.batch_size": 4}}
    write(Path("sentences.txt"), [sentence(n, 9 + n % 6) for n in range(900)])
    names = notebook("adapt_an_encoder", ENCODER="bert-base-uncased", **changed)
    said, result = capsys.readouterr().out, names["result"]
    better = any((it.score or -1) > result.start_score for it in result.trials)  # on eight pairs
    assert ("95 % interval" if better else "Nothing that was tried beat the encoder") in said
    assert said.count(f"  1.00 {names['texts'][0]}\n") >= 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_notebook_on_objectives_runs():
    settings = {"train.batch_size": 4, "evaluation.final": "none", "evaluation.task": "none"}
    names = notebook("write_an_objective", ENCODER="bert-base-uncased", STEPS=3, SETTINGS=settings)
    assert [set(it) for it in names["terms"]] == [{"contrast", "spread"}] * 3
    assert (names["run"].last / "model.safetensors").is_file()


@pytest.mark.acceptance
def test_the_notebook_on_tables_runs():
    names = notebook("reproduce_a_table", ROWS="dropout 0.5", SEEDS="42")
    assert [cell["published"] for cell in names["cells"]] == ["71.0"]


def test_workflows_pin_what_they_use_by_hash():
    workflows = (ROOT / ".github" / "workflows").glob("*.yml")
    used = [line for it in workflows for line in it.read_text().splitlines() if "uses:" in line]
    assert used
    assert not [line for line in used if not re.search(r"@[0-9a-f]{40}  # v\d", line)]
