"""For all tests."""

from hypothesis import settings

# How long an example takes says more about the machine than about us.
settings.register_profile("calm", deadline=None)
settings.load_profile("calm")
