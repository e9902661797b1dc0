"""Tiny masked language models of every kind that is taken apart."""

import transformers

from helpers.tiny_models import SIZES, TOKENIZERS, save_tiny_masked_lm, transformer, word_piece

OTHERS = {
    "albert": (transformers.AlbertConfig, {"embedding_size": 8}),
    "convbert": (transformers.ConvBertConfig, {"embedding_size": 16}),
    "deberta": (transformers.DebertaConfig, {}),
    "deberta-v2": (transformers.DebertaV2Config, {}),
    "electra": (transformers.ElectraConfig, {"embedding_size": 8}),
    "ernie": (transformers.ErnieConfig, {}),
    "modernbert": (
        transformers.ModernBertConfig,
        dict.fromkeys(("bos_token_id", "cls_token_id"), 2)
        | dict.fromkeys(("eos_token_id", "sep_token_id"), 3),
    ),
    "mpnet": (transformers.MPNetConfig, {"pad_token_id": 1}),
}


def saved(folder, model_type):
    if model_type in TOKENIZERS:
        return save_tiny_masked_lm(folder, model_type)
    kind, more = OTHERS[model_type]
    sizes = {**SIZES, "vocab_size": word_piece(folder), "max_position_embeddings": 64}
    config = kind(**{**sizes, "pad_token_id": 0, **more})
    transformer(config, 0, transformers.AutoModelForMaskedLM).save_pretrained(folder)
    return folder
