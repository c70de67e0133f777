"""The attention map of a Mamba layer, beside that of the attention it was compiled from.

    python examples/map_of_a_mamba.py [map.png]

The layer has gates, a convolution and a recurrent state. Run on a sentence, it attends as the attention does.
"""

import sys

import numpy as np
from matplotlib.figure import Figure

import underhood as uh

D = 8
SENTENCE = "the cat that the dog chased ran up the tree and the dog sat down below the tree"
WORDS = SENTENCE.split()


def main(seed=0, out=None):
    random = np.random.default_rng(seed)
    embedding = {word: random.normal(size=D) for word in dict.fromkeys(WORDS)}
    xs = np.stack([embedding[word] for word in WORDS])

    attention = uh.random_attention(D, seed=seed)
    mamba = uh.compile(attention, to="mamba", horizon=len(WORDS)).model
    maps = {"attention": uh.attention_map(attention, xs), "Mamba": uh.attention_map(mamba, xs)}
    same = uh.compare_maps(maps["Mamba"], maps["attention"])
    print(f"{maps['Mamba'].kind} map; unexplained: {maps['Mamba'].completeness:.1e} of the outputs")
    print(f"correlation {same.correlation:.12f}, largest difference {same.largest_difference:.1e} of the largest entry")

    t = len(WORDS) - 1
    size = np.linalg.norm(maps["Mamba"].contributions(t), axis=1)
    best = np.argsort(-size)[:3]
    print(f"the last {WORDS[t]!r} comes mostly from", ", ".join(f"{WORDS[s]!r} (step {s})" for s in best))
    if out is not None:
        draw(maps).savefig(out, dpi=160, bbox_inches="tight")
    return same


def draw(maps):
    """The two side by side."""
    figure = Figure(figsize=(11, 5))
    for axes, (name, found) in zip(figure.subplots(1, 2), maps.items(), strict=True):
        later = np.triu(np.ones((len(WORDS), len(WORDS)), bool), 1)
        axes.imshow(np.ma.array(found.weights[0], mask=later), cmap="Blues")
        axes.set_title(name)
        axes.set_xticks(range(len(WORDS)), WORDS, rotation=90)
        axes.set_yticks(range(len(WORDS)), WORDS)
    return figure


if __name__ == "__main__":
    main(out=sys.argv[1] if len(sys.argv) > 1 else None)
