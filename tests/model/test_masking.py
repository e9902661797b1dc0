"""Masking by BERT's rule, against counts, and against the tokens it was given."""

import pytest
import torch

from contrasent.data.batch import pack
from contrasent.data.tokenizer import SpecialIds
from contrasent.model.masked_lm import mask_tokens

SPECIAL = SpecialIds(mask=4, first=2, last=3, pad=0, every=(0, 1, 2, 3, 4))
VOCABULARY = 1000


def sentences(count=200, length=100):
    draw = torch.Generator().manual_seed(3)
    words = torch.randint(5, VOCABULARY, (count, length), generator=draw)
    return pack([[2, *row.tolist(), 3] for row in words])


def masked(rate=0.15, **how):
    torch.manual_seed(0)
    batch = sentences()
    return batch, mask_tokens(batch, rate, SPECIAL, VOCABULARY, **how)


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
