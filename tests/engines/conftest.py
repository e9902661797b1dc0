import pytest


@pytest.fixture(scope="package", autouse=True)
def cache(tmp_path_factory):
    """One cache of converted files for all tests here, and none of the user's."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CONTRASENT_CACHE", str(folder))
        yield folder
