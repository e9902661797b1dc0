"""``python -m contrasent``."""

from contrasent.cli.app import main

main()
