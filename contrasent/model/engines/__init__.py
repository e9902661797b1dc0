"""Engines: what computes a backbone. ``base.py`` has their registry and interface."""
