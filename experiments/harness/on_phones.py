"""What decoding takes on phones on average, for a model of LLaDA-8B's shape: all of it modelled."""

from collections.abc import Sequence
from dataclasses import replace

import llada_jax as lj
from llada_jax.phone.profile import Profile
from llada_jax.phone.uncertainty import with_uncertainty
from llada_jax.phone.workload import Workload

SHAPE = "llada_8b"
DOUBTED = 8


def mean_latency(workloads: Sequence[Workload], soc: str) -> tuple[float, tuple[float, float]]:
    """Returns seconds of a workload on a phone, on average, and their 95 % interval.

    The interval is the device model's own doubt, measured on the first `DOUBTED` workloads.
    """
    phone, canvas = lj.phone(soc), max(workload.canvas for workload in workloads)

    def mean(profile: Profile, some: Sequence[Workload]) -> float:
        timer = replace(phone, profile=profile).timer(SHAPE, canvas)
        return sum(map(timer.latency, some)) / len(some)

    seconds = mean(phone.profile, workloads)
    doubt = with_uncertainty(phone.profile, lambda moved: mean(moved, workloads[:DOUBTED])).relative
    return seconds, (seconds * max(0.0, 1 - 1.96 * doubt), seconds * (1 + 1.96 * doubt))
