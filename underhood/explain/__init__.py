"""Which earlier steps an output comes from, and which algorithm a network runs in context."""
