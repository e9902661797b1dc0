"""Maps that are fitted on embeddings. ``base.py`` has their registry and interface."""
