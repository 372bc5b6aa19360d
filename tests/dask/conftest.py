import dask
import pytest


@pytest.fixture(autouse=True)
def _in_one_thread():
    """Dask's own threads are of no use to tests of one core."""
    with dask.config.set(scheduler="sync"):
        yield
