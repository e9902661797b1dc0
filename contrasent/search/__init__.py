"""Exact search over embedded sentences."""
