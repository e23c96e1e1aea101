"""Each part of llada.cpp's decoding can be switched off alone."""

import numpy as np
import pytest

from llada_jax.sampler.config import SamplerConfig
from llada_jax.sampler.trace import Event, Trace
from tests.sampler.toy import MASK, toy_decode

PROMPT, BLOCK = [3, 1, 4, 1, 5], 8
LENGTHS = {"gen_length": 48, "block_length": BLOCK, "steps": 48}
EVERYTHING = SamplerConfig.preset(
    "llada_cpp", **LENGTHS, theta_visible=0.2, theta_stable=0.25, latency_table=None,
    eos_early_stop=False,
)  # fmt: skip
SWITCHES = {
    "nothing": {},
    "lookahead": {"lookahead_trigger": 0},
    "staged": {"accept": "quota", "threshold": 0.2, "theta_visible": 0.7, "theta_stable": 0.9},
    "refresh": {"refresh": "none"},
}


def parts_at_work(trace: Trace) -> set[str]:
    """The parts of llada.cpp's decoding that the trace of one prompt shows."""
    settled = trace.cache_length[1:, 0] - len(PROMPT)
    beside = trace.shadow_rows[1:, 0] + trace.refreshed[1:, 0]
    stop = settled + trace.live_rows[1:, 0] - beside
    block = trace.block[1:, 0] * BLOCK
    shows = {
        "slide": (settled % BLOCK > 0).any(),
        "lookahead": (stop > np.maximum(settled, block) + BLOCK).any(),
        "staged": trace.count(Event.PROMOTE).any(),
        "refresh": trace.refreshed.any(),
    }
    return {part for part, at_work in shows.items() if at_work}


@pytest.mark.slow
@pytest.mark.parametrize("switch", SWITCHES)
def test_one_part_is_off_and_the_others_are_on(switch):
    config = EVERYTHING.replace(**SWITCHES[switch])
    run = toy_decode([PROMPT], config, salt=6, loop="host")
    off = {"staged", "refresh"} if switch == "staged" else {switch}  # no token would need it
    assert parts_at_work(run.trace) == {"slide", *SWITCHES} - {"nothing"} - off
    assert not (run.tokens == MASK).any()
