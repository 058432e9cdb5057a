"""Writes session_file.json beside itself: whole session files and what a reader must make of each.

Run it after a change of the format only: `python tests/vectors/make_session_file.py`. It writes the files with PyNaCl
directly, not with the hook's own code, so that a fault of the hook cannot hide in its own vectors.

Each case: `name`; `file` (base64 of the whole file; for `repeat` cases a short `file` is repeated that often); the
reader's side `key` (hex), `cluster`, `job_id`, `uid`; and either `fields` (what a reader gets) or `error`, one of
empty, null, oversize, magic, version, truncated, sealed, malformed.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from nacl.bindings import crypto_aead_xchacha20poly1305_ietf_encrypt as encrypt

KEY = bytes(range(32))
NONCE = bytes(range(100, 124))
CLUSTER, JOB, UID = "juicesim", 4242, 1000
MAGIC = b"JUICESF\x01"

CONFIG = (
    '{"id":"7d3c1f0a-5b6e-4c8d-9e2f-0123456789ab","servers":["10.1.2.3:43210"],"accessToken":"",'
    '"requirements":{"poolId":"11111111-2222-3333-4444-555555555555","gpus":[{"vramRequired":1073741824}]}}'
)
GRANTED = {
    "verdict": "granted",
    "restart_count": "2",
    "sealed_at": "1700000000",
    "session_id": "7d3c1f0a-5b6e-4c8d-9e2f-0123456789ab",
    "pool": "test",
    "pool_id": "11111111-2222-3333-4444-555555555555",
    "address": "10.1.2.3:43210",
    "gpu_indexes": "1",
    "gpu_names": "NVIDIA A10",
    "vram_bytes": "1073741824",
    "config": CONFIG,
}
DENIED = {
    "verdict": "denied",
    "restart_count": "0",
    "sealed_at": "1700000000",
    "reason": 'unknown pool "tset"; known: test, big',
}


def associated_data(cluster: str = CLUSTER, job_id: int = JOB, uid: int = UID) -> bytes:
    """What binds a file to one job: see docs/contracts.md, section 3."""
    name = cluster.encode()
    return MAGIC + bytes([len(name)]) + name + job_id.to_bytes(8, "big") + uid.to_bytes(8, "big")


def plaintext(fields: dict[str, str]) -> bytes:
    """The records, each ended by a NUL byte."""
    return b"".join(f"{name}={value}".encode() + b"\0" for name, value in fields.items())


def sealed(plain: bytes, **bound: Any) -> bytes:
    """A whole file."""
    return MAGIC + NONCE + encrypt(plain, associated_data(**bound), NONCE, KEY)


def cases() -> list[dict[str, Any]]:
    """All vectors, in the order in which the readers check."""
    found: list[dict[str, Any]] = []

    def add(name: str, file: bytes, expected: dict[str, str] | str, repeat: int = 1, **reader: Any) -> None:
        case: dict[str, Any] = {"name": name, "file": base64.b64encode(file).decode(), "repeat": repeat}
        case.update(key=KEY.hex(), cluster=CLUSTER, job_id=JOB, uid=UID)
        case.update(reader)
        case["error" if isinstance(expected, str) else "fields"] = expected
        found.append(case)

    good = sealed(plaintext(GRANTED))
    two = dict(GRANTED, gpu_indexes="0,3", gpu_names="NVIDIA A10,NVIDIA A10", vram_bytes="24146608128,24146608128")
    utf8 = dict(GRANTED, pool="d\u00e9d\u00e9 \u6c60", gpu_names="Gr\u00e4fik 1")
    add("granted", good, GRANTED)
    add("granted, two GPUs", sealed(plaintext(two)), two)
    add("granted, UTF-8 names", sealed(plaintext(utf8)), utf8)
    add("granted, a value with '=' in it", sealed(plaintext(dict(GRANTED, pool="a=b=c"))), dict(GRANTED, pool="a=b=c"))
    add("granted, empty GPU names", sealed(plaintext(dict(GRANTED, gpu_names=""))), dict(GRANTED, gpu_names=""))
    add(
        "granted, with a record of a later version",
        sealed(plaintext(dict(GRANTED, later="x"))),
        dict(GRANTED, later="x"),
    )
    add("denied", sealed(plaintext(DENIED)), DENIED)
    add("denied, UTF-8 reason", sealed(plaintext(dict(DENIED, reason="pool \u201ed\u00e9d\u00e9\u201c"))),
        dict(DENIED, reason="pool \u201ed\u00e9d\u00e9\u201c"))  # fmt: skip
    add("no cluster name", sealed(plaintext(DENIED), cluster=""), DENIED, cluster="")
    long_name = "c" * 255
    add("cluster name of 255 bytes", sealed(plaintext(DENIED), cluster=long_name), DENIED, cluster=long_name)
    add("largest numbers", sealed(plaintext(DENIED), job_id=2**63 - 1, uid=2**32 - 2), DENIED,
        job_id=2**63 - 1, uid=2**32 - 2)  # fmt: skip

    add("empty", b"", "empty")
    add("one NUL byte", b"\0", "null")
    add("all NUL, as long as a good one", b"\0" * len(good), "null")
    add("one byte too long", good[:32] + b"x", "oversize", repeat=1986)
    add("bad magic", b"X" + good[1:], "magic")
    add("text", b"verdict=granted\0session_id=1\0and so on, in the clear, for long enough\0", "magic")
    add("version 2", MAGIC[:7] + b"\x02" + good[8:], "version")
    add("version 0", MAGIC[:7] + b"\x00" + good[8:], "version")
    add("cut within the magic", good[:5], "truncated")
    add("cut after the magic", good[:8], "truncated")
    add("cut within the nonce", good[:20], "truncated")
    add("cut within the tag of nothing", good[:47], "truncated")
    add("nothing but nonce and 16 bytes", good[:48], "sealed")
    add("cut by one byte", good[:-1], "sealed")
    add("cut in half", good[: len(good) // 2], "sealed")
    add("second half NUL", good[: len(good) // 2] + b"\0" * (len(good) - len(good) // 2), "sealed")
    add("one byte appended", good + b"\0", "sealed")
    add("one bit flipped in the text", good[:40] + bytes([good[40] ^ 1]) + good[41:], "sealed")
    add("one bit flipped in the tag", good[:-1] + bytes([good[-1] ^ 0x80]), "sealed")
    add("one bit flipped in the nonce", good[:8] + bytes([good[8] ^ 1]) + good[9:], "sealed")
    add("wrong key", good, "sealed", key=bytes(32).hex())
    add("wrong job", good, "sealed", job_id=JOB + 1)
    add("wrong job, 2^32 further", good, "sealed", job_id=JOB + 2**32)
    add("wrong user", good, "sealed", uid=UID + 1)
    add("root", good, "sealed", uid=0)
    add("wrong cluster", good, "sealed", cluster="juicesin")
    add("no cluster given", good, "sealed", cluster="")

    add("no records", sealed(b""), "malformed")
    add("one NUL for a record", sealed(b"\0"), "malformed")
    add("last record without its NUL", sealed(plaintext(GRANTED)[:-1]), "malformed")
    add("record without '='", sealed(plaintext(DENIED) + b"nonsense\0"), "malformed")
    add("unknown verdict", sealed(plaintext(dict(DENIED, verdict="maybe"))), "malformed")
    add("no verdict", sealed(plaintext({k: v for k, v in GRANTED.items() if k != "verdict"})), "malformed")
    add("denied without a reason", sealed(plaintext({k: v for k, v in DENIED.items() if k != "reason"})), "malformed")
    for name in GRANTED:
        if name != "verdict":
            add(
                f"granted without {name}",
                sealed(plaintext({k: v for k, v in GRANTED.items() if k != name})),
                "malformed",
            )
    return found


if __name__ == "__main__":
    target = Path(__file__).with_name("session_file.json")
    target.write_text(json.dumps(cases(), indent=1, ensure_ascii=True) + "\n")
    print(f"{target.name}: {len(cases())} cases")
