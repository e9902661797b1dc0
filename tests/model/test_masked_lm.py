"""Masked language models taken apart give the logits of transformers."""

import pytest
import torch
import transformers
from helpers.tiny_models import FAMILY, OTHERS, save_tiny_masked_lm

from contrasent.data.batch import pack
from contrasent.data.tokenizer import Tokenizer
from contrasent.errors import CheckpointError
from contrasent.model.backbones.auto import AutoBackbone
from contrasent.model.masked_lm import MaskedLm

IDS = [[2, 9, 11, 3], [2, 5, 6, 7, 8, 9, 10, 3], [2, 20, 3]]


def expected(folder, ids=IDS):
    """Logits of transformers for each sentence alone: padding changes some models' states."""
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    with torch.no_grad():
        return torch.cat([model(input_ids=torch.tensor([row])).logits[0] for row in ids])


def logits(masked_lm, ids=IDS):
    with torch.no_grad():
        return masked_lm.head(masked_lm.backbone(pack(ids))[-1])


@pytest.mark.parametrize("model_type", [*FAMILY, *OTHERS])
def test_logits_are_those_of_transformers(model_type, tmp_path):
    folder = save_tiny_masked_lm(tmp_path / "it", model_type)
    masked_lm = MaskedLm.load(folder).eval()
    packs = model_type in (*FAMILY, "electra", "modernbert", "mpnet")
    assert isinstance(masked_lm.backbone, AutoBackbone) is not packs
    assert masked_lm.tied
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


def test_a_decoder_of_its_own_stays_its_own(tmp_path):
    folder = save_tiny_masked_lm(tmp_path / "it", tie_word_embeddings=False)
    masked_lm = MaskedLm.load(folder).eval()
    assert not masked_lm.tied
    torch.testing.assert_close(logits(masked_lm), expected(folder), rtol=1e-5, atol=1e-5)


def test_an_architecture_without_a_head_that_is_read_is_refused_with_its_folder(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    said = f"cannot load {tmp_path}: unknown architecture of a masked language model 'gpt2'"
    with pytest.raises(CheckpointError, match=said):
        MaskedLm.load(tmp_path)
