"""Weights: a transformer, or single tensors, of a Hugging Face folder.

Without safetensors, ``pytorch_model.bin`` is read by torch's ``weights_only`` reader.
"""

import inspect
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from contrasent.data.tokenizer import Tokenizer, word_pieces
from contrasent.errors import CheckpointError, first_line, is_out_of_memory, pick, require_extra
from contrasent.files import inside, read_json, template, writing_folder
from contrasent.model.backbones.auto import AutoBackbone
from contrasent.model.backbones.base import Backbone, name_failures
from contrasent.model.backbones.modern_bert import PackedModernBert
from contrasent.model.backbones.packed_bert import ADAPTER, PACKED, PackedBert, effective_weight

_ADAPTER_CONFIG = "adapter_config.json"
SAFE, PICKLED = "model.safetensors", "pytorch_model.bin"
_MOST = {
    r"layers?$": 1_000,
    r"^(hidden_size|d_model|dim)$": 65_536,
    r"^intermediate_size$": 1_048_576,
    r"^vocab_size$": 10_000_000,
    r"^num_": 100_000,
}
"""Larger settings would take hours, or all memory, before weights are found to be missing."""


def load_backbone(folder: Path) -> Backbone:
    """Load the transformer of ``folder`` in fp32; ``config.model_type`` decides how it is run."""
    import transformers

    config = _config(folder)
    kind: Any = transformers.AutoModel
    if type(config) in transformers.MODEL_FOR_TEXT_ENCODING_MAPPING:
        kind = transformers.AutoModelForTextEncoding  # of T5 and its kin the encoder alone
    elif config.is_encoder_decoder:
        raise CheckpointError(
            f"{folder} is an encoder with a decoder ({config.model_type}), and only T5's kind "
            "is computed without one; choose an encoder"
        )
    options = {}
    known: Any = transformers.MODEL_MAPPING.get(type(config), None)  # Funnel's are two
    if inspect.isclass(known) and "add_pooling_layer" in inspect.signature(known).parameters:
        options["add_pooling_layer"] = False  # it would be random, and saved
    model, lost = _pretrained(folder, config, kind, **options)
    refuse_random(folder, [name for name in lost if not name.startswith("pooler.")])
    backbone = backbone_of(model)
    # An architecture without a table of tokens, or that cannot compute a few, says so here.
    with name_failures(backbone.kind, "tokens of a vocabulary"):
        backbone.model.get_input_embeddings()
    backbone.depends_on_padding()
    return backbone


def prepare_loading() -> None:
    """Have patterns of names compiled, and the card parsed, as the first load and save would."""
    template(Path(__file__).with_name("model_card.md.jinja"))
    with suppress(ImportError):  # before transformers 5
        from transformers.conversion_mapping import get_checkpoint_conversion_mapping

        get_checkpoint_conversion_mapping("bert")  # type: ignore[no-untyped-call]


def refuse_random(folder: str | Path, lost: Sequence[str]) -> None:
    """Raise CheckpointError if any weights of a transformer are ``lost``."""
    if lost:
        raise CheckpointError(
            f"{folder} lacks {len(lost)} of the weights of its transformer, or has them in another "
            f"shape (first: {lost[0]}), so that they would be random; the file is damaged or "
            "belongs to another config.json"
        )


def backbone_of(model: Any) -> Backbone:
    """What computes the states of ``model``, a ``transformers`` encoder without a head."""
    config = model.config
    kind: Any = AutoBackbone
    # A BERT that was made a decoder sees only the tokens before each token; PackedBert all.
    if not getattr(config, "is_decoder", False):
        packed = {**dict.fromkeys(PACKED, PackedBert), "modernbert": PackedModernBert}
        kind = packed.get(config.model_type, AutoBackbone)
    with name_failures(f"a model of type {config.model_type!r}", "sentences"):
        backbone: Backbone = kind(model)
    return backbone


def load_masked_lm(folder: Path, known: Collection[str]) -> tuple[Any, list[str]]:
    """A masked LM of ``folder`` in fp32, and the names of its weights that would be random."""
    import transformers

    config = _config(folder)
    with _naming(f"cannot load {folder}", folder):
        pick("architecture of a masked language model", config.model_type, known)
    return _pretrained(folder, config, transformers.AutoModelForMaskedLM)


def _pretrained(folder: Path, config: Any, kind: Any, **asked: Any) -> tuple[Any, list[str]]:
    with _naming(f"cannot load {folder}", folder), quiet():
        model, report = kind.from_pretrained(
            folder,
            config=config,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            local_files_only=True,
            torch_dtype=torch.float32,  # made in half precision, some numbers would be rounded
            **asked,
        )
    mismatched = (key for key, *_ in report["mismatched_keys"])
    return model, [*sorted(report["missing_keys"]), *sorted(mismatched)]


def save_random(name: str | Path, texts: Iterable[str], folder: Path, seed: int) -> None:
    """Save a masked language model of random weights in a new ``folder``.

    ``name`` has the ``config.json`` of its shape. The tokenizer beside it is taken; where there is
    none, WordPiece learns one of at most the config's ``vocab_size`` from ``texts``, lower case.
    """
    import transformers

    from contrasent.model.hub import resolve

    library: Any = transformers  # whose classes have no types
    source = resolve(name)
    config = _config(source)
    if Tokenizer.is_in(source):
        tokenizer = Tokenizer.load(source)
    else:
        roles = ("pad", "unk", "cls", "sep", "mask")
        pieces = word_pieces(texts, config.vocab_size, [f"[{role.upper()}]" for role in roles])
        tokenizer = Tokenizer(
            library.PreTrainedTokenizerFast(
                tokenizer_object=pieces,
                model_max_length=config.max_position_embeddings,
                **{f"{role}_token": f"[{role.upper()}]" for role in roles},
            )
        )
        config.pad_token_id, config.vocab_size = 0, tokenizer.vocabulary
    with torch.random.fork_rng(devices=[]), quiet(), writing_folder(folder) as partial:
        torch.manual_seed(seed)
        with _naming(f"cannot make a model of {source}", source):
            library.AutoModelForMaskedLM.from_config(config).save_pretrained(partial)
        tokenizer.save(partial)


def read_tensors(folder: Path, names: Sequence[str]) -> dict[str, Tensor]:
    """The tensors of a folder whose name is one of ``names``, in fp32."""
    from safetensors import safe_open

    wanted, state = set(names), dict[str, Tensor]()
    with _naming(f"cannot read the weights in {folder}", folder):
        for file in (safe := _shards(folder, SAFE)):
            with safe_open(file, framework="pt") as stored:
                state |= {name: stored.get_tensor(name) for name in wanted & {*stored.keys()}}
        for file in [] if safe else _shards(folder, PICKLED):
            state |= torch.load(file, map_location="cpu", weights_only=True)
        return {name: state[name].float() for name in wanted & state.keys()}


@contextmanager
def _naming(what: str, folder: Path) -> Iterator[None]:
    """Raise a CheckpointError for whatever goes wrong but memory; ``what`` begins its message."""
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error):
            raise
        about = ""
        if _shards(folder, PICKLED) and not _shards(folder, SAFE):
            about = (
                f"; of a pickle nothing but tensors is read, since it could run code: make {SAFE} "
                f"of {PICKLED} with model.save_pretrained(FOLDER)"
            )
        raise CheckpointError(f"{what}: {first_line(error)}{about}") from error


def load_exact(
    module: nn.Module,
    path: Path,
    reason: str,
    prefix: str = "",
    tensors: Mapping[str, Tensor] | None = None,
) -> None:
    """Put ``tensors``, or those in the folder ``path``, named after ``prefix``, into ``module``."""
    known = module.state_dict()
    if tensors is None:
        tensors = read_tensors(path, [prefix + name for name in known])
    for name, weight in known.items():
        stored = tensors.get(prefix + name)
        if stored is None or stored.shape != weight.shape or not torch.isfinite(stored).all():
            size = "nothing" if stored is None else list(stored.shape)
            raise CheckpointError(
                f"{path} has {size} for {prefix + name}, where {reason} needs {list(weight.shape)} "
                "finite numbers"
            )
    module.load_state_dict({name: tensors[prefix + name].float() for name in known})


def _shards(folder: Path, name: str) -> list[Path]:
    index = folder / f"{name}.index.json"
    if index.is_file():
        files = read_json(index)["weight_map"].values()
        return [inside(folder, file) for file in sorted(set(files))]
    return [folder / name] if (folder / name).is_file() else []


def _config(folder: Path) -> Any:
    import transformers

    path, problem = folder / "config.json", ""
    if (folder / _ADAPTER_CONFIG).is_file():
        problem = (
            f"{folder} holds an adapter (LoRA); merge it into the base_model_name_or_path in its "
            f"{_ADAPTER_CONFIG} with peft's merge_and_unload(), and load what you save then"
        )
    elif not path.is_file():
        problem = f"{folder} holds no config.json, so it is not an encoder"
    given = {} if problem else read_json(path)
    stated: dict[str, Any] = given if isinstance(given, dict) else {}
    kind, positions = stated.get("model_type"), stated.get("position_embedding_type", "absolute")
    if kind in PACKED and positions != "absolute":
        problem = (
            f"{path} has position_embedding_type {positions!r}; {kind} has only 'absolute' here"
        )
    for part in (stated, *(it for it in stated.values() if isinstance(it, dict))):
        for name, value in part.items():
            most = next((most for kind, most in _MOST.items() if re.search(kind, name)), value)
            if isinstance(value, int) and value > most:
                problem = f"{path} has {name} {value}, which no encoder has; it is damaged"
    if problem:
        raise CheckpointError(problem)
    with _naming(f"cannot load {folder}", folder):
        return transformers.AutoConfig.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Keep ``transformers`` from reporting on what we check and say ourselves."""
    import transformers

    logging: Any = transformers.logging
    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()


def add_lora(backbone: Backbone, rank: int, alpha: float) -> None:
    """Give every linear map of the layers a trained ``alpha / rank * B A``; A is drawn, B is 0."""
    require_extra("encoder.lora", "lora", "peft")
    from peft import LoraConfig, inject_adapter_in_model

    model = backbone.model
    maps = [name for name, part in model.named_modules() if isinstance(part, nn.Linear)]
    in_layers = [name for name in maps if any(part.isdecimal() for part in name.split("."))]
    given: dict[str, Any] = {"r": rank, "lora_alpha": alpha}  # peft takes any number
    config = LoraConfig(**given, target_modules=in_layers, lora_dropout=0.0)
    inject_adapter_in_model(config, model, adapter_name=ADAPTER)
    backbone.read_layers()


def merged_state(model: nn.Module) -> dict[str, Tensor]:
    """The weights of ``model`` by the names of one without LoRA, with all changes added."""
    adapted = {name: part for name, part in model.named_modules() if hasattr(part, "lora_A")}
    state = {}
    for name, value in model.state_dict().items():
        if ".lora_" not in name:
            plain = name.replace(".base_layer.", ".")
            owner, _, kind = plain.rpartition(".")
            is_changed = kind == "weight" and owner in adapted
            state[plain] = effective_weight(adapted[owner]).detach() if is_changed else value
    return state
