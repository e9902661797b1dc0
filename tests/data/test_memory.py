"""Reading, tokenising and iterating stay within a bound that does not grow with the data."""

import gzip
import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

PROGRAM = """
import json, resource, sys
from pathlib import Path
import transformers
from contrasent.data.loader import Loader
from contrasent.data.loader import tokenize
from contrasent.data.examples import open_examples
from contrasent.data.tokenizer import Tokenizer
from contrasent.data.loader import plain

def peak():
    status = Path("/proc/self/status")
    if status.exists():  # what getrusage tells there includes the process that started this one
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

text, vocabulary = sys.argv[1:]
imports = peak()
store = tokenize(open_examples(text), Tokenizer.load(vocabulary), 32)
loader = Loader(plain(store, 2), batch_size=64, seed=0)
read = sum(batch.examples for batch in loader.stream(0, loader.steps_per_epoch))
told = {"read": read, "tokens": store.manifest.tokens, "imports": imports, "peak": peak()}
print(json.dumps(told))
"""


@pytest.mark.slow
@pytest.mark.acceptance
def test_two_hundred_thousand_lines_need_little_memory(shared, tmp_path):
    lines = 200_000
    text = tmp_path / "text.txt.gz"
    with gzip.open(shared / "data/wiki/wiki1m_style.txt.gz") as whole:
        text.write_bytes(gzip.compress(b"".join(islice(whole, lines)), 1))
    vocabulary = shared / "data/tokenizers/bert-base-uncased"
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(text), str(vocabulary)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TOKENIZERS_PARALLELISM": "true"},
        stdout=subprocess.PIPE,
        check=True,
        timeout=300,
    )
    told = json.loads(found.stdout)
    assert (told["read"], told["tokens"]) == (lines, 4_777_211)
    mebibyte = 1024 if sys.platform == "linux" else 1024**2
    assert told["peak"] < 1000 * mebibyte
    assert told["peak"] - told["imports"] < 200 * mebibyte
