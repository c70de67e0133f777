"""From a network's weights, or a black box, back to attention, with a certificate (Sections 3.1, 4.2, B.2)."""
