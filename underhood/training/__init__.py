"""AdamW as in the paper, and a second-order solver; tasks, run folders, batched kernels."""
