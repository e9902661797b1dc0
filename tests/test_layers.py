"""A file imports only from layers below its own, heavy libraries stay where they belong, and
files stay short enough to read."""

import ast
import os
import re
import resource
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from helpers.workers import processor_time

import contrasent

ROOT = Path(contrasent.__file__).parent
LAYERS = [
    {"__init__"},
    {"errors"},
    {"distributed", "files", "progress", "settings"},
    {"functional", "metrics", "options", "records", "recipe"},
    {"data"},
    {"model"},
    {"objectives"},
    {"encode"},
    {"search"},
    {"evaluation"},
    {"training", "report"},
    {"fitting"},
    {"adaptation", "quickstart", "reproduce", "serve"},
    {"api", "compat"},
    {"cli"},
    {"__main__"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
FILES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")
LINES, FILES_AT_MOST = 35_650, 143
MODEL_FILES = ("data/tokenizer.py", "model/backbones/", "model/weights.py", "model/checkpoint.py")
MAY_IMPORT = {
    "transformers": MODEL_FILES,
    "matplotlib": ("report/figures.py",),
    "faiss": ("search/",),
    "pymilvus": ("search/milvus.py",),
    "accelerate": ("training/",),
    "datasets": ("data/",),
    "typer": ("cli/",),
    **dict.fromkeys(
        ("fastapi", "fastapi_offline", "starlette", "uvicorn", "orjson", "prometheus_client"),
        ("serve/",),
    ),
    "sentence_transformers": ("search/mining.py",),
    "torchvision": (),
}
WITH_TORCH = (
    *("data/batch.py", "data/loader.py", "evaluation/logistic_regression.py", "fitting.py"),
    *("functional.py", "model/", "objectives/", "distributed.py", "training/"),
)
ON_DEMAND = "transformers scipy faiss pyarrow pymilvus datasets huggingface_hub pandas matplotlib"
AT_THE_TOP = {
    "torch": WITH_TORCH,
    "accelerate": ("training/",),
    **dict.fromkeys(ON_DEMAND.split(), ()),
}


def relative(path):
    return path.relative_to(ROOT).as_posix()


def part(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


@cache
def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(nodes):
    """The modules that import statements name."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where things come from"
            yield node.module
            if node.module == "contrasent":
                yield from (f"contrasent.{alias.name}" for alias in node.names)


def run_at_import(path):
    """The statements that run when the file is imported: not those of functions or for mypy."""
    waiting, found = list(tree(path).body), []
    while waiting:
        node = waiting.pop()
        typing = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if typing or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        found.append(node)
        waiting += ast.iter_child_nodes(node)
    return found


def misplaced(nodes_of, places):
    """The libraries that files import where they do not belong."""
    return [
        f"{relative(path)} imports {library}"
        for path in FILES
        for library in {module.split(".")[0] for module in imported(nodes_of(path))}
        if library in places and not relative(path).startswith((*places[library], "\0"))
    ]


def everywhere(path):
    return ast.walk(tree(path))


def test_imports_go_one_way():
    for path in FILES:
        mine = part(path)
        for module in imported(everywhere(path)):
            package, _, rest = module.partition(".")
            theirs = rest.split(".")[0]
            if package == "contrasent" and theirs and theirs not in ("__version__", mine):
                assert LEVEL[theirs] < LEVEL[mine], f"{relative(path)} must not import {theirs}"


def test_libraries_stay_where_they_belong():
    assert not misplaced(everywhere, MAY_IMPORT)


def test_heavy_libraries_are_imported_by_the_functions_that_need_them():
    assert not misplaced(run_at_import, AT_THE_TOP)


MODULES = {relative(path).removesuffix(".py").replace("/", "."): path for path in FILES}
ROOMS = {name.removesuffix(".__init__"): path for name, path in MODULES.items()}
PACKAGES = {name.removesuffix(".__init__") for name in MODULES if name.endswith(".__init__")}


def imports_of(nodes):
    """The modules of the package that statements import, by their names below it."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "contrasent":
            below = node.module.removeprefix("contrasent").lstrip(".")
            names = {f"{below}.{alias.name}".lstrip(".") for alias in node.names}
            found |= {name if name in ROOMS else below for name in names}
    return found & ROOMS.keys()


def test_the_package_does_not_grow():
    counted = [*FILES, *ROOT.rglob("*.pyi")]  # doors too
    lines = [len(path.read_text(encoding="utf-8").splitlines()) for path in counted]
    assert max(lines) <= 500
    assert sum(lines) <= LINES
    assert len(FILES) <= FILES_AT_MOST


def doors():
    """The names of every room's door, by room."""
    return {
        path.parent.name: {
            alias.name
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }
        for path in ROOT.glob("*/__init__.pyi")
    }


def test_a_door_has_what_it_names():
    for room, names in doors().items():
        module = import_module(f"contrasent.{room}")
        assert set(module.__all__) == names
        assert not [name for name in names if not hasattr(module, name)], room


def test_what_uses_rooms_comes_through_their_doors():
    known, users = doors(), ("serve", "reproduce", "adaptation", "quickstart", "cli")
    benchmarks = (ROOT.parent / "benchmarks").rglob("*.py")
    for path in (*(path for path in FILES if part(path) in users), *benchmarks):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("contrasent."):
                room, _, inside = node.module.removeprefix("contrasent.").partition(".")
                if room in known and path.parent.name != room:
                    assert not inside, f"{path} imports the inside of {room}"
                    assert {alias.name for alias in node.names} <= known[room], path


def test_no_string_names_a_part_above_or_the_inside_of_another():
    for path in FILES:
        for node in everywhere(path):
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and re.fullmatch(r"contrasent(\.\w+)+", text):
                named, *inside = text.split(".")[1:]
                assert LEVEL.get(named, 0) <= LEVEL[part(path)], f"{relative(path)} names {text}"
                assert not inside or named == part(path), f"{relative(path)} names {text}"


def test_every_file_has_a_name_of_its_own():
    names = [path.stem for path in FILES if path.name != "__init__.py"]
    assert sorted(names) == sorted(set(names))


def test_a_class_name_is_used_once():
    classes = [
        node.name
        for path in FILES
        for node in tree(path).body
        if isinstance(node, ast.ClassDef)
        and not (node.name == "Config" and path.parent.name == "objectives")
    ]
    assert sorted(classes) == sorted(set(classes))


def test_a_public_method_has_a_docstring_or_overrides_one():
    nodes = [node for path in FILES for node in everywhere(path)]
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}

    def methods(node):
        return {it.name: it for it in node.body if isinstance(it, ast.FunctionDef)}

    def inherits(node, name):
        bases = [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases]
        own = [classes[base] for base in bases if base in classes]
        return len(own) < len(bases) or any(name in methods(it) or inherits(it, name) for it in own)

    assert not [
        f"{node.name}.{name}"
        for node in classes.values()
        if not node.name.startswith("_")
        for name, method in methods(node).items()
        if not name.startswith("_") and not ast.get_docstring(method) and not inherits(node, name)
    ]


def test_what_only_one_module_imports_is_no_small_module():
    importers = {name: [] for name in ROOMS}
    for name, path in ROOMS.items():
        for module in imports_of(ast.walk(tree(path))):
            importers[module].append(name)
    small = [name for name, path in ROOMS.items() if len(path.read_text().splitlines()) < 60]
    assert not [name for name in small if len(importers[name]) == 1 and name not in PACKAGES]


def test_no_modules_import_each_other_in_a_circle():
    imports = {name: imports_of(run_at_import(path)) - {name} for name, path in ROOMS.items()}
    while leaves := {name for name, modules in imports.items() if not modules & imports.keys()}:
        imports = {name: modules for name, modules in imports.items() if name not in leaves}
    assert not imports


def test_every_part_has_its_layer():
    assert {part(path) for path in FILES} == set(LEVEL) - {"__init__"}


HEAVY = {"torch", "transformers", "scipy", "faiss", "pyarrow", "accelerate", "datasets", "numpy"}
WATCHED = """
import atexit, sys
atexit.register(lambda: print("LOADED", *(m.partition(".")[0] for m in sys.modules)))
"""
HELP = """
sys.argv = ["contrasent", "--help"]
from contrasent.cli.app import main
main()
"""


def started(code):
    """What a process prints and loads, and the processor seconds of the quickest of three."""
    times, environment = [], {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-c", WATCHED + code]
    for _ in range(3):
        start = processor_time(resource.RUSAGE_CHILDREN)
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        times.append(processor_time(resource.RUSAGE_CHILDREN) - start)
    said, _, loaded = done.stdout.partition("LOADED")
    return said, set(loaded.split()), min(times)


@pytest.mark.parametrize(
    ("code", "most", "text"),
    [("import contrasent", 1, ""), (HELP, 5, "train")],
    ids=["import", "help"],
)
def test_the_package_and_its_help_are_quick_and_load_nothing_heavy(code, most, text):
    """Beside the import of what commands are made with, on whatever processor this is."""
    said, loaded, seconds = started(code)
    assert text in said and "contrasent" in loaded
    assert not HEAVY & loaded
    assert seconds < most * started("import pydantic.types, typer.rich_utils")[2]


def test_what_test_modules_share_is_a_helper():
    tests = sorted(Path(__file__).parent.rglob("*.py"))
    modules = {path.stem for path in tests if path.parent.name != "helpers"} - {"make_curves"}
    for path in tests:
        for module in imported(ast.walk(tree(path))):
            first = module.split(".")[0]
            assert first not in modules | {"tests"}, f"{path} imports {module}"
