"""A bidirectional LSTM over fixed word vectors (Conneau et al. 2017, InferSent, section 3.2).

Shapes: S sentences, T words end to end, W vectors, D dimensions of a vector, H of a direction.
"""

from collections.abc import Set
from typing import Never

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from contrasent.data.batch import Batch
from contrasent.data.tokenizer import UNBOUNDED
from contrasent.data.word_vectors import WordStore
from contrasent.model.backbones.base import Backbone


class WordLstm(Backbone):
    """State 0 of a word is its vector, state 1 the LSTM's output in both directions.

    The vectors stay in their mapped file, and are not trained; a token id is the number of one.
    """

    kind = "an LSTM over word vectors"
    depth = 1
    max_tokens = UNBOUNDED

    def __init__(self, store: WordStore, size: int) -> None:
        """Make a new LSTM of ``size`` H, with torch's start: uniform in 1 / sqrt(H)."""
        super().__init__()
        self.store = store
        self.lstm = nn.LSTM(store.width, size, bidirectional=True)
        self.width = 2 * size

    @property
    def model(self) -> Never:  # type: ignore[override]
        """There is none: what asks for it needs a transformer."""
        self.refuse("this needs a transformer, but the encoder is {}", "take another encoder")

    def states(
        self, batch: Batch, wanted: Set[int], first_only: bool, first_state: Tensor | None
    ) -> dict[int, Tensor]:
        rows = batch.token_ids.cpu().numpy()
        words = torch.from_numpy(self.store.select(rows)).to(self.device)
        states = {0: words}
        if 1 in wanted:
            # The LSTM takes the first words of all sentences, longer ones first, then the second.
            lengths = batch.lengths.cpu()
            ranks = torch.argsort(torch.argsort(lengths, descending=True, stable=True))
            starts = lengths.cumsum(0) - lengths
            place = torch.arange(len(rows)) - torch.repeat_interleave(starts, lengths)
            order = torch.argsort(place * len(lengths) + torch.repeat_interleave(ranks, lengths))
            sizes, order = torch.bincount(place), order.to(words.device)
            with torch.autocast(self.device.type, enabled=False):
                outputs: Tensor = self.lstm(PackedSequence(words[order], sizes))[0].data
            states[1] = torch.empty_like(outputs).index_copy(0, order, outputs)
        if not first_only:
            return states
        return {number: state[batch.offsets[:-1]] for number, state in states.items()}

    precisions = ("fp32",)

    def freeze_embeddings(self) -> None:
        """Nothing to do: word vectors are never trained."""
