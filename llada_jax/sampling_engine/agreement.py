"""How many decisions a number format flips, against float64 on the logits as they were."""

from typing import NamedTuple

import numpy as np

from llada_jax.sampling_engine.formats import StoredLogits
from llada_jax.sampling_engine.host import run_sampler
from llada_jax.sampling_engine.programs import SamplerProgram
from llada_jax.sampling_engine.reference import Decisions, StepInputs, reference_sampler


class Flips(NamedTuple):
    """Decisions about open positions that differ from the reference's."""

    positions: int
    """Open positions."""
    tokens: int
    """Those with another best token."""
    masks: int
    """Those committed here and not there, or the reverse."""
    either: int

    @property
    def share(self) -> float:
        """Returns the share of open positions with another token or another mask."""
        return self.either / self.positions if self.positions else 0.0


def count_flips(found: Decisions, wanted: Decisions) -> Flips:
    """Compares decisions of the last step, where both saw the same open positions."""
    both = found.open & wanted.open
    tokens = both & (found.predictions != wanted.predictions)
    masks = both & (found.transfer != wanted.transfer)
    return Flips(int(both.sum()), int(tokens.sum()), int(masks.sum()), int((tokens | masks).sum()))


def flips_of(
    program: SamplerProgram, inputs: StepInputs, hbm: StoredLogits, wanted: Decisions | None = None
) -> Flips:
    """Compares what a program decides on stored logits with the reference on those of `inputs`.

    Args:
      hbm: those logits in some format, from `store_logits`.
      wanted: the reference's decisions, where they are known already.
    """
    wanted = wanted or reference_sampler(program.sampling, inputs)
    return count_flips(run_sampler(program, inputs, hbm), wanted)


def random_inputs(seed: int, steps: int, batch: int, rows: int, vocab: int, k: int) -> StepInputs:
    """Draws logits of rows that are more or less sure: normal noise, and one id that stands out.

    How far it stands out is uniform, so that confidences fill the range from 0 to 1.
    """
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((steps, batch, rows, vocab), dtype=np.float32)
    best = rng.integers(0, vocab, (steps, batch, rows, 1))
    height = np.log(vocab) + rng.uniform(-4, 6, best.shape)
    np.put_along_axis(logits, best, height.astype(np.float32), axis=-1)
    block = (batch, rows)
    return StepInputs(
        logits=logits,
        tokens=np.full(block, vocab - 1, np.int32),
        open=np.ones(block, bool),
        k=np.full((steps, batch), k, np.int32),
    )
