"""Levenberg–Marquardt in float64, from random weights to machine precision."""
