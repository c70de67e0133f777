"""Linear self-attention (Eq. 1) and the attentions that teach: the source of compile, the goal of decompile."""
