"""DiffCSE: settings, encoders and generators that cannot be, each explained before any work."""

import pytest
from helpers.tiny_diffcse import build, still_encoder
from helpers.tiny_models import save_tiny_masked_lm

from contrasent import objectives
from contrasent.errors import CheckpointError, ConfigError
from contrasent.model.heads import MlpHead

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


def test_it_is_built_for_an_encoder_whose_embedding_can_stand_for_a_state(encoder):
    encoder.head = MlpHead(16, 12)
    with pytest.raises(ConfigError, match=r"of 12 dimensions beside token states of 16"):
        build(encoder)
    assert build(encoder, rtd_weight=0).difference is None
    with pytest.raises(ConfigError, match="reads tokens, so it is built for an encoder"):
        objectives.build("diffcse", {}, width=8, data_views=1)
    assert objectives.build("diffcse", {"rtd_weight": 0}, width=8, data_views=1).difference is None
