from dataclasses import fields, replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from contrasent.data.batch import Batch, Need, concat, pack

IDS = [[1, 2], [3], [4, 5, 6], [1, 2], [7], [3]]


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda ids: np.array(ids, dtype=np.int32)])
def test_sentences_lie_end_to_end(kind):
    batch = pack([kind(ids) for ids in IDS], views=2)
    assert batch.token_ids.tolist() == [token for ids in IDS for token in ids]
    assert batch.offsets.tolist() == [0, 2, 3, 6, 8, 9, 10]
    assert batch.lengths.tolist() == [2, 1, 3, 2, 1, 1]
    assert (batch.sentences, batch.views, batch.examples, batch.longest) == (6, 2, 3, 3)
    for given, longest in ({}, 3), ({"longest": 5}, 5):  # known without asking a device
        assert Batch(batch.token_ids, batch.offsets, **given).longest == longest
    assert batch.token_ids.dtype == batch.offsets.dtype == torch.int64


def test_same_text_is_the_first_sentence_with_the_same_tokens():
    assert pack(IDS).same_text().tolist() == [0, 1, 2, 0, 4, 1]
    assert pack([[1], [1, 1], [1]]).same_text().tolist() == [0, 1, 0]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_view_is_the_sentences_of_that_view(number):
    sentences = [[1], [2, 3], [4, 5, 6], [7], [8, 9], [10]]
    batch = pack(sentences, views=3)
    expected = pack(sentences[2 * number : 2 * number + 2])
    found = batch.view(number)
    assert found.token_ids.tolist() == expected.token_ids.tolist()
    assert found.offsets.tolist() == expected.offsets.tolist()
    assert (found.views, found.longest) == (1, expected.longest)


@pytest.fixture
def every_field():
    """Six sentences, two views of three examples, with everything that a batch can have."""
    batch = pack(IDS, views=2)
    tokens = len(batch.token_ids)
    return replace(
        batch,
        duplicate_of=batch.same_text(),
        next_sentences=pack([[5, 6], [7], [8]]),
        columns={Need.LABELS: torch.tensor([2, 0, 1]), Need.POSITIONS: torch.tensor([0, 1, 6])},
        embedding_mask=torch.arange(1.0, 1 + tokens).unsqueeze(1),
        embedding_shift=torch.arange(1.0, 1 + tokens).unsqueeze(1),
        positions=torch.arange(tokens) + 3,
    )


def equal(a, b):
    if isinstance(a, Batch):
        return all(equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(Batch))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.parametrize("move", [lambda batch: batch.to(torch.device("cpu")), Batch.pin])
def test_wherever_a_batch_goes_all_of_it_goes_along(every_field, move, monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", torch.Tensor.clone)
    assert all(getattr(every_field, f.name) is not None for f in fields(Batch))
    moved = move(every_field)
    following = replace(every_field.next_sentences, duplicate_of=moved.next_sentences.duplicate_of)
    assert equal(moved, replace(every_field, next_sentences=following))


def test_no_tensor_of_a_batch_stays_on_the_other_device(every_field):
    def tensors(value):
        if isinstance(value, Batch):
            return [t for f in fields(Batch) for t in tensors(getattr(value, f.name))]
        if isinstance(value, dict):
            return [t for each in value.values() for t in tensors(each)]
        return [value] if isinstance(value, torch.Tensor) else []

    moved = tensors(every_field.to(torch.device("meta")))
    assert len(moved) == 10 and {tensor.device.type for tensor in moved} == {"meta"}


def test_sentences_that_are_selected_take_their_mask_along(every_field):
    chosen = [4, 0, 4, 2]
    batch = every_field.select(torch.tensor(chosen), views=2)
    expected = pack([IDS[s] for s in chosen], views=2)
    assert batch.token_ids.tolist() == expected.token_ids.tolist()
    assert batch.offsets.tolist() == expected.offsets.tolist()
    assert (batch.views, batch.longest) == (2, 3)
    assert batch.embedding_mask.flatten().tolist() == [9, 1, 2, 9, 4, 5, 6]
    assert batch.positions.tolist() == [11, 3, 4, 11, 6, 7, 8]
    assert every_field.view(1).embedding_mask.flatten().tolist() == [7, 8, 9, 10]


@pytest.mark.parametrize("cut", [[2, 4], [1, 2, 5], []])
def test_joined_batches_are_their_sentences_in_one(cut):
    parts = [pack(IDS[a:b]) for a, b in pairwise([0, *cut, len(IDS)])]
    batch, expected = concat(parts, views=3), pack(IDS, views=3)
    assert equal(batch, expected)
