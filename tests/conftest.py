"""Hypothesis without a clock: an example that a busy machine stops for a moment is no failure."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "ftrun", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ftrun")
