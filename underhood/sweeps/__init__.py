"""Many runs: a specification, the jobs it falls into, where they run, and the store that keeps the results."""
