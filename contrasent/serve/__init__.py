"""A server of embeddings and search over HTTP."""
