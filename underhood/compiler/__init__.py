"""Attention, or a gated RNN, into recurrent architectures: passes, forms, error bounds, verification."""
