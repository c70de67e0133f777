"""Many runs: a specification, the jobs it falls into, where they run, and the store that keeps what came out."""

from underhood.sweep.spec import RunSpec, Sweep, read_spec
from underhood.sweep.store import query
from underhood.sweep.sweep import Teller, run_sweep

__all__ = ["RunSpec", "Sweep", "Teller", "query", "read_spec", "run_sweep"]
