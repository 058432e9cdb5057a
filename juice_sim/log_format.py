"""Events as they stand in the durable log and in the event stream: the JSON of `core/codec.py`, as bytes."""

from __future__ import annotations

import msgspec

from .core import codec
from .core import events as ev

_encoder = msgspec.json.Encoder()
_TOKEN_MADE = b'{"event":"TokenCreated"'


def encode(event: ev.Event) -> bytes:
    """One event as a JSON object: `event` (the class's name), `at`, and its fields."""
    return _encoder.encode(codec.encode_event(event))


def decode(body: bytes | msgspec.Raw) -> ev.Event:
    """The event. Raises codec.CodecError or msgspec.DecodeError."""
    return codec.decode_event(msgspec.json.decode(body))


def stream_line(seq: int, body: bytes) -> bytes:
    """One line of `GET /v1/events`: `seq` and the event. Hashes of tokens stay inside."""
    if body.startswith(_TOKEN_MADE):
        fields = msgspec.json.decode(body)
        fields["token"].pop("secret_sha256", None)
        body = _encoder.encode(fields)
    return b'{"seq":%d,%s\n' % (seq, body[1:])
