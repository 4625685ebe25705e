"""Run `boundarymorph serve | scorer | retriever`, the servers."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from boundarymorph.cli.common import DataDirectory, Host, LogLevel, Stores, command_of, option, stores_of
from boundarymorph.scoring.rerankers import RERANKERS
from boundarymorph.settings import Settings

if TYPE_CHECKING:
    from boundarymorph.server.process import AppFactory

SCORER_PORT, RETRIEVER_PORT = 8081, 8082  # different ports, so that all servers can run on one machine
IndexStore = Annotated[str | None, option("Name of the --store in which indexes are made.", default="this machine")]


@dataclass(frozen=True, kw_only=True)
class RetrieverOptions:
    host: Host = None
    port: Annotated[int | None, option("Port to listen on.", default="8082")] = None
    data_directory: DataDirectory = None
    store: Stores = None
    index_store: IndexStore = None
    log_level: LogLevel = None


@dataclass(frozen=True, kw_only=True)
class ServiceOptions(RetrieverOptions):
    port: Annotated[int | None, option("Port to listen on.", default="8080")] = None
    scorer: Annotated[
        str | None,
        option(
            f"The cross-encoder in this process: {', '.join(RERANKERS)}, or the Hugging Face name or folder of "
            "another.",
            default="the embedded one",
        ),
    ] = None
    scorer_url: Annotated[
        list[str] | None,
        option(
            "URL of a remote cross-encoder: http:// for `boundarymorph scorer`, tei://, vllm://, infinity://, "
            "llamacpp://, cohere://, jina://, voyage://, systemone:// or decisions://, if needed with ?model=NAME, or "
            "?activation=sigmoid for logits; repeatable for replicas of one model.",
            default="the embedded one",
        ),
    ] = None
    retriever_url: Annotated[
        list[str] | None,
        option(
            "URL of a remote retriever: http:// for `boundarymorph retriever`; repeatable for several with the "
            "same documents.",
            default="this machine",
        ),
    ] = None


@command_of(ServiceOptions)
def serve(options: ServiceOptions) -> None:
    """Run the service in one process, or as a gateway to scorers and retrievers."""
    from boundarymorph.server.app import create_app

    given = asdict(options)
    scorer = {"model": given.pop("scorer"), "url": tuple(given.pop("scorer_url") or ())}
    _run(
        create_app,
        "boundarymorph",
        scorer={name: value for name, value in scorer.items() if value} or None,
        retriever={"url": tuple(urls)} if (urls := given.pop("retriever_url")) else None,
        stores=stores_of(given.pop("store")),
        **given,
    )


def _run(factory: AppFactory, name: str, default_port: int | None = None, **given: Any) -> NoReturn:
    """Serve an application with the settings that are not None, and exit."""
    from boundarymorph.server import process

    settings = Settings.load(**given)
    if default_port is not None and "port" not in settings.model_fields_set:
        settings = settings.model_copy(update={"port": default_port})
    raise typer.Exit(process.serve(factory, settings, name))


@dataclass(frozen=True, kw_only=True)
class ScorerOptions:
    model: Annotated[str | None, option("Hugging Face name, short name or folder.", default="the embedded one")] = None
    revision: Annotated[str | None, option("Commit, branch, or tag of --model.", default="its main branch")] = None
    host: Host = None
    port: Annotated[int | None, option("Port to listen on.", default="8081")] = None
    precision: Annotated[str | None, option("fp32, bf16 or fp16.", default="bf16 on a GPU, else fp32")] = None
    device: Annotated[str | None, option("cpu, cuda or cuda:N.", default="cuda if there is one")] = None
    max_length: Annotated[int | None, option("Most tokens of a pair.", default="the model's own")] = None
    prompt: Annotated[str | None, option("Prompt template of a causal reranker, if its name does not imply one.")] = (
        None
    )
    instruction: Annotated[str | None, option("Instruction by which a causal reranker judges.")] = None
    batch_tokens: Annotated[int | None, option("Tokens per batch.", default="by the device")] = None
    log_level: LogLevel = None


@command_of(ScorerOptions)
def scorer(options: ScorerOptions) -> None:
    """Serve one cross-encoder over HTTP, for `serve --scorer-url`."""
    from boundarymorph.server.app import create_scorer_app

    given = {name: value for name, value in asdict(options).items() if value is not None}
    of_process = {name: given.pop(name) for name in ("host", "port", "log_level") if name in given}
    _run(create_scorer_app, "boundarymorph-scorer", SCORER_PORT, **of_process, scorer=given or None)


@command_of(RetrieverOptions)
def retriever(options: RetrieverOptions) -> None:
    """Serve the indexes of this machine and in stores over HTTP, for `serve --retriever-url`."""
    from boundarymorph.server.app import create_retriever_app

    given = asdict(options)
    stores = stores_of(given.pop("store"))
    _run(create_retriever_app, "boundarymorph-retriever", RETRIEVER_PORT, stores=stores, **given)
