"""A folder per architecture: `cell.py`, and `lowering.py`, `kernel.py`, `bridge.py` where they exist."""
