"""How often to save: what an interval costs, and which one costs least. Pure.

J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974, and
J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS 22(3), 2006
(doi:10.1016/j.future.2004.11.016): failures come at random with a mean time M between them, and a save keeps
training from going on for d seconds.
"""

from __future__ import annotations

import math


def best_interval_s(save_s: float, mean_time_between_failures_s: float) -> float:
    """Seconds of training between two saves that cost least (Daly's equation 37)."""
    d, m = save_s, mean_time_between_failures_s
    if d >= 2 * m:
        return m
    ratio = d / (2 * m)
    return math.sqrt(2 * d * m) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - d


def cost(interval_s: float, save_s: float, mean_time_between_failures_s: float) -> tuple[float, float]:
    """Parts of the training time that are spent on saves and on work done again (Young's first order).

    Half an interval is lost with each failure; what a restart itself takes does not depend on the interval.
    """
    saving = save_s / (interval_s + save_s)
    redone = (interval_s + save_s) / (2 * mean_time_between_failures_s)
    return saving, min(1.0, redone)
