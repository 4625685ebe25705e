"""Loading the body of a transformer, which turns batches of sequences into pooled states."""

from __future__ import annotations

from torch import nn
from transformers import AutoModel

from boundarymorph.errors import InvalidConfiguration
from boundarymorph.inference.transformer.architecture import make_bidirectional, padding_token
from boundarymorph.inference.transformer.device import Placement
from boundarymorph.inference.transformer.forward import Headed, PooledBody, Pooling
from boundarymorph.inference.transformer.repository import Repository

_ACTIVATIONS: dict[str, type[nn.Module]] = {kind.__name__: kind for kind in (nn.Identity, nn.Tanh, nn.ReLU, nn.GELU)}
_INPUT = "sentence_embedding"


def open_dense(repository: Repository, folders: tuple[str, ...], width: int) -> tuple[nn.Sequential, int]:
    """Load the layers of these folders in sequence, in float32, for (n, width) states; returns their output width too.

    Raises ModelUnavailable if files are missing, InvalidConfiguration for an unsupported layer.
    """
    layers = nn.Sequential()
    for folder in folders:
        linear, activation = _layer(repository, folder)
        if linear.in_features != width:
            raise InvalidConfiguration(
                f"{folder} of {repository.location} reads {linear.in_features} dimensions, but gets {width}"
            )
        layers.extend([linear, activation])
        width = linear.out_features
    return layers.eval(), width


def _layer(repository: Repository, folder: str) -> tuple[nn.Linear, nn.Module]:
    config = repository.read_json(f"{folder}/config.json") or {}
    activation = str(config.get("activation_function")).rpartition(".")[2]
    elsewhere = {config.get(name) or _INPUT for name in ("module_input_name", "module_output_name")} != {_INPUT}
    if activation not in _ACTIVATIONS or elsewhere or config.get("use_residual"):
        raise InvalidConfiguration(f"{folder} of {repository.location} is a layer of an unsupported kind")
    weights = repository.weights(f"{folder}/model.safetensors")
    weight, bias = weights.get("linear.weight"), weights.get("linear.bias")
    if weight is None or (bias is None) == bool(config.get("bias", True)):
        raise InvalidConfiguration(f"the weights in {folder} of {repository.location} do not match its layer")
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    linear.weight = nn.Parameter(weight.float(), requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias.float(), requires_grad=False)
    return linear, _ACTIVATIONS[activation]()


def open_body(
    repository: Repository, *, pooling: Pooling, dense: tuple[str, ...], placement: Placement
) -> tuple[Headed, int]:
    """Load the body of a model; returns the width of its results too. dense: folders of the layers after the pooling.

    Raises what `Repository` raises.
    """
    model = repository.open(AutoModel, dtype=placement.weight_type, spare=("pooler.",))
    if getattr(model, "pooler", None) is not None:
        model.register_module("pooler", None)  # its output is not used here
    make_bidirectional(model)
    model.to(device=placement.device)  # type: ignore[call-arg]
    layers, width = open_dense(repository, dense, int(model.config.hidden_size))
    return Headed(PooledBody(model, pooling, padding_token(repository)), layers.to(placement.device)), width
