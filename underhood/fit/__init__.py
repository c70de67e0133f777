"""Training: AdamW as in the paper (runs.py) and a second-order solver (levenberg.py)."""
