"""Masks by BERT's rule and edits of packed sentences: what changes, how often, what is labelled."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest
import torch
from helpers.padded import rows_of

from contrasent.data.batch import pack
from contrasent.data.tokenizer import SpecialIds
from contrasent.errors import ConfigError
from contrasent.model import masked_lm as generators
from contrasent.model.masked_lm import Editing

FIRST, LAST, MASK = 2, 3, 4
SPECIAL_IDS = SpecialIds(mask=MASK, first=FIRST, last=LAST, pad=0, every=(0, 1, 2, 3, 4))
VOCABULARY = 1000
TOKENIZER = SimpleNamespace(special_ids=SPECIAL_IDS, vocabulary=VOCABULARY)
LENGTHS = [7, 1, 30, 0, 12, 2, 3, 18]


@dataclass
class Filler:
    """A generator that puts one token at the places it is asked for, and notes how it was asked."""

    token: int = 999
    asked: dict = field(default_factory=dict)

    def fill(self, batch, masked, **settings):
        self.asked = {"batch": batch, "masked": masked, **settings}
        places = masked.chosen if settings["positions"] == "masked" else batch.token_ids > LAST
        return torch.where(places, self.token, batch.token_ids)


def editing(**changes):
    usual = {"generator": Filler(), "tokenizer": TOKENIZER, "rate": 0.3, "pick": "sample"}
    return Editing(**usual | {"positions": "masked", "dropout": False, "max_tokens": 512} | changes)


def batch_of(lengths=LENGTHS, views=2):
    """Sentences of so many ordinary tokens, each token another one."""
    ids = iter(range(10, 10 + sum(lengths)))
    return pack([[FIRST, *(next(ids) for _ in range(n)), LAST] for n in lengths], views=views)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(params=["replace", "insert", "delete"])
def edit(request):
    return getattr(generators, request.param)


def test_an_edit_keeps_sentences_and_specials(edit):
    batch = batch_of()
    done = edit(batch, editing())
    assert (done.batch.sentences, done.batch.views) == (batch.sentences, batch.views)
    assert done.edited.dtype == done.chosen.dtype == torch.bool
    assert done.edited.shape == done.chosen.shape == done.batch.token_ids.shape
    assert done.batch.token_ids.dtype == done.batch.offsets.dtype == torch.int64
    assert done.batch.longest == max(len(ids) for ids in rows_of(done.batch))
    assert done.edited.any()
    for ids in rows_of(done.batch):
        assert (ids[0], ids[-1]) == (FIRST, LAST)
        assert not {FIRST, LAST} & set(ids[1:-1])


@pytest.mark.parametrize("positions", ["masked", "all"])
def test_replaced_are_the_tokens_that_differ(positions):
    batch, settings = batch_of(), editing(positions=positions)
    done = generators.replace(batch, settings)
    ids, before = done.batch.token_ids, batch.token_ids
    assert done.edited.tolist() == [a != b for a, b in zip(ids.tolist(), before, strict=True)]
    if positions == "masked":
        torch.testing.assert_close(done.edited, done.chosen)
    else:
        assert done.edited.sum() > done.chosen.sum()
    torch.testing.assert_close(done.batch.offsets, batch.offsets)


def test_a_token_that_the_generator_restores_is_not_edited():
    batch = pack([[FIRST, 50, 50, 51, LAST]])
    done = generators.replace(batch, editing(generator=Filler(token=50), rate=0.999))
    assert done.edited.tolist() == [False, False, False, True, False]
    assert done.chosen.tolist() == [False, True, True, True, False]


def test_inserted_tokens_stand_between_the_others():
    batch, settings = batch_of(), editing(rate=0.5)
    done = generators.insert(batch, settings)
    assert (done.batch.token_ids[done.edited] == 999).all()
    masked = settings.generator.asked["masked"]
    assert (masked.token_ids[done.edited] == MASK).all()
    assert done.chosen.tolist() == done.edited.tolist() == masked.chosen.tolist()
    kept = rows_of((done.edited, done.batch.offsets))
    for ids, marks, before in zip(rows_of(done.batch), kept, rows_of(batch), strict=True):
        assert [t for t, new in zip(ids, marks, strict=True) if not new] == before


@pytest.mark.parametrize(("rate", "length"), [(0.15, 7), (0.3, 1), (0.5, 10), (0.9, 30)])
def test_the_number_of_inserted_and_of_deleted_tokens_is_the_rate(rate, length):
    batch = batch_of([length] * 4000)
    exact = rate * length
    longer = generators.insert(batch, editing(rate=rate)).batch.lengths - batch.lengths
    assert set(longer.tolist()) <= {int(exact), int(exact) + 1}
    assert longer.double().mean().item() == pytest.approx(exact, abs=0.03)
    gone = batch.lengths - generators.delete(batch, editing(rate=rate)).batch.lengths
    assert set(gone.tolist()) <= {int(exact), int(exact) + 1}
    if int(exact) + 1 < length:
        assert gone.double().mean().item() == pytest.approx(exact, abs=0.03)


def test_every_ordinary_token_is_deleted_as_often_as_any_other():
    batch = batch_of([5] * 6000)
    kept = generators.delete(batch, editing(rate=0.4)).batch.token_ids
    stays = torch.isin(batch.token_ids, kept).view(6000, 7)[:, 1:-1]
    assert stays.double().mean(0).tolist() == pytest.approx([0.6] * 5, abs=0.02)


@pytest.mark.parametrize("room", [0, 1, 4])
def test_a_sentence_does_not_outgrow_the_positions(room):
    batch = batch_of([30, 4, 30], views=1)
    done = generators.insert(batch, editing(rate=0.5, max_tokens=32 + room))
    assert done.batch.lengths.tolist() == [32 + room, 8, 32 + room]


def test_a_token_is_labelled_if_the_one_before_it_is_gone():
    batch = batch_of([9] * 40)
    done = generators.delete(batch, editing(rate=0.5))
    marks, all_marks = rows_of((done.edited, done.batch.offsets)), []
    for ids, labels, before in zip(rows_of(done.batch), marks, rows_of(batch), strict=True):
        places = [before.index(token) for token in ids]
        gaps = [b - a > 1 for a, b in zip([-1, *places], places, strict=False)]
        assert labels == gaps
        all_marks.append((labels[0], labels[-1]))
    assert (False, True) in all_marks  # the last word is gone, which its [SEP] shows
    assert not any(first for first, _ in all_marks)
    assert not done.chosen.any()


@pytest.mark.parametrize("rate", [0.3, 0.999])
def test_a_word_is_left_of_every_sentence_that_has_one(rate):
    batch = batch_of([1, 2, 3, 0] * 50)
    left = generators.delete(batch, editing(rate=rate)).batch.lengths - 2
    assert left.view(-1, 4)[:, :3].min() == 1
    assert (left.view(-1, 4)[:, 3] == 0).all()
    if rate == 0.999:
        assert (left.view(-1, 4)[:, 2] <= 2).all()


@pytest.mark.parametrize("edit", [generators.replace, generators.insert])
def test_a_tokenizer_without_a_mask_token_is_explained(edit):
    maskless = SimpleNamespace(special_ids=replace(SPECIAL_IDS, mask=None))
    with pytest.raises(ConfigError, match="this tokenizer has no mask token"):
        edit(batch_of(), editing(tokenizer=maskless))


def masked(rate):
    words = torch.randint(5, VOCABULARY, (200, 100), generator=torch.Generator().manual_seed(3))
    batch = pack([[FIRST, *row.tolist(), LAST] for row in words])
    return batch, generators.mask_tokens(batch, rate, TOKENIZER)


@pytest.mark.parametrize("rate", [0.05, 0.15, 0.3, 0.9])
def test_the_share_of_chosen_tokens_is_the_rate(rate):
    batch, found = masked(rate)
    words = batch.token_ids >= 5
    share = found.chosen[words].double().mean().item()
    assert abs(share - rate) < 5 * (rate * (1 - rate) / words.sum().item()) ** 0.5


def test_of_the_chosen_8_in_10_are_masked_1_is_random_and_1_kept():
    batch, found = masked(0.3)
    now, then = found.token_ids[found.chosen], batch.token_ids[found.chosen]
    count = len(now)
    for share, expected in (((now == 4), 0.8), ((now == then), 0.1)):
        assert abs(share.double().mean().item() - expected) < 5 * 0.4 / count**0.5
    random = now[(now != 4) & (now != then)]
    assert random.min() < VOCABULARY // 20
    assert random.max() > VOCABULARY - VOCABULARY // 20
    assert abs(random.double().mean().item() / VOCABULARY - 0.5) < 5 * 0.29 / len(random) ** 0.5


def test_special_tokens_and_those_not_chosen_stay():
    batch, found = masked(0.9)
    special = batch.token_ids < 5
    assert special.sum() == 2 * batch.sentences
    assert not found.chosen[special].any()
    assert torch.equal(found.token_ids[~found.chosen], batch.token_ids[~found.chosen])
