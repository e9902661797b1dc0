"""The command line. Each command is one file here; what it needs is imported when it runs."""

from __future__ import annotations

from contrasent.cli.app import app, main

__all__ = ["app", "main"]
