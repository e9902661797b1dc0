"""Masked text in training: the view ``mlm``, and the held-out loss of a masked LM.

Gao et al. 2021, Table 1, "MLM k%: use BERT-base to replace k% of words". Tokens are drawn from what
the generator predicts: the most probable one is the original too often to make a view.

Shapes: B examples, V views of each, T tokens end to end.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional as F

from contrasent.data.batch import Batch, pack
from contrasent.data.examples import open_examples
from contrasent.data.tokenizer import Tokenizer
from contrasent.data.views import share_of
from contrasent.errors import CheckpointError, ConfigError, DataError
from contrasent.files import sha256_of, write_text
from contrasent.model.encoder import SentenceEncoder
from contrasent.model.generator import Generator
from contrasent.model.hub import resolve
from contrasent.model.masked_lm import MaskedLm, mask_tokens, require_mask_token
from contrasent.model.precision import default_device, device_named, matrix_precision
from contrasent.recipe import Recipe
from contrasent.settings import ViewSettings
from contrasent.training.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class MlmView:
    """Replaces a ``share`` of the tokens of equal views; ``both``: those of the anchors too."""

    generator: Generator
    tokenizer: Tokenizer
    share: float
    both: bool

    @classmethod
    def of(cls, settings: ViewSettings, encoder: SentenceEncoder) -> MlmView | None:
        """The view that ``settings`` ask for; None for another, ConfigError without a generator."""
        share = share_of(settings)
        if settings.name != "mlm" or share is None:
            return None
        require_mask_token(encoder.tokenizer.special_ids)
        name = settings.generator or encoder.name
        try:
            generator = Generator.load(name, encoder.tokenizer)
        except CheckpointError as error:
            raise ConfigError(f"view.name mlm needs a masked language model: {error}") from error
        return cls(generator, encoder.tokenizer, share, settings.sides == "both")

    def __call__(self, batch: Batch) -> Batch:
        """``batch`` with tokens replaced, in the precision of the context."""
        # The views are the same sentences still, so each has as many tokens.
        tokens = 0 if self.both else len(batch.token_ids) // batch.views
        offsets = batch.offsets[0 if self.both else batch.examples :]
        edited = Batch(batch.token_ids[tokens:], offsets - offsets[0], 1, batch.longest)
        special_ids, vocabulary = self.tokenizer.special_ids, self.tokenizer.vocabulary
        masked = mask_tokens(edited, self.share, special_ids, vocabulary, always_mask=True)
        written = self.generator.fill(edited, masked, pick="sample")
        token_ids = torch.cat([batch.token_ids[:tokens], written])
        return replace(batch, token_ids=token_ids, duplicate_of=None)


_TOKENS = 4096  # of a portion of held-out text


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The loss in nats per hidden token, the share predicted right, and how many were hidden."""

    loss: float
    accuracy: float
    tokens: int


class HeldOutText:
    """The texts in the first column of a file that a run is not trained on, with hidden tokens.

    The masks come from the seed alone, so that models with one tokenizer predict the same tokens.
    DataError if the file cannot be read, or holds no text.
    """

    def __init__(self, file: Path, recipe: Recipe, device: str | None = None) -> None:
        self.file, self.recipe = file, recipe
        self.device = default_device() if device is None else device_named(device)
        self.tokenizer = Tokenizer.load(resolve(recipe.encoder.name))
        texts = [sentences[0] for sentences in open_examples(str(file))]
        ids, _ = self.tokenizer.ids(texts, recipe.data.max_tokens)
        portions: list[list[np.ndarray]] = [[]]
        tokens = 0
        for row in sorted(ids, key=len):
            if portions[-1] and tokens + len(row) > _TOKENS:
                portions.append([])
                tokens = 0
            portions[-1].append(row)
            tokens += len(row)
        self.batches = [*map(pack, portions)]

    @torch.no_grad()
    def measure(self, masked_lm: MaskedLm, precision: str = "fp32") -> HeldOut:
        """Hide tokens, and predict them; DataError if the texts are too few to hide one."""
        masked_lm.to(self.device).eval()
        special_ids, vocabulary = self.tokenizer.special_ids, self.tokenizer.vocabulary
        total, right, count = 0.0, 0, 0
        with torch.random.fork_rng(devices=[]), matrix_precision(precision, self.device):
            torch.manual_seed(self.recipe.train.seed)
            for batch in self.batches:
                rate = self.recipe.objective["mask_rate"]
                masked = mask_tokens(batch, rate, special_ids, vocabulary)
                chosen = masked.chosen.nonzero().squeeze(1)
                hidden = Batch(masked.token_ids, batch.offsets, 1, batch.longest).to(self.device)
                states = masked_lm.backbone(hidden)[-1][chosen.to(self.device)]
                logits = masked_lm.head(states).float()
                targets = batch.token_ids[chosen].to(self.device)
                total += F.cross_entropy(logits, targets, reduction="sum").item()
                right += int((logits.argmax(-1) == targets).sum())
                count += len(targets)
        if not count:
            raise DataError("the held-out text is so short that no token of it was hidden")
        return HeldOut(total / count, right / count, count)

    def measure_start(self) -> HeldOut | None:
        """The scores of what the recipe starts from; None if that has no masked-LM head."""
        try:
            return self.measure(MaskedLm.load(self.recipe.encoder.name))
        except CheckpointError:
            return None

    def measure_result(self, folder: RunFolder, before: HeldOut | None) -> HeldOut:
        """The scores of the result of the run in ``folder``, kept there beside its start's."""
        after = self.measure(MaskedLm.load(folder.last))
        values = {
            "file": self.file.name,
            "sha256": sha256_of(self.file),
            "mask_rate": self.recipe.objective["mask_rate"],
            "seed": self.recipe.train.seed,
            "before": before and asdict(before),
            "after": asdict(after),
        }
        write_text(folder.held_out, json.dumps(values, indent=2) + "\n")
        return after
