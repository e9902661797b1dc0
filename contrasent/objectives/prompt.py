"""Prompts: PromptBERT (Jiang et al. 2022, arXiv:2201.04337), CoT-BERT (Zhang et al. 2024).

An embedding is the state at the mask token of a prompt around the sentence; views differ by their
prompts. What a prompt gives without a sentence, its bias, is taken away in training (PromptBERT,
section 4.2); the saved encoder has the anchor's prompt and no bias.

Shapes: B examples, V views, S = V * B sentences, T tokens, N tokens of the longest text, D width.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from contrasent.data.batch import Batch, Need, pack
from contrasent.data.tokenizer import Template
from contrasent.errors import ConfigError
from contrasent.functional import cosine_matrix
from contrasent.model.protocol import Encoded
from contrasent.objectives import Contrast, ContrastConfig, Start, Terms
from contrasent.settings import settings


@settings
class Config(ContrastConfig):
    """Settings of prompt-based contrastive learning; the anchor's prompt is `encoder.prompt`."""

    positive: str | None = None
    """Prompt of the positive, such as 'This sentence : "{text}" means {mask}'; null takes the
    anchor's."""

    negative: str | None = None
    """Prompt of a hard negative that says the opposite (CoT-BERT), such as 'The sentence : "{text}"
    does not mean {mask}'; null is none."""

    bias: Literal["positions", "padding", "none"] = "positions"
    """Taken away from an embedding: that of the prompt alone, with the positions it has around the
    text (PromptBERT), or around as much padding (CoT-BERT); or none."""


class Prompt(Contrast):
    """In-batch contrastive loss on views of a sentence in different prompts, without their bias."""

    config_class = Config

    def __init__(self, config: Config, start: Start) -> None:
        super().__init__(config, start)
        encoder = start.require_encoder()
        tokenizer = encoder.tokenizer
        self.templates = [tokenizer.template] * 2
        if config.positive is not None:
            self.templates[1] = tokenizer.template_of(config.positive)
        if config.negative is not None:
            self.templates.append(tokenizer.template_of(config.negative))
        self.views = len(self.templates)
        self.provides_views = len(set(self.templates)) > 1
        first = {template.before[:1] for template in self.templates}
        last = {template.after[-1:] for template in self.templates}
        if len({"cls": first, "last": last}.get(encoder.pooler, ())) > 1:
            raise ConfigError(
                f"encoder.pooler is {encoder.pooler}, but the tokens that it reads differ from "
                "prompt to prompt; begin all prompts with {mask} for cls, or end all with it for "
                "last"
            )
        self._longest = max(map(len, self.templates))
        self.max_tokens = encoder.max_tokens + len(tokenizer.template) - self._longest
        self._padding = tokenizer.special_ids.pad
        if config.bias != "none":
            self.needs = frozenset({Need.ENCODER})
        if config.bias == "padding" and self._padding is None:
            raise ConfigError(f"objective.bias padding needs a token that {tokenizer.source} lacks")
        self._encoder = (encoder,)

    def prepare(self, batch: Batch) -> Batch:
        """``batch`` with the prompt of each view around its texts."""
        if not self.provides_views:
            return batch
        return with_templates(batch, self.templates[0], self.templates)

    def forward(self, encoded: Encoded, batch: Batch) -> Terms:
        embeddings = encoded.pooled
        if self.config.bias != "none":
            embeddings = embeddings - self._bias(batch)
        anchor, positive, *negatives = self.head(embeddings)
        further = None
        if negatives:
            further = cosine_matrix(positive, negatives[0]) / self.config.temperature
        candidates = torch.cat([positive, *negatives])
        return Terms({"contrast": self.contrast(anchor, candidates, batch, further)})

    def _bias(self, batch: Batch) -> Tensor:
        """Of each template around 0, 1, 2, ... padding tokens, or around as large a gap."""
        counts, padded = batch.longest - self._longest + 1, self.config.bias == "padding"
        sentences, positions = [], []
        for template in self.templates:
            before, after = template.before, template.after
            for count in range(counts):
                end = len(before) + count
                gap = [self._padding or 0] * count if padded else []
                sentences.append([*before, *gap, *after])
                positions += [*range(len(before)), *range(end, end + len(after))]
        without = pack(sentences)
        without = without if padded else replace(without, positions=torch.tensor(positions))
        alone: Encoded = self._encoder[0](without.to(batch.token_ids.device))
        rows = alone.pooled.view(self.views, counts, -1)
        sizes = torch.tensor([len(template) for template in self.templates], device=rows.device)
        texts = batch.lengths.view(self.views, -1) - sizes.unsqueeze(1)
        return rows.gather(1, texts.unsqueeze(-1).expand(-1, -1, rows.shape[-1]))


def with_templates(batch: Batch, present: Template, wanted: Sequence[Template]) -> Batch:
    """``batch`` in the template ``present`` with another one for each view, without a wait."""
    device, examples = batch.token_ids.device, batch.examples
    tokens = len(batch.token_ids)
    added = [len(template) - len(present) for template in wanted]
    # A table of all tokens: those of the batch, then those of the templates.
    rows = [(t.before, t.after) for t in wanted]
    table = [number for before, after in rows for number in (*before, *after)]
    token_ids = torch.cat([batch.token_ids, torch.tensor(table, device=device)])
    starts = torch.tensor([0, *map(len, wanted)], device=device).cumsum(0)[:-1] + tokens
    sizes = torch.tensor([[len(before), len(after)] for before, after in rows], device=device)

    lengths = batch.lengths + torch.tensor(added, device=device).repeat_interleave(examples)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    total = tokens + examples * sum(added)
    sentence = torch.repeat_interleave(lengths, output_size=total)
    view = sentence // examples
    place = torch.arange(total, device=device) - offsets[sentence]
    left = lengths[sentence] - place  # tokens from here to the end
    before, after = sizes[view].unbind(1)
    in_text = batch.offsets[sentence] + place - before + len(present.before)
    source = torch.where(left <= after, starts[view] + before + after - left, in_text)
    source = torch.where(place < before, starts[view] + place, source)
    # In the third view a text says the opposite, so it is no text of the others.
    texts = batch.same_text().view(batch.views, -1)
    texts = torch.cat([texts[:2], texts[2:] + batch.sentences]).flatten()
    longest = batch.longest + max(added)
    return Batch(token_ids[source], offsets, batch.views, longest, duplicate_of=texts)
