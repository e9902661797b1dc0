"""Loading an encoder of any kind; those without a transformer: means of vectors.

Shapes: V word pieces, N sentences, T their word pieces, D dimensions.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from safetensors.torch import save_file

from contrasent.data.tokenizer import Tokenizer, require_text
from contrasent.data.word_vectors import WordStore, open_words
from contrasent.errors import CheckpointError, ConfigError, first_line, pick, warn
from contrasent.files import read_json
from contrasent.model import checkpoint, st_modules
from contrasent.model.backbones.base import require_engine, resolve_precision
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.hub import are_words, resolve, write_card
from contrasent.model.protocol import ROLES, Conventions, Encoder, EncodingOptions
from contrasent.model.weights import SAFE, read_tensors
from contrasent.options import Loading
from contrasent.progress import sentence_progress
from contrasent.settings import checked, takes

_MODEL2VEC_TOKENS = 512
_TABLES = ("embedding.weight", "embeddings")  # sentence-transformers', and model2vec's
_ROWS, _WEIGHTS = "mapping", "weights"  # of each word piece, in model2vec's


class LookupEncoder(Encoder):
    """Means of the vectors of words or word pieces; on the CPU, in fp32, without a transformer."""

    head_name = "none"
    full_width = 0  # D, which each sets
    max_tokens = 0
    gives_zeros = True
    known_part: str  # what has a vector, in messages
    at_once = 4_096

    @abstractmethod
    def look_up(self, texts: Sequence[str]) -> tuple[np.ndarray, int, int]:
        """The rows ``(N, D)`` of ``texts``; how many of these have no known part, and are cut."""

    def to(self, device: str | torch.device) -> Self:
        """Stay on the CPU, where vectors are averaged."""
        return self

    def resolve_precision(self, name: str) -> str:
        return resolve_precision(name, ("fp32",), f"the mean of the vectors in {self.name}")

    def cut(self, texts: Sequence[str], task: str | None = None) -> list[bool]:
        """Of each text, its prompt included, whether it is longer than the encoder reads."""
        return [False] * len(texts)

    def blocks(self, sentences: Iterable[str], options: EncodingOptions) -> Iterator[np.ndarray]:
        rest, done, unknown, truncated = iter(sentences), 0, 0, 0
        total = len(sentences) if isinstance(sentences, Sequence) else None
        with sentence_progress(total, options.show_progress) as advance:
            while texts := list(islice(rest, min(options.chunk, self.at_once))):
                require_text(texts, "sentence", done)
                rows, without, cut = self.look_up([options.prompt + text for text in texts])
                options.require_whole(cut, done, len(texts), self.max_tokens)
                done, unknown, truncated = done + len(texts), unknown + without, truncated + cut
                yield options.finish(rows)
                advance(len(texts))
        options.warn_of_cut(truncated, done, self.max_tokens)
        if unknown:
            what = f"{unknown} of {done} sentences have no {self.known_part}"
            warn(f"{what}, and get a vector of zeros")


class StaticEncoder(LookupEncoder):
    """The mean of the rows ``table (V, D)`` of a sentence's word pieces."""

    unknown: int | None = None
    pooler, engine = "mean", "static"
    known_part = "known word piece"

    def __init__(
        self, tokenizer: Tokenizer, table: torch.Tensor, *, normalize: bool = True, name: str = ""
    ) -> None:
        self.tokenizer, self.table, self.full_width = tokenizer, table, table.shape[1]
        self.normalize, self.name, self.max_tokens = normalize, name, tokenizer.truncation

    @classmethod
    def load(cls, name: str | Path, route: str | None = None) -> Self:
        """Read a folder, or a Router's ``route``; CheckpointError if it has other modules too."""
        folder = resolve(name)
        if is_modular := st_modules.is_in(folder):
            rows = st_modules.read_rows(folder, route)
        else:
            is_normal = read_json(folder / "config.json").get("normalize")
            rows = [(st_modules.STATIC, folder), *[("Normalize", folder)] * bool(is_normal)]
        modules, path = [kind for kind, _ in rows], rows[0][1]
        tokenizer, problem, table = Tokenizer.load(path), "", torch.zeros(0)
        if modules[1:] not in ([], ["Normalize"]):
            problem = f"modules {', '.join(modules)}; after the table only Normalize can follow"
        else:
            tensors = read_tensors(path, (*_TABLES, _ROWS, _WEIGHTS))
            table = next((tensors[it] for it in _TABLES if it in tensors), table)
            try:  # model2vec's pieces may share rows, weighted
                if _TABLES[0] not in tensors and _ROWS in tensors:
                    table = table[tensors[_ROWS].long()]
                if _TABLES[0] not in tensors and _WEIGHTS in tensors:
                    table = table * tensors[_WEIGHTS].unsqueeze(1)
            except (IndexError, RuntimeError) as error:
                problem = first_line(error)
            if table.dim() != 2 or len(table) < tokenizer.vocabulary:
                problem = f"a table {[*table.shape]} for {tokenizer.vocabulary} word pieces"
        if problem:
            raise CheckpointError(f"{folder} cannot be read as a static table: {problem}")
        encoder = cls(tokenizer, table, normalize="Normalize" in modules, name=str(name))
        encoder.conventions = st_modules.read_conventions(folder)
        if not is_modular:
            model = read_json(path / "tokenizer.json")["model"]
            known = tokenizer.vocabulary_map  # the unknown piece is a token, or the number of one
            encoder.unknown = known.get(model.get("unk_token"), model.get("unk_id"))
            encoder.max_tokens = encoder.max_tokens or _MODEL2VEC_TOKENS
        return encoder

    def save(self, folder: str | Path, info: Mapping[str, Any] | None = None) -> None:
        """Write a sentence-transformers folder, whole, with `info` in its `contrasent.json`."""
        table, rows = self.table.clone(), [(st_modules.STATIC, ""), ("Normalize", "1_Normalize")]
        if self.unknown is not None:
            if not self.normalize:
                raise ConfigError(f"{self.name} leaves words out of means: save it with normalize")
            table[self.unknown] = 0  # the direction of a mean stays
        with checkpoint.writing_encoder(folder) as partial:
            self.tokenizer.save(partial)
            save_file({_TABLES[0]: table}, partial / SAFE)
            st_modules.write_rows(partial, rows if self.normalize else rows[:1])
            st_modules.write_conventions(partial, self.conventions)
            known = {"pooler": self.pooler, "head": "none", "width": self.width}
            checkpoint.write_info(partial, {**known, **(info or {})})
            write_card(partial)

    def fingerprint(self) -> str:
        parts = (self.normalize, self.tokenizer.fingerprint, *self.conventions.identity)
        parts += () if self.unknown is None else ("unknown", self.unknown)
        described = " ".join(map(str, ("static", *parts, *filter(None, [self.max_tokens]))))
        digest = hashlib.sha256(described.encode())
        digest.update(self.table.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def cut(self, texts: Sequence[str], task: str | None = None) -> list[bool]:
        if not self.max_tokens:
            return super().cut(texts)
        ids, offsets = self.tokenizer.pieces(texts, self.max_tokens + 1)
        lengths: list[int] = np.diff(offsets, append=len(ids)).tolist()
        return [length > self.max_tokens for length in lengths]

    def look_up(self, texts: Sequence[str]) -> tuple[np.ndarray, int, int]:
        limit = self.max_tokens
        pieces, starts = self.tokenizer.pieces(texts, limit and limit + 1)
        lengths = np.diff(starts, append=len(pieces))
        if (cut := lengths > (limit or len(pieces))).any():  # of these, one piece is too many
            last = 0 if self.tokenizer.truncation_side == "left" else lengths - 1
            pieces = np.delete(pieces, (starts + last)[cut])
            starts = starts - np.cumsum(cut) + cut
        if self.unknown is not None:
            known = pieces != self.unknown
            pieces, starts = pieces[known], np.append(0, np.cumsum(known))[starts]
        ids, offsets = map(torch.from_numpy, (pieces, starts))
        with torch.inference_mode():
            bags = torch.nn.functional.embedding_bag(ids, self.table, offsets, mode="mean")
        rows: np.ndarray = bags.numpy()
        return rows, int((~rows.any(axis=1)).sum()), int(cut.sum())


class WordEncoder(LookupEncoder):
    """Sentences in, means of word vectors out.

    Words are what stands between spaces. One that the vectors do not have is looked for in lower
    case.
    """

    pooler = "vectors"
    at_once = 8_192
    normalize = False

    def __init__(self, store: WordStore, name: str = "") -> None:
        self.store, self.full_width = store, store.width
        self.name = name or store.source
        self.known_part = f"word that {Path(self.name).name} knows"

    def fingerprint(self) -> str:
        digest = hashlib.sha256(f"words {self.store.sha256}".encode())
        if kept := self.conventions.identity:
            digest.update(repr(kept).encode())
        return digest.hexdigest()

    def look_up(self, texts: Sequence[str]) -> tuple[np.ndarray, int, int]:
        from scipy.sparse import csr_matrix

        split = [text.split() for text in texts]
        rows = self.store.rows({word for words in split for word in words})
        numbers_of_each = [[rows[word] for word in words if word in rows] for words in split]
        known = np.array([len(numbers) for numbers in numbers_of_each], np.int64)
        flat = np.array([number for numbers in numbers_of_each for number in numbers], np.int64)
        used, columns = np.unique(flat, return_inverse=True)
        ends = np.concatenate([[0], np.cumsum(known)])
        counted = csr_matrix((np.ones(len(flat)), columns, ends), shape=(len(texts), len(used)))
        sums = counted @ self.store.vectors[used].astype(np.float64)
        means = (sums / np.maximum(known, 1)[:, None]).astype(np.float32)
        return means, int((known == 0).sum()), 0


def _of_default(name: str) -> Any:
    return property(lambda router: getattr(router.route(), name, None))


class Router(Encoder):
    """Queries by one encoder and documents by another, in one space; on disk as its namesake."""

    pooler, head_name = "router", "none"
    full_width, max_tokens, normalize = map(_of_default, ("full_width", "max_tokens", "normalize"))
    tokenizer = _of_default("tokenizer")

    def __init__(
        self,
        query: "str | Path | LoadedEncoder",
        document: "str | Path | LoadedEncoder",
        *,
        default: str = "document",
        conventions: Conventions | None = None,
    ) -> None:
        """Put two encoders together, or those that `load_encoder` loads by two names.

        A text that is neither query nor document goes to the ``default``. Conventions are by
        default those of documents, with the prompt that each has for its role. ConfigError if
        widths differ.

        Example:
            >>> contrasent.Router("runs/student", "teacher").save("router")  # doctest: +SKIP
        """
        self.name, self.default = "router", pick("route", default, ROLES)
        encoders = map(encoder_of, (query, document))
        self.routes = {role: it.route(role) for role, it in zip(ROLES, encoders, strict=True)}
        prompts = {role: it.conventions.prompt_of(role) for role, it in self.routes.items()}
        usual = self.routes["document"].conventions
        usual = replace(usual, prompts={**usual.prompts, **prompts}, chosen=False)
        self.conventions = conventions or usual
        self.encoders: list[Any] = [*dict.fromkeys(self.routes.values())]
        self.gives_zeros = any(encoder.gives_zeros for encoder in self.encoders)
        widths = {min(it.full_width, self.truncate_dim or it.full_width) for it in self.encoders}
        if len(widths) > 1:
            what = f"a Router of {min(widths)} and {max(widths)} dimensions compares nothing"
            raise ConfigError(f"{what}: train one in the space of the other (train distil)")

    @classmethod
    def load(cls, name: str | Path, *, engine: str = "torch", device: str | None = None) -> Self:
        """Read a folder with a Router; errors as of `SentenceEncoder`."""
        folder = resolve(name)
        routes = [
            StaticEncoder.load(folder, role)
            if st_modules.is_static(folder, role)
            else SentenceEncoder(folder, route=role, engine=engine, device=device)
            for role in ROLES
        ]
        default = str(st_modules.default_route(folder))
        router = cls(*routes, default=default, conventions=st_modules.read_conventions(folder))
        router.name = str(name)
        return router

    def save(self, folder: str | Path, info: Mapping[str, Any] | None = None) -> None:
        """Write a sentence-transformers folder, whole, that holds the two encoders' folders."""
        with checkpoint.writing_encoder(folder) as partial:
            for role, encoder in self.routes.items():
                if not isinstance(encoder, SentenceEncoder | StaticEncoder):
                    raise ConfigError(f"{encoder.name} is no model that a Router's folder can hold")
                encoder.save(partial / role)
            st_modules.write_router(partial, self.default)
            st_modules.write_conventions(partial, self.conventions)
            about = {"pooler": self.pooler, "head": self.head_name, "width": self.width}
            checkpoint.write_info(partial, {**about, **(info or {})})
            write_card(partial)

    @property
    def device(self) -> torch.device:
        """Where the default encoder computes."""
        return torch.device(getattr(self.route(), "device", "cpu"))

    @property
    def engine(self) -> str:
        return next((it.engine for it in self.encoders if it.engine != "static"), "static")

    def route(self, task: str | None = None) -> Any:
        return self.routes[self.default if task is None else pick("task", task, ROLES)]

    def to(self, device: str | torch.device) -> Self:
        for encoder in self.encoders:
            encoder.to(device)
        return self

    def resolve_precision(self, name: str) -> str:
        """That of both, or ``name`` where each resolves it in its own way."""
        precisions = {encoder.resolve_precision(name) for encoder in self.encoders}
        return precisions.pop() if len(precisions) == 1 else name

    def blocks(self, sentences: Iterable[str], options: EncodingOptions) -> Iterator[np.ndarray]:
        yield from self.route(options.task).blocks(sentences, options)

    def fingerprint(self) -> str:
        routes = [self.routes[role].fingerprint() for role in ROLES]
        described = repr((self.default, *routes, *self.conventions.identity))
        return hashlib.sha256(described.encode()).hexdigest()


LoadedEncoder: TypeAlias = SentenceEncoder | LookupEncoder | Router


@takes(Loading)
def load_encoder(name: str | Path, *, device: str | None = None, **options: Any) -> LoadedEncoder:
    """Load an encoder of any kind: a transformer, a static table or word vectors.

    Args:
        name: as `SentenceEncoder` takes it; or a folder with a Router (for which ``encode`` takes
            its default route) or a StaticEmbedding, or of model2vec; a ``.txt`` or ``.vec`` file of
            word vectors, gzipped or not; or the address of a server, such as
            ``http://host/v1/embeddings#MODEL``.
        device: of a transformer, as `SentenceEncoder` takes it.
        **options: by name.

    Raises:
        ContrasentError: as of `SentenceEncoder`.

    Example:
        >>> import contrasent
        >>> contrasent.load_encoder("glove.6B.300d.txt").encode(["a dog"])  # doctest: +SKIP
    """
    encoder: LoadedEncoder
    asked = checked(Loading, options)
    require_engine("torch" if asked.engine in ("static", "endpoint") else asked.engine, device)
    if str(name).startswith(("http://", "https://")):
        from contrasent.model.endpoint import EndpointEncoder

        encoder = EndpointEncoder(str(name))
    elif are_words(name):
        encoder = WordEncoder(open_words(Path(name).expanduser()), str(name))
    else:
        folder = resolve(name)
        how: dict[str, Any] = {"engine": asked.engine, "device": device}
        if st_modules.default_route(folder):
            encoder = Router.load(folder, **how)
        elif st_modules.is_static(folder):
            encoder = StaticEncoder.load(folder)
        else:
            encoder = SentenceEncoder.load(folder, pooler=asked.pooler, head=asked.head, **how)
        encoder.name = str(name)
    used = {"pooler": encoder.pooler, "head": encoder.head_name, "engine": encoder.engine}
    for part, own in used.items():
        if (other := getattr(asked, part)) not in (None, "torch", own):
            raise ConfigError(f"{name} has no {part} {other}, only {own}: leave it out")
    if asked.truncate_dim is not None:
        encoder.truncate_dim = asked.truncate_dim
    if asked.prompt_name is not None:
        chosen: dict[str, Any] = {"default_prompt_name": asked.prompt_name, "chosen": True}
        encoder.conventions = replace(encoder.conventions, **chosen)
    return encoder


def encoder_of(encoder: Any, **loading: Any) -> Any:
    """An encoder as it is given, or what `load_encoder` loads by its name."""
    is_encoder = hasattr(encoder, "name") and hasattr(encoder, "pooler")
    return encoder if is_encoder else load_encoder(encoder, **loading)
