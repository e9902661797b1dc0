"""Figures of the papers, from saved numbers alone. ``style.py`` has their registry and look."""
