"""The drafter interface: what proposes the tokens after the last certain one.

That token, the anchor, has not been fed to the model yet. The next forward feeds it and the drafts
as causal rows, so that the row of each token verifies the next one (`drafting.py`). The output is
the same as if tokens were decoded one by one, whatever a drafter proposes; good drafts save
forwards.
"""

from typing import Any, NamedTuple, dataclass_transform

from jaxtyping import Array, Int

from llada_jax.sampler.policy import Policy, make_policy
from llada_jax.sampler.rules.rule import Sizes
from llada_jax.types import Params, Rows, RowsOut


class DraftView(NamedTuple):
    """What a drafter sees of the canvases, before a forward."""

    tokens: Int[Array, "B L"]  # the prompt and the answer up to the anchor; then anything
    anchor: Int[Array, " B"]  # position of the last certain token
    memory: Any = ()  # what `observe` returned last


class Drafter(Policy):
    """Proposes the tokens after each sequence's last certain one. JAX traces its functions."""

    def params_read(self, params: Params) -> Any:
        """Returns the part of the parameters that `observe` and `draft` read, in a form that both
        can read like all of them. The host loop passes it to each of its programs, and to pass the
        480 arrays of SmolLM2 in int8 takes about 0.4 ms."""
        return params

    def init(self, params: Params, sizes: Sizes) -> Any:
        """Returns the memory before the first forward: arrays with the batch as first axis."""
        return ()

    def observe(self, params: Params, memory: Any, rows: Rows, out: RowsOut) -> Any:
        """Returns the memory after a forward. Of its rows, those before the next anchor stay."""
        return memory

    def draft(self, params: Params, view: DraftView, count: int) -> Int[Array, "B count"]:
        """Returns up to `count` tokens after each anchor; the first negative one ends them.

        Args:
          params: The model's parameters.
        """
        raise NotImplementedError


@dataclass_transform(kw_only_default=True, frozen_default=True)
def drafter(cls: Any = None, *, name: str | None = None) -> Any:
    """Makes a class with a function `draft` a drafter: a frozen dataclass.

    Args:
      cls: The class, if the decorator is used without parentheses.
      name: How configurations spell it; by default `module:Class`, which can be imported.

    Raises:
      TypeError: The class has no function `draft`.
    """
    if cls is None:
        return lambda decorated: drafter(decorated, name=name)
    if not callable(getattr(cls, "draft", None)):
        raise TypeError(
            f"drafter {cls.__name__} has no draft; allowed: draft(self, params, view, count)"
        )
    return make_policy(cls, Drafter, name)
