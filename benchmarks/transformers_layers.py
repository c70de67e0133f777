"""Every recurrent model type of transformers: random weights in the public layer, and how far the bridge's cell is off.

python -m benchmarks.transformers_layers results/bench/transformers.json
"""

from __future__ import annotations
