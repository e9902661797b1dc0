"""Make contrasent/reproduce/smoke, the model, texts and tasks of ``reproduce --scale smoke``.

    python scripts/make_smoke_data.py contrasent/reproduce/smoke

The model has random weights, and the tasks the sentences of contrasent/quickstart_data with ratings
dealt out to them: they show that everything runs, and no number of theirs means anything.
"""

import csv
import io
import random
import sys
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

import torch
import transformers
from tokenizers.implementations import BertWordPieceTokenizer

from contrasent.evaluation import STS_TASKS

DATA = Path(__file__).parents[1] / "contrasent" / "quickstart_data"
SHAPE = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "max_position_embeddings": 300,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "initializer_range": 0.15,
}
MAX_TOKENS, WORD_WIDTH = 296, 4
PAIRS, ITEMS = 20, 24
LABELS = ("entailment", "neutral", "contradiction")
CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


def sentences() -> list[str]:
    """The beginnings of 120 sentences of Wikipedia."""
    lines = (DATA / "wikipedia.txt").read_text(encoding="utf-8").splitlines()
    short = [" ".join(line.split()[:12]) for line in lines if len(line.split()) > 5]
    return list(dict.fromkeys(short))[:120]


def rated() -> list[tuple[str, str, float]]:
    """Pairs of these sentences with a rating."""
    text = sentences()[: 2 * PAIRS]
    ratings = cycle((5.0, 0.4, 3.2, 1.6, 4.8, 2.4, 3.6))
    return list(zip(text, (*text[7:], *text[:7]), ratings, strict=False))


def make_model(folder: Path) -> None:
    """A masked language model of BERT's kind, its vocabulary letters and words of the sentences."""
    lines = [line.lower() for line in sentences()]
    letters = sorted(set("".join(lines)) - {" "})
    words = sorted({word for line in lines for word in line.split() if word.isalpha()})
    pieces = dict.fromkeys([*SPECIAL.values(), *letters, *(f"##{it}" for it in letters), *words])
    bert = BertWordPieceTokenizer({piece: k for k, piece in enumerate(pieces)})
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=bert._tokenizer,
        model_max_length=MAX_TOKENS,
        **{f"{role}_token": token for role, token in SPECIAL.items()},
    )
    of_words = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    config = transformers.BertConfig(**SHAPE, **of_words)
    torch.manual_seed(0)
    tokenizer.save_pretrained(folder)
    transformers.AutoModelForMaskedLM.from_config(config).save_pretrained(folder)


def text_files() -> Iterator[tuple[str, list[str]]]:
    """Name and lines of each text that is not one of the quickstart's."""
    text, draw, vectors = sentences(), random.Random(0), list[str]()
    for word in sorted({word for line in text for word in line.lower().split()}):
        vectors.append(" ".join([word, *(f"{draw.gauss(0, 1):.3f}" for _ in range(WORD_WIDTH))]))
    yield "words.txt", vectors
    rows = list(zip(text, text[30:], text[60:], strict=False))
    yield "pairs.csv", table([("sent0", "sent1"), *(row[:2] for row in rows)])
    yield "triplets+anli.csv", table([("sent0", "sent1", "hard_neg"), *rows])
    rows = list(zip(text, text[20:], text[40:], text[60:], strict=False))
    labelled = [(row[0], it, of) for row in rows for it, of in zip(row[1:], LABELS, strict=True)]
    yield "labelled.csv", table([("premise", "hypothesis", "label"), *labelled])


def table(rows: list[tuple[str, ...]]) -> list[str]:
    """Lines of comma-separated values."""
    content = io.StringIO()
    csv.writer(content, lineterminator="\n").writerows(rows)
    return content.getvalue().splitlines()


def task_files() -> Iterator[tuple[str, list[str]]]:
    """Path and lines of each file of SentEval's layout."""
    pairs, some = rated(), rated()[:PAIRS]
    for task in STS_TASKS.values():
        for subset in task.subsets:
            yield f"{task.folder}/STS.input.{subset}.txt", [f"{a}\t{b}" for a, b, _ in some]
            yield f"{task.folder}/STS.gs.{subset}.txt", [f"{rating}" for *_, rating in some]
            some = some[1:] + some[:1]
    for split in ("train", "dev", "test"):
        rows = [f"g\tf\t2012\t{n}\t{r}\t{a}\t{b}" for n, (a, b, r) in enumerate(pairs)]
        yield f"STS/STSBenchmark/sts-{split}.csv", rows
    for name in ("SICK_train", "SICK_trial", "SICK_test_annotated"):
        rows = [f"{n}\t{a}\t{b}\t{max(1.0, r)}\tNEUTRAL" for n, (a, b, r) in enumerate(some)]
        yield f"SICK/{name}.txt", ["pair_ID\tA\tB\trelatedness_score\tentailment", *rows]
    for path, count in (("train", 2 * PAIRS), ("test", PAIRS)):
        rows = [f"{n % 2}\t{n}\t{n}\t{a}\t{b}" for n, (a, b, _) in enumerate(pairs[:count])]
        header = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
        yield f"MRPC/msr_paraphrase_{path}.txt", [header, *rows]
    ascii_only = (it.encode("ascii", "ignore").decode() for it in cycle(sentences()))
    for path in (
        *("MR/rt-polarity.pos", "MR/rt-polarity.neg", "CR/custrev.pos", "CR/custrev.neg"),
        *("SUBJ/subj.objective", "SUBJ/subj.subjective", "MPQA/mpqa.pos", "MPQA/mpqa.neg"),
    ):
        yield path, list(islice(ascii_only, ITEMS))
    for split in ("train", "dev", "test"):
        rows = [f"{it}\t{n % 2}" for n, it in enumerate(islice(ascii_only, ITEMS))]
        yield f"SST/binary/sentiment-{split}", rows
    for path, count in (("train_5500", 5 * ITEMS), ("TREC_10", ITEMS)):
        rows = [f"{CLASSES[n % 6]}:x {it}" for n, it in enumerate(islice(ascii_only, count))]
        yield f"TREC/{path}.label", rows


def main(folder: Path) -> None:
    """Write everything."""
    make_model(folder / "model")
    files = [(f"texts/{name}", lines) for name, lines in text_files()]
    files += [(f"senteval/{name}", lines) for name, lines in task_files()]
    for name, lines in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
