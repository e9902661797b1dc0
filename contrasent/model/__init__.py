"""Sentence encoders: backbone, pooler, head, and their form on disk."""
