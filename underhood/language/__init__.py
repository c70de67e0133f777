"""Whole language models: a folder and a text in; what each layer attends to, and why this word, out."""
