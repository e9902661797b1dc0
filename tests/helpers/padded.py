"""transformers' own forward on padded sentences, cut back to packed rows."""

from itertools import pairwise

import torch

from contrasent.data.batch import pack


def ids_of(lengths, vocabulary, seed=0):
    """Random sentences of these lengths, without the ids of special tokens."""
    generator = torch.Generator().manual_seed(seed)
    draw = [torch.randint(5, vocabulary, (n,), generator=generator) for n in lengths]
    return [ids.tolist() for ids in draw]


def rows_of(packed):
    """The values of each sentence: the tokens of a batch, or some values and their offsets."""
    values, offsets = (packed.token_ids, packed.offsets) if hasattr(packed, "views") else packed
    return [values[a:b].tolist() for a, b in pairwise(offsets.tolist())]


def padded(sentences, filling=0):
    """Token ids as transformers takes them: a row for each sentence, up to the longest."""
    longest = max(len(s) for s in sentences)
    ids = torch.full((len(sentences), longest), filling)
    mask = torch.zeros(len(sentences), longest, dtype=torch.long)
    for row, sentence in enumerate(sentences):
        ids[row, : len(sentence)] = torch.as_tensor(sentence)
        mask[row, : len(sentence)] = 1
    return {"input_ids": ids, "attention_mask": mask}


def padded_states(model, sentences):
    """States of every layer, ``K + 1`` tensors of ``(T, D)``, from transformers' own forward."""
    given = padded(sentences, model.config.pad_token_id or 0)
    output = model(**given, output_hidden_states=True)
    return [state[given["attention_mask"].bool()] for state in output.hidden_states]


def packed_states(backbone, sentences, **kwargs):
    """The same from one of our backbones."""
    numbers = range(backbone.depth + 1)
    states = backbone(pack(sentences), list(numbers), **kwargs)
    return [states[number] for number in numbers]


def gradients(model, states, weights, **more):
    """Gradient of every parameter, and of more, of a weighted mean of all states, by name."""
    loss = sum((state * w).sum(-1).mean() for state, w in zip(states, weights, strict=True))
    parameters = {**dict(model.named_parameters()), **more}
    found = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
    return dict(zip(parameters, found, strict=True))
