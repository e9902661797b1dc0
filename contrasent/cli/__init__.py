"""The command line. Each file holds commands; what they need is imported when they run."""
