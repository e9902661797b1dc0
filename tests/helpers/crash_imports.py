"""Imported by the process that commands are forked from: whatever one of them may load."""

from contextlib import suppress
from importlib import import_module
from pkgutil import walk_packages

import contrasent

for _, name, _ in walk_packages(contrasent.__path__, "contrasent."):
    if not name.endswith("__main__"):
        with suppress(ImportError):  # of an extra that is not installed
            import_module(name)
_LIBRARIES = """
accelerate datasets faiss fastapi httpx huggingface_hub jinja2 matplotlib.backends.backend_agg
matplotlib.figure numpy optuna pyarrow.ipc pyarrow.parquet pydantic rich.console
rich.progress safetensors.torch scipy.optimize scipy.stats starlette.testclient
tarfile tokenizers torch.optim
transformers.models.auto.configuration_auto transformers.models.auto.modeling_auto
transformers.models.auto.tokenization_auto transformers.models.bert.modeling_bert urllib.request
"""
for name in _LIBRARIES.split():
    with suppress(ImportError):
        import_module(name)
