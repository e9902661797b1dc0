"""Tokenizers: the only file that knows one."""

import copy
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from contrasent.data.readers import CHARACTERS
from contrasent.errors import CheckpointError, ConfigError, DataError, first_line

Ids = list[np.ndarray[Any, np.dtype[np.int32]]]  # of each text

# A folder is read only if it holds one complete row. Without this check transformers would make
# a vocabulary of five special tokens for a folder that has lost its own.
_VOCABULARIES = (
    *("tokenizer.json", "vocab.txt", "vocab.json + merges.txt", "sentencepiece.bpe.model"),
    *("spiece.model", "spm.model", "tokenizer.model"),
)
_DESCRIPTIONS = ("tokenizer.json", "tokenizer_config.json", "config.json")
_MASK = "{mask}"
UNBOUNDED = 1_000_000  # tokens of the longest text, where nothing sets a limit
_KEPT_BACKENDS = 4
_AT_ONCE = 1_024
_BYTES, _MOST_BYTES = 96, 2**28  # of a character, of all that is made sure of
_MOST_ADDED = 100_000
_MOST_LETTERS = 1_000  # of a learned vocabulary, as BERT's trainer limits them
_AFTER_SPACE = ("\u0120", "\u2581")  # begin a token after a space: byte-level BPE, SentencePiece
_UNSPACED = re.compile(f"[{CHARACTERS}]")
_NO_LISTS = (str, bytes, bytearray, memoryview, Mapping, set, frozenset)
# By what a folder calls them; where it has lost the names, what the token is usually called.
_ROLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "mask": (("mask_token",), ("[MASK]", "<mask>")),
    "first": (("cls_token", "bos_token"), ("[CLS]", "<s>")),
    "last": (("sep_token", "eos_token"), ("[SEP]", "</s>")),
    "pad": (("pad_token",), ("[PAD]", "<pad>")),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialIds:
    """Ids of the tokens that stand for no text; None for one that a tokenizer does not have."""

    mask: int | None
    first: int | None  # ``[CLS]`` or ``<s>``
    last: int | None  # ``[SEP]`` or ``</s>``
    pad: int | None
    every: tuple[int, ...]  # all of them, the unknown token and added ones included


@dataclass(frozen=True, slots=True)
class Template:
    """The ids of the tokens that stand before and after those of every sentence."""

    before: tuple[int, ...]
    after: tuple[int, ...]

    def __len__(self) -> int:
        """How many tokens they are."""
        return len(self.before) + len(self.after)


class Tokenizer:
    """Text to token ids through the Rust backend of a Hugging Face tokenizer.

    Padding and truncation that the folder's ``tokenizer.json`` asks for are saved, but not applied:
    sentences travel packed, and each caller names its own limit. Threads may share it.
    """

    lower_case = False  # to be told to whoever loads it, as classes of transformers forget it

    def __init__(self, pretrained: Any) -> None:
        """Wrap a fast ``transformers`` tokenizer; :meth:`load` is the usual way."""
        self._pretrained = pretrained
        self.truncation_side: str = pretrained.truncation_side  # where a long text loses tokens
        settings = json.loads(pretrained.backend_tokenizer.to_str())
        # Where others cut a text, special tokens included, before they look at the encoder's limit.
        self.truncation: int = (settings["truncation"] or {}).get("max_length", 0)
        settings["truncation"] = settings["padding"] = None
        self._settings = json.dumps(settings)
        self._backends: dict[int | None, Any] = {}
        whole = self._backend(None)
        # The largest token id plus one: the embedding rows that the tokenizer needs.
        self.vocabulary: int = max(whole.get_vocab(with_added_tokens=True).values()) + 1
        # The limit that the folder states, special tokens included.
        limit = pretrained.model_max_length
        self.max_tokens: int | None = int(limit) if 0 < limit < UNBOUNDED else None
        self.specials: int = whole.num_special_tokens_to_add(is_pair=False)
        # Of all that decides which ids a text gets.
        decisive = f"{self._settings}\n{self.truncation_side}"
        self.fingerprint = hashlib.sha256(decisive.encode()).hexdigest()
        self.source = str(pretrained.name_or_path)  # for messages
        self.special_ids: SpecialIds = _special_ids(pretrained, whole)

    @property
    def vocabulary_map(self) -> Mapping[str, int]:
        """The id of every token, added ones included."""
        return dict(self._backend(None).get_vocab(with_added_tokens=True))

    @property
    def special_names(self) -> Mapping[str, str]:
        """The special tokens by their roles, as ``special_tokens_map.json`` holds them."""
        return dict(self._pretrained.special_tokens_map)

    def begins_word(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """``(vocabulary,)``, whether a token begins a word; all do of scripts without spaces."""
        model = json.loads(self._settings)["model"]
        prefix = model.get("continuing_subword_prefix") if model["type"] == "WordPiece" else None
        marks = _AFTER_SPACE if prefix is None else (prefix,)
        marked = [it for token, it in self.vocabulary_map.items() if token.startswith(marks)]
        begins = np.full(self.vocabulary, prefix is not None or not marked)
        begins[marked] = prefix is None
        begins[[it for token, it in self.vocabulary_map.items() if _UNSPACED.match(token)]] = True
        return begins

    @cached_property
    def _wordless(self) -> set[int]:
        known = self.vocabulary_map
        return {*self.special_ids.every, *(known[it] for it in _AFTER_SPACE if it in known)}

    @cached_property
    def template(self) -> Template:
        """What every sentence gets, ``[CLS]`` and ``[SEP]`` unless a prompt stands there."""
        whole = self._backend(None)
        ids = whole.encode("").ids
        before = whole.encode("a").special_tokens_mask.index(0)
        return Template(tuple(ids[:before]), tuple(ids[before:]))

    def template_of(self, prompt: str) -> Template:
        """The template that a prompt such as ``This sentence of "{text}" means {mask}`` stands for.

        ``{text}`` is the place of the sentence and ``{mask}`` the mask token. ``[CLS]`` and
        ``[SEP]``, or what else the tokenizer puts at an end, stand around it, except in the place
        of a ``{mask}`` at that end. A space at an end, or before ``{text}``, is no token.
        """
        parts = prompt.strip().split("{text}")
        if len(parts) != 2 or (self.special_ids.mask is None and _MASK in prompt):
            raise ConfigError(f"{prompt!r} has no single {{text}}, or {self.source} no {_MASK}")
        mask = self._backend(None).id_to_token(self.special_ids.mask or 0)
        texts = (part.replace(_MASK, mask) for part in (parts[0].rstrip(), parts[1]))
        encode = partial(self._backend(None).encode, add_special_tokens=False)
        before, after = (encode(text).ids if text else [] for text in texts)
        known, template = self.special_ids, self.template
        usual: list[Any] = [known.first, known.last]  # where an earlier prompt has a mask
        ends: list[Any] = [template.before[:1], template.after[-1:]]
        ends = [usual[n : n + 1] if known.mask in of else of for n, of in enumerate(ends)]
        first, last = ([it for it in of if it in known.every] for of in ends)
        before = before if parts[0].startswith(_MASK) else [*first, *before]
        after = after if parts[1].endswith(_MASK) else [*after, *last]
        return Template(tuple(before), tuple(after))

    def with_truncation(self, limit: int) -> "Tokenizer":
        """The tokenizer that others let cut a text at ``limit`` tokens."""
        pretrained = copy.deepcopy(self._pretrained)
        pretrained.backend_tokenizer.enable_truncation(limit, direction=self.truncation_side)
        return Tokenizer(pretrained)

    def with_prompt(self, prompt: str) -> "Tokenizer":
        """The tokenizer that puts ``prompt`` around every sentence, which alone is cut."""
        from tokenizers import Tokenizer as RustTokenizer
        from tokenizers.processors import TemplateProcessing
        from transformers import PreTrainedTokenizerFast

        template, old = self.template_of(prompt), self._pretrained
        backend = RustTokenizer.from_str(old.backend_tokenizer.to_str())
        around = {"before": template.before, "after": template.after}
        pieces = [
            {"id": name, "ids": list(ids), "tokens": [backend.id_to_token(it) for it in ids]}
            for name, ids in around.items()
            if ids
        ]
        single = [name for name in ("before", "$A", "after") if around.get(name, True)]
        pair = [*single, *(name.replace("A", "B") for name in single)]
        backend.post_processor = TemplateProcessing(single=single, pair=pair, special_tokens=pieces)
        # BertTokenizer and its kin would put their own [CLS] and [SEP] back when they are loaded.
        kind: Any = PreTrainedTokenizerFast
        names = ("name_or_path", "model_max_length", "model_input_names", "padding_side")
        kept = {name: getattr(old, name) for name in (*names, "truncation_side")}
        return Tokenizer(kind(tokenizer_object=backend, **kept, **old.special_tokens_map))

    @staticmethod
    def is_in(folder: Path) -> bool:
        """True if ``folder`` has the files of a vocabulary."""
        rows = (row.split(" + ") for row in _VOCABULARIES)
        return any(all((folder / file).is_file() for file in row) for row in rows)

    @classmethod
    def load(cls, folder: str | Path, *, lower_case: bool = False) -> "Tokenizer":
        """Read the tokenizer of a Hugging Face model folder; no network, no code from the folder.

        A folder with nothing but ``vocab.txt`` is read as BERT's, uncased, and one with nothing
        but ``vocab.json`` and ``merges.txt`` as RoBERTa's. ``lower_case`` lower-cases a text first,
        unless the tokenizer does.
        """
        folder = Path(folder)
        if not cls.is_in(folder):
            needed = " or ".join(_VOCABULARIES)
            raise CheckpointError(f"no complete tokenizer in {folder}: it needs {needed}")
        for name in ("tokenizer.json", "tokenizer_config.json", "added_tokens.json"):
            path = folder / name  # with very many added tokens, reading would take hours
            text = path.read_bytes() if path.is_file() else b""
            added = text.count(b'"single_word"') or text.count(b":") * (name == "added_tokens.json")
            if added > _MOST_ADDED:
                what = f"{path} has {added:,} added tokens"
                raise CheckpointError(f"{what}; put them into the vocabulary")
        import transformers

        kind: Any = transformers.AutoTokenizer
        how = {"use_fast": True, "trust_remote_code": False}
        if not any((folder / name).is_file() for name in _DESCRIPTIONS):
            usual = {"vocab.txt": "BertTokenizerFast", "vocab.json": "RobertaTokenizerFast"}
            present = [name for file, name in usual.items() if (folder / file).is_file()]
            kind, how = (getattr(transformers, present[0]), {}) if present else (kind, how)
        try:
            pretrained = kind.from_pretrained(str(folder), local_files_only=True, **how)
            now = pretrained.backend_tokenizer.normalizer
        except Exception as error:  # the Rust backend raises bare Exception on a damaged file
            raise CheckpointError(
                f"cannot read the tokenizer of {folder}: {first_line(error):.200}; "
                "save it with a fast tokenizer, so that the folder holds a tokenizer.json"
            ) from error
        if lower_case:
            from tokenizers import normalizers

            kinds: Any = normalizers
            steps = list(now) if isinstance(now, kinds.Sequence) else [] if now is None else [now]
            if not any(isinstance(step, kinds.Lowercase) for step in steps):
                lowered = kinds.Sequence([kinds.Lowercase(), *steps])
                pretrained.backend_tokenizer.normalizer = lowered
        tokenizer = cls(pretrained)
        tokenizer.lower_case = lower_case
        return tokenizer

    def ids(self, texts: Sequence[str], max_tokens: int | None) -> tuple[Ids, int]:
        """As `cut_ids`, but only how many texts had to be cut."""
        ids, cut = self.cut_ids(texts, max_tokens)
        return ids, sum(cut)

    def cut_ids(self, texts: Sequence[str], max_tokens: int | None) -> tuple[Ids, list[bool]]:
        """Ids of each text, at most ``max_tokens`` with special ones; whether it had to be cut."""
        self._require_room(max_tokens)
        ids, cut = [], []
        for e in _encode(self._backend(max_tokens).encode_batch_fast, texts):
            ids.append(np.array(e.ids, dtype=np.int32))
            cut.append(len(e) == max_tokens and bool(e.overflowing))
        return ids, cut

    def _require_room(self, max_tokens: int | None) -> None:
        if max_tokens is not None and max_tokens <= self.specials:
            raise ConfigError(f"max_tokens must be above {self.specials}, not {max_tokens}")

    def pieces(self, texts: Sequence[str], limit: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Ids ``(T,)`` of texts, at most ``limit`` of each, not special; where each begins."""
        backend = self._backend(limit or None)
        encoded = _encode(backend.encode_batch_fast, texts, add_special_tokens=False)
        ids = [encoding.ids for encoding in encoded]
        ends = np.cumsum([len(each) for each in ids], dtype=np.int64)
        flat = np.fromiter(chain.from_iterable(ids), np.int64, int(ends[-1]) if len(ids) else 0)
        return flat, np.concatenate([np.zeros(1, np.int64), ends[:-1]])

    def filler(self, token: str | None) -> int:
        """The id of ``token``, by default the mask or the end of a text; ConfigError without it."""
        known = self.special_names
        name = token or known.get("mask_token") or known.get("eos_token") or ""
        number: int | None = self._backend(None).token_to_id(name)
        if number is None or self._pretrained.padding_side == "left":
            raise ConfigError(f"{self.source} cannot put {token or 'mask tokens'!r} behind a query")
        return number

    def wordless(self, ids: Sequence[np.ndarray[Any, Any]]) -> int:
        """How many of the sentences with these ``ids`` have words, none of which it knows."""
        unknown, rows = self._pretrained.unk_token_id, map(np.ndarray.tolist, ids)
        return sum(unknown in row and self._wordless.issuperset(row) for row in rows)

    def save(self, folder: str | Path) -> None:
        """Write the tokenizer as it was read, for transformers and sentence-transformers."""
        for reading in ("is_local", "local_files_only"):  # how it was read here, nobody else's
            self._pretrained.init_kwargs.pop(reading, None)
        if self._pretrained.pad_token is None:  # without one other libraries make no batch
            self._pretrained.pad_token = self._pretrained.eos_token or self._pretrained.unk_token
        self._pretrained.save_pretrained(str(folder))
        path = Path(folder) / "tokenizer_config.json"
        text = path.read_text(encoding="utf-8")
        # What transformers 5 calls the class of a tokenizer with a prompt is unknown to 4.
        renamed = text.replace('"TokenizersBackend"', '"PreTrainedTokenizerFast"')
        path.write_text(renamed, encoding="utf-8")

    def _backend(self, max_tokens: int | None) -> Any:
        """One Rust tokenizer per limit: a limit is state, which threads would fight over."""
        backend = self._backends.get(max_tokens)
        if backend is None:
            from tokenizers import Tokenizer as RustTokenizer

            backend = RustTokenizer.from_str(self._settings)
            if max_tokens is not None:
                backend.enable_truncation(max_tokens, direction=self.truncation_side)
            if len(self._backends) > _KEPT_BACKENDS:
                self._backends = {}
            self._backends[max_tokens] = backend
        return backend


def word_pieces(texts: Iterable[str], size: int, special: Sequence[str]) -> Any:
    """BERT's kind of lower-case tokenizer, with at most ``size`` pieces learned from ``texts``.

    Equal texts give equal ids: the trainer breaks ties by ids, so letters get theirs in order.
    """
    from tokenizers import BertWordPieceTokenizer

    kind: Any = BertWordPieceTokenizer
    learning, words, texts = kind(lowercase=True), Counter[str](), [*texts]
    for text in texts:
        split = learning.pre_tokenizer.pre_tokenize_str(learning.normalize(text))
        words.update(word for word, _ in split)
    counts = Counter[str]()
    for word, times in words.items():
        for letter in word:
            counts[letter] += times
    common = sorted(counts, key=lambda letter: (-counts[letter], letter))[:_MOST_LETTERS]
    inner = {*common} & {letter for word in words for letter in word[1:]}
    learning.train_from_iterator(
        texts,
        vocab_size=size,
        initial_alphabet=common,
        special_tokens=[*special, *(f"##{letter}" for letter in sorted(inner))],
        show_progress=False,
    )
    return kind(learning.get_vocab(), lowercase=True)._tokenizer


def _special_ids(pretrained: Any, backend: Any) -> SpecialIds:
    added = backend.get_added_tokens_decoder()
    special = {token.content: number for number, token in added.items() if token.special}
    named = dict(pretrained.special_tokens_map)
    ids: dict[str, int | None] = {}
    for role, (names, usual) in _ROLES.items():
        tokens = [named[name] for name in names if name in named]
        tokens += [token for token in usual if token in special]
        ids[role] = backend.token_to_id(str(tokens[0])) if tokens else None
    every = {*special.values(), *pretrained.all_special_ids}
    every |= {number for number in ids.values() if number is not None}
    return SpecialIds(**ids, every=tuple(sorted(every)))


def _encode(encode: Callable[..., list[Any]], texts: Sequence[str], **how: bool) -> Iterator[Any]:
    try:
        for first in range(0, len(texts), _AT_ONCE):
            some = list(texts[first : first + _AT_ONCE])
            room = min(_BYTES * sum(map(len, some)), _MOST_BYTES)
            np.empty(room, np.uint8)  # a MemoryError, where Rust would end the process
            yield from encode(some, **how)
    except Exception as error:  # the Rust backend raises bare Exception
        require_text(texts, "text")
        if type(error) is not Exception:
            raise
        what = f"the tokenizer cannot encode every text ({first_line(error)})"
        raise CheckpointError(what) from error


def sentences_of(given: Any, name: str = "sentences", *, rows: bool = False) -> Any:
    """Take in sentences: a list, tuple, generator, array, or one column of a table.

    Rows of several cells are taken too if ``rows``. ConfigError for what iterates over something
    else than its sentences, such as the keys of a mapping; the items are not looked at.
    """
    columns = getattr(given, "column_names", getattr(given, "columns", None))
    is_table = columns is not None and not (rows and hasattr(given, "features"))
    is_list = isinstance(given, Iterable) and not isinstance(given, _NO_LISTS)
    if is_table or not is_list or getattr(given, "ndim", 1) > 1 + rows:
        raise ConfigError(
            f"{name} must be a list of strings, not {type(given).__name__}; give [s] of a string, "
            "df['text'] of a table, list(d.values()) of a mapping, sorted(s) of a set"
        )
    for as_list in ("to_pylist", "tolist"):  # items of Arrow are no strings
        if hasattr(given, as_list) and not isinstance(given, Sequence):
            return getattr(given, as_list)()
    return given


def require_text(texts: Iterable[object], name: str, first: int = 0) -> None:
    """A DataError names the first that is no string, or one that UTF-8 cannot hold."""
    for number, text in enumerate(texts, start=first):
        if not isinstance(text, str):
            problem = f"is {type(text).__name__}, not a string: {text!r}"
        elif text.isascii() or not (half := re.search("[\ud800-\udfff]", text)):
            continue
        else:
            problem = f"cannot be written as UTF-8: character {half.start()} is half of a pair"
        raise DataError(f"{name} {number} {problem}")
