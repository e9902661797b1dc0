"""Tiny models, texts and tasks, made on the spot: whether everything runs, without a download.

The weights are random and the ratings are those of shipped pairs dealt out to every task, so no
number of scale ``smoke`` means anything.
"""

from __future__ import annotations

import csv
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from importlib.resources import files
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contrasent.evaluation.task_names import STS_TASKS
from contrasent.files import writing, writing_folder

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_DATA = Path(str(files("contrasent") / "quickstart_data"))
_WIDTH, _INNER, _HEADS, _POSITIONS = 16, 24, 2, 300
_WORDS = 150
_PAIRS = 20
_ITEMS = 24
_LABELS = ("entailment", "neutral", "contradiction")
_SPECIAL = {
    "bert": ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    "roberta": ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
}


def make_model(name: str, folder: Path) -> Path:
    """A masked language model of random weights in place of the one of this id.

    Names with ``roberta`` have RoBERTa's architecture and byte-level tokens, others BERT's.
    """
    if not folder.is_dir():
        kind = "roberta" if "roberta" in name else "bert"
        with writing_folder(folder) as partial:
            _write_model(kind, 3 if "large" in name else 2, partial)
    return folder


def make_material(name: str, folder: Path) -> Path:
    """A tiny text in place of a material."""
    rows: Iterable[Sequence[str]]
    sentences = _sentences()
    if name == "words":
        draw = random.Random(0)
        pairs = (it for first, second, _ in islice(_rated(), 1000) for it in (first, second))
        words = sorted({word for line in (*sentences, *pairs) for word in line.lower().split()})
        path = folder / "words.txt"
        lines = [" ".join([it, *(f"{draw.gauss(0, 1):.4f}" for _ in range(8))]) for it in words]
    elif name == "documents":
        path, lines = folder / "documents.txt", []
        for k in range(0, 400, 20):
            lines += [*islice(cycle(sentences), k, k + 24), ""]
    elif name in ("sentences", "nli-sentences", "captions"):
        path, lines = folder / f"{name}.txt", sentences[:120]
    else:
        path = folder / f"{name}.csv"
        first, second, third = (sentences[k : k + 150] for k in (0, 60, 120))
        if name == "labelled":
            header: tuple[str, ...] = ("premise", "hypothesis", "label")
            rows = [
                (a, hypothesis, label)
                for a, b in zip(first, second, strict=False)
                for label, hypothesis in zip(_LABELS, (b, a[::-1], b[::-1]), strict=True)
            ]
        elif name.startswith("triplets"):
            header, rows = ("sent0", "sent1", "hard_neg"), zip(first, second, third, strict=False)
        else:
            header, rows = ("sent0", "sent1"), zip(first, second, strict=False)
        with writing(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([header, *rows])
        return path
    with writing(path) as partial:
        partial.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def make_tasks(folder: Path) -> Path:
    """Every STS and transfer task in SentEval's layout, a few rows each."""
    if not folder.is_dir():
        with writing_folder(folder) as partial:
            for path, lines in _task_files():
                file = partial / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


def _sentences() -> list[str]:
    """Short sentences of the shipped text."""
    lines = (_DATA / "wikipedia.txt").read_text(encoding="utf-8").splitlines()
    short = [" ".join(line.split()[:12]) for line in lines if len(line.split()) > 5]
    return list(dict.fromkeys(short))[:400]


def _rated() -> Iterator[tuple[str, str, float]]:
    """The shipped pairs, again and again; some are rated 5, whose sentences are equal."""
    rows = (_DATA / "stack_exchange_pairs.tsv").read_text(encoding="utf-8").splitlines()
    cells = [row.split("\t") for row in rows]
    pairs = []
    for number, (first, second, score) in enumerate(cells[1:]):
        rating = 5.0 if number % 6 == 0 else min(4.9, float(score))
        pairs.append((" ".join(first.split()[:12]), " ".join(second.split()[:12]), rating))
    return cycle(pairs)


def _task_files() -> Iterator[tuple[str, list[str]]]:
    yield from _sts_files()
    yield from _transfer_files()


def _sts_files() -> Iterator[tuple[str, list[str]]]:
    rated = _rated()
    for task in STS_TASKS.values():
        for subset in task.subsets:
            pairs = list(islice(rated, _PAIRS))
            yield f"{task.folder}/STS.input.{subset}.txt", [f"{a}\t{b}" for a, b, _ in pairs]
            yield f"{task.folder}/STS.gs.{subset}.txt", [f"{rating}" for *_, rating in pairs]
    for split in ("train", "dev", "test"):
        pairs = list(islice(rated, 2 * _PAIRS))
        rows = [f"g\tf\t2012\t{n}\t{r}\t{a}\t{b}" for n, (a, b, r) in enumerate(pairs)]
        yield f"STS/STSBenchmark/sts-{split}.csv", rows
    for name in ("SICK_train", "SICK_trial", "SICK_test_annotated"):
        pairs = list(islice(rated, _PAIRS))
        rows = [f"{n}\t{a}\t{b}\t{max(1.0, r)}\tNEUTRAL" for n, (a, b, r) in enumerate(pairs)]
        yield f"SICK/{name}.txt", ["pair_ID\tA\tB\trelatedness_score\tentailment", *rows]


def _transfer_files() -> Iterator[tuple[str, list[str]]]:
    ascii_only = (it.encode("ascii", "ignore").decode() for it in cycle(_sentences()))
    for path in (
        *("MR/rt-polarity.pos", "MR/rt-polarity.neg", "CR/custrev.pos", "CR/custrev.neg"),
        *("SUBJ/subj.objective", "SUBJ/subj.subjective", "MPQA/mpqa.pos", "MPQA/mpqa.neg"),
    ):
        yield path, list(islice(ascii_only, _ITEMS))
    for split in ("train", "dev", "test"):
        rows = [f"{it}\t{n % 2}" for n, it in enumerate(islice(ascii_only, _ITEMS))]
        yield f"SST/binary/sentiment-{split}", rows
    classes = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
    for path, count in (("train_5500", 120), ("TREC_10", 24)):
        rows = [f"{classes[n % 6]}:x {it}" for n, it in enumerate(islice(ascii_only, count))]
        yield f"TREC/{path}.label", rows
    for path, count in (("train", 40), ("test", 20)):
        pairs = islice(_rated(), count)
        rows = [f"{n % 2}\t{n}\t{n}\t{a}\t{b}" for n, (a, b, _) in enumerate(pairs)]
        header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
        yield f"MRPC/msr_paraphrase_{path}.txt", [header, *rows]


def _frequent_words(sentences: Sequence[str]) -> list[str]:
    counts = Counter(word for line in sentences for word in line.lower().split())
    return [word for word, _ in counts.most_common(_WORDS)]


def _write_model(kind: str, layers: int, folder: Path) -> None:
    from safetensors.torch import save_file

    special = _SPECIAL[kind]
    tokenizer = _word_piece() if kind == "bert" else _byte_level()
    tokenizer.save(str(folder / "tokenizer.json"))
    roles = ("pad", "unk", "cls", "sep", "mask")
    names = dict(zip(roles, special if kind == "bert" else _ROBERTA_ROLES, strict=True))
    settings = {f"{role}_token": token for role, token in names.items()}
    more = {} if kind == "bert" else {"bos_token": "<s>", "eos_token": "</s>"}
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": _POSITIONS - 4}
    _write_json(folder / "tokenizer_config.json", {**described, **settings, **more})
    config = {
        "architectures": [f"{kind.capitalize()}ForMaskedLM"],
        "model_type": kind,
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": _WIDTH,
        "num_hidden_layers": layers,
        "num_attention_heads": _HEADS,
        "intermediate_size": _INNER,
        "max_position_embeddings": _POSITIONS,
        "type_vocab_size": 2 if kind == "bert" else 1,
        "pad_token_id": special.index(names["pad"]),
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "layer_norm_eps": 1e-12,
    }
    if kind == "roberta":
        config |= {"bos_token_id": 0, "eos_token_id": 2}
    _write_json(folder / "config.json", config)
    save_file(_weights(kind, layers, config), folder / "model.safetensors", {"format": "pt"})


_ROBERTA_ROLES = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")


def _word_piece() -> Tokenizer:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    sentences = _sentences()
    letters = sorted({letter for line in sentences for letter in line.lower() if letter != " "})
    pieces = [*_SPECIAL["bert"], *letters, *(f"##{it}" for it in letters)]
    words = [it for it in _frequent_words(sentences) if it.isalpha()]
    vocabulary = {piece: k for k, piece in enumerate(dict.fromkeys([*pieces, *words]))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_special_tokens(list(_SPECIAL["bert"]))
    return tokenizer


def _byte_level() -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=list(_SPECIAL["roberta"]),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sentences(), trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer


def _weights(kind: str, layers: int, config: dict[str, Any]) -> dict[str, Any]:
    """Weights by the names of transformers' masked language models, drawn from a fixed seed."""
    import torch

    generator = torch.Generator().manual_seed(layers)
    tensors: dict[str, torch.Tensor] = {}

    def draw(name: str, *shape: int) -> None:
        tensors[name] = 0.15 * torch.randn(shape, generator=generator)

    def linear(name: str, rows: int, columns: int) -> None:
        draw(f"{name}.weight", rows, columns)
        draw(f"{name}.bias", rows)

    def norm(name: str) -> None:
        draw(f"{name}.weight", _WIDTH)
        tensors[f"{name}.weight"] += 1
        draw(f"{name}.bias", _WIDTH)

    vocabulary, types = int(config["vocab_size"]), int(config["type_vocab_size"])
    places = {"word": vocabulary, "position": _POSITIONS, "token_type": types}
    for name, rows in places.items():
        draw(f"{kind}.embeddings.{name}_embeddings.weight", rows, _WIDTH)
    norm(f"{kind}.embeddings.LayerNorm")
    for k in range(layers):
        layer = f"{kind}.encoder.layer.{k}"
        for part in ("query", "key", "value"):
            linear(f"{layer}.attention.self.{part}", _WIDTH, _WIDTH)
        linear(f"{layer}.attention.output.dense", _WIDTH, _WIDTH)
        norm(f"{layer}.attention.output.LayerNorm")
        linear(f"{layer}.intermediate.dense", _INNER, _WIDTH)
        linear(f"{layer}.output.dense", _WIDTH, _INNER)
        norm(f"{layer}.output.LayerNorm")
    head = "cls.predictions.transform" if kind == "bert" else "lm_head"
    linear(f"{head}.dense", _WIDTH, _WIDTH)
    norm(f"{head}.LayerNorm" if kind == "bert" else f"{head}.layer_norm")
    draw("cls.predictions.bias" if kind == "bert" else "lm_head.bias", vocabulary)
    return tensors


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
