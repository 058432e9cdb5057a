"""A run of a hook as a process on slurmctld's host: the real generator of `hooks/juice_hook.py`, whose effects are
carried out on a simulated disk, clock and network.

A process can be killed before any effect, and between the steps of those that have several: a file is made, written,
synced, renamed, its folder synced. Its locks are free when it dies. It can also stand still for a while.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator
from typing import Any

from .controller_host import EPOCH, ControllerHost
from .disk import Disk, Inode
from .kernel import Kernel, Timer
from .network import Call, Lost, Network
from .plan import Chances
from .routes import answer

SIGKILL = 9
GARBAGE = (b"", b"<html>", b"null", b"{}", b'"a"', b"\xff\xfe", b"[{")


class Host:
    """The machine that runs slurmctld and the hooks, and the state directory that it shares with the nodes.

    `instant`: an effect on this host takes no time, as in long simulations without faults.
    """

    def __init__(
        self,
        kernel: Kernel,
        disk: Disk,
        network: Network,
        controller: ControllerHost,
        hook: Any,
        chances: Chances,
        skew: float = 0.0,
        instant: bool = False,
    ) -> None:
        self.kernel = kernel
        self.disk = disk
        self.network = network
        self.controller = controller
        self.hook = hook  # the module juice_hook
        self.chances = chances
        self.skew = skew
        self.instant = instant
        self.token = ""
        self.key = bytes(range(1, 33))
        self.locks: dict[str, HookProcess] = {}
        self.processes: dict[int, HookProcess] = {}
        self._next_pid = 100
        self.methods = {
            name: getattr(HookProcess, f"_do_{name}")
            for name in (
                "check_site", "clock", "sleep", "random_hex", "log", "request", "read_file", "write_file", "rename",
                "remove_file", "list_dir", "lock", "unlock", "seal",
            )
        }  # fmt: skip

    def wall(self) -> float:
        """This host's Unix time."""
        return EPOCH + self.kernel.now + self.skew

    def spawn(
        self,
        label: str,
        generator: Generator[Any, Any, int],
        ended: Callable[[HookProcess, int, int], None],
        about: tuple[str, int, int, int],
    ) -> HookProcess:
        """Start a hook. `ended(process, exit code, signal)` unless it is killed by `kill(quietly=True)`.
        `about`: which hook, job id, restart count, incarnation."""
        self._next_pid += 1
        process = HookProcess(self, self._next_pid, label, generator, ended, about)
        self.processes[process.pid] = process
        if self.kernel.chance(self.chances.hook_killed):
            process.killed_at = self.kernel.random.choice(
                (self.kernel.random.randint(0, 12), self.kernel.random.randint(0, 70))
            )
        elif self.kernel.chance(self.chances.hook_stopped):
            process.stops_at = self.kernel.random.randint(0, 60)
        if self.instant:
            process.go(None)
        else:
            self.kernel.after(self.kernel.random.uniform(0.001, 0.03), process.go, None)
        return process


class _Later:
    """The result of an effect that is still to come."""


LATER = _Later()


class HookProcess:
    """One hook that runs. `steps` counts what it has done so far."""

    def __init__(
        self,
        host: Host,
        pid: int,
        label: str,
        generator: Generator[Any, Any, int],
        ended: Callable[[HookProcess, int, int], None],
        about: tuple[str, int, int, int],
    ) -> None:
        self.host = host
        self.pid = pid
        self.label = label
        self.generator = generator
        self.ended = ended
        self.alive = True
        self.started = host.kernel.now
        self.steps = 0
        self.killed_at = -1
        self.stops_at = -1
        self.fault: Exception | None = None
        self.about = about
        self.said: list[str] = []
        self._connected = 0  # the controller's life in which the connection was made
        self._call: Call | None = None
        self._timer: Timer | None = None
        self._locked: list[str] = []

    # -- life ---------------------------------------------------------------------------------------------------------

    def go(self, value: Any) -> None:
        """Go on after an effect whose result is `value`."""
        self._advance(self.generator.send, value)

    def fail(self, error: Exception) -> None:
        """Go on after an effect that failed."""
        self._advance(self.generator.throw, error)

    def _advance(self, step: Callable[[Any], Any], value: Any) -> None:
        host = self.host
        methods = host.methods
        hook = host.hook
        send, throw = self.generator.send, self.generator.throw
        self._timer = None
        while self.alive:
            try:
                effect = step(value)
            except StopIteration as stop:
                self._exit(stop.value, 0)
                return
            except Exception as error:  # a fault in the hook: what main() turns into one line and exit 1
                self.fault = error
                self.said.append(f"exit 1, a fault in juice_hook.py: {error!r}")
                self._exit(1, 0)
                return
            if not self._may_go_on():
                if self.alive:
                    # It stands still before this effect.
                    self._timer = host.kernel.after(host.kernel.random.uniform(0.5, 40.0), self._perform, effect)
                return
            try:
                value = methods[effect.method](self, *effect.values)
            except (OSError, hook.SiteFault, hook.SessionFileError) as error:
                step, value = throw, error
                continue
            if value is LATER:
                return
            step = send

    def _perform(self, effect: Any) -> None:
        try:
            value = self.host.methods[effect.method](self, *effect.values)
        except (OSError, self.host.hook.SiteFault, self.host.hook.SessionFileError) as error:
            self.fail(error)
            return
        if value is not LATER:
            self.go(value)

    def _may_go_on(self) -> bool:
        """Count a step; False when the process was killed at it, or stands still."""
        self.steps += 1
        if self.steps == self.killed_at:
            self.host.kernel.tell(self.label, f"killed at step {self.steps}")
            self.kill()
            return False
        if self.steps == self.stops_at:
            self.host.kernel.tell(self.label, f"stands still at step {self.steps}")
            return False
        return True

    def kill(self, quietly: bool = False) -> None:
        """SIGKILL. `quietly`: nobody is told (slurmctld is gone, or has killed it itself)."""
        if not self.alive:
            return
        if quietly:
            self.ended = lambda process, code, signal: None
        if self._call is not None:
            self._call.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._exit(0, SIGKILL)

    def _exit(self, code: int, signal: int) -> None:
        self.alive = False
        for name in self._locked:
            del self.host.locks[name]
        self._locked.clear()
        del self.host.processes[self.pid]
        if not signal:
            self.generator.close()
        self.ended(self, code, signal)

    def _pause(self, call: Callable[..., None], *arguments: Any) -> Any:
        """Go on in a moment, in which others may do something."""
        self._timer = self.host.kernel.after(self.host.kernel.random.uniform(0.0001, 0.003), call, *arguments)
        return LATER

    def _result(self, value: Any) -> Any:
        return value if self.host.instant else self._pause(self.go, value)

    # -- effects ------------------------------------------------------------------------------------------------------

    def _do_check_site(self, cluster: str | None, needs_key: bool) -> Any:
        disk, folders = self.host.disk, ("sessions", "journal", "locks")
        del folders  # they are there from the beginning
        if cluster is not None:
            owner = disk.read("cluster")
            if owner is None or not owner.strip(b"\0\n"):
                return self._do_write_file("cluster", cluster.encode() + b"\n", 0o644)
            if owner.strip() != cluster.encode():
                raise self.host.hook.SiteFault("the state directory is used by another cluster")
        return self._result(None)

    def _do_clock(self) -> tuple[float, float]:
        return self.host.wall(), self.host.kernel.now

    def _do_sleep(self, seconds: float) -> Any:
        self._timer = self.host.kernel.after(seconds, self.go, None)
        return LATER

    def _do_random_hex(self, count: int) -> str:
        return f"{self.host.kernel.random.getrandbits(8 * count):0{2 * count}x}"

    def _do_log(self, is_error: bool, text: str) -> None:
        if self.host.kernel.tracing:
            self.host.kernel.tell(self.label, ("ERROR " if is_error else "") + text)
        self.said.append(text)

    def _do_read_file(self, name: str) -> Any:
        return self._result(self.host.disk.read(name))

    def _do_write_file(self, name: str, data: bytes, mode: int) -> Any:
        host = self.host
        folder, base = os.path.split(name)
        temporary = os.path.join(folder, f"{base}.{self.pid}.{host.kernel.random.getrandbits(32):08x}.tmp")
        if host.instant:
            inode = host.disk.create(temporary, host.wall(), host.kernel.now)
            host.disk.write(temporary, inode, data, host.wall())
            inode.mode = mode
            host.disk.sync(inode)
            host.disk.rename(temporary, name, host.kernel.now)
            host.disk.sync_folder(folder)
            return None
        return self._pause(self._make, name, temporary, data, mode)

    def _make(self, name: str, temporary: str, data: bytes, mode: int) -> None:
        host = self.host
        try:
            if host.kernel.chance(host.chances.disk_error):
                raise OSError(errno.EIO, os.strerror(errno.EIO), temporary)
            inode = host.disk.create(temporary, host.wall(), host.kernel.now)
        except OSError as error:
            self.fail(error)
            return
        half = len(data) // 2
        self._then(self._fill, name, temporary, inode, data[:half], data[half:], mode)

    def _then(self, call: Callable[..., None], *arguments: Any) -> None:
        if self._may_go_on():
            self._pause(call, *arguments)
        elif self.alive:
            self._timer = self.host.kernel.after(self.host.kernel.random.uniform(0.5, 40.0), call, *arguments)

    def _fill(self, name: str, temporary: str, inode: Inode, part: bytes, rest: bytes, mode: int) -> None:
        host = self.host
        try:
            if host.kernel.chance(host.chances.disk_error):
                raise OSError(errno.EIO, os.strerror(errno.EIO), temporary)
            host.disk.write(temporary, inode, part, host.wall())
        except OSError as error:
            host.disk.remove(temporary)
            self.fail(error)
            return
        if rest:
            self._then(self._fill, name, temporary, inode, rest, b"", mode)
        else:
            inode.mode = mode
            self._then(self._sync, name, temporary, inode)

    def _sync(self, name: str, temporary: str, inode: Inode) -> None:
        host = self.host
        if host.kernel.chance(host.chances.disk_error):
            host.disk.remove(temporary)
            self.fail(OSError(errno.EIO, os.strerror(errno.EIO), temporary))
            return
        host.disk.sync(inode)
        self._then(self._publish, name, temporary)

    def _publish(self, name: str, temporary: str) -> None:
        try:
            self.host.disk.rename(temporary, name, self.host.kernel.now)
        except OSError as error:
            self.fail(error)
            return
        self._then(self._sync_folder, name)

    def _sync_folder(self, name: str) -> None:
        self.host.disk.sync_folder(os.path.dirname(name))
        self.go(None)

    def _do_rename(self, old: str, new: str) -> Any:
        self.host.disk.rename(old, new, self.host.kernel.now)
        if self.host.instant:
            self.host.disk.sync_folder(os.path.dirname(new))
            return None
        return self._pause(self._sync_folder, new)

    def _do_remove_file(self, name: str) -> Any:
        host = self.host
        if host.kernel.chance(host.chances.disk_error):
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)
        host.disk.remove(name)
        return self._result(None)

    def _do_list_dir(self, name: str) -> Any:
        return self._result(self.host.disk.listing(name))

    def _do_lock(self, name: str) -> Any:
        if name in self.host.locks:
            return self._result(False)
        self.host.locks[name] = self
        self._locked.append(name)
        return self._result(True)

    def _do_unlock(self, name: str) -> Any:
        del self.host.locks[name]
        self._locked.remove(name)
        return self._result(None)

    def _do_seal(self, cluster: str, job_id: int, uid: int, fields: list[tuple[str, str]]) -> bytes:
        host = self.host
        nonce = host.kernel.random.getrandbits(192).to_bytes(24, "big")
        sealed: bytes = host.hook.seal_session(host.key, nonce, cluster, job_id, uid, fields)
        return sealed

    def _do_request(self, method: str, path: str, body: str | None, key: str | None, timeout: float) -> Any:
        if self.host.instant:
            return self._ask_at_once(method, path, body, key)
        self._send(method, path, body, key, timeout, self._connected == self.host.controller.life)
        return LATER

    def _ask_at_once(self, method: str, path: str, body: str | None, key: str | None) -> Any:
        """A request whose way takes no time; its answer may, when it waits at the controller for a change."""
        reply_type = self.host.hook.Reply
        box: list[Any] = []
        waits = False

        def respond(answered: Any) -> None:
            if waits:
                self.go(reply_type(*answered))
            else:
                box.append(answered)

        answer(self.host.controller, method, path, body, key, self.host.token, respond)
        if box:
            return reply_type(*box[0])
        waits = True
        return LATER

    def _send(
        self,
        method: str,
        path: str,
        body: str | None,
        key: str | None,
        timeout: float,
        reused: bool,
        sent_before: bool = False,
    ) -> None:
        host = self.host
        controller, chances, token = host.controller, host.chances, host.token

        kernel = host.kernel
        # One fate for all copies of a request: a proxy that refuses one refuses its twin too.
        refusal: tuple[int, dict[str, str], bytes] | None = None
        spoilt: tuple[int, dict[str, str], bytes] | None = None
        if kernel.chance(chances.refused_503):
            after = kernel.random.choice(("", "0", "1", "3"))
            refusal = (503, {"retry-after": after} if after else {}, b'{"message":"try later"}')
        elif kernel.chance(chances.refused_429):
            refusal = (429, {"retry-after": kernel.random.choice(("1", "2", "7"))}, b'{"message":"too many"}')
        elif kernel.chance(chances.failed_500):
            spoilt = (500, {}, b'{"message":"a fault after the effect"}')
        elif kernel.chance(chances.garbage):
            spoilt = (200, {}, kernel.random.choice(GARBAGE))

        def deliver(respond: Callable[[Any], None]) -> None:
            if kernel.tracing:
                kernel.tell("controller", f"{method} {path} {key or ''}")
            if refusal is not None:
                respond(refusal)
            elif spoilt is not None:
                # What is spoilt is the text of an answer; a refusal stays a refusal.
                answer(
                    controller, method, path, body, key, token,
                    lambda right: respond(spoilt if right[0] < 300 else right),
                )  # fmt: skip
            else:
                answer(controller, method, path, body, key, token, respond)

        def done(answered: Any) -> None:
            self._call = None
            hook = host.hook
            if isinstance(answered, Lost):
                self._connected = 0
                if answered.reset and reused:
                    # As the hook's own driver: a kept connection may have been closed before the request came.
                    self._send(method, path, body, key, timeout, False, True)
                    return
                self.go(hook.Reply(0, error=answered.reason, sent=answered.sent or sent_before))
                return
            self._connected = controller.life
            status, headers, data = answered
            if kernel.tracing:
                kernel.tell(self.label, f"answer {status} to {method} {path}")
            self.go(hook.Reply(status, headers, data))

        self._call = host.network.call("hooks", controller, deliver, done, timeout)
