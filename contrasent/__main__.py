"""``python -m contrasent``."""

from contrasent.cli import main

main()
