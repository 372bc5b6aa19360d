import os

from hypothesis import settings

settings.register_profile("cavity", derandomize=True, deadline=None, max_examples=40, database=None)
# Many more cases, other ones every time: HYPOTHESIS_PROFILE=thorough.
settings.register_profile("thorough", settings.get_profile("cavity"), derandomize=False, max_examples=160)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "cavity"))
