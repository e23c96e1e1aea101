"""Latencies by the trigger of looking ahead, and which of them runs can tell apart."""

from collections.abc import Mapping

from experiments.harness.means import difference, mean_of

Curve = Mapping[int, list[float]]
"""Latencies of the same runs, by the trigger."""


def best_of_curve(curve: Curve) -> tuple[int, list[int]]:
    """Finds the quickest trigger on average, and those that paired runs do not tell from it."""
    best = min(curve, key=lambda trigger: mean_of(curve[trigger]).value)
    others = {t: difference(seconds, curve[best]) for t, seconds in curve.items() if t != best}
    return best, [trigger for trigger, more in others.items() if not more.is_told_from_zero]


def told_apart(curve: Curve) -> str:
    """Says the best trigger, and which others are as good as far as the runs can tell."""
    best, alike = best_of_curve(curve)
    runs = len(curve[best])
    which = f"{', '.join(map(str, alike))} {'is' if len(alike) == 1 else 'are'}" if alike else ""
    apart = f"{which} not told apart from it" if alike else "all others are slower"
    return f"The best trigger is {best}; {apart} (paired, {runs} runs, 95 %)."
