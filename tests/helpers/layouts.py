"""Small folders in the layouts of published SimCSE and DiffCSE checkpoints."""

import json

import torch
import transformers
from safetensors.torch import save_file

from helpers.tiny_models import TOKENIZERS, config_of, seeded, shaken, transformer

CLASSES = {"bert": "Bert", "roberta": "Roberta"}


def write_weights(folder, state, form):
    state = {name: tensor.contiguous() for name, tensor in state.items()}
    if form == "safetensors":
        save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        torch.save(state, folder / "pytorch_model.bin")


def write_config(folder, config, architecture):
    content = {**config.to_dict(), "architectures": [architecture]}
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")


def published(folder, model_type="bert", form="safetensors"):
    """A Hugging Face model with its layer over [CLS] as pooler.dense, as the authors upload it."""
    config = config_of(model_type, TOKENIZERS[model_type][0](folder))
    model = transformer(config)
    write_config(folder, config, f"{CLASSES[model_type]}Model")
    write_weights(folder, model.state_dict(), form)
    return model


def simcse_run(folder, model_type="bert"):
    """What SimCSE's training script writes: BertForCL with bert.* and mlp.dense.*, pickled."""
    config = config_of(model_type, TOKENIZERS[model_type][0](folder))
    model = transformer(config, add_pooling_layer=False)
    head = shaken(seeded(lambda: torch.nn.Linear(16, 16)))
    state = {f"{model_type}.{name}": tensor for name, tensor in model.state_dict().items()}
    state |= {f"mlp.dense.{name}": tensor for name, tensor in head.state_dict().items()}
    write_config(folder, config, f"{CLASSES[model_type]}ForCL")
    write_weights(folder, state, "pickle")
    (folder / "trainer_state.json").write_text("{}")
    torch.save({"seed": 42}, folder / "training_args.bin")
    return model, head


def diffcse_run(folder, model_type="bert"):
    """What DiffCSE's training script writes: a projector, a discriminator and a generator too."""
    config = config_of(model_type, TOKENIZERS[model_type][0](folder))
    model = transformer(config, add_pooling_layer=False)
    discriminator = transformer(config, seed=7, add_pooling_layer=False)
    generator = transformer(config, seed=8, kind=transformers.AutoModelForMaskedLM)
    parts = {
        model_type: model,
        "mlp.net.0": torch.nn.Linear(16, 32, bias=False),
        "mlp.net.1": torch.nn.BatchNorm1d(32),
        "mlp.net.3": torch.nn.Linear(32, 16, bias=False),
        "mlp.net.4": torch.nn.BatchNorm1d(16, affine=False),
        "discriminator": discriminator,
        "electra_head": torch.nn.Linear(16, 2),
        "generator": generator,
    }
    state = {
        f"{prefix}.{name}": tensor
        for prefix, part in parts.items()
        for name, tensor in part.state_dict().items()
    }
    write_config(folder, config, f"{CLASSES[model_type]}ForCL")
    write_weights(folder, state, "pickle")
    return model


def cls_by_hand(model, encoder, sentences):
    """[CLS] of the last layer from transformers' own forward, one sentence at a time."""
    rows = []
    for sentence in sentences:
        (ids,), _ = encoder.tokenizer.ids([sentence], None)
        output = model(input_ids=torch.tensor([ids.tolist()]))
        rows.append(output.last_hidden_state[0, 0].detach())
    return torch.stack(rows)
