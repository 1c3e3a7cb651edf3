"""What a loop may ask of a model that is lent to it, besides calling it."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from gpt import GPTConfig


class ShownTransformer(SimpleNamespace):
    """A model's `transformer`: called as model.transformer(inputs, position_ids)."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.hidden(*args, **kwargs)


class ShownModel:
    """A model as an attempt sees it: its configuration and copies of its embeddings.

    It is called like the model, model(inputs, position_ids), followed by a kv_cache if the model
    takes one.
    """

    training = False

    def __init__(self, config: GPTConfig, wte: Tensor, wpe: Tensor) -> None:
        self.config = config
        embeddings = (nn.Embedding.from_pretrained(weight.clone()) for weight in (wte, wpe))
        names = dict(zip(("wte", "wpe"), embeddings, strict=True))
        self.transformer = ShownTransformer(**names, h=range(config.n_layer), hidden=self.hidden)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def hidden(self, *args: Any, **kwargs: Any) -> Any:
        """The hidden states from which the logits are computed."""
        raise NotImplementedError

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self(*args, **kwargs)

    def eval(self) -> "ShownModel":
        return self

    def to(self, *device: Any, **named: Any) -> "ShownModel":
        return self

    def train(self, mode: bool = True) -> "ShownModel":
        return self

    def parameters(self) -> Iterator[Tensor]:
        yield from self.transformer.wte.parameters()
        yield from self.transformer.wpe.parameters()

    def embeddings(self) -> list[Tensor]:
        """What it shows of its weights."""
        return [self.transformer.wte.weight, self.transformer.wpe.weight]


class FarModel(ShownModel):
    """A model that computes on the other side, where its work is counted."""

    def __init__(self, far: Any, config: GPTConfig, embeddings: list[Tensor]) -> None:
        super().__init__(config, *embeddings)
        self.far_model = far

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.far_model(*args, **kwargs)

    def hidden(self, *args: Any, **kwargs: Any) -> Any:
        return self.far_model.hidden(*args, **kwargs)

    def watch(self, look: Callable[..., Any]) -> None:
        self.far_model.watch(look)
