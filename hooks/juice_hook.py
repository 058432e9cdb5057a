#!/usr/bin/python3
"""Juice for Slurm: what juice-prolog.sh and juice-epilog.sh do for a job that asked for GPUs.

The contract, in plain words
----------------------------
- Slurm runs the prolog (PrologSlurmctld) before a job starts, and the epilog (EpilogSlurmctld) after it has ended and
  after each prolog that failed. It may kill either at any instant, and after a crash of slurmctld it may run the prolog
  of one job twice, even side by side. A killed hook cleans up nothing: what it leaves must be found by the next one.
- The prolog asks the Juice controller for a session. It exits 0 when the session is active and the session file lies in
  the state directory. It exits 1 when Slurm should try the job again later. When the request can never succeed, it
  writes a session file that holds a denial and exits 0: the plugin on the node then fails the job with that reason.
  (Slurm requeues a job whose prolog fails for ever, so a hopeless request must not be an exit 1.)
- Before the prolog asks, it records durably in the journal what it is about to ask, under an idempotency key that is
  used for nothing else. The epilog releases what the journal names; `reconcile` does so when the epilog could not.
  An entry leaves the journal only when the controller has confirmed that its session is gone, or never was.
- The newest attempt in a job's journal owns the job's session file. Hooks agree on that under a lock that no one holds
  while talking to the controller.
- What a user controls (SPANK_* variables) is never trusted. No secret goes into a log, argv or an environment.

How to read this file
---------------------
prolog(), epilog() and reconcile() do nothing themselves: they are generators that yield effects (send this, write that)
and are sent the results. The class Machine, near the end, carries the effects out. A test or a simulation may do so in
another way, and may stop between any two.

Python 3.6 or later, its standard library, and libsodium (the system's library, or the one inside PyNaCl).
"""

import _socket as socket  # what the module socket is made of; that one loads enum, which costs more than all the rest
import errno
import fcntl
import os
import stat
import sys
import time

MAX_GPUS = 64
MAX_REQUEST = 4095  # the open-source controller reads head and body at once, and at most 4,096 bytes
MAX_SESSION_FILE = 65536
FRESH = 3600.0  # seconds: an unfinished attempt older than this belongs to an earlier job of the same id
GRACE = 300.0  # seconds: reconcile leaves younger things alone, for Slurm's list of jobs may be older than they are
WISHES = ("POOL", "GPU_COUNT", "VRAM", "VRAM_STRICT", "MATCH_LABELS", "TOLERATES")
HEX = frozenset("0123456789abcdefABCDEF")
WORD = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


class Denied(Exception):
    """The request can never succeed; the text is for the job's user."""


class TryLater(Exception):
    """Not now: Slurm should requeue the job."""


class SiteFault(Exception):
    """Something that only the site can mend; the text names the remedy."""


# --- Text ---------------------------------------------------------------------------------------------------------


def one_line(text, limit=500):
    """`text` on one line: control characters, line breaks, bidi marks and stray bytes escaped, cut at `limit`."""
    text = str(text)
    if not text.isprintable():
        text = "".join(c if c.isprintable() else escaped(ord(c)) for c in text[: limit + 1])
    return text if len(text) <= limit else text[: limit - 3] + "..."


def escaped(code):
    """One character as an escape; 0xdc80 to 0xdcff stand for bytes that were not UTF-8."""
    if 0xDC80 <= code <= 0xDCFF:
        return "\\x%02x" % (code - 0xDC00)
    return "\\x%02x" % code if code < 256 else "\\u%04x" % code


def quoted(value):
    return '"%s"' % one_line(value, 80).replace('"', '\\"')


def whole_number(text, least, most):
    """`text` as int; ValueError unless it is the one decimal way to write a number from `least` to `most`."""
    if not text or len(text) > 19 or any(c not in "0123456789" for c in text) or text != str(int(text)):
        raise ValueError("%s is not a whole number" % quoted(text))
    if not least <= int(text) <= most:
        raise ValueError("%s is not between %d and %d" % (text, least, most))
    return int(text)


# Neither re nor json (which needs re) is loaded: together they cost as much as starting Python.


def is_label(text):
    """A letter or digit, then also any of `._/-`; ASCII."""
    return text[:1] in WORD and WORD.union("._/-").issuperset(text)


def is_selector(text):
    return WORD.union("._/=!,() -").issuperset(text)


def is_uuid(text):
    return [len(part) for part in text.split("-")] == [8, 4, 4, 4, 12] and HEX.issuperset(text.replace("-", ""))


def without_ids(text):
    """`text` with no more than the first eight digits of each UUID: whoever knows the id of a session can use it."""
    parts, start, at = [], 0, text.find("-")
    while at >= 0:
        end = at + 1
        is_start = at - 8 >= start and HEX.issuperset(text[at - 8 : at] + text[at + 1 : at + 5])
        if is_start and text[at + 5 : at + 6] == "-":
            while end < len(text) and (text[end] in HEX or text[end] == "-"):
                end += 1
            if end - at - 6 >= 22:
                parts.append(text[start:at] + "-...")
                start = end
            else:
                end = at + 1
        at = text.find("-", end)
    return "".join(parts) + text[start:]


class ScannerSettings:
    """How json.loads() sets its scanner."""

    strict, object_hook, object_pairs_hook = True, None, None
    parse_float, parse_int, parse_constant = float, int, float


def parse_json(text):
    """json.loads(text), by the scanner in C that is below it. ValueError; RecursionError when nested too deeply."""
    try:
        from _json import make_scanner
    except ImportError:  # a Python without its accelerators
        import json

        return json.loads(text)
    text = text.strip(" \t\r\n")
    try:
        value, end = make_scanner(ScannerSettings)(text, 0)
    except StopIteration:
        raise ValueError("not JSON")
    if end != len(text):
        raise ValueError("more follows the JSON value")
    return value


def json_text(value, compact=True, sort=True):
    """json.dumps(value), by the encoder in C that is below it."""
    try:
        from _json import encode_basestring_ascii, make_encoder
    except ImportError:
        import json

        return json.dumps(value, sort_keys=sort, separators=(",", ":") if compact else None)
    between, after = (",", ":") if compact else (", ", ": ")
    encode = make_encoder({}, None, encode_basestring_ascii, None, after, between, sort, False, True)
    return "".join(encode(value, 0))


def label_pairs(text):
    """`k=v,k2=v2` as a dictionary, or None when it is anything else."""
    pairs = {}
    for part in text.split(",") if len(text) <= 1024 else ("",):
        key, mark, value = part.partition("=")
        if not mark or not is_label(key) or (value and not is_label(value)) or key in pairs:
            return None
        pairs[key] = value
    return pairs


def os_error_text(error):
    """An error with its errno's name, so that the log tells what the system said."""
    if not isinstance(error, OSError) or error.errno is None:
        return str(error)
    where = " (%s)" % error.filename if isinstance(error.filename, str) else ""
    return "%s: %s%s" % (errno.errorcode.get(error.errno, error.errno), error.strerror, where)


# --- The settings and the job -------------------------------------------------------------------------------------


class Settings:
    """What juice-config.sh sets. `problems` lists what is wrong with it, each with its remedy."""

    def __init__(self, values):
        """`values`: mapping of JUICE_* names to text, as the wrappers pass them."""

        def text(name, default=""):
            return values.get("JUICE_" + name) or default

        self.problems = []
        self.controller = text("CONTROLLER")
        self.token_file = text("TOKEN_FILE")
        self.state_dir = text("STATE_DIR", "/opt/juice/.data")
        self.key_file = text("KEY_FILE", "/etc/juice/session.key")
        self.ca_file = text("CA_FILE")
        self.cluster = text("CLUSTER")
        self.log = text("LOG", os.path.join(self.state_dir, "hooks.log"))
        self.allow_http = text("ALLOW_HTTP", "0") == "1"
        self.config_file = text("CONFIG")
        self.pools = {}
        for pair in text("POOLS").split():
            name, _, pool_id = pair.rpartition("=")
            if not name or not is_uuid(pool_id):
                self.problems.append(
                    "JUICE_POOLS: %s is not name=uuid; write JUICE_POOLS='NAME=UUID ...'" % quoted(pair)
                )
            self.pools[name] = pool_id.lower()
        try:
            self.wait = float(text("WAIT", "20"))
        except ValueError:
            self.wait = 0.0
        if not 1 <= self.wait <= 3600:
            self.problems.append("JUICE_WAIT is %s; accepted are seconds from 1 to 3600" % quoted(text("WAIT")))
        try:
            self.tls, self.host, self.port, self.path = split_url(self.controller)
        except ValueError as error:
            self.problems.append("JUICE_CONTROLLER: %s; set it to the controller's https:// address" % error)


def split_url(url):
    """`(tls, host, port, path prefix)` of a base URL. ValueError says what is wrong with it."""
    scheme, mark, rest = url.partition("://")
    if not mark or scheme not in ("http", "https"):
        raise ValueError("%s does not begin with https:// or http://" % quoted(url) if url else "it is not set")
    authority, slash, path = rest.partition("/")
    if any(c <= " " or c > "~" or c in "?#@" for c in rest):
        raise ValueError("user names, queries, blanks and characters beyond ASCII are not accepted in it")
    host, mark, port = authority.rpartition(":")
    if not mark or port.endswith("]"):
        host, port = authority, "443" if scheme == "https" else "80"
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError("host or port cannot be read from %s" % quoted(url))
    return scheme == "https", host, int(port), (slash + path).rstrip("/")


class Job:
    """The job as Slurm describes it to a hook. ValueError when `environ` (text to text) is no hook's environment."""

    def __init__(self, environ, settings):
        def number(name, least, default=""):
            try:
                return whole_number(environ.get(name) or default, least, 2**63 - 1)
            except ValueError as error:
                raise ValueError(
                    "%s: %s; this must be run by slurmctld, or with the variables that it sets" % (name, error)
                )

        self.id = number("SLURM_JOB_ID", 1)
        self.uid = number("SLURM_JOB_UID", 0)
        self.restart = number("SLURM_JOB_RESTART_COUNT", 0, "0")
        # The plugin on the node knows Slurm's name of the cluster only, so that one is bound into the session file.
        self.cluster = environ.get("SLURM_CLUSTER_NAME") or settings.cluster
        if not self.cluster or len(self.cluster.encode("utf-8", "surrogateescape")) > 255:
            raise ValueError("SLURM_CLUSTER_NAME is missing or longer than 255 bytes; set JUICE_CLUSTER")
        self.prefix = key_part(settings.cluster or self.cluster)
        self.name = "%s/%d/%d" % (self.prefix, self.id, self.restart)  # of its session at the controller
        self.wishes = {name: environ.get("SPANK_JUICE_" + name) for name in WISHES}


def key_part(cluster):
    """The cluster's name as it may stand in a header, a key and the name of a session."""
    return "".join(c if c in WORD or c in "._-" else "_" for c in cluster[:64])


def requirements(job):
    """What the job's user wants, as the body of the request but for the pool's id. Denied when it is not acceptable."""
    wishes = job.wishes

    def refused(option, value, accepted):
        return Denied("%s: %s is not accepted; accepted: %s" % (option, quoted(value), accepted))

    pool = wishes["POOL"]
    if pool is None:
        raise Denied("GPUs or VRAM were asked for, but no pool; add --juice-pool=NAME")
    if not pool.strip() or len(pool) > 1024 or not pool.isprintable():
        raise refused("--juice-pool", pool, "the name or the id of a pool: 1 to 1024 printable characters, UTF-8")
    try:
        count = whole_number("1" if wishes["GPU_COUNT"] is None else wishes["GPU_COUNT"], 1, MAX_GPUS)
    except ValueError:
        raise refused("--juice-gpu-count", wishes["GPU_COUNT"], "a whole number from 1 to %d" % MAX_GPUS)
    vram = 0  # means the whole GPU
    if wishes["VRAM"] is not None:
        try:
            vram = whole_number(wishes["VRAM"], 1, 2**63 - 1)
        except ValueError:
            raise refused("--juice-vram", wishes["VRAM"], "here, after the plugin's conversion: bytes, 1 to 2^63-1")
        if count > 1:
            raise Denied(
                "--juice-vram with --juice-gpu-count=%d: a slice of VRAM is for one GPU; drop one of the two" % count
            )
    body = {"gpus": [{"vramRequired": vram}] * count, "name": job.name}
    strict = wishes["VRAM_STRICT"]
    if strict not in (None, "", "0", "1"):
        raise refused("--juice-vram-strict", strict, "0 or 1")
    if strict == "1":
        body["vramStrict"] = True
    if wishes["MATCH_LABELS"]:
        labels = label_pairs(wishes["MATCH_LABELS"])
        if labels is not None:
            body["matchLabels"] = labels  # the form that every controller knows
        elif len(wishes["MATCH_LABELS"]) <= 1024 and is_selector(wishes["MATCH_LABELS"]):
            body["labelSelector"] = wishes["MATCH_LABELS"]
        else:
            raise refused("--juice-match-labels", wishes["MATCH_LABELS"], "k=v, k!=v, k in (a,b), separated by commas")
    if wishes["TOLERATES"]:
        body["tolerates"] = label_pairs(wishes["TOLERATES"])
        if body["tolerates"] is None:
            raise refused("--juice-tolerates", wishes["TOLERATES"], "k=v, separated by commas")
    return body


# --- Effects ------------------------------------------------------------------------------------------------------


class Effect:
    """Something that a generator wants done: `method` of the driver, called with `values`. An OSError or SiteFault that
    it raises is raised in the generator, at its yield. Paths are relative to the state directory; times are seconds."""

    method = ""

    def __init__(self, *values):
        self.values = values

    def __repr__(self):
        return "%s%r" % (type(self).__name__, self.values)


def effect(name, method):
    return type(name, (Effect,), {"method": method})


CheckSite = effect("CheckSite", "check_site")  # (cluster or None, is the key needed); SiteFault when unusable
Clock = effect("Clock", "clock")  # () -> (Unix time, time that never jumps)
Sleep = effect("Sleep", "sleep")  # (seconds)
RandomHex = effect("RandomHex", "random_hex")  # (number of bytes) -> text
Log = effect("Log", "log")  # (is it an error, text)
Request = effect("Request", "request")  # (method, path, body text or None, idempotency key or None, time-out) -> Reply
ReadFile = effect("ReadFile", "read_file")  # (path) -> bytes, or None when there is none
WriteFile = effect(
    "WriteFile", "write_file"
)  # (path, bytes, mode); the old file until the new one is on the disk, whole
Rename = effect("Rename", "rename")  # (old path, new path)
RemoveFile = effect("RemoveFile", "remove_file")  # (path); no error when there is none
ListDir = effect("ListDir", "list_dir")  # (path) -> [(name, time of its last change)]
Lock = effect("Lock", "lock")  # (path) -> True, or False when another process holds it; freed when its holder dies
Unlock = effect("Unlock", "unlock")  # (path)
Seal = effect("Seal", "seal")  # (cluster, job id, user id, [(name, value)]) -> the bytes of a session file


class Reply:
    """An HTTP answer. `status` 0: none came, `error` says why; `sent`: the request may have taken effect all the same;
    `site_fault`: trying again is of no use."""

    def __init__(self, status, headers=None, body=b"", error="", sent=True, site_fault=False):
        self.status, self.headers, self.body = status, headers or {}, body
        self.error, self.sent, self.site_fault = error, sent, site_fault

    def json(self):
        """The body as a JSON value; None when it is not JSON."""
        try:
            return parse_json(self.body.decode("utf-8"))
        except (ValueError, RecursionError):
            return None

    def reason(self):
        """Status or errno, and what the controller said, on one line."""
        if not self.status:
            return self.error
        value = self.json()
        text = value.get("message") if isinstance(value, dict) else None
        text = text or self.body[:300].decode("utf-8", "replace").strip()
        return "HTTP %d%s" % (self.status, ": " + one_line(text, 300) if text else "")

    def says_not_found(self):
        """404, or the open-source controller's way to say it."""
        return self.status in (404, 410) or (self.status == 500 and b"not found" in self.body.lower())


# --- The session file ---------------------------------------------------------------------------------------------

MAGIC = b"JUICESF\x01"
SESSION_FIELDS = ("session_id", "pool", "pool_id", "address", "gpu_indexes", "gpu_names", "vram_bytes", "config")


class SessionFileError(Exception):
    """A session file that cannot be used; `kind` is one word for tests and tables, the text is for people."""

    def __init__(self, kind, text):
        Exception.__init__(self, text)
        self.kind = kind


def associated_data(cluster, job_id, uid):
    name = cluster.encode("utf-8", "surrogateescape")
    return MAGIC + bytes([len(name)]) + name + job_id.to_bytes(8, "big") + uid.to_bytes(8, "big")


def seal_session(key, nonce, cluster, job_id, uid, fields):
    """The bytes of a session file. `fields`: [(name, value)] in the order of the contract; `nonce`: 24 random bytes."""
    plain = b"".join(name.encode() + b"=" + value.replace("\0", "").encode("utf-8") + b"\0" for name, value in fields)
    sealed = MAGIC + nonce + sodium().encrypt(plain, associated_data(cluster, job_id, uid), nonce, key)
    if len(sealed) > MAX_SESSION_FILE:
        raise SessionFileError("oversize", "the session does not fit into %d bytes" % MAX_SESSION_FILE)
    return sealed


def unseal_session(data, key, cluster, job_id, uid):
    """The fields of a session file as a dictionary. SessionFileError: empty, null, oversize, magic, version, truncated,
    sealed (another key, job, user or cluster, or damage), malformed."""
    if not data:
        raise SessionFileError("empty", "the session file is empty (a power cut?)")
    if len(data) > MAX_SESSION_FILE:
        raise SessionFileError("oversize", "the session file is longer than %d bytes" % MAX_SESSION_FILE)
    if not data.strip(b"\0"):
        raise SessionFileError("null", "the session file holds NUL bytes only (a power cut?)")
    if not MAGIC[:7].startswith(data[:7]):
        raise SessionFileError("magic", "this is not a session file of Juice")
    if data[7:8] not in (b"", MAGIC[7:]):
        raise SessionFileError("version", "the session file has format version %d, known is %d" % (data[7], MAGIC[7]))
    if len(data) < 8 + 24 + 16:
        raise SessionFileError("truncated", "the session file is cut off after %d bytes" % len(data))
    plain = sodium().decrypt(data[32:], associated_data(cluster, job_id, uid), data[8:32], key)
    if plain is None:
        raise SessionFileError(
            "sealed",
            "the session file does not open: it was sealed for another job, user or cluster, "
            "or with another key, or it is damaged",
        )
    fields = {}
    for record in plain[:-1].split(b"\0") if plain.endswith(b"\0") else (b"",):
        name, mark, value = record.partition(b"=")
        if not mark or name in fields:
            raise SessionFileError("malformed", "the session file opens, but its records are malformed")
        fields[name] = value
    try:
        fields = {name.decode("utf-8"): value.decode("utf-8") for name, value in fields.items()}
    except UnicodeDecodeError:
        raise SessionFileError("malformed", "the session file opens, but its records are not UTF-8")
    needed = {"granted": SESSION_FIELDS, "denied": ("reason",)}.get(fields.get("verdict", ""))
    if needed is None or not all(name in fields for name in needed + ("restart_count", "sealed_at")):
        raise SessionFileError("malformed", "the session file opens, but it is incomplete")
    return fields


def open_session(path, key, cluster, job_id, uid, owners=(0,)):
    """The fields of the session file at `path`, opened without following a link. Raises SessionFileError, with kind
    `missing`, `link`, `type` or `owner` besides those of unseal_session()."""
    try:
        data = read_regular(path, MAX_SESSION_FILE + 1, owners)
    except OSError as error:
        kind = {errno.ENOENT: "missing", errno.ELOOP: "link", errno.EPERM: "owner"}.get(error.errno, "type")
        raise SessionFileError(kind, "the session file cannot be used: %s" % os_error_text(error))
    return unseal_session(data, key, cluster, job_id, uid)


def read_regular(path, limit, owners=None):
    """The first `limit` bytes of a regular file, without following a link or waiting for a pipe. OSError: ELOOP for a
    link, EPERM when it belongs to none of `owners`, EINVAL for what is no regular file."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        if owners is not None and found.st_uid not in owners:
            raise OSError(errno.EPERM, "it belongs to user %d" % found.st_uid, path)
        return read_whole(fd, limit)
    finally:
        os.close(fd)


def read_whole(fd, limit):
    """All that can be read from `fd`, at most `limit` bytes."""
    parts = []
    while limit > 0:
        part = os.read(fd, limit)
        if not part:
            break
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)


class CtypesSodium:
    """The one primitive that is needed, from the system's libsodium."""

    def __init__(self):
        import ctypes

        for name in ("libsodium.so.23", "libsodium.so.26", "libsodium.so"):
            try:
                self.library = ctypes.CDLL(name)
                break
            except OSError:
                continue
        else:
            raise OSError("no libsodium")
        if self.library.sodium_init() < 0:
            raise OSError("libsodium cannot be initialised")
        self.buffer, self.size = ctypes.create_string_buffer, ctypes.c_ulonglong

    def encrypt(self, plain, data, nonce, key):
        out = self.buffer(len(plain) + 16)
        self.library.crypto_aead_xchacha20poly1305_ietf_encrypt(
            out, None, plain, self.size(len(plain)), data, self.size(len(data)), None, nonce, key
        )
        return out.raw

    def decrypt(self, sealed, data, nonce, key):
        out = self.buffer(max(len(sealed) - 16, 1))
        failed = self.library.crypto_aead_xchacha20poly1305_ietf_decrypt(
            out, None, None, sealed, self.size(len(sealed)), data, self.size(len(data)), nonce, key
        )
        return None if failed else out.raw[: len(sealed) - 16]


class PyNaClSodium:
    """The same from PyNaCl, which may carry its own libsodium."""

    def __init__(self):
        import site

        site.main()  # the wrappers start Python without site-packages, for speed
        from nacl import bindings, exceptions

        self.bindings, self.error = bindings, exceptions.CryptoError

    def encrypt(self, plain, data, nonce, key):
        return self.bindings.crypto_aead_xchacha20poly1305_ietf_encrypt(plain, data, nonce, key)

    def decrypt(self, sealed, data, nonce, key):
        try:
            return self.bindings.crypto_aead_xchacha20poly1305_ietf_decrypt(sealed, data, nonce, key)
        except self.error:
            return None


_SODIUM = []


def sodium():
    """Whichever libsodium this machine has. SiteFault when none."""
    for variant in (CtypesSodium, PyNaClSodium) if not _SODIUM else ():
        try:
            _SODIUM.append(variant())
            break
        except (ImportError, OSError):
            continue
    if not _SODIUM:
        raise SiteFault("neither libsodium nor PyNaCl is installed; install libsodium23 (Debian) or libsodium (EPEL)")
    return _SODIUM[0]


# --- The journal: one file per job, one entry per attempt to start it -----------------------------------------------
#
# An attempt is a dictionary: `restart` (Slurm's restart count), `key` (idempotency key), `state` (asked, releasing or
# denied), `uid`, `at` (Unix time), `owner` (the prolog run that waits for it), `session` (id, "" while unknown) and
# `body` (the request, so that it can be repeated to the letter).

ATTEMPT = {
    "restart": int,
    "key": str,
    "state": str,
    "uid": int,
    "at": (int, float),
    "owner": str,
    "session": str,
    "body": str,
}


def journal_path(job_id):
    return "journal/%d.json" % job_id


def session_path(job_id):
    return "sessions/%d.session" % job_id


def parse_journal(data):
    """The attempts in the bytes of a journal file. ValueError when it is damaged."""
    try:
        value = parse_json(data.decode("utf-8"))
    except RecursionError:
        raise ValueError("nested too deeply")
    if not isinstance(value, dict) or not isinstance(value.get("attempts"), list):
        raise ValueError("no list of attempts")
    for attempt in value["attempts"]:
        for name, kind in ATTEMPT.items():
            if not isinstance(attempt, dict) or not isinstance(attempt.get(name), kind):
                raise ValueError("an attempt without %s" % name)
    return value["attempts"]


def locked(job_id, section):
    """Run `section`, a generator, while no other hook changes the files of the job. SiteFault when that never comes."""
    path = "locks/%d" % (job_id % 64)  # a fixed set of files, so that none is ever removed under a waiting process
    for _ in range(250):
        if (yield Lock(path)):
            break
        yield Sleep(0.02)
    else:
        raise SiteFault(
            "%s is held by another process since 5 s; is a hook stopped, or does the file system not lock?" % path
        )
    try:
        result = yield from section
    except Exception:
        yield Unlock(path)
        raise
    yield Unlock(path)
    return result


def read_journal(job_id):
    """`(attempts, damaged)`, under the lock. A damaged file is put aside for reconcile, and said so."""
    data = yield ReadFile(journal_path(job_id))
    if data is None:
        return [], False
    try:
        return parse_journal(data), False
    except ValueError as error:
        aside = "journal/%d.%s.damaged" % (job_id, (yield RandomHex(4)))
        yield Rename(journal_path(job_id), aside)
        yield Log(
            True,
            "%s is damaged (%d bytes, %s; a power cut?); kept as %s until the controller's list of sessions "
            "shows that nothing is lost" % (journal_path(job_id), len(data), error, aside),
        )
        return [], True


def write_journal(job_id, attempts):
    if not attempts:
        yield RemoveFile(journal_path(job_id))
        return
    text = json_text({"version": 1, "job": job_id, "attempts": attempts}, compact=False)
    yield WriteFile(journal_path(job_id), text.encode("utf-8"), 0o600)


def claim(job, state, body):
    """Under the lock: make this run of the prolog the owner of the job's newest attempt, and return that attempt and
    the older ones that must be released. Takes over what a prolog for the same start of the job has asked for."""
    attempts, _ = yield from read_journal(job.id)
    wall, _ = yield Clock()
    owner = yield RandomHex(8)
    mine, leftovers, kept = None, [], []
    for attempt in attempts:
        is_fresh = abs(wall - attempt["at"]) < FRESH
        is_live = attempt["state"] == "asked"
        if attempt["restart"] > job.restart and is_fresh and attempt["state"] != "releasing":
            raise TryLater(
                "start %d of this job is under way already; this is a late prolog for start %d"
                % (attempt["restart"], job.restart)
            )
        same = attempt["restart"] == job.restart and attempt["uid"] == job.uid and attempt["body"] == body
        if is_live and same and is_fresh and state == "asked" and mine is None:
            attempt.update(owner=owner, at=wall)
            mine = dict(attempt, doubt=True, taken_over=True)
            kept.append(attempt)
        elif attempt["state"] != "denied":
            attempt["state"] = "releasing"
            leftovers.append(attempt)
            kept.append(attempt)
    if mine is None:
        mine = {
            "restart": job.restart,
            "key": "%s/%s" % (job.name, owner),
            "state": state,
            "uid": job.uid,
            "at": wall,
            "owner": owner,
            "session": "",
            "body": body,
        }
        kept.append(dict(mine))
        # Whether a session may exist that we do not know of, and whether another run began this; never written down.
        mine.update(doubt=False, taken_over=False)
        yield RemoveFile(session_path(job.id))  # what an earlier start left must never be taken for this one's
    yield from write_journal(job.id, kept)
    return mine, leftovers


def note_session(job, mine):
    """Under the lock: write down the id of the session that was got."""
    attempts, _ = yield from read_journal(job.id)
    for attempt in attempts:
        if attempt["key"] == mine["key"] and attempt["session"] != mine["session"]:
            attempt["session"] = mine["session"]
            yield from write_journal(job.id, attempts)


def publish(job, mine, fields):
    """Under the lock: write the session file, unless another hook has released this attempt or begun a later one."""
    attempts, _ = yield from read_journal(job.id)
    live = [a for a in attempts if a["state"] != "releasing"]
    if mine["key"] not in [a["key"] for a in live] or any(a["restart"] > job.restart for a in live):
        raise TryLater("another hook has released this start of the job while its prolog waited")
    wall, _ = yield Clock()
    head = [
        ("verdict", "denied" if mine["state"] == "denied" else "granted"),
        ("restart_count", str(job.restart)),
        ("sealed_at", str(int(wall))),
    ]
    sealed = yield Seal(job.cluster, job.id, job.uid, head + fields)
    yield WriteFile(session_path(job.id), sealed, 0o644)


def retire(job_id, is_over):
    """Under the lock: mark the attempts for which `is_over(attempt)` holds, and remove the session file when no other
    owns it. Returns `(attempts to release, all attempts left in the journal, whether it may not name all sessions)`."""
    attempts, damaged = yield from read_journal(job_id)
    due, kept, changed = [], [], False
    for attempt in attempts:
        if not is_over(attempt):
            kept.append(attempt)
            continue
        if attempt["state"] == "denied":
            changed = True
            continue
        changed = changed or attempt["state"] != "releasing"
        attempt["state"] = "releasing"
        due.append(attempt)
        kept.append(attempt)
    if all(a["state"] == "releasing" for a in kept):
        yield RemoveFile(session_path(job_id))
    if changed and not (yield from mark(job_id, kept)):
        # A prolog that still runs may forget what is not marked. To use such a key up could make a session that no
        # journal names, so only sessions that are known are released now.
        due, damaged = [a for a in due if a["session"]], True
    return due, kept, damaged


def mark(job_id, attempts):
    """Write the journal down, but go on when that fails: a full disk must not keep GPUs from being released. True when
    it is written."""
    try:
        yield from write_journal(job_id, attempts)
    except OSError as error:
        yield Log(True, "cannot write %s: %s; releasing all the same" % (journal_path(job_id), os_error_text(error)))
        return False
    return True


def forget(job_id, keys):
    """Under the lock: drop the attempts of these keys, whose sessions are gone."""
    attempts, _ = yield from read_journal(job_id)
    kept = [a for a in attempts if a["key"] not in keys]
    if len(kept) != len(attempts):
        yield from write_journal(job_id, kept)


# --- Talking to the controller --------------------------------------------------------------------------------------

REQUEST_PATH = "/v1/request/session"


def ask(until, method, path, body=None, mine=None, not_found=False):
    """One request, repeated until it gets an answer that settles it, or TryLater when that has not come by `until`.

    Returns any 2xx and any 4xx that is about the request itself; with `not_found` also the open-source controller's 500
    for a thing that it does not have. SiteFault for what only the site can mend. `mine`: the attempt whose key goes
    with the request; its `doubt` is set as soon as a request may have taken effect without our knowing."""
    delay = 0.25
    what = "%s %s" % (method, path)
    while True:
        _, now = yield Clock()
        reply = yield Request(method, path, body, mine["key"] if mine else None, max(0.5, min(5.0, until - now)))
        if reply.site_fault:
            raise SiteFault(reply.error)
        if reply.status in (401, 403):
            raise SiteFault(
                "%s: %s; the token is missing, expired, revoked or lacks a permission: renew it (juice m2m create) "
                "and put it into JUICE_TOKEN_FILE" % (what, reply.reason())
            )
        if 300 <= reply.status < 400:
            raise SiteFault(
                "%s: HTTP %d, a redirect; set JUICE_CONTROLLER to the address that it leads to" % (what, reply.status)
            )
        settled = 200 <= reply.status < 300 or (400 <= reply.status < 500 and reply.status not in (408, 425, 429))
        if settled or (not_found and reply.says_not_found()):
            return reply
        if mine is not None and (reply.status >= 500 or (not reply.status and reply.sent)):
            mine["doubt"] = True
        wall, now = yield Clock()
        jitter = int((yield RandomHex(2)), 16) / 65536.0
        pause = retry_after(reply, wall)
        if pause is None:
            pause = delay * (0.5 + jitter)
            delay = min(2 * delay, 4.0)
        else:
            pause += jitter * max(0.5, pause / 4)  # so that those who were told the same do not come back together
        if now + pause >= until:
            raise TryLater(
                "%s: %s%s" % (what, reply.reason(), "" if pause < 5 else "; to be tried again in %.0f s" % pause)
            )
        yield Log(False, "%s: %s; again in %.1f s" % (what, reply.reason(), pause))
        yield Sleep(pause)


def retry_after(reply, wall):
    """Seconds to wait as the answer's Retry-After says, in seconds or as a date; None without one that can be read."""
    value = reply.headers.get("retry-after", "")
    if not value:
        return None
    try:
        return max(0.0, min(float(value), 86400.0)) if value[0].isdigit() else http_date(value, wall)
    except (ValueError, TypeError, OverflowError):
        return None


def http_date(value, wall):
    from email.utils import mktime_tz, parsedate_tz  # slow to load, rarely needed

    return max(0.0, mktime_tz(parsedate_tz(value)) - wall)


def body_for(job, settings, until):
    """The request as JSON text, with the id of the pool that the user named."""
    body = requirements(job)
    pool = job.wishes["POOL"]
    if is_uuid(pool):
        body["poolId"] = pool.lower()
    elif pool in settings.pools:
        body["poolId"] = settings.pools[pool]
    else:
        body["poolId"] = yield from look_up_pool(pool, settings, until)
    text = json_text(body)
    if len(text) > 2560:
        raise Denied(
            "labels and tolerations are too long: the request would have %d bytes, accepted are 2560" % len(text)
        )
    return text


def look_up_pool(name, settings, until):
    """The id of the pool of that name, from the controller's list."""
    reply = yield from ask(until, "GET", "/v1/pools", not_found=True)
    pools = reply.json()
    if reply.status != 200 and settings.pools:
        raise Denied("unknown pool %s; known: %s" % (quoted(name), ", ".join(sorted(settings.pools))))
    if reply.status != 200:
        raise SiteFault(
            "GET /v1/pools: %s; this controller does not list pools: set JUICE_POOLS='NAME=UUID ...' in "
            "juice-config.sh (a job asked for pool %s)" % (reply.reason(), quoted(name))
        )
    if not isinstance(pools, list):
        raise TryLater(
            "GET /v1/pools: the answer is not a JSON array; is JUICE_CONTROLLER the address of a Juice controller?"
        )
    pools = [
        p for p in pools if isinstance(p, dict) and isinstance(p.get("name"), str) and is_uuid(str(p.get("id")))
    ]
    found = [p["id"] for p in pools if p["name"] == name]
    if not found:
        names = sorted(set(p["name"] for p in pools) | set(settings.pools))
        more = ", ..." if len(names) > 10 else ""
        raise Denied("unknown pool %s; known: %s" % (quoted(name), ", ".join(names[:10]) + more or "none"))
    if len(found) > 1:
        raise Denied("%d pools are called %s; give the id of the one that is meant" % (len(found), quoted(name)))
    return found[0]


def session_id(reply):
    """The id in the answer to a request for a session. TryLater when there is none."""
    text = reply.body[:100].decode("ascii", "replace").strip().strip('"')
    if not is_uuid(text):
        raise TryLater("POST %s: %s: the answer holds no session id" % (REQUEST_PATH, reply.reason()))
    return text


def obtain(job, mine, until):
    """Ask for the attempt's session and wait until it is active. Returns it as the controller describes it, or None
    when somebody has closed it meanwhile."""
    if not mine["session"]:
        reply = yield from ask(until, "POST", REQUEST_PATH, mine["body"], mine)
        if reply.status >= 400:
            value = reply.json()
            code = value.get("code") if isinstance(value, dict) else None
            if code in ("unsatisfiable", "invalid", "not_found", "too_large"):
                raise Denied("the Juice controller refuses the request: %s" % reply.reason())
            if reply.status in (409, 422):
                raise TryLater("POST %s: %s" % (REQUEST_PATH, reply.reason()))
            raise SiteFault(
                "POST %s: %s; is JUICE_CONTROLLER the address of a Juice controller?" % (REQUEST_PATH, reply.reason())
            )
        mine["doubt"] = True
        mine["session"] = session_id(reply)
        yield from locked(job.id, note_session(job, mine))
    path = "/v1/session/" + mine["session"]
    delay, state = 0.04, ""
    while True:
        _, now = yield Clock()
        # A controller that does not know `wait` answers at once, and is asked again after `delay`.
        wait = max(0.0, min(4.0, until - now - 0.2))
        reply = yield from ask(until, "GET", "%s?wait=%.1f" % (path, wait), not_found=True)
        if reply.says_not_found():
            yield from not_stored(mine, until)
        session = reply.json()
        if reply.status != 200 or not isinstance(session, dict):
            state = "unreadable (%s)" % reply.reason()
        else:
            state = (
                session.get("state") or "queued"
            )  # the open-source controller shows a queued session without a state
        if state == "active":
            return session
        if state in ("canceling", "closed"):
            return None
        jitter = int((yield RandomHex(2)), 16) / 65536.0
        _, now = yield Clock()
        if now + delay >= until:
            raise TryLater("no GPU became free in time: the session is still %s" % one_line(state, 80))
        yield Sleep(delay * (0.75 + jitter / 2))
        delay = min(delay * 1.5, 1.0)


def not_stored(mine, until):
    """The controller has no session of the id that it gave us. The open-source one does so when the pool is unknown."""
    pool_id = parse_json(mine["body"]).get("poolId", "")
    reply = yield from ask(until, "GET", "/v1/pool/" + pool_id, not_found=True)
    if reply.says_not_found():
        raise Denied("the Juice controller has no pool of the id %s" % pool_id)
    raise TryLater("GET /v1/session: the controller took the request but has no such session")


def granted_fields(job, mine, session, until):
    """The records of the session file, but for the first three. TryLater when the session is not what was asked for."""
    gpus, address = session.get("gpus"), session.get("address")
    body = parse_json(mine["body"])
    usable = isinstance(gpus, list) and all(isinstance(g, dict) and isinstance(g.get("index"), int) for g in gpus)
    if not usable or len(gpus) < len(body["gpus"]):
        raise TryLater(
            "the active session has %s GPUs instead of %d" % (len(gpus) if usable else "unreadable", len(body["gpus"]))
        )
    if not isinstance(address, str) or not address or len(address) > 300 or not address.isprintable() or " " in address:
        raise TryLater("the active session has no usable agent address")
    known = yield from gpus_of_agent(mine["session"], address, body["poolId"], until)
    names, sizes = [], []
    for gpu in gpus:
        details = known.get(gpu["index"], {})
        names.append(one_line(details.get("name") or "", 100).replace(",", " "))
        size = gpu.get("vramRequired") or details.get("vram")
        sizes.append(str(size if isinstance(size, int) and size > 0 else body["gpus"][0]["vramRequired"]))
    config = {"id": mine["session"], "servers": [address], "accessToken": "", "requirements": body}
    return [
        ("session_id", mine["session"]),
        ("pool", job.wishes["POOL"]),
        ("pool_id", body["poolId"]),
        ("address", address),
        ("gpu_indexes", ",".join(str(gpu["index"]) for gpu in gpus)),
        ("gpu_names", ",".join(names)),
        ("vram_bytes", ",".join(sizes)),
        ("config", json_text(config, sort=False)),
    ]


def gpus_of_agent(session, address, pool_id, until):
    """Index -> GPU, as the session's agent registered them; empty when that cannot be found out: only names need it."""
    _, now = yield Clock()
    patience = max(0.5, min(2.0, until - now))
    reply = yield Request("GET", "/v1/session/%s/story" % session, None, None, patience)
    story = reply.json() if reply.status == 200 else None
    agent_id = ""
    for event in story if isinstance(story, list) else ():
        agent_id = event.get("agent_id") or agent_id if isinstance(event, dict) else agent_id
    if is_uuid(str(agent_id)):
        reply = yield Request("GET", "/v1/agent/%s" % agent_id, None, None, patience)
        agents = [reply.json()]
    else:
        reply = yield Request("GET", "/v1/agents?pool_id=%s" % pool_id, None, None, patience)
        agents = reply.json()
    for agent in agents if reply.status == 200 and isinstance(agents, list) else ():
        if isinstance(agent, dict) and agent.get("address") == address and isinstance(agent.get("gpus"), list):
            return {gpu.get("index"): gpu for gpu in agent["gpus"] if isinstance(gpu, dict)}
    return {}


def release(attempt, until):
    """See to it that the attempt has no session at the controller; TryLater or SiteFault when that is not certain."""
    session = attempt["session"]
    if not session:
        # Whether the request arrived is not known. The same key again either tells the session that it made, or uses
        # the key up, so that a request which is still under way makes none.
        reply = yield from ask(until, "POST", REQUEST_PATH, attempt["body"], attempt)
        if reply.status == 422 and b"unsatisfiable" not in reply.body:
            raise TryLater("POST %s: %s" % (REQUEST_PATH, reply.reason()))
        if reply.status >= 400:
            return
        session = session_id(reply)
    yield from delete(session, until)


def delete(session, until):
    """Close a session; that it is gone already is as good."""
    reply = yield from ask(until, "DELETE", "/v1/session/" + session, not_found=True)
    if reply.status >= 300 and not reply.says_not_found():
        raise TryLater("DELETE of a session: %s" % reply.reason())


def release_all(job_id, attempts, until):
    """Release each and forget those that are gone; how many are left."""
    gone = []
    for attempt in attempts:
        try:
            yield from release(attempt, until)
            gone.append(attempt["key"])
        except (TryLater, SiteFault, OSError) as error:
            yield Log(
                True,
                "cannot release the session of start %d: %s; it stays in the journal for reconcile"
                % (attempt["restart"], error),
            )
    if gone:
        yield from locked(job_id, forget(job_id, gone))
        yield Log(False, "released %d session(s)" % len(gone))
    return len(attempts) - len(gone)


# --- The prolog ---------------------------------------------------------------------------------------------------


def prolog(job, settings):
    """Generator of effects; returns the exit code. Takes at most JUICE_WAIT seconds, and 2 more to clean up."""
    try:
        yield CheckSite(job.cluster, True)
        _, now = yield Clock()
        until = now + settings.wait
        try:
            body = yield from body_for(job, settings, until)
            yield from reserve(job, body, until)
        except Denied as denial:
            yield from deny(job, str(denial))
        return 0
    except TryLater as error:
        yield Log(True, "exit 1, Slurm will requeue the job: %s" % error)
    except SiteFault as error:
        yield Log(True, "exit 1, THE SITE MUST ACT: %s" % error)
    except (OSError, SessionFileError) as error:
        yield Log(True, "exit 1, THE SITE MUST ACT: %s" % os_error_text(error))
    return 1


def reserve(job, body, until):
    """Get an active session and write the session file, or clean up and raise."""
    for _ in range(3):
        mine, leftovers = yield from locked(job.id, claim(job, "asked", body))
        try:
            yield from release_all(job.id, leftovers, until)
            session = yield from obtain(job, mine, until)
            if session is not None:
                fields = yield from granted_fields(job, mine, session, until)
                yield from locked(job.id, publish(job, mine, fields))
                yield Log(
                    False,
                    "granted %d GPU(s) of pool %s, session %s"
                    % (len(session["gpus"]), quoted(job.wishes["POOL"]), mine["session"]),
                )
                return
        except Exception:
            yield from give_up(job, mine)
            raise
        # Closed under our eyes: by the hook of another run, an operator, or because its agent went away.
        yield Log(False, "session %s was closed while the prolog waited; asking for another" % mine["session"])
        yield from locked(job.id, forget(job.id, [mine["key"]]))
    raise TryLater("three sessions in a row were closed while the prolog waited")


def give_up(job, mine):
    """Release what this prolog has asked for, unless another run of the prolog has taken it over. Raises nothing: what
    cannot be released stays in the journal, and Slurm runs the epilog next."""
    if mine["taken_over"]:
        # Its first run may have succeeded meanwhile, so that the job runs: after a crash of slurmctld two prologs of
        # one start are under way, and Slurm waits for one of them only. If it is this one, the epilog comes next and
        # releases.
        yield Log(False, "the session was asked for by another run of the prolog; left to the epilog")
        return
    try:
        nothing_to_do = yield from locked(job.id, disown(job, mine))
        if nothing_to_do:
            return
        _, now = yield Clock()
        yield from release_all(job.id, [mine], now + 2.0)
    except (TryLater, SiteFault, OSError) as error:
        yield Log(True, "cannot clean up: %s; left to the epilog" % os_error_text(error))


def disown(job, mine):
    """Under the lock: mark the attempt for release, or drop it when it surely has no session. True when nothing is left
    for this run to release, also because the attempt belongs to another run of the prolog by now."""
    may_exist = bool(mine["session"] or mine["doubt"])
    attempts, _ = yield from read_journal(job.id)
    for attempt in attempts:
        if attempt["key"] == mine["key"]:
            if attempt["owner"] != mine["owner"]:
                return True
            if may_exist:
                attempt.update(state="releasing", session=mine["session"])
                yield from mark(job.id, attempts)
            elif attempt["state"] != "releasing":
                yield from write_journal(job.id, [a for a in attempts if a is not attempt])
            # Else another hook has marked it and is about to use its key up, which may make a session: the entry stays.
    return not may_exist


def deny(job, reason):
    """Write a session file that tells the job's user why it cannot run."""
    mine, leftovers = yield from locked(job.id, claim(job, "denied", ""))
    yield from locked(job.id, publish(job, mine, [("reason", one_line(reason))]))
    yield Log(False, "denied: %s" % reason)
    _, now = yield Clock()
    yield from release_all(job.id, leftovers, now + 2.0)


# --- The epilog ---------------------------------------------------------------------------------------------------


def epilog(job, settings):
    """Generator of effects; returns the exit code (Slurm only logs it). Releases what this start of the job, or an
    earlier one, has left; a later one's session and file are not touched, for its prolog may run already."""
    try:
        yield CheckSite(job.cluster, False)
        due, _, damaged = yield from locked(job.id, retire(job.id, lambda attempt: attempt["restart"] <= job.restart))
        _, now = yield Clock()
        until = now + settings.wait
        left = yield from release_all(job.id, due, until)
        if damaged:
            sessions = yield from list_sessions(job.prefix, until)
            for session, job_id, restart, _ in sessions or ():
                if job_id == job.id and restart <= job.restart:
                    yield from delete(session, until)
            left += sessions is None
        return 1 if left else 0
    except (TryLater, SiteFault, OSError) as error:
        yield Log(True, "exit 1, the session may still be held (reconcile will release it): %s" % os_error_text(error))
        return 1


def list_sessions(prefix, until):
    """The open sessions of this cluster's jobs as [(id, job id, restart count, Unix time of the request)], or None when
    the controller does not list sessions."""
    reply = yield from ask(until, "GET", "/v1/sessions", not_found=True)
    value = reply.json()
    if reply.status != 200 or not isinstance(value, list):
        yield Log(False, "GET /v1/sessions: %s: this controller does not list sessions" % reply.reason())
        return None
    found = []
    for session in value:
        parts = str(session.get("name")).rsplit("/", 2) if isinstance(session, dict) else ()
        is_ours = len(parts) == 3 and parts[0] == prefix and parts[1].isdigit() and parts[2].isdigit()
        if is_ours and is_uuid(str(session.get("id"))) and session.get("state") in ("queued", "assigned", "active"):
            found.append((session["id"], int(parts[1]), int(parts[2]), unix_time(session.get("requestedAt"))))
    return found


def unix_time(text):
    """An ISO 8601 time in UTC as seconds; None when it is none."""
    import calendar

    try:
        return calendar.timegm(time.strptime(str(text)[:19], "%Y-%m-%dT%H:%M:%S"))
    except ValueError:
        return None


# --- Reconcile: what the hooks could not finish ---------------------------------------------------------------------


def reconcile(settings, queue):
    """Generator of effects; returns the exit code. `queue`: {job id: (restart count or None, state)} of all jobs that
    Slurm has, or None when that is not known: then only what was already due is released."""
    try:
        yield CheckSite(None, False)
        wall, until = yield Clock()
        until += max(60.0, settings.wait)  # for all requests together, so that runs of a timer do not pile up
        cluster = settings.cluster or ((yield ReadFile("cluster")) or b"").decode("utf-8", "surrogateescape").strip()
        # The list of sessions comes first: what is asked for from now on is in the journal when that is read.
        sessions = None
        if queue is not None and cluster:
            sessions = yield from list_sessions(key_part(cluster), until)
        known, released, left = yield from settle_journal(queue, wall, until)
        for session, job_id, restart, requested in sessions or ():
            if session in known or (job_id, restart) in known or requested is None or wall - requested < GRACE:
                continue
            if is_owned(job_id, restart, queue):
                yield Log(
                    True, "session %s of job %d is in no journal, but the job is there: left alone" % (session, job_id)
                )
                continue
            yield Log(
                False, "session %s of job %d is in no journal, and the job is gone: releasing it" % (session, job_id)
            )
            try:
                yield from delete(session, until)
                released += 1
            except (TryLater, SiteFault) as error:
                yield Log(True, str(error))
                left += 1
        files, kept = yield from sweep(sessions is not None, wall)
        left += kept
        yield Log(
            False, "reconcile: %d session(s) released, %d left, %d stale file(s) removed" % (released, left, files)
        )
        return 1 if left else 0
    except (TryLater, SiteFault, OSError) as error:
        yield Log(True, "reconcile: %s" % os_error_text(error))
        return 1


def settle_journal(queue, wall, until):
    """Release what the journal names and nobody owns. Returns (ids of all sessions that it names, and (job id, restart)
    where the id is not known; how many were released; how many could not be)."""
    known, released, left = set(), 0, 0
    for name, _ in (yield ListDir("journal")):
        stem, _, kind = name.partition(".")
        if kind == "json" and stem.isdigit():
            job_id = int(stem)
            due, kept, _ = yield from locked(job_id, retire(job_id, over_for(job_id, queue, wall)))
            known.update(attempt["session"] or (job_id, attempt["restart"]) for attempt in kept)
            failed = yield from release_all(job_id, due, until)
            left += failed
            released += len(due) - failed
    return known, released, left


def sweep(is_compared, wall):
    """Remove files that no start of a job owns. Returns (how many were removed, how many damaged journals were kept
    because the controller's sessions could not be compared)."""
    removed = kept = 0
    for folder in ("journal", "sessions"):
        for name, changed in (yield ListDir(folder)):
            stem, _, kind = name.partition(".")
            if wall - changed < GRACE or (folder == "journal" and kind == "json"):
                continue
            if kind == "session" and stem.isdigit() and (yield from is_live(int(stem))):
                continue
            if name.endswith(".damaged") and not is_compared:
                yield Log(
                    True,
                    "journal/%s is damaged, and the controller's sessions were not compared; look there for sessions "
                    "of that job, release them, then remove this file" % name,
                )
                kept += 1
                continue
            yield RemoveFile("%s/%s" % (folder, name))
            removed += 1
    return removed, kept


NOT_STARTED_OR_ENDED = (
    "PENDING",
    "COMPLETED",
    "CANCELLED",
    "FAILED",
    "TIMEOUT",
    "NODE_FAIL",
    "BOOT_FAIL",
    "DEADLINE",
    "OUT_OF_MEMORY",
    "PREEMPTED",
)


def is_owned(job_id, restart, queue):
    """Whether Slurm has a job that may use the session of this start."""
    if job_id not in queue:
        return False
    newest, state = queue[job_id]
    return state not in NOT_STARTED_OR_ENDED and (newest is None or newest <= restart)


def over_for(job_id, queue, wall):
    """The judgement on the attempts of one job: which are over, so that their sessions must go."""

    def is_over(attempt):
        if attempt["state"] == "releasing":
            return True
        # A prolog that takes an attempt over makes it young again, so that an old list of jobs cannot harm it.
        return queue is not None and wall - attempt["at"] > GRACE and not is_owned(job_id, attempt["restart"], queue)

    return is_over


def is_live(job_id):
    """Whether the journal names a start of the job that owns a session file."""
    data = yield ReadFile(journal_path(job_id))
    try:
        return data is not None and any(a["state"] != "releasing" for a in parse_journal(data))
    except ValueError:
        return True


def parse_queue(text):
    """The jobs in what `squeue -o '%A %T'` or `squeue -O JobID,RestartCnt,State` prints, as reconcile() takes them.
    ValueError when it is not certain that squeue has worked: no line at all, or one that cannot be read."""
    queue, header = {}, False
    for line in text.splitlines():
        words = line.split()
        if words and words[0].upper().startswith("JOB"):
            header = True
        elif words:
            numbers = [int(word) for word in words[1:] if word.isdigit()]
            states = [word for word in words[1:] if word.isalpha() or "_" in word]
            if not words[0].isdigit() or len(numbers) > 1 or len(states) > 1:
                raise ValueError(
                    "the line %s of the list of jobs cannot be read; give what squeue -o '%%A %%T' prints"
                    % quoted(line)
                )
            queue[int(words[0])] = (numbers[0] if numbers else None, states[0] if states else "")
    if not queue and not header:
        raise ValueError(
            "the list of jobs is empty, as when squeue fails; leave out its -h, so that an empty queue has a header"
        )
    return queue


# --- Carrying the effects out ---------------------------------------------------------------------------------------


def run(generator, machine):
    """Carry out what `generator` yields, with the methods of `machine`, and return what it returns."""
    step, value = generator.send, None
    while True:
        try:
            effect = step(value)
        except StopIteration as stop:
            return stop.value
        try:
            step, value = generator.send, getattr(machine, effect.method)(*effect.values)
        except (OSError, SiteFault, SessionFileError) as error:
            step, value = generator.throw, error


class Machine:
    """The real clock, disk, network and libsodium. `token` is known here only."""

    def __init__(self, settings, label, token="", echo=False):
        self.settings, self.label, self.token, self.echo = settings, label, token, echo
        self.token_is_inline = bool(token)
        self.connection, self.key, self.locks = None, b"", {}

    # Whether the installation can be used

    def check_site(self, cluster, needs_key):
        for _, problem in self.checks(cluster, needs_key):
            if problem:
                raise SiteFault(problem)

    def checks(self, cluster, needs_key):
        """Yields (what was looked at, what is wrong with it or "")."""
        settings = self.settings
        yield "settings", "; ".join(settings.problems)
        yield (
            "juice-config.sh",
            self.file_problem(settings.config_file, 0o027 if self.token_is_inline else 0o022, "0640"),
        )
        yield "token", self.read_token()
        yield "state directory", self.state_problem(cluster)
        if needs_key:
            yield "key file", self.read_key()
            try:
                sodium()
                yield "libsodium", ""
            except SiteFault as error:
                yield "libsodium", str(error)

    def file_problem(self, path, forbidden, mode):
        """What is wrong with owner or mode of a file that must be ours; "" when nothing."""
        if not path:
            return ""
        try:
            found = os.stat(path)
        except OSError as error:
            return "%s cannot be used: %s" % (path, os_error_text(error))
        if found.st_mode & forbidden:
            return "%s has mode %04o, so that others may read or change it; run: chmod %s %s" % (
                path,
                stat.S_IMODE(found.st_mode),
                mode,
                path,
            )
        if found.st_uid not in (0, os.geteuid()):
            return "%s belongs to user %d; it must belong to root or to SlurmUser (%d)" % (
                path,
                found.st_uid,
                os.geteuid(),
            )
        return ""

    def read_token(self):
        path = self.settings.token_file
        if path and not self.token:
            problem = self.file_problem(path, 0o027, "0400")
            if problem:
                return problem
            try:
                with open(path, encoding="ascii") as file:
                    self.token = file.read(16384).strip()
            except (OSError, ValueError) as error:
                return "the token file %s cannot be read: %s" % (path, os_error_text(error))
            if not self.token:
                return "the token file %s is empty; put the token that `juice m2m create` showed into it" % path
        if any(c <= " " or c > "~" for c in self.token):
            return "the token holds blanks or control characters; is it whole, and on one line?"
        return ""

    def read_key(self):
        path = self.settings.key_file
        problem = self.file_problem(path, 0o077, "0400")
        if problem:
            return problem if "chmod" in problem else problem + "; make one with: juice_hook.py keygen"
        try:
            self.key = read_regular(path, 64)
        except OSError as error:
            return "the key file %s cannot be read: %s" % (path, os_error_text(error))
        if len(self.key) != 32 or not self.key.strip(b"\0"):
            return "the key file %s holds %d bytes, or only NUL; 32 random bytes are needed, the same on all nodes" % (
                path,
                len(self.key),
            )
        return ""

    def state_problem(self, cluster):
        """Owner and mode of the state directory and of those in it, which are made when missing."""
        for name, mode in (("", 0o755), ("sessions", 0o755), ("journal", 0o700), ("locks", 0o700)):
            path = self.path(name) if name else self.settings.state_dir
            try:
                found = os.stat(path) if not name else os.lstat(path)
            except OSError as error:
                if error.errno != errno.ENOENT or not name:
                    return "state directory %s: %s; make it, owned by SlurmUser, mode 0755" % (
                        path,
                        os_error_text(error),
                    )
                try:
                    os.mkdir(path, mode)
                    found = os.lstat(path)
                except OSError as again:
                    if again.errno != errno.EEXIST:
                        return "%s cannot be made: %s; the state directory must belong to SlurmUser" % (
                            path,
                            os_error_text(again),
                        )
                    found = os.lstat(path)
            if not stat.S_ISDIR(found.st_mode):
                return "%s is not a directory; move it away" % path
            if found.st_mode & 0o022:
                return "%s has mode %04o: others may change what lies in it; run: chmod go-w %s" % (
                    path,
                    stat.S_IMODE(found.st_mode),
                    path,
                )
            if found.st_uid not in (0, os.geteuid()):
                return "%s belongs to user %d; it must belong to SlurmUser (%d)" % (path, found.st_uid, os.geteuid())
        if cluster is None:
            return ""
        try:
            owner = self.read_file("cluster")
            if owner is None or not owner.strip(b"\0\n"):
                self.write_file("cluster", cluster.encode("utf-8", "surrogateescape") + b"\n", 0o644)
            elif owner.strip() != cluster.encode("utf-8", "surrogateescape"):
                return "the state directory %s is used by cluster %s; each cluster needs its own JUICE_STATE_DIR" % (
                    self.settings.state_dir,
                    quoted(owner.decode("utf-8", "replace").strip()),
                )
        except OSError as error:
            return "state directory %s: %s" % (self.settings.state_dir, os_error_text(error))
        return ""

    # Clock, chance, log

    def clock(self):
        return time.time(), time.monotonic()

    def sleep(self, seconds):
        time.sleep(seconds)

    def random_hex(self, count):
        return os.urandom(count).hex()

    def log(self, is_error, text):
        text = without_ids(one_line(text, 1000))
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = "%s %s[%d] %s\n" % (stamp, self.label, os.getpid(), ("ERROR " if is_error else "") + text)
        data = line.encode("utf-8", "backslashreplace")
        if self.settings.log != "-":
            try:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                fd = os.open(self.settings.log, flags, 0o640)
                try:
                    os.write(fd, data)
                finally:
                    os.close(fd)
                if not is_error and not self.echo:
                    return
            except OSError as error:
                data += ("%s: %s\n" % (self.settings.log, os_error_text(error))).encode("utf-8", "backslashreplace")
        try:
            os.write(1 if self.echo else 2, data)
        except OSError:
            return  # both the log and standard error are gone: the exit code is all that is left to tell

    # Files

    def path(self, name):
        return os.path.join(self.settings.state_dir, name)

    def read_file(self, name):
        try:
            return read_regular(self.path(name), 4 << 20)
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            raise

    def write_file(self, name, data, mode):
        """A new file in place of the old one, or of whatever was planted there. Not seen before it is on the disk."""
        path = self.path(name)
        folder, base = os.path.split(path)
        temporary = os.path.join(folder, "%s.%d.%s.tmp" % (base, os.getpid(), os.urandom(4).hex()))
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(fd, rest) :]
                os.fchmod(fd, mode)
                os.fsync(fd)
            finally:
                os.close(fd)
            os.rename(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
        self.sync_folder(folder)

    def sync_folder(self, folder):
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # file systems that know no fsync of a directory
                raise
        finally:
            os.close(fd)

    def rename(self, old, new):
        os.rename(self.path(old), self.path(new))
        self.sync_folder(os.path.dirname(self.path(new)))

    def remove_file(self, name):
        try:
            os.unlink(self.path(name))
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise

    def list_dir(self, name):
        found = []
        for entry in sorted(os.listdir(self.path(name))):
            try:
                found.append((entry, os.lstat(self.path(os.path.join(name, entry))).st_mtime))
            except OSError as error:
                if error.errno != errno.ENOENT:
                    raise
        return found

    def lock(self, name):
        # POSIX locks, since those hold between hosts on NFS, where a second slurmctld may run.
        fd = os.open(self.path(name), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                return False
            raise
        self.locks[name] = fd
        return True

    def unlock(self, name):
        os.close(self.locks.pop(name))

    def seal(self, cluster, job_id, uid, fields):
        return seal_session(self.key, os.urandom(24), cluster, job_id, uid, fields)

    # HTTP/1.1, over one connection that is kept. http.client would cost more than all the rest of the hook together.

    def request(self, method, path, body, key, timeout):
        settings = self.settings
        host = "[%s]" % settings.host if ":" in settings.host else settings.host
        data = (body or "").encode("utf-8")
        head = [
            "%s %s%s HTTP/1.1" % (method, settings.path, path),
            "Host: %s:%d" % (host, settings.port),
            "User-Agent: juice-hook",
            "Accept: application/json, text/plain",
        ]
        if self.token:
            head.append("Authorization: Bearer " + self.token)
        if body is not None:
            head += ["Content-Type: application/json", "Content-Length: %d" % len(data)]
        if key:
            head += ["Idempotency-Key: " + key, "Prefer: handling=strict"]
        data = "\r\n".join(head + ["", ""]).encode("ascii") + data
        if len(data) > MAX_REQUEST:
            return Reply(
                0,
                error="the request would have %d bytes, more than the %d that every controller can read; "
                "is the token too long?" % (len(data), MAX_REQUEST),
                sent=False,
                site_fault=True,
            )
        deadline = time.monotonic() + timeout
        reused = self.connection is not None
        sent = False  # once True it stays so: a connection that ends without an answer may have carried the request
        while True:
            try:
                if self.connection is None:
                    self.connection = Connection(settings, deadline)
                sent = True
                reply = self.connection.exchange(method, data, deadline)
                if "close" in reply.headers.get("connection", "").lower():
                    self.connection = None
                return reply
            except StaleConnection:
                self.connection = None
                if not reused:
                    return Reply(0, error="the controller closed the connection without an answer", sent=sent)
                reused = False  # it may have been closed before our request came: once more, on a new one
            except SiteFault as error:
                self.connection = None
                return Reply(0, error=str(error), sent=sent, site_fault=True)
            except (OSError, ValueError) as error:
                self.connection = None
                timed_out = isinstance(error, socket.timeout)
                text = "no answer within %.1f s (ETIMEDOUT)" % timeout if timed_out else os_error_text(error)
                where = "" if sent else "connection to %s:%d: " % (host, settings.port)
                return Reply(0, error=where + text, sent=sent)


class DryRun(Machine):
    """Reads for real, but changes nothing: prints what would be done."""

    def would(self, *what):
        say("would " + " ".join(what))

    def write_file(self, name, data, mode):
        self.would("write", name)

    def rename(self, old, new):
        self.would("rename", old, new)

    def remove_file(self, name):
        if os.path.lexists(self.path(name)):
            self.would("remove", name)

    def log(self, is_error, text):
        say("dry run: " + one_line(text))

    def request(self, method, path, body, key, timeout):
        if method == "GET":
            return Machine.request(self, method, path, body, key, timeout)
        self.would(method, path)
        return Reply(404)


class StaleConnection(Exception):
    """The connection ended before the first byte of an answer."""


class Connection:
    """One TCP or TLS connection to the controller. Proxy variables are ignored: nothing here reads them."""

    def __init__(self, settings, deadline):
        error = None
        for family, kind, protocol, _, address in socket.getaddrinfo(
            settings.host.encode("ascii"), settings.port, 0, socket.SOCK_STREAM
        ):
            if not settings.tls and not settings.allow_http and is_public(family, address[0]):
                raise SiteFault(
                    "JUICE_CONTROLLER is plain http to the public address %s, where anyone may read the token; "
                    "use https, or set JUICE_ALLOW_HTTP=1" % address[0]
                )
            self.socket = socket.socket(family, kind, protocol)
            try:
                self.limit(deadline)
                self.socket.connect(address)
                self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if settings.tls:
                    self.socket = self.wrapped(settings)
                break
            except OSError as failure:
                self.socket.close()
                error = failure
        else:
            raise error or OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        self.buffer = b""

    def limit(self, deadline):
        left = deadline - time.monotonic()
        if left <= 0:
            raise socket.timeout("timed out")
        self.socket.settimeout(left)

    def wrapped(self, settings):
        import ssl

        try:
            context = ssl.create_default_context(cafile=settings.ca_file or None)
        except OSError as error:
            raise SiteFault("JUICE_CA_FILE %s cannot be used: %s" % (settings.ca_file, error))
        from socket import socket as whole_socket  # ssl has loaded it

        limit = self.socket.gettimeout()
        family, kind, protocol = self.socket.family, self.socket.type, self.socket.proto
        plain = whole_socket(family, kind, protocol, self.socket.detach())
        plain.settimeout(limit)
        try:
            return context.wrap_socket(plain, server_hostname=settings.host)
        except (ssl.SSLError, ssl.CertificateError) as error:
            if isinstance(error, ssl.CertificateError) or getattr(error, "reason", "") == "CERTIFICATE_VERIFY_FAILED":
                raise SiteFault(
                    "the certificate of %s is not trusted: %s; set JUICE_CA_FILE to the PEM file of the CA that "
                    "signed it" % (settings.host, error)
                )
            raise

    def exchange(self, method, data, deadline):
        """Send a request and return the Reply. StaleConnection when it ends before an answer begins."""
        try:
            self.limit(deadline)
            self.socket.sendall(data)
            if not self.buffer and not self.more(deadline):
                raise StaleConnection
        except OSError as error:
            if error.errno in (errno.EPIPE, errno.ECONNRESET):
                raise StaleConnection
            raise
        while True:
            status, headers = self.head(deadline)
            if status >= 200:
                break
        if status in (204, 304) or method == "HEAD":
            body = b""
        elif "chunked" in headers.get("transfer-encoding", "").lower():
            body = self.chunks(deadline)
        elif "content-length" in headers:
            body = self.take(int(headers["content-length"]), deadline)
        else:
            headers["connection"] = "close"
            while self.more(deadline):
                pass
            body = self.buffer
        return Reply(status, headers, body)

    def more(self, deadline):
        self.limit(deadline)
        part = self.socket.recv(65536)
        self.buffer += part
        if len(self.buffer) > 64 << 20:
            raise ValueError("the answer is longer than 64 MiB")
        return bool(part)

    def line(self, deadline):
        while b"\n" not in self.buffer:
            if len(self.buffer) > 65536 or not self.more(deadline):
                raise ValueError("the answer is not HTTP, or cut off in its head")
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line.rstrip(b"\r").decode("latin-1")

    def head(self, deadline):
        words = self.line(deadline).split(None, 2)
        if len(words) < 2 or not words[0].startswith("HTTP/1.") or not (words[1].isdigit() and len(words[1]) == 3):
            raise ValueError("the answer is not HTTP: %s" % quoted(" ".join(words)))
        headers = {"connection": "close"} if words[0] == "HTTP/1.0" else {}
        for _ in range(200):
            name, _, value = self.line(deadline).partition(":")
            if not name:
                return int(words[1]), headers
            headers[name.strip().lower()] = value.strip()
        raise ValueError("the answer has more than 200 headers")

    def take(self, size, deadline):
        while len(self.buffer) < size:
            if not self.more(deadline):
                raise ValueError("the answer is cut off after %d of %d bytes" % (len(self.buffer), size))
        body, self.buffer = self.buffer[:size], self.buffer[size:]
        return body

    def chunks(self, deadline):
        parts = []
        while True:
            size = int(self.line(deadline).partition(";")[0], 16)
            parts.append(self.take(size, deadline))
            if size == 0:
                while self.line(deadline):
                    pass
                return b"".join(parts)
            self.line(deadline)


def is_public(family, address):
    """Whether an address can be reached from the internet: neither loopback, link-local nor private."""
    packed = socket.inet_pton(family, address.partition("%")[0])
    if family == socket.AF_INET6:
        if packed[:12] == b"\0" * 10 + b"\xff\xff":
            packed = packed[12:]
        else:
            is_local = packed == b"\0" * 15 + b"\1" or packed[0] & 0xFE == 0xFC
            return not (is_local or (packed[0] == 0xFE and packed[1] & 0xC0 == 0x80))
    a, b = packed[0], packed[1]
    return not (a in (10, 127) or (a == 172 and 16 <= b < 32) or (a, b) in ((192, 168), (169, 254)))


# --- The command line -------------------------------------------------------------------------------------------------

USAGE = """usage: juice_hook.py VERB   (the settings come from juice-config.sh beside it)

  prolog, epilog            what slurmctld runs, for the job that the SLURM_* and SPANK_* variables describe
  reconcile [--dry-run] [--queue FILE]
                            release what the hooks could not. FILE, or - for standard input, is what
                            `squeue -a -o '%A %T'` prints; without it only releases that are due are carried out
  show JOBID                what the journal and the session file say of a job, secrets masked
  check                     whether the installation can work: modes, key, libsodium, controller, token, pools
  keygen                    make the key file, if there is none
"""


def say(text):
    os.write(1, (text + "\n").encode("utf-8", "backslashreplace"))


def masked(text):
    return text[:8] + "..." if len(text) > 8 else text


def show(machine, text):
    """Print what is known of one job; returns the exit code."""
    settings, job_id = machine.settings, whole_number(text, 1, 2**63 - 1)
    data = machine.read_file(journal_path(job_id))
    try:
        attempts = parse_journal(data) if data is not None else []
    except ValueError as error:
        say("%s is damaged: %s" % (journal_path(job_id), error))
        attempts = []
    if data is None:
        say("journal: nothing of job %d" % job_id)
    for attempt in attempts:
        since = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(attempt["at"]))
        say(
            "journal: start %d: %s since %s, user %d, session %s, request %s"
            % (
                attempt["restart"],
                attempt["state"],
                since,
                attempt["uid"],
                masked(attempt["session"]) or "unknown",
                one_line(attempt["body"], 3000) or "none",
            )
        )
    cluster = (machine.read_file("cluster") or b"").decode("utf-8", "surrogateescape").strip() or settings.cluster
    problem = machine.read_key()
    if problem:
        say("session file: %s" % problem)
        return 1
    path = machine.path(session_path(job_id))
    fields = None
    for uid in sorted({a["uid"] for a in attempts}) or [os.geteuid()]:
        try:
            fields = open_session(path, machine.key, cluster, job_id, uid, (0, os.geteuid()))
            break
        except SessionFileError as error:
            say("session file: %s" % error)
            if error.kind == "missing":
                return 0
    for name, value in (fields or {}).items():
        say(
            "session file: %s=%s"
            % (name, masked(value) if name in ("session_id", "address", "config") else one_line(value))
        )
    return 0 if fields else 1


def check(machine):
    """Print one line for each thing that was looked at; returns the exit code."""
    failed = False

    def line(what, problem, fine=""):
        say("%-4s %-16s %s" % ("FAIL" if problem else "OK", what, problem or fine))
        return bool(problem)

    for what, problem in machine.checks(None, True):
        failed = line(what, problem) or failed
    here = os.path.dirname(os.path.abspath(__file__))
    for name in ("juice-prolog.sh", "juice-epilog.sh", "juice_hook.py"):
        failed = line(name, machine.file_problem(os.path.join(here, name), 0o022, "0755")) or failed
    kept = os.path.isdir(os.path.join(here, "__pycache__")) or os.access(here, os.W_OK)
    line("byte code", "", "" if kept else "is compiled anew by each hook; as root run: juice_hook.py check")
    if machine.settings.problems:
        return 1
    _, now = machine.clock()
    until = now + min(machine.settings.wait, 5.0)
    for what, path in (("controller", "/v1/status"), ("token", "/v1/whoami"), ("pools", "/v1/pools")):
        try:
            reply = run(ask(until, "GET", path, not_found=True), machine)
        except (TryLater, SiteFault, OSError) as error:
            failed = line(what, str(error)) or failed
            continue
        value = reply.json()
        if what == "controller":
            failed = (
                line(
                    what,
                    "" if reply.status == 200 else "GET %s: %s" % (path, reply.reason()),
                    machine.settings.controller,
                )
                or failed
            )
        elif reply.status != 200:
            need = what == "pools" and not machine.settings.pools
            failed = (
                line(
                    what,
                    "this controller lists none: set JUICE_POOLS='NAME=UUID ...'" if need else "",
                    "not told by this controller",
                )
                or failed
            )
        elif what == "token" and isinstance(value, dict):
            expires = value.get("expiresAt")
            end = unix_time(expires) if expires else None
            left = (end - time.time()) / 86400.0 if end else None
            text = "user %s, %s" % (
                one_line(value.get("userId")),
                "expires %s (%.1f days)" % (one_line(expires), left) if end else "no expiry",
            )
            failed = line(what, "", text) or failed
        elif what == "pools" and isinstance(value, list):
            names = [one_line(pool.get("name"), 80) for pool in value if isinstance(pool, dict)]
            failed = (
                line(
                    what,
                    "" if names or machine.settings.pools else "the token sees no pool: grant it create_session",
                    ", ".join(names),
                )
                or failed
            )
    return 1 if failed else 0


def keygen(settings):
    """Make the key file, owned by the owner of the state directory, if there is none; returns the exit code."""
    path = settings.key_file
    temporary = "%s.%d.tmp" % (path, os.getpid())
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o400)
    try:
        os.write(fd, os.urandom(32))
        owner = os.stat(settings.state_dir)
        if os.geteuid() == 0:
            os.fchown(fd, owner.st_uid, owner.st_gid)
        os.fsync(fd)
        os.link(temporary, path)  # unlike rename, never replaces a key that is in use
    finally:
        os.close(fd)
        os.unlink(temporary)
    say("%s made; copy it to the same place on all nodes (owner root or SlurmUser, mode 0400)" % path)
    return 0


def become_owner(state_dir):
    """Root acts as the owner of the state directory (SlurmUser), so as to leave no file that the hooks cannot use."""
    if os.geteuid() != 0:
        return
    try:
        found = os.stat(state_dir)
    except OSError:
        return  # the checks say what is wrong with it
    if found.st_uid != 0:
        os.setgroups([])
        os.setgid(found.st_gid)
        os.setuid(found.st_uid)


def environment():
    """The variables as text, whatever the locale: UTF-8, stray bytes kept apart."""
    return {k.decode("utf-8", "surrogateescape"): v.decode("utf-8", "surrogateescape") for k, v in os.environb.items()}


def read_queue(where):
    """The text of the list of jobs. ValueError when the file is too old to go by."""
    if where == "-":
        return os.fsdecode(read_whole(0, 256 << 20))
    with open(where, "rb") as file:
        if time.time() - os.fstat(file.fileno()).st_mtime > GRACE / 2:
            raise ValueError("%s is older than %d s; write it anew just before" % (where, GRACE / 2))
        return os.fsdecode(file.read(256 << 20))


def main(argv):
    """Run one verb. Returns the exit code: 0 fine, 1 not, 2 for a command line that cannot be understood."""
    if "JUICE_TOKEN_FD" not in os.environ:  # by hand: the wrapper reads juice-config.sh and comes back
        wrapper = os.path.join(os.path.dirname(os.path.abspath(__file__)), "juice-prolog.sh")
        os.execv("/bin/sh", ["/bin/sh", wrapper] + (argv or ["help"]))
    token = read_whole(int(os.environ["JUICE_TOKEN_FD"]), 16384).decode("utf-8", "replace").strip()
    env = environment()
    for name in ("STATE_DIR", "KEY_FILE", "TOKEN_FILE", "CA_FILE", "LOG", "CONFIG"):
        env["JUICE_" + name] = os.environ.get("JUICE_" + name, "")  # as the file system spells it
    settings = Settings(env)
    verb, rest = argv[0] if argv else "help", argv[1:]
    if verb == "keygen" and not rest:
        try:
            return keygen(settings)
        except OSError as error:
            say("no key was made: %s: %s" % (settings.key_file, os_error_text(error)))
            return 1
    become_owner(settings.state_dir)
    if verb in ("prolog", "epilog") and not rest:
        machine = Machine(settings, verb, token)
        try:
            job = Job(env, settings)
        except ValueError as error:
            machine.log(True, str(error))
            return 1
        machine.label = "%s job=%d start=%d" % (verb, job.id, job.restart)
        try:
            return run((prolog if verb == "prolog" else epilog)(job, settings), machine)
        except Exception as error:  # a fault of this file: one line in the log tells more people than a traceback
            where = sys.exc_info()[2]
            while where.tb_next:
                where = where.tb_next
            machine.log(
                True, "exit 1, a fault in juice_hook.py, line %d: %r; please report it" % (where.tb_lineno, error)
            )
            return 1
    machine = (DryRun if "--dry-run" in rest else Machine)(settings, verb, token, echo=True)
    try:
        if verb == "reconcile":
            rest = [word for word in rest if word != "--dry-run"]
            if not rest:
                return run(reconcile(settings, None), machine)
            if len(rest) == 2 and rest[0] == "--queue":
                return run(reconcile(settings, parse_queue(read_queue(rest[1]))), machine)
        if verb == "show" and len(rest) == 1:
            return show(machine, rest[0])
        if verb == "check" and not rest:
            return check(machine)
    except (ValueError, OSError, SiteFault) as error:
        machine.log(True, os_error_text(error))
        return 1
    except KeyboardInterrupt:
        return 130
    say(USAGE)
    return 0 if verb in ("help", "-h", "--help") else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
