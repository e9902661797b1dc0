"""Maps that are fitted on embeddings, a file each, whose class is then known by its name."""

import pkgutil
from importlib import import_module

for _file in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_file.name}")
