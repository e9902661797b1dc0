"""Tiny models, texts and tasks, made on the spot: whether everything runs, without a download.

The weights are random and the ratings are those of shipped pairs dealt out to every task, so no
number of scale ``smoke`` means anything.
"""

from __future__ import annotations

import csv
import random
from collections import Counter
from collections.abc import Iterator
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
_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
_SPECIAL = {
    "bert": {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
    "roberta": {
        "bos": "<s>",
        "eos": "</s>",
        "cls": "<s>",
        "sep": "</s>",
        "pad": "<pad>",
        "unk": "<unk>",
        "mask": "<mask>",
    },
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
    sentences, lines = _sentences(), list[str]()
    first, second, third = (sentences[k : k + 150] for k in (0, 60, 120))
    if name == "words":
        draw = random.Random(0)
        pairs = (it for first, second, _ in islice(_rated(), 1000) for it in (first, second))
        words = sorted({word for line in (*sentences, *pairs) for word in line.lower().split()})
        lines = [" ".join([it, *(f"{draw.gauss(0, 1):.4f}" for _ in range(8))]) for it in words]
    elif name == "documents":
        for k in range(0, 400, 20):
            lines += [*islice(cycle(sentences), k, k + 24), ""]
    elif name in ("sentences", "nli-sentences", "captions"):
        lines = sentences[:120]
    rows: list[tuple[str, ...]] = [("sent0", "sent1"), *zip(first, second, strict=False)]
    if name.startswith("triplets"):
        rows = [("sent0", "sent1", "hard_neg"), *zip(first, second, third, strict=False)]
    elif name == "labelled":
        rows = [("premise", "hypothesis", "label")]
        for a, b in zip(first, second, strict=False):
            rows += [(a, it, of) for it, of in zip((b, a[::-1], b[::-1]), _LABELS, strict=True)]
    path = folder / f"{name}.{'txt' if lines else 'csv'}"
    with writing(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        if lines:
            file.writelines(f"{line}\n" for line in lines)
        else:
            csv.writer(file).writerows(rows)
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
    """Paths below SentEval's folder, and the lines of each file."""
    rated = _rated()
    for task in STS_TASKS.values():
        for subset in task.subsets:
            pairs = list(islice(rated, _PAIRS))
            yield f"{task.folder}/STS.input.{subset}.txt", [f"{a}\t{b}" for a, b, _ in pairs]
            yield f"{task.folder}/STS.gs.{subset}.txt", [f"{rating}" for *_, rating in pairs]
    for split in ("train", "dev", "test"):
        numbered = enumerate(islice(rated, 2 * _PAIRS))
        rows = [f"g\tf\t2012\t{n}\t{r}\t{a}\t{b}" for n, (a, b, r) in numbered]
        yield f"STS/STSBenchmark/sts-{split}.csv", rows
    for name in ("SICK_train", "SICK_trial", "SICK_test_annotated"):
        numbered = enumerate(islice(rated, _PAIRS))
        rows = [f"{n}\t{a}\t{b}\t{max(1.0, r)}\tNEUTRAL" for n, (a, b, r) in numbered]
        yield f"SICK/{name}.txt", ["pair_ID\tA\tB\trelatedness_score\tentailment", *rows]
    ascii_only = (it.encode("ascii", "ignore").decode() for it in cycle(_sentences()))
    for path in (
        *("MR/rt-polarity.pos", "MR/rt-polarity.neg", "CR/custrev.pos", "CR/custrev.neg"),
        *("SUBJ/subj.objective", "SUBJ/subj.subjective", "MPQA/mpqa.pos", "MPQA/mpqa.neg"),
    ):
        yield path, list(islice(ascii_only, _ITEMS))
    for split in ("train", "dev", "test"):
        rows = [f"{it}\t{n % 2}" for n, it in enumerate(islice(ascii_only, _ITEMS))]
        yield f"SST/binary/sentiment-{split}", rows
    for path, count in (("train_5500", 120), ("TREC_10", 24)):
        rows = [f"{_CLASSES[n % 6]}:x {it}" for n, it in enumerate(islice(ascii_only, count))]
        yield f"TREC/{path}.label", rows
    for path, count in (("train", 40), ("test", 20)):
        numbered = enumerate(islice(_rated(), count))
        rows = [f"{n % 2}\t{n}\t{n}\t{a}\t{b}" for n, (a, b, _) in numbered]
        header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
        yield f"MRPC/msr_paraphrase_{path}.txt", [header, *rows]


def _write_model(kind: str, layers: int, folder: Path) -> None:
    """A masked language model as transformers saves it, every weight drawn from a fixed seed."""
    import torch
    import transformers

    from contrasent.model.weights import quiet

    library: Any = transformers  # whose classes have no types
    tokenizer = library.PreTrainedTokenizerFast(
        tokenizer_object=_word_piece() if kind == "bert" else _byte_level(),
        model_max_length=_POSITIONS - 4,
        **{f"{role}_token": token for role, token in _SPECIAL[kind].items()},
    )
    tokenizer.save_pretrained(folder)
    config = library.AutoConfig.for_model(
        kind,
        vocab_size=len(tokenizer),
        hidden_size=_WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=_HEADS,
        intermediate_size=_INNER,
        max_position_embeddings=_POSITIONS,
        type_vocab_size=2 if kind == "bert" else 1,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.15,
    )
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(layers)
        library.AutoModelForMaskedLM.from_config(config).save_pretrained(folder)


def _word_piece() -> Tokenizer:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    sentences = _sentences()
    letters = sorted({letter for line in sentences for letter in line.lower() if letter != " "})
    counts = Counter(word for line in sentences for word in line.lower().split())
    words = [word for word, _ in counts.most_common(_WORDS) if word.isalpha()]
    pieces = [*_SPECIAL["bert"].values(), *letters, *(f"##{it}" for it in letters), *words]
    vocabulary = {piece: k for k, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def _byte_level() -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_sentences(), trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer
