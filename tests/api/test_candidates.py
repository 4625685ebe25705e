"""What a request's search asks of an index."""

from typing import Any

import pytest

from boundarymorph.api.select_schemas import SelectRequest
from boundarymorph.api.translate import FEW_CALLS, candidates_of
from boundarymorph.retrieval.document import IndexedCandidates
from boundarymorph.settings import Settings


@pytest.mark.parametrize(
    ("asked", "enough"),
    [
        ({"budget": FEW_CALLS}, True),
        ({"budget": 0}, True),
        ({"budget": FEW_CALLS + 1}, False),
        ({"budget": "auto"}, False),
        ({"budget": 20, "method": "trend"}, True),
        ({"budget": 20, "method": "boundarymorph"}, False),
        ({"budget": 20, "diversity": 0.5}, False),
        ({"budget": 20, "query": None, "queries": ["tram", "bus"]}, False),  # which compare whole vectors
    ],
)
def test_the_main_directions_are_enough_for_few_calls_of_the_default(asked: dict[str, Any], enough: bool) -> None:
    request = SelectRequest.model_validate({"query": "tram", "index": "notes", "k": 10} | asked)
    candidates = candidates_of(request, "tram", Settings())(None)  # type: ignore[arg-type]
    assert isinstance(candidates, IndexedCandidates)
    assert candidates.search.directions is enough
