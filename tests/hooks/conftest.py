"""The hooks as an admin installs them, a real controller in a thread, and one agent that answers at once."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import requests

from juice_sim.hooks_install import install_hooks
from juice_sim.server import ControllerServer

HOOKS = Path(__file__).parents[2] / "hooks"
PYTHON = "/usr/bin/python3"
GIB = 1 << 30


@pytest.fixture(scope="session")
def hook() -> ModuleType:
    """`juice_hook.py` as a module."""
    if "juice_hook" not in sys.modules:
        spec = importlib.util.spec_from_file_location("juice_hook", HOOKS / "juice_hook.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["juice_hook"] = module
        # No byte code beside the source: that folder is copied to slurmctld hosts and into the wheel as it is.
        keep, sys.dont_write_bytecode = sys.dont_write_bytecode, True
        spec.loader.exec_module(module)
        sys.dont_write_bytecode = keep
    return sys.modules["juice_hook"]


def wait_for(condition: Callable[[], Any], limit_s: float = 30.0) -> Any:
    """The first true value of `condition()`; TimeoutError when none comes."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise TimeoutError(f"not within {limit_s:g} s: {condition}")


@pytest.fixture(name="wait_for")
def wait_for_fixture() -> Callable[..., Any]:
    """`wait_for(condition, limit_s)`."""
    return wait_for


class Juice:
    """A controller and one agent in pool `test`. The agent starts and ends sessions as fast as it can; the controller's
    clock can be moved."""

    def __init__(self, gpus: int = 2, quirks: str = "", **server: Any) -> None:
        self.now_offset = 0.0
        self.server = ControllerServer(None, quirks=quirks, clock=lambda: time.time() + self.now_offset, **server)
        self.server.start()
        self.http = requests.Session()
        self.http.trust_env = False
        self.http.headers["Authorization"] = f"Bearer {self.server.admin_token}"
        if server.get("tls_cert"):
            self.http.verify = str(server["tls_cert"])
        self.pool_id = self.call("PUT", "/v1/pool", {"name": "test"})["id"]
        self.held = threading.Event()  # set: the agent does nothing
        self.ended = threading.Event()
        self.agent_id = self.call(
            "POST",
            "/v1/register/agent",
            {
                "hostname": "gpuhost",
                "address": "127.0.0.1:43210",
                "poolId": self.pool_id,
                "gpus": [{"index": i, "uuid": f"gpu-{i}", "name": "A10, big", "vram": 24 * GIB} for i in range(gpus)],
            },
        )
        self.thread = threading.Thread(target=self._agent, daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return self.server.url

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """One request by the admin; the JSON or text of the answer."""
        answer = self.http.request(method, self.url + path, json=body, timeout=20)
        assert answer.status_code == 200, answer.text
        return answer.json() if "json" in answer.headers.get("content-type", "") else answer.text

    def _agent(self) -> None:
        http = requests.Session()
        http.trust_env = False
        http.verify = self.http.verify
        http.headers.update(self.http.headers)
        path = f"{self.url}/v1/agent/{self.agent_id}"
        after = {"assigned": "active", "canceling": "closed"}
        while not self.ended.wait(0.005):
            if self.held.is_set():
                continue
            try:
                known = http.get(path, timeout=20).json()["sessions"]
                changes = {s["id"]: {"state": after[s["state"]]} for s in known if s["state"] in after}
                if changes:
                    http.put(path, json={"id": self.agent_id, "sessions": changes}, timeout=20)
            except (requests.RequestException, KeyError, ValueError):
                if self.ended.is_set():
                    return

    def sessions(self, everything: bool = False) -> list[dict[str, Any]]:
        """The open sessions (all with `everything`), straight from the controller's state."""
        found = self.server.running.service.reader.sessions(include_closed=everything)
        return [{"id": s.id, "state": s.state.value, "name": s.name} for s in found]

    def settled(self) -> list[dict[str, Any]]:
        """The sessions that hold a GPU or wait for one, once those that were cancelled are closed."""
        wait_for(lambda: all(s["state"] != "canceling" for s in self.sessions()))
        return [s for s in self.sessions() if s["state"] != "closed"]

    def faults(self, *rules: dict[str, Any]) -> None:
        """Set the fault rules, in the spelling of docs/contracts.md."""
        self.call("PUT", "/v1/faults", list(rules))

    def token(self, days: float = 30.0, permissions: tuple[str, ...] = ("create_session",)) -> dict[str, Any]:
        """A new token for pool `test`."""
        wanted = [{"permission": name, "poolId": self.pool_id} for name in permissions]
        body = {"description": "hooks", "expireDays": days, "userId": "slurm", "permissions": wanted}
        return self.call("POST", "/v1/m2m", body)

    def stop(self) -> None:
        self.call("DELETE", "/v1/faults")
        self.ended.set()
        self.thread.join()
        self.http.close()
        self.server.stop()


@pytest.fixture
def juice_of() -> Iterator[Callable[..., Juice]]:
    """Makes controllers; stops them in the end."""
    made: list[Juice] = []

    def make(**kwargs: Any) -> Juice:
        made.append(Juice(**kwargs))
        return made[-1]

    yield make
    for juice in made:
        juice.stop()


@pytest.fixture
def juice(juice_of: Callable[..., Juice]) -> Juice:
    """A controller with an agent of two GPUs."""
    return juice_of()


class Site:
    """One installation of the hooks: files, state directory, settings."""

    def __init__(self, hook: ModuleType, base: Path, url: str, token: str | None, **settings: Any) -> None:
        self.hook, self.base, self.url, self.token, self.more = hook, base, url, token, {"wait": 5, **settings}
        self.state = base / "state"
        self.hooks = base / "hooks"
        self.locks: dict[str, Any] = {}  # POSIX locks do not hold within one process
        self.install()

    def install(self, **settings: Any) -> None:
        """Install, or install again with other settings."""
        self.more.update(settings)
        install_hooks(self.hooks, controller_url=self.url, token=self.token, state_dir=self.state, **self.more)

    @property
    def settings(self) -> Any:
        values = {f"JUICE_{name.upper()}": str(value) for name, value in self.more.items()}
        values.update(
            JUICE_CONTROLLER=self.url, JUICE_STATE_DIR=str(self.state), JUICE_KEY_FILE=str(self.hooks / "session.key")
        )
        return self.hook.Settings(values)

    def environment(self, job_id: int = 12, restart: int = 0, uid: int = 1000, **wishes: Any) -> dict[str, str]:
        """What slurmctld gives to a hook. `wishes`: SPANK_JUICE_* without the prefix; `POOL` is `test` unless given."""
        env = {
            "SLURM_CLUSTER_NAME": "c1",
            "SLURM_JOB_ID": str(job_id),
            "SLURM_JOBID": str(job_id),
            "SLURM_JOB_UID": str(uid),
            "SLURM_JOB_RESTART_COUNT": str(restart),
            "SLURM_JOB_NAME": "train",
        }
        wishes = {"POOL": "test", **wishes}
        env.update({f"SPANK_JUICE_{name}": str(value) for name, value in wishes.items() if value is not None})
        return env

    def job(self, job_id: int = 12, restart: int = 0, uid: int = 1000, **wishes: Any) -> Any:
        return self.hook.Job(self.environment(job_id, restart, uid, **wishes), self.settings)

    def machine(self, label: str = "test", later_s: float = 0.0) -> Any:
        return machine_class(self.hook)(self, label, later_s)

    def prolog(self, *args: Any, **kwargs: Any) -> int:
        """Run the prolog's logic in this process."""
        return self.hook.run(self.hook.prolog(self.job(*args, **kwargs), self.settings), self.machine("prolog"))

    def epilog(self, *args: Any, **kwargs: Any) -> int:
        return self.hook.run(self.hook.epilog(self.job(*args, **kwargs), self.settings), self.machine("epilog"))

    def reconcile(self, queue: Any, later_s: float = 1000.0) -> int:
        """Run reconcile as if `later_s` seconds had passed."""
        return self.hook.run(self.hook.reconcile(self.settings, queue), self.machine("reconcile", later_s))

    def shell(self, name: str, *args: str, env: dict[str, str] | None = None, **kwargs: Any) -> Any:
        """Run a wrapper (or juice_hook.py) as slurmctld does: nothing but `env` in its environment."""
        kwargs = {"capture_output": True, "text": True, "timeout": 60, **kwargs}
        return subprocess.run([str(self.hooks / name), *args], env=env or {}, **kwargs)

    def fields(self, job_id: int = 12, uid: int = 1000) -> dict[str, str]:
        """The session file as the node reads it. Raises SessionFileError."""
        key = (self.hooks / "session.key").read_bytes()
        path = str(self.state / "sessions" / f"{job_id}.session")
        return self.hook.open_session(path, key, "c1", job_id, uid, (0, os.geteuid()))

    def attempts(self, job_id: int = 12) -> list[dict[str, Any]]:
        path = self.state / "journal" / f"{job_id}.json"
        return self.hook.parse_journal(path.read_bytes()) if path.exists() else []

    def leftovers(self) -> list[str]:
        """Names of all files of jobs in the state directory."""
        folders = (self.state / "sessions", self.state / "journal")
        return sorted(p.name for folder in folders if folder.exists() for p in folder.iterdir())

    def log(self) -> str:
        path = self.state / "hooks.log"
        return path.read_text() if path.exists() else ""


def machine_class(hook: ModuleType) -> Any:
    """A Machine whose locks hold within this process too, and whose wall clock can be ahead."""

    class TestMachine(hook.Machine):  # type: ignore[misc, name-defined]
        __test__ = False

        def __init__(self, site: Site, label: str, later_s: float) -> None:
            super().__init__(site.settings, label, site.token or "")
            self.token_is_inline, self.site, self.later_s = False, site, later_s

        def clock(self) -> tuple[float, float]:
            wall, steady = super().clock()
            return wall + self.later_s, steady

        def lock(self, name: str) -> bool:
            if self.site.locks.get(name, self) is not self:
                return False
            self.site.locks[name] = self
            return True

        def unlock(self, name: str) -> None:
            assert self.site.locks.pop(name) is self

    return TestMachine


@pytest.fixture
def site_of(hook: ModuleType, tmp_path: Path) -> Callable[..., Site]:
    """Makes installations: `site_of(juice, wait=5)` or `site_of(url=..., token=...)`."""

    def make(juice: Juice | None = None, *, url: str = "", token: str | None = None, **settings: Any) -> Site:
        number = len(list(tmp_path.iterdir()))
        if juice is not None:
            url, token = url or juice.url, token or juice.token()["token"]
        return Site(hook, tmp_path / f"site{number}", url, token, **settings)

    return make


@pytest.fixture
def site(juice: Juice, site_of: Callable[..., Site]) -> Site:
    """An installation that uses `juice`."""
    return site_of(juice)


class Process:
    """A hook that is carried out effect by effect, so that it can be stopped or killed between any two."""

    def __init__(self, site: Site, generator: Any, label: str) -> None:
        self.generator, self.machine, self.site = generator, site.machine(label), site
        self.hook, self.code, self.steps = site.hook, None, 0
        self._next = (self.generator.send, None)

    def step(self) -> bool:
        """Carry out one effect; False when the hook has ended."""
        call, value = self._next
        try:
            effect = call(value)
        except StopIteration as stop:
            self.code = stop.value
            return False
        self.steps += 1
        try:
            self._next = (self.generator.send, getattr(self.machine, effect.method)(*effect.values))
        except (OSError, self.hook.SiteFault, self.hook.SessionFileError) as error:
            self._next = (self.generator.throw, error)
        return True

    def run(self, steps: int = 10**6) -> int | None:
        """Carry out at most so many effects; the exit code if the hook has ended."""
        for _ in range(steps):
            if not self.step():
                break
        return self.code

    @property
    def holds_a_lock(self) -> bool:
        return self.machine in self.site.locks.values()

    def kill(self) -> None:
        """SIGKILL: nothing more happens, its locks are free."""
        for name in [name for name, holder in self.site.locks.items() if holder is self.machine]:
            del self.site.locks[name]
        self.machine.connection = None


@pytest.fixture
def process(hook: ModuleType) -> Callable[..., Process]:
    """`process(site, "prolog", job_id=12, restart=0)`."""

    def make(site: Site, verb: str, **job: Any) -> Process:
        return Process(site, getattr(hook, verb)(site.job(**job), site.settings), verb)

    return make
