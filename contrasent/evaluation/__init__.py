"""Scores of an encoder on public tasks and on the user's own pairs."""
