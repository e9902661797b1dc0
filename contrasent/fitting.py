"""Fitting on the text of files and tasks: whitening, BERT-flow's flow, and static tables.

Shapes: N sentences, n of a batch, V word pieces, D width of a vector.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from contrasent.data.examples import open_examples
from contrasent.encode.shards import blocks_with_texts
from contrasent.errors import ConfigError, DataError, logger, pick
from contrasent.evaluation.sts_data import load
from contrasent.evaluation.task_names import STS_TASKS, TaskName, known_tasks, task_names
from contrasent.files import exclusive, read_json, refuse_existing
from contrasent.model import transforms
from contrasent.model.encoder import SentenceEncoder, embed
from contrasent.model.hub import INFO_FILE, resolve
from contrasent.model.loading import StaticEncoder
from contrasent.model.protocol import unit_rows
from contrasent.model.transforms import Flow, Moments, Transform
from contrasent.options import MapOptions
from contrasent.progress import progress_bar
from contrasent.recipe import fields_of, validate
from contrasent.settings import (
    FlowSettings,
    StaticSettings,
    TrainSettings,
    WhiteningSettings,
    checked,
    takes,
)
from contrasent.training.loop import gradient_norm, optimizer_of, set_rate, update

_REMEDY = "name another folder with --output, or remove it"
_AT_ONCE = 8192  # sentences that are embedded at a time
_MEASURED = 2048  # sentences that the likelihood, or a static table, is measured on
_MAP_RIDGE = 0.01  # without it, a map fits the noise of about as many sentences as dimensions


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of sentences: a file, a data set, or a task with its split."""

    source: str
    sentences: int
    columns: str  # how those of a file were understood
    sha256: str
    target: bool  # it is the text of a task, whose test sentences are seen that way


@dataclass(frozen=True, slots=True)
class FittingText:
    """Sentences read anew by every iteration, all those of a row one after the other."""

    texts: Sequence[Iterable[Sequence[str]]]  # rows of sentences
    origins: tuple[Origin, ...]

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(chain.from_iterable(self.texts))

    def __len__(self) -> int:
        return sum(origin.sentences for origin in self.origins)

    @property
    def described(self) -> str:
        """The text, in words."""
        files = [origin.source for origin in self.origins if not origin.target]
        tasks = [origin.source for origin in self.origins if origin.target]
        target = f"target text ({', '.join(tasks)}): the test sentences were seen"
        return " and ".join([*files, *([target] if tasks else [])])

    def facts(self) -> dict[str, Any]:
        """The text, as ``contrasent.json`` keeps it."""
        return {
            "sentences": len(self),
            "text": [asdict(origin) for origin in self.origins],
            "target": any(origin.target for origin in self.origins),
        }


def open_fitting_text(
    names: Sequence[str], columns: Sequence[str] | None = None, data_dir: str | Path | None = None
) -> FittingText:
    """Find the text that names stand for, as files if they exist as such.

    They are files and data sets, of which every sentence of a row is taken; or STS tasks, each with
    all its splits, or one, such as ``stsb-dev``.
    """
    tasks, texts, origins = dict[TaskName, None](), list[Iterable[Sequence[str]]](), list[Origin]()
    for name in names:
        if not Path(name).exists() and STS_TASKS.keys() & known_tasks(name)[0]:
            tasks.update(dict.fromkeys(task_names([name], ("all", "test"))))
            continue
        file = open_examples(name, columns)
        texts.append(file)
        source = Path(file.source).name if Path(file.source).exists() else file.source
        origins.append(Origin(source, sum(map(len, file)), file.columns, file.sha256, target=False))
    whole = {task.name for task in tasks if task.split == "all"}
    for task in tasks:
        if task.split == "all" or task.name not in whole:
            read = load(task, data_dir)
            sentences = list(read.sentences)
            texts.append([sentences])
            origins.append(Origin(task.heading, len(sentences), "", read.sha256, target=True))
    return FittingText(texts, tuple(origins))


def finite_rows(
    encoder: SentenceEncoder, text: Iterable[str], precision: str, show_progress: bool = False
) -> Iterator[NDArray[np.float32]]:
    """Embeddings before normalisation, block by block; one that is not finite is refused."""
    how: dict[str, Any] = {"normalize": False, "show_progress": show_progress}
    blocks = blocks_with_texts(encoder, text, chunk=_AT_ONCE, precision=precision, **how)
    return (rows for rows, _ in blocks)


def stored_rows(
    encoder: SentenceEncoder, text: FittingText, precision: str, show_progress: bool
) -> NDArray[np.float32]:
    """All embeddings ``(N, D)``, made once and kept in a temporary file."""
    with tempfile.TemporaryFile() as file:  # lives as long as it is mapped
        shape = len(text), encoder.width
        stored: NDArray[np.float32] = np.memmap(file, np.float32, "w+", shape=shape)
    done = 0
    for rows in finite_rows(encoder, text, precision, show_progress):
        stored[done : done + len(rows)] = rows
        done += len(rows)
    return stored


Fit = tuple[Transform | StaticEncoder, str, dict[str, Any]]
"""A map or an encoder, what it is in words, and what is kept of the fit."""

How = tuple[str, bool]
"""The precision, and whether there is a progress bar."""


def fit_flow(
    encoder: SentenceEncoder, text: FittingText, settings: FlowSettings, how: How = ("fp32", False)
) -> Fit:
    """Maximise the likelihood of the embeddings of ``text`` under a standard normal distribution.

    Kept of the fit are the negative log-likelihoods in bits for each component, ``before`` (nothing
    learned) and ``after``, of a number of ``sentences``. AdamW is BERT's own.
    """
    count = len(text)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        flow = Flow(encoder.width, settings.levels, settings.depth, settings.coupling_width)
        flow.to(encoder.device)
        stored = stored_rows(encoder, text, *how)

        def rows(numbers: NDArray[np.int64]) -> Tensor:
            return torch.from_numpy(stored[numbers]).to(encoder.device)

        def bits(numbers: NDArray[np.int64], where: str) -> Tensor:
            value = flow.bits_per_dimension(rows(numbers))
            if not torch.isfinite(value):
                raise DataError(
                    f"the likelihood of {where} is not finite, so the fit cannot go on; lower the "
                    "learning rate, or look for components of the embedding that are all but "
                    "constant"
                )
            return value

        measured = np.linspace(0, count - 1, min(count, _MEASURED)).astype(np.int64)
        parameters = list(flow.parameters())
        rate, decay = settings.learning_rate, settings.weight_decay
        adamw = TrainSettings(
            learning_rate=rate, weight_decay=decay, eps=1e-6, bias_correction=False
        )
        optimizer = optimizer_of(adamw, parameters)
        batches = _batches(count, settings)
        flow.start(rows(batches[0]))
        with torch.no_grad():
            before = bits(measured, "a measurement").item()
        label = "fitting: {task.fields[bits]:.4f} bits per dimension"
        with progress_bar(label, len(batches), shown=how[1], bits=float("nan")) as advance:
            for step, numbers in enumerate(batches):
                loss = bits(numbers, f"step {step + 1} of {len(batches)}")
                loss.backward()  # type: ignore[no-untyped-call]
                set_rate(optimizer, adamw, rate, step)
                update(optimizer, gradient_norm(parameters), adamw.clip)
                advance(1, bits=loss.item())
        with torch.no_grad():
            after = bits(measured, "a measurement").item()
    likelihood = {"before": before, "after": after, "sentences": len(measured)}
    facts = {**asdict(settings), "bits_per_dimension": likelihood}
    return flow.requires_grad_(False).eval(), f"flow of {settings.levels} levels", facts


def _batches(count: int, settings: FlowSettings) -> list[np.ndarray]:
    """Numbers of the sentences of every update, anew in each epoch; none is alone."""
    batches = []
    for epoch in range(settings.epochs):
        order = np.random.default_rng((settings.seed, epoch)).permutation(count)
        parts = np.array_split(order, range(settings.batch_size, count, settings.batch_size))
        if len(parts) > 1 and len(parts[-1]) == 1:
            parts[-2:] = [np.concatenate(parts[-2:])]
        batches += parts
    return batches


def _whitening(
    encoder: SentenceEncoder, text: FittingText, settings: WhiteningSettings, how: How
) -> Fit:
    sentences, wanted = len(text), settings.dimensions or encoder.width
    if sentences <= wanted or wanted > encoder.width:
        raise DataError(
            f"{sentences} sentences have a covariance of rank {max(sentences - 1, 0)} at most, the "
            f"encoder {encoder.width} dimensions: too few to whiten {wanted} (--dimensions)"
        )
    moments = Moments(encoder.width)
    for rows in finite_rows(encoder, text, *how):
        moments.add(rows)
    transform, rank, share = transforms.fit_whitening(moments, settings.dimensions)
    kept, width = transform.width, encoder.width
    facts = {"dimensions": kept, "width": width, "rank": rank, "variance_kept": share}
    return transform, f"whitening to {kept} of {width} dimensions", facts


def _static(encoder: SentenceEncoder, text: FittingText, settings: StaticSettings, how: How) -> Fit:
    """Fit a row to each word piece, so that a sentence's mean row is its embedding.

    Least squares of the directions, on all sentences but the held-out ones. Rows are drawn to the
    embeddings of single pieces, mapped linearly to where they fit best.
    """
    from scipy import sparse

    tokenizer, count, around = encoder.tokenizer, len(text), encoder.tokenizer.template
    weights: Any = encoder.backbone.model.get_input_embeddings().weight  # an LSTM has none
    singles = np.array([[*around.before, it, *around.after] for it in range(len(weights))])
    alone = unit_rows(embed(encoder, [*singles], _AT_ONCE, how[0], lambda _: None))
    wanted = stored_rows(encoder, text, *how)
    blocks, rest, limit = list[Any](), iter(text), encoder.max_tokens - tokenizer.specials
    while block := list(islice(rest, _AT_ONCE)):
        pieces, starts = tokenizer.pieces(block, limit)
        ends = np.append(starts, len(pieces))
        shares = np.repeat(1 / np.diff(ends).clip(1), np.diff(ends)).astype(np.float32)
        blocks.append(sparse.csr_array((shares, pieces, ends), (len(block), len(alone))))
    shares = sparse.vstack(blocks, "csr")
    held = np.linspace(0, count - 1, min(-(-count // 20), _MEASURED)).astype(int)
    measured = shares[held]
    shares.data[np.repeat(np.isin(np.arange(count), held), np.diff(shares.indptr))] = 0
    square, product = _MAP_RIDGE * np.eye(encoder.width), np.zeros((encoder.width, encoder.width))
    for start in range(0, count, _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        unit_rows(wanted[part])
        means = (shares[part] @ alone).astype(np.float64)
        square += means.T @ means
        product += means.T @ wanted[part]
    mapped = alone @ np.linalg.solve(square, product).astype(np.float32)
    with progress_bar("fitting: dimension", encoder.width, shown=how[1]) as advance:
        table = transforms.fit_rows(shares, wanted, mapped, settings.ridge, advance)
    near = (unit_rows(measured @ it) * wanted[held] for it in (table.numpy(), alone))
    cosine, unfitted = (float(it.sum(axis=1).mean()) for it in near)
    facts = {"ridge": settings.ridge, "held_out": len(held), "held_out_cosine": cosine}
    static = StaticEncoder(tokenizer.with_truncation(limit), table, name=encoder.name)
    no_use = "" if cosine > unfitted else " (no use: no nearer than unfitted; give more text)"
    return static, f"static table of {len(table)} word pieces{no_use}", facts


@dataclass(frozen=True, slots=True)
class Fitter:
    """A way of fitting a map, or another encoder, to the embeddings of text."""

    settings: type[Any]  # its settings, a class made by `settings`
    make: Callable[[SentenceEncoder, FittingText, Any, How], Fit]
    is_map: bool = True  # what it makes is put behind the encoder, where there must be none

    def fit(
        self,
        encoder: SentenceEncoder,
        text: FittingText,
        settings: Any = None,
        *,
        precision: str = "fp32",
        max_tokens: int | None = None,
        show_progress: bool = False,
    ) -> tuple[SentenceEncoder | StaticEncoder, dict[str, Any]]:
        """The encoder, now with its map, or the new one, and what its ``contrasent.json`` keeps.

        Longer sentences than ``max_tokens`` are cut; BERT-whitening and BERT-flow took 64.
        """
        kept = encoder.truncate_dim
        if (self.is_map and encoder.transform is not None) or kept is not None:
            has = f"has a transform already ({encoder.transform_described})"
            problem = has if kept is None else f"keeps {kept} of {encoder.full_width} dimensions"
            raise ConfigError(f"{encoder.name} {problem}; fit on the encoder that it was made from")
        usual = encoder.max_tokens
        encoder.max_tokens = min(usual, max_tokens or usual)
        used = {"precision": precision, "max_tokens": encoder.max_tokens}
        try:
            how = precision, show_progress
            fitted, described, facts = self.make(encoder, text, settings or self.settings(), how)
        finally:
            encoder.max_tokens = usual
        path = resolve(encoder.name) / INFO_FILE
        described = f"{described}, fitted on {text.described}"
        info = {
            "name": "static" if isinstance(fitted, StaticEncoder) else fitted.name,
            "described": described,
            **facts,
            **used,
            **text.facts(),
            "encoder": {
                "name": encoder.name,
                "fingerprint": encoder.fingerprint(),
                "pooler": encoder.pooler,
                "head": encoder.head_name,
                "contrasent": read_json(path) if path.is_file() else None,
            },
        }
        if isinstance(fitted, StaticEncoder):
            return fitted, {"transform": info}
        fitted.described = described
        encoder.transform = fitted.to(encoder.device)
        return encoder, {"transform": info}


FITTERS = {
    "whitening": Fitter(WhiteningSettings, _whitening),
    "flow": Fitter(FlowSettings, fit_flow),
    "static": Fitter(StaticSettings, _static, is_map=False),
}
"""By the name of the map, or kind of encoder."""


@takes(MapOptions)
def fit(
    encoder: str | Path | SentenceEncoder,
    kind: str = "whitening",
    *,
    data: str | Path | Sequence[str | Path],
    output: str | Path | None = None,
    show_progress: bool = False,
    **settings: Any,
) -> SentenceEncoder | StaticEncoder:
    """Fit a map, or a static table, on the embeddings of text, as ``contrasent fit`` does.

    Args:
        encoder: the encoder, which stays as it is if it is named, and gets the map if it is given.
        kind: ``whitening`` (Su et al. 2021), ``flow`` (Li et al. 2020, BERT-flow) or ``static``.
        data: text files or data sets, or tasks such as ``stsb``, whose test text is seen then.
        output: a new folder to save the encoder with its map in.
        show_progress: a progress bar on standard error.
        **settings: ``dimensions`` of whitening, ``ridge`` of a static table; of a flow, the fields
            of `contrasent.settings.FlowSettings`.

    Returns:
        The encoder with its map, which amplifies rounding: fp32 is its default; or the table.

    Example:
        >>> encoder = contrasent.fit("runs/mine", data="sentences.txt")  # doctest: +SKIP
    """
    fitter = FITTERS[pick("map", kind, FITTERS)]
    known = fields_of(MapOptions)
    options = checked(MapOptions, {k: settings.pop(k) for k in list(settings) if k in known})
    chosen = validate(fitter.settings, settings, "map")
    if output is not None:
        refuse_existing(output, _REMEDY)
    names = [data] if isinstance(data, str | Path) else data
    text = open_fitting_text([str(name) for name in names], options.columns, options.data_dir)
    for origin in text.origins:
        seen = "; target text: test sentences were seen" if origin.target else ""
        logger.info("%s: %d sentences%s", origin.source, origin.sentences, seen)
    if not isinstance(encoder, SentenceEncoder):
        how = {"pooler": options.pooler, "head": options.head, "device": options.device}
        encoder = SentenceEncoder.load(encoder, **how)
    limits: Any = {"precision": options.precision, "max_tokens": options.max_tokens}
    fitted, info = fitter.fit(encoder, text, chosen, show_progress=show_progress, **limits)
    if output is not None:
        with exclusive(output):
            refuse_existing(output, _REMEDY)
            fitted.save(output, info)
    return fitted
