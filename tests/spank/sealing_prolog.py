"""A PrologSlurmctld for the tests of the plugin: seals session files with PyNaCl, and spoils them on request.

`{directory}` is replaced by the fixture. What it does depends on the first word of the pool's name: `deny`, `nofile`,
`empty`, `nul`, `cut`, `wrongkey`, `foreign` (another job's), `symlink`, `stale` (always of the first start), `owner`
(somebody else's), `late` (0.7 s after the prolog); anything else is granted. The environment is kept in `seen/`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from nacl.bindings import crypto_aead_xchacha20poly1305_ietf_encrypt as encrypt

DIRECTORY = Path("{directory}")
MAGIC = b"JUICESF\x01"


def seal(fields: dict[str, str], key: bytes, job_id: int, user_id: int, cluster: str) -> bytes:
    name = cluster.encode()
    bound = MAGIC + bytes([len(name)]) + name + job_id.to_bytes(8, "big") + user_id.to_bytes(8, "big")
    nonce = os.urandom(24)
    plain = b"".join(f"{name}={value}".encode() + b"\0" for name, value in fields.items())
    return MAGIC + nonce + encrypt(plain, bound, nonce, key)


def main() -> None:
    env = {name: value for name, value in os.environb.items()}
    text = {name.decode(): value.decode("utf-8", "surrogateescape") for name, value in env.items()}
    job_id, user_id = int(text["SLURM_JOB_ID"]), int(text["SLURM_JOB_UID"])
    (DIRECTORY / "seen" / f"{job_id}.json").write_text(json.dumps(text))
    # A job of this name gets a session without having asked: as if its user had bypassed the plugin.
    pool = text.get("SPANK_JUICE_POOL", "bypass" if text["SLURM_JOB_NAME"] == "bypass" else None)
    if pool is None:
        return
    count = int(text.get("SPANK_JUICE_GPU_COUNT", "1"))
    vram = text.get("SPANK_JUICE_VRAM", "24146608128")
    restarts = int(text.get("SLURM_JOB_RESTART_COUNT", "0"))
    how = pool.split("-")[0]
    head = {"restart_count": "0" if how == "stale" else str(restarts), "sealed_at": "1700000000"}
    fields = {
        "verdict": "granted",
        **head,
        "session_id": f"session-{job_id}",
        "pool": pool,
        "pool_id": "11111111-2222-3333-4444-555555555555",
        "address": "10.1.2.3:43210",
        "gpu_indexes": ",".join(str(index + 3) for index in range(count)),
        "gpu_names": ",".join(["NVIDIA A10"] * count),
        "vram_bytes": ",".join([vram] * count),
        "config": json.dumps({"id": f"session-{job_id}", "servers": ["10.1.2.3:43210"], "accessToken": ""}),
    }
    if how == "deny":
        fields = {"verdict": "denied", **head, "reason": "unknown pool “x”; known: test\nsecond line\x1b[2J"}
    key = (DIRECTORY / "session.key").read_bytes()
    data = seal(
        fields,
        bytes(32) if how == "wrongkey" else key,
        job_id + (how == "foreign"),
        user_id,
        text["SLURM_CLUSTER_NAME"],
    )
    data = {"empty": b"", "nul": bytes(len(data)), "cut": data[:40]}.get(how, data)
    path = DIRECTORY / "state" / "sessions" / f"{job_id}.session"
    path.unlink(missing_ok=True)
    if how == "nofile":
        return
    new = path.with_name(f".{job_id}.new")
    new.write_bytes(data)
    new.chmod(0o644)
    if how == "late":
        # In a session of its own and without our descriptors: slurmctld would wait for it.
        move = ["sh", "-c", 'sleep 0.7; mv "$1" "$2"', "sh", str(new), str(path)]
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        subprocess.Popen(move, start_new_session=True, env={"PATH": "/usr/bin:/bin"}, **streams)
        return
    if how == "symlink":
        path.symlink_to(new)
        return
    if how == "owner":
        os.chown(new, 12345, 12345)
    new.rename(path)


if __name__ == "__main__":
    sys.exit(main())
