"""The training loop and its resumable state."""
