"""Measured ratios: `make bench`, or `python -m benchmarks [suite …]`; tables go to results/bench."""
