"""ESimCSE: repeated tokens, the momentum encoder in closed form, the queue, the loss in loops."""

import copy

import numpy as np
import torch
from helpers import oracles
from helpers.tiny_runs import write_data

from contrasent import objectives
from contrasent.data.batch import pack
from contrasent.data.examples import open_examples
from contrasent.data.loader import Draws
from contrasent.data.views import open_views, repeat_tokens
from contrasent.model.heads import HEADS
from contrasent.model.protocol import Encoded
from contrasent.objectives.esimcse import MomentumEncoder, Queue
from contrasent.settings import ViewSettings

SENTENCES = [[2, 5 + n, 9, 3] for n in range(4)]


def test_repeated_tokens():
    ids, lengths = np.arange(100, 120), set()
    for seed in range(200):
        edited = repeat_tokens(ids, np.random.default_rng(seed), 0.32)
        lengths.add(len(edited) - len(ids))
        assert list(dict.fromkeys(edited)) == list(ids)
        assert np.all(np.diff(edited) >= 0)
        assert max(np.bincount(edited)) <= 2
    assert lengths == set(range(6))  # 0.32 * 20 = 6.4
    long = np.arange(1000)
    most = max(len(repeat_tokens(long, np.random.default_rng(n), 0.32)) for n in range(200))
    assert most == 1009
    assert list(repeat_tokens(ids[:3], np.random.default_rng(0), 0.32)) == list(ids[:3])


def test_a_copy_that_would_be_too_long_is_the_sentence_itself(tiny_encoder, tmp_path, monkeypatch):
    tokenizer = tiny_encoder.tokenizer
    examples = open_examples(str(write_data(tmp_path / "text.txt")))
    lengths = [len(row) for row in tokenizer.ids([text for (text,) in examples], 32)[0]]
    monkeypatch.setattr(tokenizer, "max_tokens", sorted(lengths)[24] + 2)
    view = ViewSettings(name="repeat", share=0.9)
    source = open_views(view, examples, tokenizer, 32, views=2).source
    whole = set()
    for epoch in range(20):
        _, offsets = source.gather(np.arange(48), Draws(0, epoch))
        found = np.diff(offsets).tolist()
        assert found[:48] == lengths and max(found) <= max(tokenizer.max_tokens, *lengths)
        whole |= {a for a, b in zip(lengths, found[48:], strict=True) if a == b}
    assert max(lengths) in whole


def test_momentum_weights_in_closed_form(tiny_encoder):
    head, steps, momentum = HEADS["mlp"](16), 5, 0.9
    follower = MomentumEncoder(tiny_encoder, head, momentum)
    start = follower.weights.clone()
    generator = torch.Generator().manual_seed(0)
    trained = [*tiny_encoder.parameters(), *head.parameters()]
    expected = momentum**steps * start
    for step in range(1, steps + 1):
        with torch.no_grad():
            for weights in trained:
                weights.add_(0.1 * torch.randn(weights.shape, generator=generator))
        follower.update()
        now = torch.cat([weights.detach().flatten() for weights in trained])
        expected += (1 - momentum) * momentum ** (steps - step) * now
    torch.testing.assert_close(follower.weights, expected)

    other, other_head = copy.deepcopy(tiny_encoder).eval(), copy.deepcopy(head)
    places = torch.split(follower.weights, [weights.numel() for weights in trained])
    with torch.no_grad():
        for weights, part in zip(
            [*other.parameters(), *other_head.parameters()], places, strict=True
        ):
            weights.copy_(part.view_as(weights))
        batch = pack(SENTENCES)
        wanted = other_head(other(batch).pooled)
    before = copy.deepcopy(tiny_encoder.state_dict())
    tiny_encoder.train()
    torch.testing.assert_close(follower.embed(batch), wanted)
    assert tiny_encoder.training
    torch.testing.assert_close(tiny_encoder.state_dict(), before, rtol=0, atol=0)
    assert not follower.embed(batch).requires_grad


def test_the_queue_keeps_the_last_rows(rng):
    queue, rows = Queue(5, 3), rng(7, 3)
    anchor = rng(2, 3)
    queue.put(rows[:2])
    logits = queue.logits(anchor, 0.5)
    assert torch.isinf(logits[:, 2:]).all()
    queue.put(rows[2:4])
    queue.put(rows[4:7])
    torch.testing.assert_close(queue.rows, rows[[4, 5, 6, 2, 3]])
    expected = [[oracles.cosine(u, v) / 0.5 for v in queue.rows] for u in anchor]
    torch.testing.assert_close(queue.logits(anchor, 0.5), torch.tensor(expected))


def test_the_loss_has_the_queue_as_further_negatives(tiny_encoder, rng):
    settings = {"queue": 6, "head": "none", "temperature": 0.5, "momentum": 0.5}
    objective = objectives.build("esimcse", settings, width=16, data_views=1, encoder=tiny_encoder)
    batch = pack(SENTENCES * 2, 2)
    pooled = rng(2, 4, 16)
    first = objective(Encoded(pooled, {}), batch)["contrast"]
    torch.testing.assert_close(first, oracles.info_nce(*pooled, 0.5))
    earlier = tiny_encoder.eval()(pack(SENTENCES)).pooled[0].detach()
    torch.testing.assert_close(objective.queue.rows[:4], earlier)
    second = objective(Encoded(pooled, {}), batch)["contrast"]
    candidates = torch.cat([pooled[1], earlier])
    torch.testing.assert_close(second, oracles.info_nce(pooled[0], candidates, 0.5))
