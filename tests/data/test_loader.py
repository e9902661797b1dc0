import gzip
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import closing
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.padded import rows_of

from contrasent.data.batch import pack
from contrasent.data.loader import Loader, Mixture, ViewSource, batches_of_each, plain, tokenize


@pytest.fixture
def numbered(opened):
    """Examples whose sentences say which example and view they are: tokens (example, view)."""

    class Numbers:
        vocabulary, fingerprint = 1 << 16, "numbers"

        def ids(self, texts, _):
            ids = [np.array([int(x) for x in text.split()[4:]], dtype=np.int32) for text in texts]
            return ids, 0

    def stored(examples, views, taken=None):
        text = "this is the example {} {}{}"
        rows = [[text.format(n, v, " 9" * (n % 4)) for v in range(views)] for n in range(examples)]
        return plain(tokenize(opened(rows), Numbers(), None), taken or views)

    return stored


def examples_of(batch):
    """The example numbers of a batch, after checking that its views belong together."""
    rows = rows_of(batch)
    numbers = [
        [row[0] for row in rows[v * batch.examples :][: batch.examples]] for v in range(batch.views)
    ]
    assert all(view == numbers[0] for view in numbers)
    return numbers[0]


def same(a, b):
    return a.views == b.views and a.token_ids.equal(b.token_ids) and a.offsets.equal(b.offsets)


SIZES = [(2, 2), (2, 5), (3, 2), (9, 4), (9, 3), (10, 4), (12, 4), (13, 4), (7, 100), (5, 5)]


@pytest.mark.parametrize(("examples", "batch_size"), SIZES)
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_example_appears_exactly_once_an_epoch(numbered, examples, batch_size, shuffle):
    loader = Loader(numbered(examples, 2), batch_size=batch_size, seed=1, shuffle=shuffle)
    for epoch in range(3):
        steps = range(epoch * loader.steps_per_epoch, (epoch + 1) * loader.steps_per_epoch)
        batches = [examples_of(loader.batch(step)) for step in steps]
        assert sorted(n for batch in batches for n in batch) == list(range(examples))
        assert all(2 <= len(batch) <= batch_size + 1 for batch in batches)
        assert all(len(batch) == batch_size for batch in batches[:-1])
    if examples >= batch_size:
        loader = Loader(numbered(examples, 2), batch_size=batch_size, seed=1, drop_last=True)
        sizes = [loader.batch(step).examples for step in range(loader.steps_per_epoch)]
        assert sizes == [batch_size] * (examples // batch_size)


def test_views_come_anchors_first(numbered):
    batch = Loader(numbered(6, 3), batch_size=4, seed=0).batch(0)
    assert [row[1] for row in rows_of(batch)] == [0] * 4 + [1] * 4 + [2] * 4
    assert len(set(examples_of(batch))) == 4
    repacked = pack(rows_of(batch), views=3)
    assert same(batch, repacked)
    assert batch.token_ids.dtype == torch.int64


def test_a_batch_depends_on_nothing_but_the_step(numbered):
    store = numbered(23, 2)
    settings = {"batch_size": 4, "seed": 3}
    steps = list(range(20))
    straight = [Loader(store, **settings).batch(step) for step in steps]
    loader = Loader(store, **settings)
    for step in reversed(steps):
        assert same(loader.batch(step), straight[step])
    for first in (0, 5, 6, 13, 19, 20):
        resumed = list(Loader(store, **settings).stream(first, 20))
        assert len(resumed) == 20 - first
        assert all(map(same, resumed, straight[first:]))


def loader_threads():
    return [t for t in threading.enumerate() if t.name.startswith("contrasent-prefetch")]


def test_the_thread_reads_a_little_ahead_and_ends_with_its_consumer(numbered):
    loader = Loader(numbered(8, 1), batch_size=2, seed=0)
    asked = []

    def gather(*arguments):
        asked.append(threading.current_thread().name)
        return loader._source.gather(*arguments)

    watched = Loader(ViewSource(np.arange(8), 1, gather), batch_size=2, seed=0)
    with closing(watched.stream(0, 1000)) as batches:
        next(batches)
        time.sleep(0.1)
        assert len(asked) == 5
        assert loader_threads()
    assert not loader_threads()
    assert all(name.startswith("contrasent-prefetch") for name in asked)

    batches = watched.stream(0, 1000)
    next(batches)
    del batches
    assert not loader_threads()
    assert len(list(watched.stream(3, 3))) == 0


def test_what_goes_wrong_in_the_thread_is_raised_to_the_consumer():
    def broken(*_):
        raise OSError("the disk is gone")

    loader = Loader(ViewSource(np.arange(8), 1, broken), batch_size=2, seed=0)
    with pytest.raises(OSError, match="the disk is gone"):
        next(loader.stream(0, 4))
    assert not loader_threads()


def test_a_pinned_stream_has_the_same_batches_all_pinned(numbered, monkeypatch):
    pinned = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda t: pinned.append(t) or t.clone())
    loader = Loader(numbered(12, 2), batch_size=4, seed=0)
    plain = list(loader.stream(0, 3))
    assert not pinned
    for batch, ready in zip(plain, loader.stream(0, 3, pinned=True), strict=True):
        assert ready.token_ids.equal(batch.token_ids) and ready.offsets.equal(batch.offsets)
        assert ready.duplicate_of is not None
    assert len(pinned) == 9  # of each batch: tokens, offsets, texts


WEIGHTS = [(None, None, None), (1, 1, 1), (7, 2, 1), (None, 0.3, None), (0.05, None, 0.9)]


@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_mixture_goes_through_every_source_as_if_it_was_alone(numbered, weights):
    sources = {"a": numbered(43, 2), "b": numbered(9, 3), "c": numbered(21, 2)}
    made = {n: Loader(it, batch_size=4, seed=k) for k, (n, it) in enumerate(sources.items())}
    steps = sum(it.steps_per_epoch for it in made.values())
    mixture = Mixture(made, weights)
    assert mixture.steps_per_epoch == steps == 11 + 2 + 5
    batches = [mixture.batch(step) for step in range(3 * steps)]
    seen = dict.fromkeys(made, 0)
    for batch in batches:
        assert same(batch, made[batch.origin].batch(seen[batch.origin]))
        seen[batch.origin] += 1
    order = [batch.origin for batch in batches]
    assert order == 3 * order[:steps]
    for name, count in mixture.counts.items():
        for end in range(steps + 1):  # evenly: at any time as many as its share, give or take one
            assert abs(order[:end].count(name) - count * end / steps) <= 1.5
    if weights == (1, 1, 1):
        assert order == ["a", "b", "c"] * (len(order) // 3)
    again = list(Mixture(made, weights).stream(17, 3 * steps))
    assert all(map(same, again, batches[17:]))
    assert [batch.origin for batch in again] == [batch.origin for batch in batches[17:]]


@pytest.mark.parametrize(
    ("sizes", "weights", "counts"),
    [
        ((11, 3, 6), (None, None, None), (11, 3, 6)),
        ((50, 30, 20), (1, 1, 2), (25, 25, 50)),
        ((50, 30, 20), (None, 0.3, None), (50, 30, 20)),
        ((60, 30, 10), (None, None, 0.4), (40, 20, 40)),
        ((5, 5), (2, 1), (7, 3)),
    ],
)
def test_shares_of_the_batches_follow_weights_and_sizes(sizes, weights, counts):
    assert tuple(batches_of_each(sizes, weights)) == counts


PROGRAM = """
import json, sys
import transformers
from benchmarks.worker import high_water as peak
from contrasent.data.loader import Loader, plain, tokenize
from contrasent.data.examples import open_examples
from contrasent.data.tokenizer import Tokenizer

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
    assert told["peak"] < 1000 << 20
    assert told["peak"] - told["imports"] < 200 << 20
