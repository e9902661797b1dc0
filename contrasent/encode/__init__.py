"""Embeddings of a long text in files: sentences, shards, and workers that share them."""
