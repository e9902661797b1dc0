"""Adaptation of an encoder to a text."""
