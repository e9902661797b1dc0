"""The encoder's form on disk: a sentence-transformers folder plus ``contrasent.json``.

Also read: plain Hugging Face folders, the published SimCSE and DiffCSE checkpoints, and the folders
that their training scripts wrote.
"""

import copy
import inspect
import re
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from contrasent.data.tokenizer import Tokenizer
from contrasent.data.word_vectors import WordStore, WordTokenizer
from contrasent.errors import CheckpointError, ConfigError, pick, warn
from contrasent.files import read_json, recover_folder, refuse_existing, write_json, writing_folder
from contrasent.model import st_modules
from contrasent.model.backbones.base import Backbone
from contrasent.model.backbones.word_lstm import WordLstm
from contrasent.model.heads import POOLERS, Convolutions, MlpHead, Pooler
from contrasent.model.hub import INFO_FILE, resolve, section, write_card
from contrasent.model.protocol import LENGTHS, Conventions, EncoderParts
from contrasent.model.transforms import TRANSFORMS, DenseMap, Projection, Transform, transform_named
from contrasent.model.weights import load_backbone, load_exact, merged_state, quiet, read_tensors
from contrasent.records import installed_versions

if TYPE_CHECKING:
    from contrasent.model.encoder import SentenceEncoder

HEADS = ("mlp", "none")
KEPT_HEAD = "head"
"""Folder, inside an encoder's, of a head that was trained with it and is not part of it."""

_SIZES = ("bert-base-uncased", "bert-large-uncased", "roberta-base", "roberta-large")
PUBLISHED_HEADS = {
    **{f"princeton-nlp/sup-simcse-{name}": "mlp" for name in _SIZES},
    **{f"princeton-nlp/unsup-simcse-{name}": "none" for name in _SIZES},
    **{f"voidism/diffcse-{n}-{kind}": "none" for n in _SIZES[::2] for kind in ("sts", "trans")},
}
"""Published checkpoints say nowhere in their files whether the stored head is for inference."""

_TANH, _IDENTITY = "torch.nn.modules.activation.Tanh", "torch.nn.modules.linear.Identity"
_HEAD = "Dense with Tanh"
_ORDER = re.compile(
    r"(Transformer( WeightedLayerPooling| CNN)?|WordVectors LSTM) Pooling"
    rf"( {_HEAD})?(( Dense)*| FittedTransform)( Normalize)?"
)
_ALWAYS_OFF = "pooling_mode_mean_sqrt_len_tokens"
_STORED_HEADS = ("mlp.dense", "pooler.dense", "bert.pooler.dense", "roberta.pooler.dense")


def read(
    name: str | Path, pooler: str | None = None, head: str | None = None, route: str | None = None
) -> EncoderParts:
    """Read the parts of an encoder, or of a Router's ``route``, as `SentenceEncoder.load`."""
    for kind, asked, known in (("pooler", pooler, POOLERS), ("head", head, HEADS)):
        if asked is not None:
            pick(kind, asked, known)
    folder = resolve(name)
    if route is None and (st_modules.is_static(folder) or st_modules.default_route(folder)):
        raise CheckpointError(
            f"{folder} holds a static table or a Router, and no transformer alone; load it with "
            f"contrasent.load_encoder({str(name)!r}), which takes every kind; of a Router, "
            ".route('query').save(FOLDER) gives one encoder"
        )
    modules = read_modules(folder, route)
    paths, is_plain = dict(modules), len(modules) == 1
    linear = [path for kind, path in modules if kind == "Dense"]
    fitted = paths.get("FittedTransform")
    info = _info(folder if route is None else modules[0][1])
    stated = st_modules.TransformerConfig() if is_plain else st_modules.read_settings(*modules[0])
    lengths = {name: getattr(stated, name, None) for name in LENGTHS}
    backbone, tokenizer, limit = _read_backbone(paths, stated)
    if is_plain:
        published = published_head(name)
        used_pooler = pooler or ("last" if backbone.is_causal() else "cls")
        used_head = published or "none"
        if published is None and (pooler is None or head is None):
            heads = ". Supervised SimCSE checkpoints need head 'mlp'" * (used_pooler == "cls")
            warn(
                f"{folder} does not say how it makes an embedding: taking pooler {used_pooler!r} "
                f"with head {head or 'none'!r}{heads}; pass both to choose, and to silence this"
            )
    else:
        used_pooler = _read_pooler(paths, info, backbone.depth)
        used_head = "mlp" if _HEAD in paths else "none"
    for kind, asked, used in (("pooler", pooler, used_pooler), ("head", head, used_head)):
        is_fixed = linear or fitted or (kind == "pooler" and "CNN" in paths)
        if asked not in (None, used) and is_fixed:
            raise ConfigError(
                f"{folder} ends with a map of embeddings of {kind} {used!r}, so it cannot be used "
                f"with {kind} {asked!r}; fit another one on those"
            )
    width, convolutions, stored = backbone.width, None, None
    if (cnn := paths.get("CNN")) is not None:
        config = st_modules.read_settings("CNN", cnn)
        convolutions = Convolutions(width, config.kernel_sizes, config.out_channels)
        load_exact(convolutions, cnn, f"its configuration with token states of {width} dimensions")
        width = convolutions.width
    if (head or used_head) == "mlp":
        stored = _read_head(folder, paths.get(_HEAD), modules[0][1], width)
        width = stored.linear.out_features
    return EncoderParts(
        backbone=backbone,
        tokenizer=tokenizer,
        pooler=pooler or used_pooler,
        head=stored,
        convolutions=convolutions,
        normalize="Normalize" in paths,
        max_tokens=limit,
        transform=_read_map(linear, fitted, width, info),
        conventions=Conventions() if is_plain else st_modules.read_conventions(folder, **lengths),
    )


def read_modules(folder: Path, route: str | None = None) -> list[tuple[str, Path]]:
    """The modules of a folder, or of a ``route``, by name; a plain one is a Transformer alone."""
    if not st_modules.is_in(folder):
        return [("Transformer", folder)]
    modules = st_modules.read_rows(folder, route or st_modules.default_route(folder))
    for number, (name, path) in enumerate(modules):
        function = name == "Dense" and st_modules.read_settings(name, path).activation_function
        if function and function.endswith("Tanh"):
            modules[number] = _HEAD, path
    names = [name for name, _ in modules]
    if not _ORDER.fullmatch(" ".join(names)):
        raise CheckpointError(
            f"{folder} is made of {', '.join(names)}; only Transformer, Pooling, and after them "
            "one Dense with Tanh, linear ones or a fitted transform, and Normalize are computed"
        )
    if names[-1] == "Normalize":
        st_modules.read_settings(*modules[-1])
    return modules


def is_sentence_encoder(name: str | Path) -> bool:
    """True if ``name`` is a sentence encoder, and not a plain masked language model."""
    return published_head(name) is not None or st_modules.is_in(resolve(name))


def published_head(name: str | Path) -> str | None:
    """The head of a published checkpoint, by its id, a folder called so, or the hub's cache."""
    parts = Path(name).expanduser().absolute().parts
    ids = [part.removeprefix("models--").replace("--", "/", 1) for part in parts]
    copies = [known for known in PUBLISHED_HEADS if known.rpartition("/")[2] == parts[-1]]
    known = (it for it in (str(name), *ids, *copies) if it in PUBLISHED_HEADS)
    return next((PUBLISHED_HEADS[it] for it in known), None)


def training_seed(name: str) -> int | None:
    """The seed of the training run that made an encoder; None if no run of ours changed it."""
    info = _info(resolve(name)) if Path(name).expanduser().is_dir() else {}
    return section(info, "recipe", "train").get("seed") if info.get("step") else None


def _info(folder: Path) -> dict[str, Any]:
    path = folder / INFO_FILE
    if not path.is_file() or not st_modules.is_in(folder):
        return {}
    info = read_json(path)
    if not isinstance(info, dict) or not isinstance(info.get("pooler"), str):
        raise CheckpointError(f"{path} is damaged: it names no pooler")
    return info


def _read_backbone(
    paths: Mapping[str, Path], stated: Any
) -> tuple[Backbone, Tokenizer, int | None]:
    if "LSTM" in paths:
        words: Any = WordTokenizer(WordStore(paths["WordVectors"]), stated.marks)
        size = st_modules.read_settings("LSTM", paths["LSTM"]).hidden_dim
        lstm = WordLstm(words.store, size)
        shape = f"an LSTM of {size} dimensions for each direction over {words.store.width}"
        load_exact(lstm.lstm, paths["LSTM"], shape, "encoder.")
        return lstm, words, stated.max_seq_length
    folder = paths["Transformer"]
    backbone = load_backbone(folder)
    tokenizer = Tokenizer.load(folder, lower_case=bool(stated.do_lower_case))
    embeddings: Any = backbone.model.get_input_embeddings()
    if tokenizer.vocabulary > (rows := embeddings.weight.shape[0]):
        what = f"the tokenizer in {folder} has {tokenizer.vocabulary} token ids"
        raise CheckpointError(f"{what}, its weights only {rows}: they belong to different models")
    return backbone, tokenizer, stated.limit


def _read_pooler(paths: Mapping[str, Path], info: Mapping[str, Any], depth: int) -> str:
    modes = st_modules.read_settings("Pooling", paths["Pooling"]).modes
    shares, layers = {depth: 1.0}, paths.get("WeightedLayerPooling")
    if layers is not None:
        config = st_modules.read_settings("WeightedLayerPooling", layers)
        weights = read_tensors(layers, ["layer_weights"]).get("layer_weights", torch.zeros(0))
        numbered = enumerate((weights / weights.sum()).tolist(), start=config.layer_start)
        shares = {number: round(share, 6) for number, share in numbered if share}
        depth = config.num_hidden_layers
    same = [
        it.name
        for it in POOLERS.values()
        if [st_modules.mode_of(it.st_mode)] == modes and it.shares(depth) == shares
        if not (layers and it.first_only)
    ]
    if not same or ("CNN" in paths and modes != ["mean"]):
        raise CheckpointError(
            f"{paths['Pooling']} pools by {' + '.join(modes)} the layers {shares}, which is none "
            f"of the poolers {', '.join(POOLERS)}, of which convolutions take mean"
        )
    saved: str | None = info.get("pooler")
    return saved if saved in same else same[0]


def _read_head(folder: Path, dense: Path | None, transformer: Path, width: int) -> MlpHead:
    reason = f"a head over embeddings of {width} dimensions"
    if dense is not None or (folder / KEPT_HEAD).is_dir():
        head: MlpHead = _read_dense(dense or folder / KEPT_HEAD, MlpHead, width, reason)
        return head
    # The layer over [CLS] among our own weights is `_unused_pooler`.
    names = () if (folder / INFO_FILE).is_file() and st_modules.is_in(folder) else _STORED_HEADS
    wanted = [f"{name}.{part}" for name in names for part in ("weight", "bias")]
    tensors = read_tensors(transformer, wanted)
    for name in names:
        if f"{name}.weight" in tensors and f"{name}.bias" in tensors:
            head = MlpHead(width, tensors[f"{name}.bias"].numel())
            load_exact(head.linear, transformer, reason, f"{name}.", tensors)
            return head
    raise CheckpointError(
        f"{folder} stores no Linear+Tanh head ({', '.join(_STORED_HEADS)}), and a random one would "
        "spoil every embedding; load it with head 'none', or train a head"
    )


def _read_dense(path: Path, kind: Callable[[int, int], Any], width: int, reason: str) -> Any:
    """A Dense module as ``kind`` of both widths; a bias that it does not have is 0."""
    names = ("linear.weight", "linear.bias")
    config, tensors = st_modules.read_settings("Dense", path), read_tensors(path, names)
    weight = tensors.get(names[0], torch.zeros(0))
    if not config.bias:
        tensors.setdefault(names[1], torch.zeros(len(weight)))
    module = kind(width, config.out_features or len(weight))
    load_exact(getattr(module, "linear", module), path, reason, "linear.", tensors)
    return module


def _read_map(
    linear: Sequence[Path], fitted: Path | None, width: int, info: Mapping[str, Any]
) -> Transform | None:
    """The map after the head: the ``linear`` ones as one, or a fitted; of our file's class."""
    about, maps = section(info, "transform"), list[Any]()

    def kind(columns: int, rows: int) -> Any:
        plain = Projection(columns, rows)
        if len(linear) > 1 or about.get("name") not in TRANSFORMS:
            return plain
        return transform_named(about["name"], about.get("settings", plain.settings()))

    for path in linear:
        maps.append(_read_dense(path, kind, width, f"a linear map of {width} dimensions"))
        width = maps[-1].width
    if fitted is not None:
        maps.append(st_modules.read_transform(fitted))
    if not maps:
        return None
    transform: Transform = reduce(Projection.then, maps)
    transform.described = str(about.get("described", transform.described))
    return transform


def write(
    folder: str | Path,
    encoder: "SentenceEncoder",
    info: Mapping[str, Any],
    kept_head: MlpHead | None = None,
) -> None:
    """Write a sentence-transformers folder, whole; ``kept_head`` is of training alone."""
    with writing_encoder(folder) as partial:
        if not isinstance(encoder.backbone, WordLstm):
            model = encoder.backbone.model
            head = encoder.head if encoder.pooler == "cls" else None
            state = merged_state(model)
            with quiet():
                unused = _unused_pooler(model, state.keys(), head)
                model.save_pretrained(partial, state_dict=state | unused)
            encoder.tokenizer.save(partial)
        _write_modules(partial, encoder)
        if kept_head is not None:
            _write_dense(partial / KEPT_HEAD, kept_head.linear, _TANH)
        about: dict[str, Any] = {"pooler": encoder.pooler, "head": encoder.head_name}
        about |= {"normalize": encoder.normalize, "max_tokens": encoder.max_tokens}
        if (transform := encoder.transform) is not None:
            content = {"described": transform.described, **info.get("transform", {})}
            content |= {"name": transform.name, "settings": transform.settings()}
            info = {**info, "transform": content}
        write_info(partial, {**about, **info})
        write_card(partial)


def _write_modules(folder: Path, encoder: "SentenceEncoder") -> None:
    pooler: Pooler = POOLERS[encoder.pooler]
    backbone, tokenizer, width = encoder.backbone, encoder.tokenizer, encoder.backbone.width
    rows: list[tuple[str, str]] = []

    def add(name: str, *content: Any) -> Path:
        """Add a module, and what :func:`write_module` takes of it."""
        rows.append((name, f"{len(rows)}_{name}"))
        if content:
            st_modules.write_module(name, folder / rows[-1][1], *content)
        return folder / rows[-1][1]

    if isinstance(backbone, WordLstm):
        words: Any = tokenizer
        config = {"marks": list(words.marks), "max_seq_length": encoder.max_tokens}
        words.save(add("WordVectors", config))
        sizes = {"word_embedding_dimension": backbone.store.width, "hidden_dim": width // 2}
        kind = {"num_layers": 1, "dropout": 0, "bidirectional": True}
        add("LSTM", {**sizes, **kind}, backbone.lstm.state_dict(), "encoder.")
    else:
        rows.append(("Transformer", ""))
        limits = {"max_seq_length": encoder.max_tokens, "do_lower_case": tokenizer.lower_case}
        write_json(folder / "sentence_bert_config.json", limits | encoder.conventions.lengths)
    if pooler.layers != (-1,):
        shares = pooler.shares(backbone.depth)
        start = min(shares)
        weights = [shares.get(number, 0.0) for number in range(start, backbone.depth + 1)]
        config = {"word_embedding_dimension": width, "layer_start": start}
        config |= {"num_hidden_layers": backbone.depth}
        add("WeightedLayerPooling", config, {"layer_weights": torch.tensor(weights)})
        # sentence-transformers hands on the states of every layer only if the config asks for it.
        stated = read_json(folder / "config.json")
        write_json(folder / "config.json", {**stated, "output_hidden_states": True})
    if (cnn := encoder.convolutions) is not None:
        sizes = {"in_word_embedding_dimension": width, "out_channels": cnn.channels}
        kernels = {"kernel_sizes": [*cnn.widths], "stride_sizes": [1] * len(cnn.widths)}
        add("CNN", {**sizes, **kernels}, cnn.state_dict())
        width = cnn.width
    modes = dict.fromkeys(it.st_mode for it in POOLERS.values())
    flags = {flag: flag == pooler.st_mode for flag in (*modes, _ALWAYS_OFF)}
    add("Pooling", {"word_embedding_dimension": width, **flags})
    if encoder.head is not None:
        _write_dense(add("Dense"), encoder.head.linear, _TANH)
    transform = encoder.transform
    if isinstance(transform, DenseMap):
        _write_dense(add("Dense"), transform, _IDENTITY)
    elif transform is not None:
        st_modules.FittedTransform(transform).save(str(add("FittedTransform")))
    if encoder.normalize:
        add("Normalize").mkdir()
    st_modules.write_rows(folder, rows)
    st_modules.write_conventions(folder, encoder.conventions)


def _write_dense(path: Path, linear: nn.Module, activation: str) -> None:
    state = linear.state_dict()
    rows, columns = state["weight"].shape
    config = {"in_features": columns, "out_features": rows, "bias": True}
    config |= {"activation_function": activation}
    st_modules.write_module("Dense", path, config, state, "linear.")


def _unused_pooler(model: Any, known: Set[str], head: MlpHead | None) -> dict[str, Tensor]:
    # Weights of the layer over [CLS], which others would draw at random, with a warning: those of
    # the head, or the identity.
    if "add_pooling_layer" not in inspect.signature(type(model)).parameters:
        return {}
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = 0  # its layers have all they need
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        whole = type(model)(config)
    blank: dict[int, Any] = {1: torch.zeros, 2: torch.eye}
    own = {} if head is None else {it.shape: it.detach() for it in head.linear.parameters()}
    return {
        name: own[shape].clone() if shape in own else blank[len(shape)](*shape)
        for name, shape in ((name, it.shape) for name, it in whole.state_dict().items())
        if name not in known
    }


def writing_encoder(folder: str | Path) -> AbstractContextManager[Path]:
    """Replace a folder that contrasent saved, as :func:`writing_folder`; ConfigError for others."""
    recover_folder(folder)
    if Path(folder).is_dir() and not (Path(folder) / INFO_FILE).is_file():
        remedy = f"without a {INFO_FILE} it is nothing that contrasent saved; name another folder"
        refuse_existing(folder, remedy)
    return writing_folder(folder)


def write_info(folder: Path, info: Mapping[str, Any]) -> None:
    """Write ``contrasent.json``, with the versions that are installed."""
    content = {"format": 1, **info, "versions": installed_versions()}
    write_json(folder / INFO_FILE, content, ensure_ascii=False)
