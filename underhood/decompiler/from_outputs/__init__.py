"""What a callable computes, from its outputs: questions, search, diagnosis."""
