"""How Hypothesis runs here: the same examples each time, and without a clock.

So a failure is of what was changed, not of luck. `make explore` looks for examples that nobody has seen yet.
"""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "ftrun",
    settings.default,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("explore", settings.get_profile("ftrun"), derandomize=False)
settings.load_profile("ftrun")
