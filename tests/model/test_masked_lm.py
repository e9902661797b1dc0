"""Masked language models give the logits of transformers; a generator writes what they predict."""

import pytest
import torch
import transformers
from helpers import tiny_models
from helpers.tiny_models import FAMILY, OTHERS, save_tiny_masked_lm

from contrasent.data.batch import pack
from contrasent.data.tokenizer import Tokenizer
from contrasent.errors import CheckpointError, ConfigError
from contrasent.model.backbones.auto import AutoBackbone
from contrasent.model.masked_lm import Generator, MaskedLm, argmax, draw, mask_tokens

IDS = [[2, 9, 11, 3], [2, 5, 6, 7, 8, 9, 10, 3], [2, 20, 3]]


def expected(folder, ids=IDS):
    """Logits of transformers for each sentence alone: padding changes some models' states."""
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    with torch.no_grad():
        return torch.cat([model(input_ids=torch.tensor([row])).logits[0] for row in ids])


def logits(masked_lm, ids=IDS):
    with torch.no_grad():
        return masked_lm.head(masked_lm.backbone(pack(ids))[-1])


@pytest.mark.parametrize("model_type", [*FAMILY, *OTHERS, "bert untied"])
def test_logits_are_those_of_transformers(model_type, tmp_path):
    model_type, _, untied = model_type.partition(" ")
    changes = {"tie_word_embeddings": False} if untied else {}
    folder = save_tiny_masked_lm(tmp_path / "it", model_type, **changes)
    masked_lm = MaskedLm.load(folder).eval()
    packs = model_type in (*FAMILY, "electra", "modernbert", "mpnet")
    assert isinstance(masked_lm.backbone, AutoBackbone) is not packs
    assert masked_lm.tied is not bool(untied)
    torch.testing.assert_close(logits(masked_lm), expected(folder), rtol=1e-5, atol=1e-5)


def test_what_was_changed_and_saved_is_read_back_by_transformers_too(tmp_path):
    folder = save_tiny_masked_lm(tmp_path / "it")
    masked_lm = MaskedLm.load(folder).eval()
    with torch.no_grad():
        for parameter in masked_lm.parameters():
            parameter.mul_(1.25)
    masked_lm.save(tmp_path / "other", Tokenizer.load(folder))
    changed = logits(masked_lm)
    torch.testing.assert_close(logits(MaskedLm.load(tmp_path / "other").eval()), changed)
    torch.testing.assert_close(expected(tmp_path / "other"), changed, rtol=1e-5, atol=1e-5)
    assert Tokenizer.load(tmp_path / "other").fingerprint == Tokenizer.load(folder).fingerprint


def test_an_architecture_without_a_head_that_is_read_is_refused_with_its_folder(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    said = f"cannot load {tmp_path}: unknown architecture of a masked language model 'gpt2'"
    with pytest.raises(CheckpointError, match=said):
        MaskedLm.load(tmp_path)


@pytest.fixture(params=["bert", "roberta", "distilbert"])
def folder(request, tmp_path):
    return tiny_models.save_tiny_masked_lm(tmp_path / "it", request.param)


def parts(folder, rate=0.3):
    tokenizer = Tokenizer.load(folder)
    batch = pack(tokenizer.ids(tiny_models.SENTENCES, None)[0])
    torch.manual_seed(1)
    masked = mask_tokens(batch, rate, tokenizer)
    return Generator.load(folder, tokenizer), batch, masked


def test_chosen_tokens_or_all_but_the_first_become_the_most_probable_ones(folder):
    generator, batch, masked = parts(folder)
    rows = [it.tolist() for it in torch.split(masked.token_ids, batch.lengths.tolist())]
    guesses, firsts = expected(folder, rows).argmax(-1), batch.offsets[:-1]
    assert masked.chosen.any()
    written = torch.where(masked.chosen, guesses, batch.token_ids)
    assert torch.equal(generator.fill(batch, masked), written)
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
