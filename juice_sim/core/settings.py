"""What a controller can be set to. One frozen dataclass; times in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SKIP = "skip"
STRICT_FIFO = "strict_fifo"


@dataclass(frozen=True)
class Settings:
    """Settings of one controller.

    `missing_after_s` and `removed_after_s` are the real controller's: silent for 30 s, then 5 more minutes.
    `history_s` is how long closed sessions (with their idempotency keys) and removed agents are remembered.
    `policies` and `queue_policies` map a pool, by id or by name, to a placement policy (`placement.POLICIES`) and to
    a queue policy: `skip` lets a session that fits pass those that do not, `strict_fifo` lets nobody pass.
    `granted_percent` is the share of the VRAM asked for that is enough when no GPU has all of it.
    `story_events` bounds the history that is kept in memory for each session; 0 keeps none.
    """

    missing_after_s: float = 30.0
    removed_after_s: float = 300.0
    history_s: float = 7 * 86400.0
    max_token_lifetime_s: float = 365 * 86400.0
    default_policy: str = "first_fit"
    policies: Mapping[str, str] = field(default_factory=dict)
    default_queue_policy: str = SKIP
    queue_policies: Mapping[str, str] = field(default_factory=dict)
    granted_percent: int = 93
    story_events: int = 64

    def __post_init__(self) -> None:
        for name in (self.default_queue_policy, *self.queue_policies.values()):
            if name not in (SKIP, STRICT_FIFO):
                raise ValueError(f"queue policy {name!r} is unknown; accepted: {SKIP}, {STRICT_FIFO}")
        for field_name in ("missing_after_s", "removed_after_s", "history_s", "max_token_lifetime_s"):
            value = getattr(self, field_name)
            if not 0 < value < float("inf"):
                raise ValueError(f"{field_name} is {value!r}; accepted: a positive number of seconds")
        if not 1 <= self.granted_percent <= 100:
            raise ValueError(f"granted_percent is {self.granted_percent!r}; accepted: 1 to 100")
        if self.story_events < 0:
            raise ValueError(f"story_events is {self.story_events!r}; accepted: 0 or more")
