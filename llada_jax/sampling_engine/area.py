"""Area, power and energy of the vector datapath, from the published synthesis (Table IV).

Both are proportional to VLEN there; the factor is the mean of the three published ones. Memories
and HBM are not part of it.
"""

from statistics import fmean

from llada_jax.sampling_engine.paper_results import SCALAR_AREA_MM2, SYNTHESIS


def area_mm2(vlen: int) -> float:
    """Returns the area of vector datapath and scalar part."""
    return vlen * fmean(row.area_mm2 / row.vlen for row in SYNTHESIS) + SCALAR_AREA_MM2


def power_mw(vlen: int) -> float:
    """Returns the power of the vector datapath at 1 GHz."""
    return vlen * fmean(row.power_mw / row.vlen for row in SYNTHESIS)


def energy_mj(vlen: int, ms: float) -> float:
    """Millijoules, at the power of Table IV for the whole time."""
    return power_mw(vlen) * ms / 1e3
