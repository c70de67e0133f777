"""Tries to break underhood, and counts: tried, survived, lost. `python -m torture`, or `make torture`."""
