"""Quadratic forms, the spaces they span, and key-values: what the compiler, the solver and the decompiler share."""
