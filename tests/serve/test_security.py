"""Every sentence of SECURITY.md on what holds has tests, which are there; and those it has here."""

import ast
import re
import subprocess
import sys
from pathlib import Path

from helpers.tiny_models import SENTENCES

from contrasent.cli.fit import ServeCommand

ROOT = Path(__file__).parents[2]
TESTS = {
    "Weights are read from safetensors": "model/test_resolve.py::test_pickles_are_downloaded_only",
    "Pickled weights of a": "model/test_broken_folders.py::test_a_pickle_is_not_executed",
    "Vectors are never unpickled": "encode/test_shards.py::test_another_matrix_is_refused_and",
    "Code that comes with a": "model/test_broken_folders.py::test_code_of_a_folder_is_not_run",
    "A recipe cannot make": "test_mistakes.py::test_a_mistake_is_explained",
    "A path that a model's folder": "model/test_broken_folders.py::test_a_shard_outside",
    "Of an index nothing": "search/test_hostile.py::test_an_index_never_reads_or_deletes",
    "An archive that": "data/test_fetch.py::test_an_archive_that_is_not_the_published",
    "What would steer a terminal": "search/test_hostile.py::test_search_prints_no_control",
    "The network is used": "serve/test_security.py::test_a_local_model_needs_no_network",
    "HF_HUB_OFFLINE=1": "model/test_resolve.py::test_offline_an_unknown_name_is_explained_at_once",
    "contrasent serve listens on": "serve/test_security.py::test_a_server_listens_on_the_loopback",
    "It answers only": "serve/test_embedding_routes.py::test_only_who_means_this_server",
    "What pages of other": "serve/test_embedding_routes.py::test_only_who_means_this_server",
    "With a key": "serve/test_embedding_routes.py::test_a_key_is_asked_for_where_something_is_told",
    "A body, a text": "serve/test_embedding_routes.py::test_a_body_that_does_not_come",
    "Its page and": "report/test_html_report.py::",
}


def test_every_sentence_has_a_test_that_is_there():
    page = (ROOT / "SECURITY.md").read_text()
    holds = page.partition("What holds")[2].partition("\n\n")[2].partition("What does not")[0]
    plain = " ".join(holds.replace("`", "").replace("* ", " ").split())
    sentences = re.split(r"(?<=\.) (?=[A-Z]|contrasent )", plain)
    for sentence in sentences:
        [start] = [start for start in TESTS if sentence.startswith(start)]
        path, _, name = TESTS[start].partition("::")
        tree = ast.parse((ROOT / "tests" / path).read_text())
        tests = [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        assert any(test.startswith(name or "test_") for test in tests), (sentence, TESTS[start])
    assert len(sentences) == len(TESTS)


def test_a_server_listens_on_the_loopback():
    options = ServeCommand(model="m")
    assert (options.host, options.allowed_host, options.cors) == ("127.0.0.1", None, None)


NO_NETWORK = """
import sys

def refuse(event, given):
    if event == "socket.connect" or event.startswith("socket.getaddrinfo"):
        raise SystemExit(f"{event} {given}")

sys.addaudithook(refuse)
from contrasent.cli.app import main
main()
"""


def test_a_local_model_needs_no_network(tiny_bert, tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES))
    words = ("encode", tiny_bert, tmp_path / "text.txt", tmp_path / "made.npy", "--pooler", "mean")
    command = (sys.executable, "-c", NO_NETWORK, *map(str, words))
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
