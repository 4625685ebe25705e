import pytest

pytest.register_assert_rewrite("boundarymorph_stores.testing")

from tests.retrieval.conftest import catalog as catalog  # noqa: E402
