"""One self-contained HTML file to look at: what was measured, how sure it is, how to repeat it."""
