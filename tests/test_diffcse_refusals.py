"""DiffCSE: settings, encoders and generators that cannot be, each explained before any work."""

import pytest
from helpers.tiny_diffcse import build, still_encoder
from helpers.tiny_models import save_tiny_masked_lm

from contrasent.errors import CheckpointError, ConfigError

AT_ODDS = [
    ({"contrast": False, "rtd_weight": 0}, "contrast is false, but .* there is no other term"),
    ({"contrast": False, "edit_role": "positives"}, "contrast is false, but .* no other term"),
    ({"edit_role": "negatives", "edit_source": "next"}, "edit_role negatives .*must be same"),
    ({"edit_role": "positives", "task": "corrective"}, "edit_role positives .*task rtd"),
    ({"task": "cmlm", "edit_operation": "delete"}, "task cmlm .*edit_operation replace"),
    ({"task": "corrective", "rtd_reduction": "sum"}, "task corrective .*must be mean"),
    ({"mask_rate": 0}, r"objective\.mask_rate cannot be 0: input should be greater than 0"),
    ({"edit": "likely"}, r"objective\.edit cannot be 'likely': .*'argmax' or 'sample'"),
    ({"generator": "nowhere"}, "'nowhere' is not a local folder"),
]


@pytest.fixture
def encoder(tiny_masked_lm):
    return still_encoder(tiny_masked_lm)


@pytest.mark.parametrize(("settings", "said"), AT_ODDS, ids=lambda value: str(value)[:60])
def test_settings_that_cannot_be_are_refused(settings, said, encoder):
    with pytest.raises((ConfigError, CheckpointError), match=said):
        build(encoder, **settings)


def test_an_encoder_without_a_head_is_no_generator_of_its_own(tiny_bert):
    for settings in ({}, {"task": "cmlm"}, {"edit_role": "positives"}):
        with pytest.raises(CheckpointError, match=r"has no masked-LM head.*contrasent pretrain"):
            build(still_encoder(tiny_bert), **settings)
    assert build(still_encoder(tiny_bert), edit_operation="delete").difference is not None


def test_other_vocabularies_and_no_mask_token_are_refused(encoder, tmp_path):
    folder = save_tiny_masked_lm(tmp_path / "roberta", "roberta")
    for settings in ({}, {"edit_role": "negatives"}):
        with pytest.raises(ConfigError, match="has another vocabulary than the encoder"):
            build(encoder, generator=str(folder), **settings)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (folder / name).read_text(encoding="utf-8")
        for old, new in (("<mask>", "<mosk>"), ("mask_token", "mt"), ("Roberta", "PreTrained")):
            text = text.replace(old, new)
        (folder / name).write_text(text, encoding="utf-8")
    maskless = still_encoder(folder)
    for settings in ({}, {"task": "cmlm"}, {"edit_role": "positives"}, {"edit_operation": "all"}):
        with pytest.raises(ConfigError, match="this tokenizer has no mask token"):
            build(maskless, **settings)
    assert build(maskless, edit_operation="delete").difference is not None
