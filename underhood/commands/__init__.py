"""One file a command: a frozen dataclass whose fields are the flags, and `run`, which returns the exit code.

Only `run` imports jax and what stands on it, so that `underhood --help` answers at once.
"""
