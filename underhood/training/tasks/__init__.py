"""What networks are trained on: the paper's two tasks and others. A new one is a file here that registers itself."""
