"""The alert on a Redis that is away, over the states that a link to a dead one shows."""

import operator
from pathlib import Path

import promql_parser
import pytest
import yaml

from boundarymorph.caching.link import RedisLink
from boundarymorph.caching.redis import RedisScoreCache
from tests import metrics
from tests.clocks import Clock
from tests.contract.score_cache import MODEL, QUERY, SCORES, TEXTS
from tests.ports import free_port

ALERTS = Path(__file__).parents[2] / "deploy/prometheus/alerts.yaml"
COMPARISONS = {"==": operator.eq, ">=": operator.ge, ">": operator.gt}
SCRAPE = 15  # seconds


def is_true() -> bool:
    """Evaluate the alert's comparison on what this process shows."""
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    (rule,) = (rule for rule in rules if rule.get("alert") == "BoundaryMorphCacheAway")
    compared = promql_parser.parse(rule["expr"])
    assert isinstance(compared, promql_parser.BinaryExpr)
    assert isinstance(compared.lhs, promql_parser.AggregateExpr)
    assert isinstance(compared.rhs, promql_parser.NumberLiteral)
    assert isinstance(compared.lhs.expr, promql_parser.VectorSelector)
    name = compared.lhs.expr.name
    assert name is not None and str(compared.lhs.op) == "max"
    shown = max(metrics.sample(name, operation=operation) or 0.0 for operation in ("read", "write"))
    return bool(COMPARISONS[str(compared.op)](shown, compared.rhs.val))


@pytest.mark.strangers
@pytest.mark.parametrize("between", [15, 75, 10_000])
async def test_it_holds_for_as_long_as_redis_is_away(between: int) -> None:
    """However seldom Redis is asked. between: seconds from one request to the next."""
    clock = Clock()
    link = RedisLink(f"redis://127.0.0.1:{free_port()}", timeout=5, clock=clock)
    cache = RedisScoreCache(link)
    assert not is_true()
    for _ in range(5):
        await cache.read(MODEL, QUERY, TEXTS)
        await cache.write(MODEL, QUERY, dict(zip(TEXTS, SCORES, strict=False)))
    held = []
    for second in range(SCRAPE, 600, SCRAPE):
        clock.now += SCRAPE
        held.append(is_true())
        if second % between == 0:
            await cache.read(MODEL, QUERY, TEXTS)
    await link.close()
    assert all(held)
