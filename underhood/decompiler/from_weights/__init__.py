"""What the weights of a gated RNN compute: reading, structure, reduction, scores, certificate."""
