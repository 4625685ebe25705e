"""Test Cohere's SDK with real services.

`make compatibility` tests all clients, each in its own environment.
"""

from collections.abc import Iterator

import pytest

from tests.compatibility import check, clients
from tests.compatibility.servers import servers


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[check.Servers]:
    with servers(tmp_path_factory.mktemp("compatibility"), embedded=False) as running:
        yield running


clients.cohere()


@pytest.mark.parametrize("case", check.CHECKS, ids=lambda case: f"{case.endpoint} {case.what}")
def test_cohere_sdk_reads_answers_of_a_service(running: check.Servers, case: check.Check) -> None:
    case.run(running)
