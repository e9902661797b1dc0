"""Make contrasent/reproduce/smoke, the models, texts and tasks of ``reproduce --scale smoke``.

    python scripts/make_smoke_data.py contrasent/reproduce/smoke

The models have random weights, and the tasks the sentences of contrasent/quickstart_data with
ratings dealt out to them: they show that everything runs, and no number of theirs means anything.
"""

from __future__ import annotations

import csv
import random
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from contrasent.evaluation import STS_TASKS

DATA = Path(__file__).parents[1] / "contrasent" / "quickstart_data"
WIDTH, INNER, HEADS, POSITIONS = 16, 24, 2, 300
LAYERS = {"base": 2, "large": 3}
WORDS, WORD_WIDTH = 150, 4
PAIRS, ITEMS = 20, 24
LABELS = ("entailment", "neutral", "contradiction")
CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


def sentences() -> list[str]:
    """The beginnings of 400 sentences of Wikipedia."""
    lines = (DATA / "wikipedia.txt").read_text(encoding="utf-8").splitlines()
    short = [" ".join(line.split()[:12]) for line in lines if len(line.split()) > 5]
    return list(dict.fromkeys(short))[:400]


def rated() -> Iterator[tuple[str, str, float]]:
    """The shipped pairs, again and again; some are rated 5, whose sentences are equal."""
    rows = (DATA / "stack_exchange_pairs.tsv").read_text(encoding="utf-8").splitlines()
    cells = [row.split("\t") for row in rows]
    pairs = []
    for number, (first, second, score) in enumerate(cells[1:]):
        rating = 5.0 if number % 6 == 0 else min(4.9, float(score))
        pairs.append((" ".join(first.split()[:12]), " ".join(second.split()[:12]), rating))
    return cycle(pairs)


def word_piece() -> Tokenizer:
    """A tokenizer of letters and of the words that are frequent in the text."""
    letters = sorted({letter for line in sentences() for letter in line.lower() if letter != " "})
    counts = Counter(word for line in sentences() for word in line.lower().split())
    words = [word for word, _ in counts.most_common(WORDS) if word.isalpha()]
    pieces = [*SPECIAL.values(), *letters, *(f"##{it}" for it in letters), *words]
    vocabulary = {piece: k for k, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=SPECIAL["unk"]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = ((token, vocabulary[token]) for token in (SPECIAL["sep"], SPECIAL["cls"]))
    tokenizer.post_processor = processors.BertProcessing(*ends)
    return tokenizer


def make_model(folder: Path, layers: int) -> None:
    """A masked language model of BERT's kind."""
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=word_piece(),
        model_max_length=POSITIONS - 4,
        **{f"{role}_token": token for role, token in SPECIAL.items()},
    )
    config = transformers.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        intermediate_size=INNER,
        max_position_embeddings=POSITIONS,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.15,
    )
    torch.manual_seed(layers)
    tokenizer.save_pretrained(folder)
    transformers.AutoModelForMaskedLM.from_config(config).save_pretrained(folder)


def text_files() -> Iterator[tuple[str, list[Any]]]:
    """Name and lines, or rows, of each text."""
    text, draw = sentences(), random.Random(0)
    first, second, third = (text[k : k + 150] for k in (0, 60, 120))
    pairs = (it for first, second, _ in islice(rated(), 1000) for it in (first, second))
    words = sorted({word for line in (*text, *pairs) for word in line.lower().split()})
    drawn = ([f"{draw.gauss(0, 1):.3f}" for _ in range(WORD_WIDTH)] for _ in words)
    yield "words.txt", [" ".join([word, *row]) for word, row in zip(words, drawn, strict=True)]
    documents = ([*islice(cycle(text), k, k + 24), ""] for k in range(0, 400, 20))
    yield "documents.txt", [line for document in documents for line in document]
    yield "sentences.txt", text[:120]
    yield "captions.txt", text[:120]
    yield "pairs.csv", [("sent0", "sent1"), *zip(first, second, strict=True)]
    rows = zip(first, second, third, strict=True)
    yield "triplets+anli.csv", [("sent0", "sent1", "hard_neg"), *rows]
    rows = [("premise", "hypothesis", "label")]
    for a, b in zip(first, second, strict=True):
        rows += [(a, it, of) for it, of in zip((b, a[::-1], b[::-1]), LABELS, strict=True)]
    yield "labelled.csv", rows


def task_files() -> Iterator[tuple[str, list[str]]]:
    """Path and lines of each file of SentEval's layout."""
    pairs_rated = rated()
    for task in STS_TASKS.values():
        for subset in task.subsets:
            pairs = list(islice(pairs_rated, PAIRS))
            yield f"{task.folder}/STS.input.{subset}.txt", [f"{a}\t{b}" for a, b, _ in pairs]
            yield f"{task.folder}/STS.gs.{subset}.txt", [f"{rating}" for *_, rating in pairs]
    for split in ("train", "dev", "test"):
        numbered = enumerate(islice(pairs_rated, 2 * PAIRS))
        rows = [f"g\tf\t2012\t{n}\t{r}\t{a}\t{b}" for n, (a, b, r) in numbered]
        yield f"STS/STSBenchmark/sts-{split}.csv", rows
    for name in ("SICK_train", "SICK_trial", "SICK_test_annotated"):
        numbered = enumerate(islice(pairs_rated, PAIRS))
        rows = [f"{n}\t{a}\t{b}\t{max(1.0, r)}\tNEUTRAL" for n, (a, b, r) in numbered]
        yield f"SICK/{name}.txt", ["pair_ID\tA\tB\trelatedness_score\tentailment", *rows]
    ascii_only = (it.encode("ascii", "ignore").decode() for it in cycle(sentences()))
    for path in (
        *("MR/rt-polarity.pos", "MR/rt-polarity.neg", "CR/custrev.pos", "CR/custrev.neg"),
        *("SUBJ/subj.objective", "SUBJ/subj.subjective", "MPQA/mpqa.pos", "MPQA/mpqa.neg"),
    ):
        yield path, list(islice(ascii_only, ITEMS))
    for split in ("train", "dev", "test"):
        rows = [f"{it}\t{n % 2}" for n, it in enumerate(islice(ascii_only, ITEMS))]
        yield f"SST/binary/sentiment-{split}", rows
    for path, count in (("train_5500", 120), ("TREC_10", 24)):
        rows = [f"{CLASSES[n % 6]}:x {it}" for n, it in enumerate(islice(ascii_only, count))]
        yield f"TREC/{path}.label", rows
    for path, count in (("train", 40), ("test", 20)):
        numbered = enumerate(islice(rated(), count))
        rows = [f"{n % 2}\t{n}\t{n}\t{a}\t{b}" for n, (a, b, _) in numbered]
        header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
        yield f"MRPC/msr_paraphrase_{path}.txt", [header, *rows]


def main(folder: Path) -> None:
    """Write everything."""
    for name, layers in LAYERS.items():
        make_model(folder / "models" / name, layers)
    files = [(f"texts/{name}", lines) for name, lines in text_files()]
    files += [(f"senteval/{name}", lines) for name, lines in task_files()]
    for name, rows in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="") as file:
            if isinstance(rows[0], tuple):
                csv.writer(file, lineterminator="\n").writerows(rows)
            else:
                file.writelines(f"{line}\n" for line in rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
