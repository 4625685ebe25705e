from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.caching.servers import RedisServer
from tests.fakes.upstream import in_a_thread, well
from tests.fakes.wires import Ours, Server
from tests.faults.scenario import Role, check_nothing_lost, completes, fill, gateway
from tests.faults.table import Table
from tests.patience import until
from tests.ports import free_port
from tests.system.service import Service, retriever, scorer, service

StartGateway = Callable[..., AbstractContextManager[Service]]


@pytest.fixture(scope="session")
def table(request: pytest.FixtureRequest) -> Iterator[Table]:
    """Yield the table of faults, which must equal docs/monitoring.md once all tests have passed."""
    table = Table()
    yield table
    if is_whole(request.config, request.session):
        table.finish()


def is_whole(config: pytest.Config, session: pytest.Session) -> bool:
    """Return whether all tests of the package ran and passed."""
    chosen = config.option.keyword or config.option.markexpr or any("::" in argument for argument in config.args)
    files = {item.path for item in session.items}
    return not chosen and not session.testsfailed and files.issuperset(Path(__file__).parent.glob("test_*.py"))


@pytest.fixture(scope="package")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


# Fixtures repair what a test has broken, so that its failure does not make other tests fail.


@pytest.fixture(scope="package")
def _indexes(directory: Path) -> Iterator[Role]:
    port = free_port()
    role = Role(lambda ready: retriever(directory / "data", port=port, ready=ready))
    fill(role.service)
    yield role
    role.kill()


@pytest.fixture
def indexes(_indexes: Role) -> Iterator[Role]:
    """Yield the retriever with the index `tales`."""
    yield _indexes
    _indexes.repair()


@pytest.fixture(scope="package")
def _rogue() -> Iterator[Server]:
    with in_a_thread(Server(Ours())) as server:
        yield server


@pytest.fixture
def rogue(_rogue: Server) -> Iterator[Server]:
    """Yield the only scorer of `front`."""
    yield _rogue
    _rogue.behaviour, _rogue.script = well, []


@pytest.fixture
def another_gateway(tmp_path: Path, indexes: Role, rogue: Server) -> StartGateway:
    """Return a function that starts another gateway with the same retriever and scorer.

    Its options are those of `tests.system.service.service`.
    """
    urls = ("--retriever-url", indexes.service.url, "--scorer-url", rogue.endpoint().base)
    return partial(service, tmp_path / "data", *urls)


@pytest.fixture(scope="package")
def _front(directory: Path, _indexes: Role, _rogue: Server) -> Iterator[Role]:
    options = ("--retriever-url", _indexes.service.url, "--scorer-url", _rogue.endpoint().base)
    role = gateway(directory / "front", "[scorer]\nattempt_seconds = 4\nconnections = 16", *options)
    yield role
    role.kill()


@pytest.fixture
def front(_front: Role, indexes: Role, rogue: Server) -> Iterator[Service]:
    """Yield a gateway with the retriever `indexes` and a stand-in scorer.

    Both work before and after each test.
    """
    until(lambda: completes(_front.service))
    yield _front.service
    rogue.behaviour, rogue.script = well, []
    indexes.repair()
    check_nothing_lost(_front.service)
    assert "Traceback" not in _front.service.log


@dataclass(frozen=True, slots=True)
class Deployment:
    """A gateway in front of a retriever, two scorers with the embedded model, and Redis."""

    first: Role
    second: Role
    gateway: Role
    redis: RedisServer

    @property
    def calls(self) -> float:
        """Return the number of answered requests for scores, without those of killed scorers."""
        sample = 'boundarymorph_http_request_duration_seconds_count{method="POST",route="/score"'
        return sum(role.service.metric(sample) for role in (self.first, self.second))

    def repair(self) -> None:
        for part in (self.first, self.second, self.gateway, self.redis):
            part.repair()


@pytest.fixture(scope="package")
def _deployment(directory: Path, _indexes: Role) -> Iterator[Deployment]:
    folder = directory / "deployment"
    folder.mkdir()
    ports = [free_port() for _ in range(3)]
    with ExitStack() as stack:

        def role(start: Callable[[bool], AbstractContextManager[Service]]) -> Role:
            started = Role(start)
            stack.callback(started.kill)
            return started

        redis = RedisServer(directory / "redis")
        stack.callback(redis.kill)
        (folder / "boundarymorph.toml").write_text(
            f'[cache]\nurl = "{redis.url}"\ntimeout_seconds = 0.5\n[scorer]\nattempt_seconds = 1'
        )
        first = role(lambda ready: scorer(folder / "first.log", port=ports[0], ready=ready))
        second = role(lambda ready: scorer(folder / "second.log", port=ports[1], ready=ready))
        options = ["--retriever-url", _indexes.service.url]
        options += ["--scorer-url", first.service.url, "--scorer-url", second.service.url]
        front = role(lambda ready: service(folder / "gateway", *options, port=ports[2], ready=ready))
        yield Deployment(first, second, front, redis)


@pytest.fixture
def deployment(_deployment: Deployment, indexes: Role) -> Iterator[Deployment]:
    """Yield the deployment, in which everything works before and after each test."""
    until(lambda: completes(_deployment.gateway.service))
    yield _deployment
    _deployment.repair()
    check_nothing_lost(_deployment.gateway.service)
    assert "Traceback" not in _deployment.gateway.service.log
