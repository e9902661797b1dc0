"""A training step of every objective, whole, in chunks, and shared by several processes."""

import copy
import dataclasses
import json
import os
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace

import numpy as np
import torch
from torch import distributed, multiprocessing

from contrasent import objectives
from contrasent.data.batch import Need, pack
from contrasent.distributed import ProcessGroup, split_of_group
from contrasent.errors import DataError
from contrasent.model.encoder import SentenceEncoder
from contrasent.settings import TrainSettings
from contrasent.training import loop
from contrasent.training.run import train
from helpers.interrupted import kill_after
from helpers.tiny_runs import TINY
from helpers.tiny_sentences import write_pairs

SENTENCES = [[2, 5 + n % 30, 7 + n % 11, 9, 3][: 4 + n % 2] for n in range(60)]
CHUNK = 3


def given(objective, examples, sentences=SENTENCES):
    """A batch with whatever the objective reads."""
    batch = pack(sentences[: objective.views * examples], objective.views)
    values = {Need.LABELS: torch.arange(examples) % 3, Need.POSITIONS: torch.arange(examples)}
    values[Need.TARGETS] = torch.randn(examples, 16 * objective.views)
    values[Need.CANDIDATE_SCORES] = torch.randn(examples, objective.views - 1)
    given_ahead = {need for need in objective.needs if need.is_number or need is Need.TARGETS}
    columns = {need: values.get(need, torch.arange(examples)) for need in given_ahead}
    following = None
    if Need.NEXT_SENTENCES in objective.needs:
        following = pack([[2, *range(5, 45), 3]] * examples)
    return dataclasses.replace(batch, columns=columns, next_sentences=following)


@dataclass(frozen=True)
class Case:
    """An objective with settings that draw nothing which depends on who computes it.

    Cosines of a tiny encoder are alike, and a temperature of 0.05 would multiply the rounding
    errors of their differences.
    """

    objective: str
    settings: dict = field(default_factory=dict)
    views: int = 2
    examples: int = 7
    twin: bool = False
    fixed: bool = False
    sentences: tuple = tuple(map(tuple, SENTENCES))


WARM = {"temperature": 0.5}
EXACT = {"diffcse": {"edit": "argmax", **WARM}, "simcse": WARM, "rank_distil": WARM}
SAME = tuple(tuple(SENTENCES[n % 5]) for n in range(60))
DIFFCSE = {"edit": "argmax", "rtd_weight": 1.0, **WARM}
CASES = {
    **{name: Case(name, EXACT.get(name, {})) for name in objectives.available()},
    "duplicates": Case("simcse", WARM, sentences=SAME),
    "batch normalisation": Case("simcse", {"head": "batchnorm", **WARM}),
    "hard negatives of weight 2": Case("simcse", {"hard_negative_weight": 2.0, **WARM}, views=3),
    "lists": Case("rank_distil", {"margin_weight": 1.0, **WARM}, views=4),
    "auxiliary mlm": Case("simcse", {"mlm_weight": 0.1, **WARM}),
    "fixed dropout": Case("simcse", WARM, fixed=True),
    "a single pair": Case("simcse", {"exclude_duplicates": False, **WARM}, views=3, examples=1),
    "all edits": Case("diffcse", {**DIFFCSE, "edit_operation": "all"}),
    "corrective": Case("diffcse", {**DIFFCSE, "task": "corrective", "edit_positions": "all"}),
    "conditional mlm": Case("diffcse", {**DIFFCSE, "task": "cmlm", "contrast": False}),
    "edits as positives": Case("diffcse", {**DIFFCSE, "edit_role": "positives"}),
    "edits of the next sentence": Case(
        "diffcse", {**DIFFCSE, "edit_source": "both", "rtd_padding": "as_reference"}
    ),
    "two encoders": Case("contrastive_tension", twin=True),
    "two encoders, simcse": Case("simcse", WARM, twin=True),
    "consert, joint": Case("consert", {"classify": True}),
    "one document": Case("declutr", examples=2),
}


@cache
def start(masked_lm):
    """The encoder of every case, to be copied."""
    encoder = SentenceEncoder.load(masked_lm, pooler="mean", head="none", device="cpu")
    encoder.backbone.set_dropout(0.0)
    with torch.no_grad():
        encoder.backbone.model.embeddings.word_embeddings.weight.mul_(10)
    return encoder


def parts_of(case, masked_lm):
    """Encoder, twin and objective without dropout, and a batch; the same in every process."""
    encoder = copy.deepcopy(start(masked_lm))
    torch.manual_seed(0)
    twin = copy.deepcopy(encoder) if case.twin else None
    objective = objectives.build(
        case.objective, case.settings, width=16, data_views=case.views, encoder=encoder
    )
    batch = given(objective, case.examples, [list(ids) for ids in case.sentences])
    return encoder, twin, objective, batch


def gradients(case, masked_lm, how):
    """Loss, and gradient of every weight by name, of one step of the training loop."""
    encoder, twin, objective, batch = parts_of(case, masked_lm)
    torch.manual_seed(1)
    training = loop.Training(
        encoder=encoder,
        objectives={"": objective},
        optimizer=SimpleNamespace(),
        settings=TrainSettings(gradcache_chunk=how.chunk),
        precision="fp32",
        steps=1,
        twin=twin,
        fixed_dropout=case.fixed,
        split=how,
    )
    update, set_rate = loop.update, loop.set_rate
    loop.update, loop.set_rate = lambda *_: None, lambda *_: None
    try:
        ((step,),) = loop.run(training, iter([batch]), loop.Progress(), lambda _: True)
    finally:
        loop.update, loop.set_rate = update, set_rate
    named = {
        f"{part}.{name}": parameter.grad
        for part, module in training.modules.items()
        for name, parameter in module.named_parameters()
        if parameter.grad is not None
    }
    return step.loss, named


def difference(whole, split):
    """How far loss and gradients of a split step are from those of a whole one, relatively.

    A gradient that is all rounding errors, such as that of the bias of a key, counts beside the
    gradient of all weights.
    """
    (loss, expected), (split_loss, split_gradients) = whole, split
    if split_gradients.keys() != expected.keys():
        return ["other weights", *sorted(split_gradients.keys() ^ expected.keys())]
    total = torch.stack([gradient.norm() for gradient in expected.values()]).norm()
    worst = {
        name: float((split_gradients[name] - one).norm() / torch.maximum(one.norm(), 1e-2 * total))
        for name, one in expected.items()
    }
    name = max(worst, key=worst.get)
    return [abs(split_loss - loss) / abs(loss), worst[name], name]


def compare(rank, count, masked_lm, folder, cases):
    """Take the split steps of all cases; the first process of ``count`` writes how far they are
    from whole ones."""
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(count))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")  # accelerate looks at them
    os.environ["CONTRASENT_CACHE"] = str(folder / "cache")
    meeting = f"file://{folder}/meeting"
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=count)
    shared, differences = split_of_group(), {}
    alone = dataclasses.replace(shared, rank=0, processes=1)
    for name in cases:
        case, found = CASES[name], differences.setdefault(name, {})
        whole = None if rank else gradients(case, masked_lm, alone)
        for words, how, chunk in (
            ("chunks", alone, CHUNK),
            ("processes", shared, None),
            ("both", shared, CHUNK),
        ):
            if how is shared or not rank:
                split = gradients(case, masked_lm, dataclasses.replace(how, chunk=chunk))
                found[words] = rank or difference(whole, split)
    if not rank:
        (folder / "differences.json").write_text(json.dumps(differences))
    if cases == tuple(CASES):
        embed_together(folder)
        train_twice(masked_lm, folder)
    distributed.destroy_process_group()


def embed_together(folder):
    """Write how many sentences this process embedded, the rows of all, and another's error."""
    group, shares = ProcessGroup(), []

    def encode(sentences, *, fails=None):
        if group.split.rank == fails:
            raise DataError(f"of process {fails}")
        shares.append(len(sentences))
        return np.array([[len(words), -len(words)] for words in sentences])

    together = group.encoder(SimpleNamespace(encode=encode))
    rows = together.encode(["x" * n for n in range(5)]).tolist()
    try:
        together.encode(["x"], fails=1)
    except DataError as error:
        written = json.dumps([shares[0], rows, str(error)])
        (folder / f"rows-{group.split.rank}.json").write_text(written)


def train_twice(masked_lm, folder):
    """Six steps of DiffCSE whole, and cut off in both processes after four, and resumed."""
    recipe = TINY["diffcse"].load(
        folder,
        {"masked-lm": masked_lm},
        {
            "train.max_steps": 6,
            "evaluation.every": 2,
            "evaluation.task": str(write_pairs(folder / f"pairs-{os.getpid()}.tsv")),
        },
    )
    train(recipe, folder / "whole")
    with kill_after("Session._share_progress", calls=3):
        train(recipe, folder / "cut")
    train(recipe, folder / "cut", resume=True)


def differences(count, masked_lm, folder, cases=tuple(CASES)):
    """What :func:`compare` finds in ``count`` processes."""
    multiprocessing.spawn(compare, (count, masked_lm, folder, cases), count)
    return json.loads((folder / "differences.json").read_text())
