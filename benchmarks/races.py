"""Races by kind: who does what, with the settings and contestants of ``races.yaml``."""

from argparse import Namespace
from dataclasses import replace
from fnmatch import fnmatch
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import yaml

from benchmarks.flops import Model, forward_flops, step_flops
from benchmarks.material import Material
from benchmarks.race import WARM_UP, Race, Spec
from contrasent.errors import ConfigError
from contrasent.files import write_text
from contrasent.model import SentenceEncoder, torch_precisions, training_device
from contrasent.recipe import load_recipe

TABLE: dict[str, dict[str, Any]] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_bytes())
BITS = {"fp32": 32, "bf16": 16, "fp16": 16}
_PROFILED_ROUNDS, _ROWS = 1, 4096


def contestants(group: str, job: str, settings: dict[str, Any], **ours: Any) -> list[Spec]:
    """Contestants of a group in the table; each says its bits where they are known."""
    device, specs = training_device(None), []
    on_gpu = TABLE.get(f"{group} on a GPU", {}) if device.type == "cuda" else {}
    for name, (module, chosen) in (TABLE[group] | on_gpu).items():
        auto = torch_precisions(device)[0] if name.endswith("auto") else ""
        more = {**settings, **chosen, **(ours if module == "ours" else {})}
        specs.append(Spec(name, f"{module}:{job}", more, BITS.get(auto or chosen.get("precision"))))
    return specs


def train(options: Namespace, material: Material) -> Race:
    """The same batches, with dropout, AdamW and clipping at 1; a sentence passes twice.

    Peers run their own tokenisation and padding; ``objectives`` are as the packaged recipes say.
    """
    compared = options.kind == "objectives"
    pooler = "cls" if compared else options.pooler or "mean"
    per_round, model = options.batch_size * options.steps, Model.of(material.encoder)
    # Every step has a batch of its own, as in training: no two have the same number of tokens.
    count = per_round * (WARM_UP + options.rounds + _PROFILED_ROUNDS)
    sizes = {"batch_size": options.batch_size, "steps": options.steps, "tokens": options.tokens}
    settings = material.settings(count, pooler=pooler, **sizes)
    lengths = material.lengths(count, options.tokens)
    setting = {"encoder": options.encoder, "batch": options.batch_size, "pooler": pooler}
    setting |= {"tokens at most": options.tokens, "tokens on average": round(fmean(lengths), 1)}
    setting |= {"steps of a round": options.steps}
    if compared:
        specs = []
        for name, (recipe, changes) in TABLE["objectives"].items():
            job = {**settings, "precision": "bf16", "columns": 3 if recipe == "sup-simcse" else 1}
            job["objective"] = {**load_recipe(recipe).objective, **changes}
            specs.append(Spec(name, "ours:Train", job, BITS["bf16"]))
        return Race("objectives", setting, specs, ["simcse"], profiled=True, parts=True)

    def flops(number: int) -> float:
        of_round = lengths[number * per_round : (number + 1) * per_round]
        return 2 * step_flops(model, of_round, first_only=pooler == "cls")

    specs = contestants("trainers", "Train", settings)
    shapes = model.products(2 * options.batch_size * sum(lengths) // len(lengths), backward=True)
    return Race("training", setting, specs, flops=flops, shapes=shapes, profiled=True)


def encode(options: Namespace, material: Material) -> Race:
    """Each side's ``encode``, from strings to a matrix; cosines are with ours in fp32."""
    lengths, model = material.lengths(options.sentences), Model.of(material.encoder)
    flops = forward_flops(model, lengths, first_only=options.pooler == "cls")
    settings = material.settings(options.sentences, pooler=options.pooler or None)
    setting = {"encoder": options.encoder, "sentences": options.sentences}
    setting["tokens on average"] = round(fmean(lengths), 1)
    specs = contestants("encoders", "Encode", settings)
    race = Race("encoding", setting, specs, profiled=True, compared="contrasent fp32")
    shapes = model.products(min(_ROWS, sum(lengths)))
    return replace(race, flops=lambda _: flops, shapes=shapes)


def latency(options: Namespace, material: Material) -> Race:
    """One sentence a call, another one every time; ours serving, and once more without."""
    count = options.calls * (WARM_UP + options.rounds)
    settings = material.settings(count, calls=options.calls)
    specs = contestants("encoders", "Encode", settings, serving=True)
    specs.append(Spec("contrasent auto, not serving", "ours:Encode", settings))
    setting = {"encoder": options.encoder, "calls": options.calls * options.rounds}
    return Race("latency of one sentence", setting, specs)


def memory(options: Namespace, material: Material) -> Race:
    """From files of several sizes to a matrix or an index, each in a process of its own."""
    specs, sides = [], (("contrasent", "ours:File"), ("sentence-transformers", "st:File"))
    for size in map(int, options.sizes.split(",")):
        source = material.place / f"{size}.txt"
        write_text(source, "\n".join(material.texts(size)) + "\n")
        for written, (name, job) in product(("matrix", "index"), sides):
            settings = {"folder": str(material.encoder), "source": str(source), "written": written}
            specs.append(Spec(name, job, settings, part=f"{size:,}, {written}"))
    return Race("memory", {"encoder": options.encoder}, specs, warm_up=0)


def transfer(options: Namespace, material: Material) -> Race:
    """Transfer classifiers on the same embeddings, beside SentEval's procedure in loops."""
    settings = {"folder": str(material.encoder), "preset": options.preset}
    settings |= {"pooler": options.pooler or "mean"}
    specs = []
    for task, name in product(options.tasks.split(","), ("SentEval", "contrasent")):
        job, arguments = {**settings, "loops": name == "SentEval"}, {"task": task}
        specs.append(Spec(name, "ours:Transfer", job, part=task.upper(), arguments=arguments))
    setting = {"encoder": options.encoder, "preset": options.preset, "clock": "cpu"}
    return Race("transfer", setting, specs, warm_up=0)


def serve(options: Namespace, material: Material) -> Race:
    """Servers beside each other, each under several loads; clients share the processor."""
    settings = {"folder": str(material.encoder), "seconds": options.seconds, "rate": options.rate}
    specs = []
    for load, (name, (line, path)) in product(options.loads.split(","), TABLE["servers"].items()):
        if load == "overload" and name != "contrasent":
            continue  # peers do not refuse: what they leave would last for minutes
        more = options.serve_options if name == "contrasent" else ""
        python = options.peer_python if name == "infinity-emb" else ""
        job = {**settings, "line": f"{line} {more}", "path": path, "python": python}
        part, arguments = f"{load} clients" if load.isdigit() else load, {"load": load}
        specs.append(Spec(name, "serving:Serve", job, part=part, arguments=arguments))
    setting = {"encoder": options.encoder, "seconds": options.seconds, "zipf/s": options.rate}
    return Race("serving", setting, specs)


def search(options: Namespace, material: Material) -> Race:
    """Kinds of index, over vectors that are generated around the embeddings of sentences."""
    encoder, path = SentenceEncoder.load(material.encoder), material.place / "embeddings.npy"
    np.save(path, encoder.encode(material.texts(options.sentences), normalize=True))
    settings = {"embeddings": str(path), "rows": options.rows, "queries": options.calls}
    specs = []
    for kind, part in product(("flat", "hnsw", "ivfpq"), ("", "in one call")):
        job, arguments = {**settings, "kind": kind}, {"together": bool(part)}
        specs.append(Spec(kind, "searching:Search", job, part=part, arguments=arguments))
    setting = {"vectors": options.rows, "queries": options.calls}
    return Race("search", setting, specs, ["flat"], compared="flat")


_MAKERS = (train, encode, latency, memory, transfer, serve, search)
KINDS = {"objectives": train, **{it.__name__: it for it in _MAKERS}}


def race_of(options: Namespace, material: Material) -> Race:
    """The race of a kind, with the contestants that take part; ConfigError if none does."""
    race, patterns = KINDS[options.kind](options, material), options.only.split(",")
    specs = [spec for spec in race.specs if any(fnmatch(spec.name, it) for it in patterns)]
    if not specs:
        names = ", ".join(dict.fromkeys(spec.name for spec in race.specs))
        raise ConfigError(f"no contestant is called {options.only}; there are {names}")
    # The peers, whose default is the first; the others are compared with them.
    peers = [spec.name for spec in specs if not spec.name.startswith(("contrasent", "transformer"))]
    return replace(race, specs=specs, references=race.references or list(dict.fromkeys(peers)))
