"""The seven transfer tasks in SentEval's layout, made up, small and learnable."""

import numpy as np

GOOD = ("good", "great", "fine", "lovely")
BAD = ("bad", "poor", "awful", "dull")
OTHER = ("film", "plot", "story", "cast", "it", "was", "the")
COUNT = 24
ACCENTED = "pi\xf1ata"
ASKED = {"ABBR": "stand", "DESC": "mean", "ENTY": "thing"}
ASKED |= {"HUM": "who", "LOC": "where", "NUM": "many"}
FOLDED = (
    ("MR/rt-polarity.pos", "MR/rt-polarity.neg"),
    ("CR/custrev.pos", "CR/custrev.neg"),
    ("SUBJ/subj.objective", "SUBJ/subj.subjective"),
    ("MPQA/mpqa.pos", "MPQA/mpqa.neg"),
)


class Writer:
    def __init__(self, root):
        self.root = root
        self.draw = np.random.default_rng(0)

    def sentences(self, words):
        return [self.sentence(words) for _ in range(COUNT)]

    def sentence(self, words):
        length = self.draw.integers(1, 6)
        told = [*self.draw.choice(words, size=2), *self.draw.choice(OTHER, size=length)]
        return " ".join(self.draw.permutation(told))

    def put(self, path, lines, encoding="utf-8"):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_bytes("".join(f"{line}\n" for line in lines).encode(encoding))

    def pairs(self):
        yield "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String"
        for number, first in enumerate(self.sentences(GOOD) * 2):
            second = first if number % 3 else self.sentence(BAD)
            yield f'{int(number % 3 > 0)}\t{number}\t{number}\t{first}\t{second} " said'


def write_transfer(root):
    """Write all files under ``root``; :data:`COUNT` sentences per class of most of them."""
    writer = Writer(root)
    for good, bad in FOLDED:
        writer.put(good, writer.sentences(GOOD))
        writer.put(bad, writer.sentences(BAD))
    for split in ("train", "dev", "test"):
        good = [f"{sentence} \t1" for sentence in writer.sentences(GOOD)]
        bad = [f"{sentence} \t0" for sentence in writer.sentences(BAD)]
        writer.put(f"SST/binary/sentiment-{split}", good + bad)
    for file in ("train_5500.label", "TREC_10.label"):
        asked = [
            f"{coarse}:fine {question} ?"
            for coarse, word in ASKED.items()
            for question in writer.sentences([word, ACCENTED])
        ]
        writer.put(f"TREC/{file}", asked, "latin-1")
    for split in ("train", "test"):
        writer.put(f"MRPC/msr_paraphrase_{split}.txt", writer.pairs())
    return root


def separable(count=120, classes=2):
    """Classes that a line separates to some extent."""
    draw, width = np.random.default_rng(0), 7
    centres = draw.normal(size=(classes, width))
    labels = draw.integers(0, classes, count)
    features = centres[labels] + 1.5 * draw.normal(size=(count, width))
    return features.astype(np.float32), labels.astype(np.int64)
