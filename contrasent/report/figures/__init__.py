"""The figures of the papers, from saved numbers alone."""
