"""Tiny real Hugging Face folders: two layers, width 16, a few dozen words, every weight seeded."""

import json
from functools import partial

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers.trainers import BpeTrainer

from contrasent.model.encoder import SentenceEncoder
from contrasent.model.loading import StaticEncoder
from contrasent.model.protocol import EncoderParts

_TEXT = """
    a the one two three dog cat bird horse man woman child people river house street food music
    plays runs sits eats sees reads writes sings is are was not no never with without in on by
    red green small big old new happy sad quickly slowly today never water fire stone tree and
    . , ? ! ##s ##ing ##ed
"""
WORDS = list(dict.fromkeys(_TEXT.split()))
SENTENCES = [
    "a dog runs in the street .",
    "the old man reads",
    "one bird sings , two birds sing !",
    "people are eating food with music and water by the big green river today",
    "the child is not sad",
    "horse",
    "no stone , no tree , no fire : never without the small red house",
]
SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
SIZES["intermediate_size"] = 24


def shaken(model, seed=0):
    """The model with noise on every parameter, so that no bias is 0 and no LayerNorm is 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.15 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def seeded(make, seed=0):
    """What ``make()`` gives from ``seed``; torch's generator is put back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def transformer(config, seed=0, kind=transformers.AutoModel, **kwargs):
    """A shaken model of ``config``."""
    return shaken(seeded(lambda: kind.from_config(config, **kwargs), seed), seed)


def save_tokenizer(folder, backend, limit=64, **settings):
    """Write a ``tokenizers`` tokenizer as transformers saves it."""
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    settings = {"model_max_length": limit, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def word_piece(folder, limit=64, tokenizer_class="BertTokenizerFast"):
    """Write BERT's kind of tokenizer; returns how many ids it has."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    backend = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    specials = {f"{it}_token": f"[{it.upper()}]" for it in ("pad", "unk", "cls", "sep", "mask")}
    backend.add_special_tokens(list(specials.values()))
    save_tokenizer(
        folder, backend, limit, tokenizer_class=tokenizer_class, do_lower_case=True, **specials
    )
    return len(pieces)


def byte_level(folder, limit=64, tokenizer_class="RobertaTokenizerFast"):
    """Write RoBERTa's kind of tokenizer; returns how many ids it has."""
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=300,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(SENTENCES, trainer)
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    names = {"bos": 0, "pad": 1, "eos": 2, "unk": 3, "mask": 4, "cls": 0, "sep": 2}
    settings = {f"{name}_token": specials[number] for name, number in names.items()}
    save_tokenizer(folder, backend, limit, tokenizer_class=tokenizer_class, **settings)
    return backend.get_vocab_size()


def unigram(folder, limit=64, tokenizer_class="XLMRobertaTokenizerFast"):
    """Write XLM-R's kind of tokenizer; returns how many ids it has."""
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    letters = sorted(set("".join(SENTENCES)) - {" "})
    words = [f"\u2581{word}" for word in WORDS if not word.startswith("##")]
    pieces = [(piece, 0.0) for piece in specials] + [("\u2581", -4.0)]
    pieces += [(word, -5.0) for word in words] + [(letter, -9.0) for letter in letters]
    backend = Tokenizer(models.Unigram([*pieces, ("<mask>", 0.0)], unk_id=3))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    names = {"bos": "<s>", "pad": "<pad>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
    names |= {"cls": "<s>", "sep": "</s>"}
    backend.add_special_tokens(list(dict.fromkeys(names.values())))
    settings = {f"{name}_token": piece for name, piece in names.items()}
    save_tokenizer(folder, backend, limit, tokenizer_class=tokenizer_class, **settings)
    return backend.get_vocab_size()


def config_of(model_type, vocabulary, positions=64, **changes):
    """The configuration of a tiny model of the BERT family, or of another architecture."""
    kinds = {
        "bert": (transformers.BertConfig, {"pad_token_id": 0}),
        "roberta": (transformers.RobertaConfig, {"pad_token_id": 1}),
        "xlm-roberta": (transformers.XLMRobertaConfig, {"pad_token_id": 1}),
        "camembert": (transformers.CamembertConfig, {"pad_token_id": 1}),
        "distilbert": (transformers.DistilBertConfig, {"pad_token_id": 0}),
        "albert": (transformers.AlbertConfig, {"pad_token_id": 0, "embedding_size": 8}),
        "convbert": (transformers.ConvBertConfig, {"pad_token_id": 0, "embedding_size": 16}),
        "deberta": (transformers.DebertaConfig, {"pad_token_id": 0}),
        "deberta-v2": (transformers.DebertaV2Config, {"pad_token_id": 0}),
        "electra": (transformers.ElectraConfig, {"pad_token_id": 0, "embedding_size": 8}),
        "ernie": (transformers.ErnieConfig, {"pad_token_id": 0}),
        "modernbert": (
            transformers.ModernBertConfig,
            {"pad_token_id": 0}
            | dict.fromkeys(("bos_token_id", "cls_token_id"), 2)
            | dict.fromkeys(("eos_token_id", "sep_token_id"), 3),
        ),
        "mpnet": (transformers.MPNetConfig, {"pad_token_id": 1}),
    }
    kind, more = kinds[model_type]
    sizes = dict(SIZES)
    if model_type == "distilbert":
        sizes = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
    if more["pad_token_id"]:
        positions += 2  # the first two position rows belong to padding
        more = {**more, "type_vocab_size": 1}
    sizes |= {"vocab_size": vocabulary, "max_position_embeddings": positions}
    return kind(**{**sizes, **more, **changes})


FAMILY = ("bert", "roberta", "xlm-roberta", "camembert", "distilbert")
OTHERS = ("albert", "convbert", "deberta", "deberta-v2", "electra", "ernie", "modernbert", "mpnet")
TOKENIZERS = {
    "bert": (word_piece, "BertTokenizerFast"),
    "roberta": (byte_level, "RobertaTokenizerFast"),
    "xlm-roberta": (unigram, "XLMRobertaTokenizerFast"),
    "camembert": (unigram, "XLMRobertaTokenizerFast"),
    "distilbert": (word_piece, "DistilBertTokenizerFast"),
    **dict.fromkeys(OTHERS, (word_piece, "BertTokenizerFast")),
}


def save_tiny(folder, model_type="bert", *, seed=0, limit=64, kind="AutoModel", **changes):
    """Write a tiny model of the BERT family with its tokenizer; returns ``folder``."""
    make, tokenizer_class = TOKENIZERS[model_type]
    config = config_of(model_type, make(folder, limit, tokenizer_class), limit, **changes)
    transformer(config, seed, getattr(transformers, kind)).save_pretrained(folder)
    return folder


save_tiny_masked_lm = partial(save_tiny, kind="AutoModelForMaskedLM")


def with_template(encoder, single, **settings):
    """A tiny BERT whose tokenizer puts ``single`` around a text, as ``$A [SEP]`` or nothing."""
    backend = Tokenizer.from_str(encoder.tokenizer._settings)
    specials = [("[CLS]", 2), ("[SEP]", 3)]
    backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=specials)
    names = dict(encoder.tokenizer.special_names)
    pretrained = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **names, **settings)
    tokenizer = type(encoder.tokenizer)(pretrained)
    parts = EncoderParts(backbone=encoder.backbone, tokenizer=tokenizer, pooler="mean")
    return SentenceEncoder(parts).eval()


def static_encoder(encoder, width):
    """A table of word pieces with the tokenizer of an encoder."""
    table = torch.randn(encoder.tokenizer.vocabulary, width)
    return StaticEncoder(encoder.tokenizer, table, name="static")
