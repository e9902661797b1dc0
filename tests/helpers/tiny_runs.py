"""A tiny run of every recipe: the data, the start and the settings that train it in a second."""

from dataclasses import dataclass, field

from contrasent.recipe import load_recipe
from helpers.tiny_sentences import sentence


@dataclass(frozen=True)
class TinyRun:
    """A recipe on tiny data from a tiny start."""

    recipe: str = "unsup-simcse"
    settings: dict = field(default_factory=dict)
    data: str = "text.txt"
    start: str = "bert"
    teacher: str = ""

    def load(self, folder, starts, changes):
        """The recipe in fp32 with batches of 16, not evaluated unless the changes say so.

        Args:
            folder: a folder for the data.
            starts: a tiny BERT, a tiny masked language model and word vectors, by name.
            changes: settings that come last; ``data`` takes the place of its own.
        """
        common = {
            "encoder.name": str(starts[self.start]),
            "data.file": str(write_data(folder / changes.get("data", self.data))),
            "train.batch_size": 16,
            "train.learning_rate": 1e-3,
            "train.precision": "fp32",
            "evaluation.task": "none",
            "evaluation.final": "none",
        }
        settings = {key: value for key, value in changes.items() if "." in key}
        if self.teacher:
            common["objective.teacher"] = str(starts[self.teacher])
        if self.start == "glove":
            common |= {"encoder.lstm": 8, "encoder.pooler": "max"}
        return load_recipe(self.recipe, {**common, **self.settings, **settings})


OWN_WORDS = {"objective.generator": None}
SHORT, NO_PATIENCE = {"data.max_tokens": 32}, {"evaluation.patience": None}
SPANS = {"objective.min_words": 2, "objective.max_words": 8, "train.batch_size": 4}
PUBLISHED = ("", "-bert-base", "-bert-large", "-roberta-base", "-roberta-large")
MODELS = ("bert-base", "roberta-base")
DIFFCSE = ("", *(f"-{model}-{task}" for model in MODELS for task in ("sts", "transfer")))
TINY = {
    run.recipe: run
    for run in (
        *(TinyRun(f"unsup-simcse{name}") for name in PUBLISHED),
        *(TinyRun(f"sup-simcse{name}", data="triplets.csv") for name in PUBLISHED),
        *(TinyRun(f"diffcse{name}", OWN_WORDS, start="masked-lm") for name in DIFFCSE),
        TinyRun("pretrain-mlm", SHORT, start="masked-lm"),
        TinyRun("consert", SHORT | NO_PATIENCE),
        TinyRun("consert-joint", SHORT, "labelled.csv"),
        TinyRun("sg-opt", {**SHORT, **NO_PATIENCE, "objective.projection": 32}),
        TinyRun("tsdae", SHORT, start="masked-lm"),
        TinyRun("cmlm", {"objective.vectors": 3}, "documents.txt", "masked-lm"),
        TinyRun("declutr", {**SHORT, **SPANS}, "documents.txt", "masked-lm"),
        TinyRun("declutr-small", {**SHORT, **SPANS}, "documents.txt", "masked-lm"),
        TinyRun("contrastive-tension", {**SHORT, "train.batch_size": 15}),
        TinyRun("is-bert", {**SHORT, "encoder.channels": 6}),
        TinyRun("sup-adapt", SHORT, "triplets.csv"),
        TinyRun("improve", {"train.start_shares": []}),
        TinyRun("distil", SHORT, teacher="glove"),
        TinyRun("prompt", start="masked-lm"),
        TinyRun("best-unsup", start="masked-lm"),
        TinyRun("prompt-cot", start="masked-lm"),
        TinyRun("rank", teacher="glove"),
        TinyRun("esimcse"),
        TinyRun("mixcse"),
        TinyRun("infocse", start="masked-lm"),
        TinyRun("infocse-rtd", start="masked-lm"),
        TinyRun("quick-thoughts", data="documents.txt"),
        TinyRun("next-sentence", data="documents.txt"),
        TinyRun(
            "infersent",
            {"objective.hidden": [12, 12], "train.learning_rate": 0.1},
            "labelled.csv",
            "glove",
        ),
        TinyRun("nli-softmax", SHORT, "labelled.csv"),
        TinyRun("scored-pairs", SHORT, "scored.csv"),
        TinyRun("rank-distil", SHORT, "lists.csv"),
    )
}


def write_data(path):
    """Forty-eight examples, of one sentence or of three; in documents of six, or in none."""
    texts = [(sentence(n, 3 + n % 6), sentence(n, 4), sentence(n + 17, 6)) for n in range(48)]
    if path.stem.endswith("labelled"):
        names = ["entailment", "neutral", "contradiction"]
        names += ["-"] * (path.stem == "partly_labelled")
        labels = [names[n % len(names)] for n in range(48)]
        pairs = [f"{text[0]},{text[1]},{label}" for text, label in zip(texts, labels, strict=True)]
        rows = ["sent0,sent1,label", *pairs]
    elif path.stem == "scored":
        rows = [f"{text[0]},{text[1]},{n % 6}" for n, text in enumerate(texts)]
        rows = ["sentence1,sentence2,score", *rows]
    elif path.stem == "lists":
        rows = [f'{",".join(text)},"[{n % 5}, {n % 3}]"' for n, text in enumerate(texts)]
        rows = ["query,positive,negative,scores", *rows]
    elif path.suffix == ".csv":
        rows = ["sent0,sent1,hard_neg", *(",".join(row) for row in texts)]
    else:
        gap = "\n" if path.stem == "documents" else ""
        rows = [first + gap * (n % 6 == 5) for n, (first, _, _) in enumerate(texts)]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path
