"""The server's address and limits, without the packages that the server needs."""

from dataclasses import dataclass, field
from typing import Any

from llada_jax.config import require_counts, require_numbers


def _option(default: Any, about: str) -> Any:
    return field(default=default, metadata={"about": about})


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The server's address and limits. Each field is an option of `llada serve`."""

    host: str = _option("127.0.0.1", "address to listen on")
    port: int = _option(8000, "port to listen on")
    api_key: str | None = _option(None, "key that clients have to send, also in $LLADA_API_KEY")
    places: int = _option(8, "sequences that are decoded at a time")
    queue: int = _option(64, "sequences that may wait")
    timeout: float = _option(300.0, "seconds that a request may take, with its time in the queue")
    max_body: int = _option(1 << 20, "bytes that a request's body may have")
    grace: int = _option(30, "seconds in which running requests may finish after SIGINT or SIGTERM")

    def __post_init__(self) -> None:
        require_counts(self, "port", least=0, most=(1 << 16) - 1)
        require_counts(self, "places", "queue", "max_body")
        require_counts(self, "grace", least=0)
        require_numbers(self, "timeout", above=0)
