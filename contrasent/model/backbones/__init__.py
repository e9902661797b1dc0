"""Transformers behind one interface: packed tokens in, token states out."""
