"""The server's address and limits, without the packages that the server needs."""

import math
from dataclasses import dataclass

from llada_jax.config import require


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """The server's address and limits."""

    host: str = "127.0.0.1"
    port: int = 8000
    api_key: str | None = None
    places: int = 8
    """Maximum number of sequences that are decoded at a time."""
    queue: int = 64
    """Maximum number of sequences in the queue."""
    timeout: float = 300.0
    """Time limit of a request in seconds, the wait in the queue included."""
    max_body: int = 1 << 20
    """Maximum size of a request's body in bytes."""
    grace: int = 30
    """Seconds in which running requests may finish after SIGINT or SIGTERM."""

    def __post_init__(self) -> None:
        require(0 <= self.port < 1 << 16, f"port is {self.port}; allowed: 0 to {(1 << 16) - 1}")
        require(
            math.isfinite(self.timeout) and self.timeout > 0,
            f"timeout is {self.timeout}; allowed: above 0, and finite",
        )
