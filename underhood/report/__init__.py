"""The paper's tables and figures: measured here, beside the paper's numbers."""
