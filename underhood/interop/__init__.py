"""Models in and out: files, and other frameworks."""
