"""How a network is trained: frozen settings, with presets named after the section they come from."""

from __future__ import annotations

import dataclasses
from typing import Any

from underhood.core.errors import UnderhoodError

PAPER_STEPS = 781_000  # 50,000 examples an epoch in batches of 64 for 1,000 epochs (Appendix B.1)

CHUNK = 50  # steps between two returns to Python: it costs 0.1 ms, and Ctrl-C is answered here
HELD_OUT_PART = 1024  # sequences of one forward pass when evaluating
LARGEST_RATE = 1e30  # float32, in which most networks train, ends at 3e38


def require_rate(name: str, value: float) -> None:
    """Rates are numbers from 0 on; a learning rate of 0 would not learn."""
    if not 0 <= value <= LARGEST_RATE:
        raise UnderhoodError(f"expected {name} from 0 to {LARGEST_RATE:g}", value)
    if name == "learning_rate" and value == 0:
        raise UnderhoodError("expected learning_rate above 0", value)


@dataclasses.dataclass(frozen=True)
class FitConfig:
    """AdamW with cosine annealing, as in Appendix B.1; everything that decides the result is in here."""

    steps: int = 10_000
    """Training steps; each draws a fresh batch."""
    batch_size: int = 64
    learning_rate: float = 1e-3
    """Where the cosine starts."""
    final_learning_rate: float = 1e-6
    """Where it ends."""
    weight_decay: float = 1e-2
    """Decoupled decay of all parameters but the recurrent ones. The paper's exponent is lost (docs/fidelity.md)."""
    l2: float = 0.0
    """½ l2 |w|² is added to the loss that is descended, for all parameters but the recurrent ones. Unlike decay, its
    gradient goes through Adam. Reported losses exclude it."""
    anneal_l2: bool = False
    """The penalty falls with the learning rate, by the same cosine, and so leaves no floor in the loss."""
    epsilon: float = 1e-8
    """ε of Adam's denominator. Gradients well below it no longer move a weight, which then decays."""
    seed: int = 0
    """Seed of the data stream; the network's own seed is chosen where it is made."""
    log_every: int = 100
    """Steps per line of the metrics log, which holds their mean loss."""
    checkpoint_every: int = 5_000
    """Steps between checkpoints."""
    restarts: tuple[int, ...] = ()
    """Steps at which a cosine ends and another begins: where a run had ended that went on."""
    held_out: int = 4_096
    """Sequences of the held-out loss, from a stream that training never draws from."""

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "log_every", "checkpoint_every", "held_out"):
            if getattr(self, name) < 1:
                raise UnderhoodError(f"expected {name} of 1 or more", getattr(self, name))
        for name in ("learning_rate", "final_learning_rate", "weight_decay", "l2", "epsilon"):
            require_rate(name, getattr(self, name))
        if [*self.restarts] != sorted({*self.restarts}) or not all(0 < step < self.steps for step in self.restarts):
            raise UnderhoodError(f"expected restarts that rise from 1 to {self.steps - 1}", self.restarts)
        if not 0 <= self.seed < 2**31:
            raise UnderhoodError("expected a seed from 0 to 2³¹ − 1", self.seed)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON. Without what came later where it is not used: run folders from before can be resumed."""
        later = ("l2", "anneal_l2", "restarts")
        return {name: value for name, value in dataclasses.asdict(self).items() if value or name not in later}


# Section 3.1: d = 4, 100 hidden neurons. No decoupled decay empties neurons as the paper's did; a penalty in the loss
# does, and annealed it leaves no floor (docs/fidelity.md).
SECTION_3_1 = FitConfig(steps=PAPER_STEPS, weight_decay=0.0, l2=5e-4, anneal_l2=True, log_every=1_000)
SECTION_3_1_HIDDEN = 100

# Section 3.2 and 3.3 sweep sizes and architectures; "the weight decay is applied in Section 3.1".
SECTION_3_2 = FitConfig(steps=PAPER_STEPS, weight_decay=0.0)
SECTION_3_3 = FitConfig(steps=PAPER_STEPS, weight_decay=0.0)

# Section 4.2: in-context regression, 80 hidden neurons, "the same optimization scheme" with fewer steps.
# At the query y is 0, so that the weights of forget neurons for y matter only as far as λ is not 0 yet. With the usual
# ε = 1e-8 Adam blows up what little gradient they have to full steps, and they never decay.
SECTION_4_2 = FitConfig(steps=300_000, weight_decay=1e-1, epsilon=1e-4)
SECTION_4_2_HIDDEN = 80

PRESETS = {
    "section-3.1": SECTION_3_1,
    "section-3.2": SECTION_3_2,
    "section-3.3": SECTION_3_3,
    "section-4.2": SECTION_4_2,
}
