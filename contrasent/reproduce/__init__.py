"""The papers' tables again: published number, ours, and the difference, from one command."""
