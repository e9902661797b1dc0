"""The authors' code beside ours: the table ``simcse/authors`` with a number for every pair.

Their models (objective, pooler, heads, padding) are trained here on a row's text, start, steps and
settings, in a loop as their trainer's; reading, selection, tests and records are of ``contrasent
reproduce`` for both. Wants ``git clone`` of github.com/princeton-nlp/SimCSE and voidism/DiffCSE.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from contrasent.data import open_examples
from contrasent.evaluation import EncoderUse
from contrasent.model import SentenceEncoder
from contrasent.recipe import Recipe
from contrasent.reproduce import outcome, runner
from contrasent.reproduce.cells import FilledRow, FilledTable, write_records
from contrasent.reproduce.jobs import Job, Store, Work
from contrasent.reproduce.materials import read_suite
from contrasent.reproduce.outcome import PaperRequest, document, failures, reproduce_tables
from contrasent.reproduce.papers import choose

_TABLE, _THEIRS = "simcse/authors", " by the authors' code"
_FILES = {"simcse": "simcse/models.py", "diffcse": "diffcse/models.py"}


def models_of(checkout: Path, name: str) -> Any:
    """The module of their models; what it imports of old versions of transformers is a stand-in."""
    spec = spec_from_file_location(f"authors_{name}", checkout / _FILES[name])
    if spec is None or spec.loader is None:
        raise FileNotFoundError(checkout)
    models = module_from_spec(spec)
    sys.modules["transformers.file_utils"] = MagicMock()
    spec.loader.exec_module(models)
    models.BertForCL.init_weights = lambda model: model.apply(as_bert)
    return models


def as_bert(module: Any) -> None:
    """Give a new linear map weights as transformers did."""
    if isinstance(module, torch.nn.Linear):
        module.weight.data.normal_(std=0.02)
        if module.bias is not None:
            module.bias.data.zero_()


def condition(discriminator: Any) -> None:
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
        condition(model.discriminator)
        model.electra_head = torch.nn.Linear(start.config.hidden_size, 2)
    # Cosines in fp32, as autocast has them on a GPU.
    model.sim.register_forward_pre_hook(lambda _, pair: tuple(it.float() for it in pair))
    return model.train()


def batches(recipe: Recipe, tokenizer: Any) -> Iterator[dict[str, Tensor]]:
    """Batches of every epoch, padded to the longest sentence, views of an example together."""
    from transformers import DataCollatorForLanguageModeling

    rows = [
        row if len(row) > 1 else (row[0], row[0]) for row in open_examples(str(recipe.data.file))
    ]
    mask_rate = recipe.objective.get("mask_rate")
    collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=mask_rate or 0.15)
    for _ in range(recipe.train.epochs):
        for places in torch.split(torch.randperm(len(rows)), recipe.train.batch_size):
            texts = [text for place in places.tolist() for text in rows[place]]
            limits = {"max_length": recipe.data.max_tokens, "truncation": True, "padding": True}
            batch = dict(tokenizer(texts, return_tensors="pt", **limits))
            if mask_rate:
                lists = [{"input_ids": ids} for ids in batch["input_ids"]]
                masked = collate(lists)
                batch |= {"mlm_input_ids": masked["input_ids"], "mlm_labels": masked["labels"]}
            yield {name: it.view(len(places), -1, it.shape[-1]) for name, it in batch.items()}


def trainer(models: Any) -> Callable[[Job, Recipe, Store], dict[str, Any]]:
    """In place of the training of ``contrasent reproduce``; keeps the best step on STS-B dev."""

    def train(job: Job, recipe: Recipe, store: Store) -> dict[str, Any]:
        from transformers import AutoTokenizer

        settings, place = recipe.train, store.folder(job) / "run"
        torch.manual_seed(settings.seed)
        model, tokenizer = built(models, recipe), AutoTokenizer.from_pretrained(recipe.encoder.name)
        loaded = list(batches(recipe, tokenizer))
        optimizer = torch.optim.AdamW(model.parameters(), settings.learning_rate, weight_decay=0)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0, len(loaded))
        best, (dev,) = -1.0, (read_suite(("stsb",), store.data_dir, "dev"),)
        for step, batch in enumerate(loaded, start=1):
            with torch.autocast("cpu", torch.bfloat16, settings.precision != "fp32"):
                loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip or torch.inf)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            if step % recipe.evaluation.every and step < len(loaded):
                continue
            tokenizer.save_pretrained(place / "plain")
            model.config.save_pretrained(place / "plain")
            weights = model.state_dict().items()
            kept = {k: it for k, it in weights if k.startswith(("bert.", "mlp.dense."))}
            save_file(kept, place / "plain" / "model.safetensors")
            how = {"pooler": recipe.encoder.pooler, "head": recipe.encoder.head}
            encoder = SentenceEncoder.load(place / "plain", **how)
            (score,) = (
                it.value
                for it in dev.records(EncoderUse(encoder)).records
                if (it.metric, it.aggregation, it.subset) == ("spearman", "all", "")
            )
            print(f"step {step}: {loss.item():.4f}, STS-B dev {100 * score:.2f}", flush=True)
            if score > best:
                best = score
                encoder.save(place / "best")
        precision = "fp32" if settings.precision == "fp32" else "bf16"
        return {"encoder": "run/best", "note": "", "precision": precision}

    return train


def alone(work: list[Work], _jobs: int, notify: Callable[[str], None]) -> None:
    """Do the work of ``reproduce`` in this process, where its training is another."""
    for it in work:
        notify(runner.perform(it, 1))


def main(arguments: Sequence[str] | None = None) -> None:
    """Make what is missing of the table, and write its records."""
    parser = argparse.ArgumentParser(prog="benchmarks.authors", description=__doc__)
    for name in _FILES:
        parser.add_argument(f"--{name}", type=Path, required=True, help="their checkout")
    parser.add_argument("--output", type=Path, required=True, help="a folder for everything")
    parser.add_argument("--seeds", type=int, nargs="+", default=[42, 43, 44])
    parser.add_argument("--rows", nargs="+", default=["unsup SimCSE", "sup SimCSE", "DiffCSE"])
    parser.add_argument("--scale", default="small")
    parser.add_argument(
        "--material", action="append", default=[], help="as of reproduce, NAME=PATH"
    )
    chosen = parser.parse_args(arguments)
    given = dict(it.split("=", 1) for it in chosen.material)
    request, (table,) = PaperRequest(chosen.scale, given, tuple(chosen.seeds)), choose([_TABLE])
    rows, sides = list[FilledRow](), dict[str, FilledTable]()
    for row in (it for it in table.rows if it.label in chosen.rows):
        checkout = "diffcse" if row.label == "DiffCSE" else "simcse"
        theirs = trainer(models_of(getattr(chosen, checkout), checkout))
        for side, train in (("", runner._train), (_THEIRS, theirs)):
            place = chosen.output / ("theirs" if side else "ours")
            with patch.object(runner, "_train", train), patch.object(outcome, "run_work", alone):
                (made,) = reproduce_tables(request, [replace(table, rows=(row,))], place, print)
            sides[side] = made
            cells = {
                heading: replace(
                    cell, results=tuple(tuple(side + it for it in of) for of in cell.results)
                )
                for heading, cell in made.rows[0].cells.items()
            }
            rows.append(replace(made.rows[0], label=row.label + side, cells=cells))

    def examples(result: str) -> Mapping[str, np.ndarray]:
        side = _THEIRS if result.startswith(_THEIRS) else ""
        return sides[side].examples(result.removeprefix(side))

    whole = replace(sides[""], table=table, rows=tuple(rows), examples=examples)
    write_records(chosen.output / "simcse-authors.parquet", whole)
    print(document(whole))
    if failed := failures([whole]):
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
