"""The authors' code beside ours: the table ``simcse/authors`` with a number for every pair.

Their models (objective, pooler, heads, padding) are trained here on a row's text, start, steps and
settings, in our loop after their trainer's; reading, tests and records are of ``contrasent
reproduce``, the optimizer is torch's AdamW.
Wants checkouts of github.com/princeton-nlp/SimCSE and github.com/voidism/DiffCSE.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from contrasent import evaluation, reproduce
from contrasent.data import open_examples
from contrasent.files import write_json
from contrasent.model import SentenceEncoder, torch_precisions
from contrasent.recipe import Recipe

_TABLE, _THEIRS = "simcse/authors", " by the authors' code"


def models_of(path: Path) -> Any:
    """Their module of models; what it imports of old versions of transformers is a stand-in."""
    spec: Any = spec_from_file_location(path.parent.name, path)
    models = module_from_spec(spec)
    sys.modules["transformers.file_utils"] = MagicMock()
    spec.loader.exec_module(models)
    models.BertForCL.init_weights = lambda model: model.apply(_as_bert)
    return models


def _as_bert(module: Any) -> None:
    if isinstance(module, torch.nn.Linear):
        module.weight.data.normal_(std=0.02)
        if module.bias is not None:
            module.bias.data.zero_()


def _condition(discriminator: Any) -> None:
    """Let it take ``cls_input`` in the place of [CLS], as in their copy of transformers."""
    given = list[Tensor]()

    def take(_module: Any, arguments: Any, options: dict[str, Any]) -> Any:
        given.append(options.pop("cls_input"))
        return arguments, options

    def put(_module: Any, _inputs: Any, states: Tensor) -> Tensor:
        return torch.cat([given.pop().unsqueeze(1), states[:, 1:]], dim=1)

    discriminator.register_forward_pre_hook(take, with_kwargs=True)
    discriminator.embeddings.register_forward_hook(put)


def built(models: Any, recipe: Recipe) -> Any:
    """Their model with the weights of the start, as their ``train.py`` makes it."""
    from transformers import AutoModelForMaskedLM

    objective, start = recipe.objective, AutoModelForMaskedLM.from_pretrained(recipe.encoder.name)
    options = {
        "pooler_type": "cls",
        "temp": objective["temperature"],
        "mlp_only_train": recipe.encoder.head == "none",
        "do_mlm": False,
        "hard_negative_weight": 0,  # a logit: the weight 1
        "generator_name": objective.get("generator") or recipe.encoder.name,
        "batchnorm": objective.get("projector") == "batchnorm",
        "before_mlp": False,
        "lambda_weight": objective.get("rtd_weight"),
    }
    model = models.BertForCL(start.config, model_args=SimpleNamespace(**options))
    model.bert.load_state_dict(start.bert.state_dict())
    if objective["name"] == "diffcse":
        model.discriminator.load_state_dict(start.bert.state_dict())
        _condition(model.discriminator)
        model.electra_head = torch.nn.Linear(start.config.hidden_size, 2)
    # Cosines in fp32, as autocast has them on a GPU.
    model.sim.register_forward_pre_hook(lambda _, pair: tuple(it.float() for it in pair))
    return model.train()


def batches(recipe: Recipe, tokenizer: Any) -> Iterator[dict[str, Tensor]]:
    """Batches of every epoch, padded to the longest sentence, views of an example together."""
    from transformers import DataCollatorForLanguageModeling

    rows = [row if len(row) > 1 else (*row, *row) for row in open_examples(str(recipe.data.file))]
    mask_rate = recipe.objective.get("mask_rate")
    collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=mask_rate or 0.15)
    how = {"max_length": recipe.data.max_tokens, "truncation": True, "padding": True}
    for _ in range(recipe.train.epochs):
        for places in torch.split(torch.randperm(len(rows)), recipe.train.batch_size):
            texts = [text for place in places.tolist() for text in rows[place]]
            batch = dict(tokenizer(texts, return_tensors="pt", **how))
            if mask_rate:
                masked = collate([{"input_ids": ids} for ids in batch["input_ids"]])
                batch |= {"mlm_input_ids": masked["input_ids"], "mlm_labels": masked["labels"]}
            yield {name: it.view(len(places), -1, it.shape[-1]) for name, it in batch.items()}


def train(models: Any, recipe: Recipe, folder: Path) -> str:
    """Train as ``recipe`` says, and keep the best step on STS-B dev; the precision."""
    from transformers import AutoTokenizer

    settings, plain, best = recipe.train, folder / "plain", -1.0
    precision = torch_precisions(torch.device("cpu"))[0]
    torch.manual_seed(settings.seed)
    model, tokenizer = built(models, recipe), AutoTokenizer.from_pretrained(recipe.encoder.name)
    loaded = list(batches(recipe, tokenizer))
    optimizer = torch.optim.AdamW(model.parameters(), settings.learning_rate, weight_decay=0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0, len(loaded))
    dev = evaluation.load_suite(["stsb-dev"], evaluation.Options(recipe.evaluation.data_dir))
    for step, batch in enumerate(loaded, start=1):
        with torch.autocast("cpu", torch.bfloat16, precision == "bf16"):
            loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip or torch.inf)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % recipe.evaluation.every and step < len(loaded):
            continue
        tokenizer.save_pretrained(plain)
        model.config.save_pretrained(plain)
        weights = model.state_dict().items()
        kept = {name: it for name, it in weights if name.startswith(("bert.", "mlp.dense."))}
        save_file(kept, plain / "model.safetensors")
        encoder = SentenceEncoder.load(plain, pooler="cls", head=recipe.encoder.head)
        records = dev.records(evaluation.EncoderUse(encoder)).records
        score = next(it.value for it in records if it.metric == "spearman")
        print(f"step {step}: loss {loss.item():.4f}, STS-B dev {100 * score:.2f}", flush=True)
        if score > best:
            best = score
            encoder.save(folder / "best")
    return precision


def main(arguments: Sequence[str] | None = None) -> None:
    """Make what is missing of the table, and write its records."""
    parser = argparse.ArgumentParser(prog="benchmarks.authors", description=__doc__)
    for name in ("simcse", "diffcse"):
        parser.add_argument(f"--{name}", type=Path, required=True, help="their checkout")
    parser.add_argument("--output", type=Path, required=True, help="a folder for everything")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--rows", nargs="+", default=["unsup SimCSE", "sup SimCSE", "DiffCSE"])
    parser.add_argument("--scale", default="small")
    parser.add_argument("--material", action="append", default=[], help="NAME=PATH")
    chosen = parser.parse_args(arguments)
    given = dict(it.split("=", 1) for it in chosen.material)
    request = reproduce.PaperRequest(chosen.scale, given, tuple(chosen.seeds))
    (table,), rows, sides = reproduce.choose([_TABLE]), list[Any](), dict[str, Any]()
    for row in (it for it in table.rows if it.label in chosen.rows):
        part, name = [replace(table, rows=(row,))], "diffcse" if "Diff" in row.label else "simcse"
        for side in ("", _THEIRS):
            place = chosen.output / ("theirs" if side else "ours")
            filler = reproduce.open_filler(request, place)
            for job in {it.job.key: it.job for it in filler.measurements(part)}.values():
                folder = filler.store.folder(job)
                if side and job.recipe and not filler.store.is_made(job):
                    models = models_of(getattr(chosen, name) / name / "models.py")
                    precision = train(models, job.recipe, folder / "run")
                    write_json(folder / "job.json", {"encoder": "run/best", "precision": precision})
            (sides[side],) = reproduce.reproduce_tables(request, part, place, print)
            cells = {
                heading: replace(
                    cell, results=tuple(tuple(side + it for it in of) for of in cell.results)
                )
                for heading, cell in sides[side].rows[0].cells.items()
            }
            rows.append(replace(sides[side].rows[0], label=row.label + side, cells=cells))

    def examples(result: str) -> Mapping[str, np.ndarray]:
        side = _THEIRS if result.startswith(_THEIRS) else ""
        of: Mapping[str, np.ndarray] = sides[side].examples(result.removeprefix(side))
        return of

    whole = replace(sides[""], table=table, rows=tuple(rows), examples=examples)
    reproduce.write_records(chosen.output / "simcse-authors.parquet", whole)
    print(reproduce.document(whole))
    if failed := reproduce.failures([whole]):
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
