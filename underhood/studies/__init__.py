"""The paper's tables and figures, and studies beyond it: measured here, beside the paper's numbers."""
