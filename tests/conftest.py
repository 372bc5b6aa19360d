from hypothesis import settings

settings.register_profile("cavity", derandomize=True, deadline=None, max_examples=40, database=None)
settings.load_profile("cavity")
