"""A generator writes what transformers predicts, only where it may, and is part of nothing."""

import pytest
import torch
import transformers
from helpers import tiny_models

from contrasent.data.batch import pack
from contrasent.data.tokenizer import Tokenizer
from contrasent.errors import ConfigError
from contrasent.model.masked_lm import Generator, argmax, draw, mask_tokens


@pytest.fixture(params=["bert", "roberta", "distilbert"])
def folder(request, tmp_path):
    return tiny_models.save_tiny_masked_lm(tmp_path / "it", request.param)


def parts(folder, rate=0.3):
    tokenizer = Tokenizer.load(folder)
    batch = pack(tokenizer.ids(tiny_models.SENTENCES, None)[0])
    torch.manual_seed(1)
    masked = mask_tokens(batch, rate, tokenizer.special_ids, tokenizer.vocabulary)
    return Generator.load(folder, tokenizer), batch, masked


def predicted(folder, batch, masked):
    """Logits of transformers, one sentence at a time."""
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    rows = torch.split(masked.token_ids, batch.lengths.tolist())
    with torch.no_grad():
        return torch.cat([model(input_ids=row.unsqueeze(0)).logits[0] for row in rows])


def test_chosen_tokens_or_all_but_the_first_become_the_most_probable_ones(folder):
    generator, batch, masked = parts(folder)
    guesses, firsts = predicted(folder, batch, masked).argmax(-1), batch.offsets[:-1]
    assert masked.chosen.any()
    expected = torch.where(masked.chosen, guesses, batch.token_ids)
    assert torch.equal(generator.fill(batch, masked), expected)
    guesses[firsts] = batch.token_ids[firsts]
    assert torch.equal(generator.fill(batch, masked, positions="all"), guesses)


def test_ids_that_pad_the_decoder_are_never_written(tmp_path):
    folder = tmp_path / "it"
    vocabulary = tiny_models.word_piece(folder)
    model = tiny_models.transformer(
        tiny_models.config_of("bert", vocabulary + 30), kind=transformers.AutoModelForMaskedLM
    )
    with torch.no_grad():
        model.cls.predictions.bias[vocabulary:] = 1e4
    model.save_pretrained(folder)
    generator, batch, masked = parts(folder)
    for pick in ("argmax", "sample"):
        assert generator.fill(batch, masked, pick=pick, positions="all").max() < vocabulary


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shift", [0.0, -50.0, 50.0])
def test_argmax_by_integers_is_that_of_torch(rng, dtype, shift):
    logits = (rng(37, 512) + shift).to(dtype)
    logits[:, 500:] = float("-inf")
    logits[5, 3] = logits[5, 400] = 99.0
    found = argmax(logits)
    assert torch.equal(logits.gather(1, found[:, None]), logits.amax(-1, keepdim=True))
    assert (found < 500).all()
    assert torch.equal(argmax(logits[:, :100]), logits[:, :100].argmax(-1))


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 1 / 256)])
def test_evenly_spread_numbers_draw_each_column_by_its_probability(rng, dtype, bound):
    steps, columns = 500, 96
    logits = (2 * rng(columns)).to(dtype)
    logits[[5, 90]] = float("-inf")
    first, second = torch.meshgrid(*2 * [(torch.arange(steps) + 0.5) / steps], indexing="ij")
    numbers = torch.stack([first, second], -1).view(-1, 2)
    drawn = draw(logits.expand(len(numbers), -1), numbers)
    shares = torch.bincount(drawn, minlength=columns) / len(numbers)
    # Each of the two draws is off by one step at most.
    exact = logits.double().softmax(-1)
    group = exact.view(32, -1).sum(0).repeat(32)
    assert ((shares - exact).abs() <= bound * exact + (group + exact / group) / steps).all()
    assert shares[[5, 90]].tolist() == [0, 0]


@pytest.mark.parametrize("has_tokenizer", [True, False])
def test_another_vocabulary_is_refused(has_tokenizer, tmp_path):
    folder = tiny_models.save_tiny_masked_lm(tmp_path / "generator")
    own = Tokenizer.load(folder)
    tiny_models.byte_level(tmp_path / "larger")
    if not has_tokenizer:  # only the sizes are compared
        for path in folder.glob("*token*"):
            path.unlink()
    Generator.load(folder, own)
    with pytest.raises(ConfigError, match=r"generator has another vocabulary .*\(.*larger\)"):
        Generator.load(folder, Tokenizer.load(tmp_path / "larger"))
