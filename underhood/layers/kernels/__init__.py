"""Batched forward passes, features first: what the kernels of architectures share, and the choice among them."""
