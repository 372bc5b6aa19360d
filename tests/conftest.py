import os
import signal

from hypothesis import settings

settings.register_profile("cavity", derandomize=True, deadline=None, max_examples=40, database=None)
# Many more cases, other ones every time: HYPOTHESIS_PROFILE=thorough.
settings.register_profile("thorough", settings.get_profile("cavity"), derandomize=False, max_examples=160)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "cavity"))

# A shell without job control starts background processes with Ctrl-C ignored, and they hand that on to their own.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
