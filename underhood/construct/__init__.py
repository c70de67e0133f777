"""The compiler: attention, or a gated RNN, into every recurrent architecture of the paper, verified."""
