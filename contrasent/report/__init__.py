"""Records laid out for people."""
