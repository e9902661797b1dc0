"""Materials: what a user gives, what is made of it, and what is tiny and made on the spot.

The tiny ones show that everything runs, without a download. Their weights are random and their
ratings are those of shipped pairs dealt out to every task, so no number of scale ``smoke`` means
anything.
"""

from __future__ import annotations

import csv
import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from itertools import chain, cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from contrasent.data import TEXT_KINDS, VIEWS, lines, senteval, source_kind
from contrasent.errors import ConfigError, ContrasentError, DataError
from contrasent.evaluation import STS_TASKS
from contrasent.files import sha256_of, writing, writing_folder
from contrasent.model import find_download, resolve
from contrasent.reproduce.papers import PAPER, SAMPLE, SMOKE, load_scales

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ENCODER = "bert-base-uncased"
"""The model that ``--encoder`` stands in place of."""


class Materials:
    """Models, texts and tasks by their names in the plan, found or made once."""

    def __init__(
        self, scale: str, given: Mapping[str, str], folder: Path, *, download: bool = True
    ) -> None:
        """Know what a user gave, by material or id of a model; a DataError if it is not there.

        What is made goes to ``folder``. Without ``download``, a model that is not there is its id.
        """
        self._scale, self._given, self._folder = scale, dict(given), folder
        self._download = download
        self._definitions, scales = load_scales()
        self._rows = scales[scale].rows
        self._known: dict[tuple[str, str], str | ContrasentError] = {}
        for name in given:
            self._source(name) if name in self._definitions else self.get("model", name)

    def get(self, kind: str, name: str) -> str:
        """What there is of a name, found once; ContrasentError if it cannot be had, and how.

        A ``model`` is a folder in place of an id, or word vectors; a ``text`` the file of a
        material, cut to the rows of the scale; a ``view`` what decides it beside recipe and text,
        such as WordNet's version, often nothing.
        """
        if (kind, name) not in self._known:
            find = {"model": self._model, "text": self._text, "view": _origin_of_view}[kind]
            try:
                self._known[kind, name] = find(name)
            except ContrasentError as error:
                self._known[kind, name] = error
        known = self._known[kind, name]
        if isinstance(known, ContrasentError):
            raise known
        return known

    def _model(self, name: str) -> str:
        if name in self._definitions:
            return self.get("text", name)
        if name not in self._given and self._scale == SMOKE:
            return str(make_model(name, self._folder / "models" / name.replace("/", "-")))
        if name not in self._given and self._scale != PAPER:
            option = "--encoder FOLDER" if name == ENCODER else f"--material {name}=FOLDER"
            raise ConfigError(f"needs {option}: a model in place of {name}")
        name = self._given.get(name, name)
        if self._download or Path(name).expanduser().exists():
            return str(resolve(name))
        return str(find_download(name) or name)

    def _text(self, name: str) -> str:
        plain = name.removeprefix(SAMPLE)
        limit = self._rows.get("sample" if plain != name else plain, self._rows.get("full"))
        source = self._source(plain)
        if limit is None or plain == "words":
            return str(source)
        return str(_beginning(source, plain, limit, self._folder / str(limit)))

    def _source(self, name: str) -> Path:
        definition = self._definitions[name]
        if name in self._given:
            path = Path(self._given[name]).expanduser()
            if not path.is_file():
                raise DataError(f"{path} is not there; it is to be {definition.about}")
            return path
        if definition.of in self._given or (definition.of and self._scale == SMOKE):
            return _derived(name, self._source(definition.of), self._folder / "derived")
        if self._scale == SMOKE:
            return _make_text(name, self._folder / "texts")
        ways = [name, *([definition.of] if definition.of else [])]
        options = " or ".join(f"--material {way}=FILE" for way in ways)
        raise ConfigError(f"needs {options}: {definition.about}")


def _origin_of_view(name: str) -> str:
    try:
        return " ".join(VIEWS[name].origin().values())
    except ContrasentError as error:
        raise ConfigError(str(error).removeprefix(f"view {name} ")) from error


def content_hash(content: object) -> str:
    """A short hash of anything that JSON can hold."""
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def path_sha256(path: str) -> str:
    """Of a file, of all names and contents of a folder, or of an id, where it is not here.

    Computed once in a process.
    """
    place = Path(path)
    if not place.is_dir():
        return sha256_of(place) if place.exists() else content_hash(path)
    digest = hashlib.sha256()
    for file in sorted(it for it in place.rglob("*") if it.is_file()):
        digest.update(f"{file.relative_to(place).as_posix()} {sha256_of(file)}\n".encode())
    return digest.hexdigest()


STS_FOLDERS, TRANSFER_FOLDERS = senteval.PARTS[:2], senteval.PARTS[2:]
"""Of SentEval's data: what the tasks of a kind are read from."""


@cache
def data_sha256(data_dir: str | None, folders: tuple[str, ...] = STS_FOLDERS) -> str:
    """Of the files of these folders of SentEval's; empty without any."""
    root = senteval.senteval_root(data_dir)
    hashes = [path_sha256(str(root / it)) for it in folders if (root / it).is_dir()]
    return content_hash(hashes) if hashes else ""


def _derived(name: str, labelled: Path, folder: Path) -> Path:
    """A material made of premises, hypotheses and labels, by SimCSE's rules (section 4)."""
    from contrasent.data import build

    sources = build.open_sources("nli", [str(labelled)])
    folder.mkdir(parents=True, exist_ok=True)
    plain = name == "nli-sentences"
    path = folder / f"{name}-{path_sha256(str(labelled))[:8]}.{'txt' if plain else 'csv'}"
    if path.is_file():
        return path
    if plain:
        sentences = (str(it).strip() for _, cells in sources[0].rows() for it in cells[:2])
        _write_lines(path, filter(None, sentences))
    else:
        build.build(build.nli(sources, name), path)
    return path


def _write_lines(path: Path, written: Iterable[str]) -> None:
    with writing(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in written)


def _write_table(path: Path, rows: Iterable[Sequence[str]]) -> None:
    with writing(path) as partial, partial.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)


def _beginning(source: Path, name: str, limit: int, folder: Path) -> Path:
    from contrasent.data import ColumnMap, open_source

    kind = source_kind(str(source), TEXT_KINDS)
    path = folder / f"{name}-{path_sha256(str(source))[:8]}{'.txt' if kind == '.txt' else '.csv'}"
    if path.is_file():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    if kind == ".txt":
        first = (line.rstrip() for _, line in islice(lines(source), limit))
        _write_lines(path, _first_documents(source, limit) if name == "documents" else first)
        return path
    table = open_source(str(source), kind)
    rows = [cells for _, cells in table.choose(ColumnMap.every).rows()]
    kept = sorted(sorted(range(len(rows)), key=lambda k: content_hash(rows[k]))[:limit])
    header = [table.first] if any(table.first) else []
    _write_table(path, [*header, *(rows[k] for k in kept)])
    return path


def _first_documents(path: Path, limit: int) -> Iterator[str]:
    """Whole documents, with the blank lines after them, of so many next sentences at most.

    The first document is taken whatever its length.
    """
    taken, document = 0, list[str]()
    for line in chain((line for _, line in lines(path)), [None]):
        if line is not None:
            document.append(line.rstrip())
        if line is None or not line.strip():
            anchors = sum(map(bool, document)) - 1
            if taken and taken + anchors > limit:
                return
            yield from document
            taken += max(0, anchors)
            document = []


_DATA = Path(str(files("contrasent") / "quickstart_data"))
_WIDTH, _INNER, _HEADS, _POSITIONS = 16, 24, 2, 300
_WORDS = 150
_PAIRS = 20
_ITEMS = 24
_LABELS = ("entailment", "neutral", "contradiction")
_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")
_SPECIAL = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}


def make_model(name: str, folder: Path) -> Path:
    """A masked language model of BERT's kind and random weights in place of the one of this id."""
    import torch
    import transformers

    from contrasent.model import quiet

    if folder.is_dir():
        return folder
    library: Any = transformers  # whose classes have no types
    tokenizer = library.PreTrainedTokenizerFast(
        tokenizer_object=_word_piece(),
        model_max_length=_POSITIONS - 4,
        **{f"{role}_token": token for role, token in _SPECIAL.items()},
    )
    config = library.BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=_WIDTH,
        num_hidden_layers=3 if "large" in name else 2,
        num_attention_heads=_HEADS,
        intermediate_size=_INNER,
        max_position_embeddings=_POSITIONS,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.15,
    )
    with torch.random.fork_rng(devices=[]), quiet():
        torch.manual_seed(config.num_hidden_layers)
        model = library.AutoModelForMaskedLM.from_config(config)
    with writing_folder(folder) as partial, quiet():
        tokenizer.save_pretrained(partial)
        model.save_pretrained(partial)
    return folder


def _make_text(name: str, folder: Path) -> Path:
    sentences, written = _sentences(), list[str]()
    first, second, third = (sentences[k : k + 150] for k in (0, 60, 120))
    if name == "words":
        draw = random.Random(0)
        pairs = (it for first, second, _ in islice(_rated(), 1000) for it in (first, second))
        words = sorted({word for line in (*sentences, *pairs) for word in line.lower().split()})
        written = [" ".join([it, *(f"{draw.gauss(0, 1):.4f}" for _ in range(8))]) for it in words]
    elif name == "documents":
        for k in range(0, 400, 20):
            written += [*islice(cycle(sentences), k, k + 24), ""]
    elif name in ("sentences", "nli-sentences", "captions"):
        written = sentences[:120]
    rows: list[tuple[str, ...]] = [("sent0", "sent1"), *zip(first, second, strict=False)]
    if name.startswith("triplets"):
        rows = [("sent0", "sent1", "hard_neg"), *zip(first, second, third, strict=False)]
    elif name == "labelled":
        rows = [("premise", "hypothesis", "label")]
        for a, b in zip(first, second, strict=False):
            rows += [(a, it, of) for it, of in zip((b, a[::-1], b[::-1]), _LABELS, strict=True)]
    path = folder / f"{name}.{'txt' if written else 'csv'}"
    _write_lines(path, written) if written else _write_table(path, rows)
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


def _word_piece() -> Tokenizer:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    sentences = _sentences()
    letters = sorted({letter for line in sentences for letter in line.lower() if letter != " "})
    counts = Counter(word for line in sentences for word in line.lower().split())
    words = [word for word, _ in counts.most_common(_WORDS) if word.isalpha()]
    pieces = [*_SPECIAL.values(), *letters, *(f"##{it}" for it in letters), *words]
    vocabulary = {piece: k for k, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=_SPECIAL["unk"]))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    ends = ((token, vocabulary[token]) for token in (_SPECIAL["sep"], _SPECIAL["cls"]))
    tokenizer.post_processor = processors.BertProcessing(*ends)
    return tokenizer
