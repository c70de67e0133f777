"""What config.json and the tensors' names mean, a file for each family of models."""
