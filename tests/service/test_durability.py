"""kill -9 of a real `juice-sim controller` under load, many times: nothing that was acknowledged is lost."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading

import pytest
import requests

ROUNDS = 20


def launch(data, port=0):
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "juice_sim.cli.main",
            "controller",
            "--data",
            str(data),
            "--listen",
            f"127.0.0.1:{port}",
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    line = process.stdout.readline()
    assert line, process.stderr.read()
    return process, json.loads(line)


class Load:
    """Threads that request and release sessions until the controller is gone, and remember what was acknowledged."""

    def __init__(self, url, token, pool, number):
        self.url, self.token, self.pool, self.number = url, token, pool, number
        self.requested = {}
        self.released = set()
        self.tokens = {}
        self.enough = threading.Event()

    def run(self, worker):
        http = requests.Session()
        http.trust_env = False
        http.headers["Authorization"] = f"Bearer {self.token}"
        count = 0
        try:
            while True:
                key = f"{self.number}-{worker}-{count}"
                body = {"poolId": self.pool, "gpus": [{"vramRequired": 1 << 20}], "name": key}
                answer = http.post(
                    f"{self.url}/v1/request/session", json=body, headers={"Idempotency-Key": key}, timeout=20
                )
                if answer.status_code == 200:
                    self.requested[key] = answer.text
                    if count % 3 == 0 and http.delete(f"{self.url}/v1/session/{answer.text}", timeout=20).ok:
                        self.released.add(answer.text)
                if count % 10 == 5:
                    made = http.post(f"{self.url}/v1/m2m", json={"description": key}, timeout=20)
                    if made.status_code == 200:
                        self.tokens[made.json()["id"]] = made.json()["token"]
                count += 1
                if len(self.requested) >= 15:
                    self.enough.set()
        except requests.RequestException:
            return  # the controller has been killed


@pytest.mark.slow
def test_kill_9_loses_nothing_that_was_acknowledged(tmp_path):
    data = tmp_path / "data"
    seed = random.Random(7)
    known, released, tokens = {}, set(), {}
    pool = None
    for number in range(ROUNDS):
        process, line = launch(data)
        url = line["url"]
        with open(line["admin_token_file"], encoding="ascii") as file:
            token = file.read().strip()
        http = requests.Session()
        http.trust_env = False
        http.headers["Authorization"] = f"Bearer {token}"
        try:
            if pool is None:
                pool = http.put(f"{url}/v1/pool", json={"name": "p"}, timeout=20).json()["id"]
            listed = {s["id"]: s for s in http.get(f"{url}/v1/sessions?all=1", timeout=20).json()}
            for key, session_id in known.items():
                assert listed[session_id]["name"] == key
            assert all(listed[session_id]["state"] == "closed" for session_id in released)
            listed_tokens = {t["id"] for t in http.get(f"{url}/v1/m2m", timeout=20).json()}
            assert set(tokens) <= listed_tokens
            if known:  # a key from before the crash still names its session
                key = seed.choice(list(known))
                body = {"poolId": pool, "gpus": [{"vramRequired": 1 << 20}], "name": key}
                again = http.post(f"{url}/v1/request/session", json=body, headers={"Idempotency-Key": key}, timeout=20)
                assert again.text == known[key]
            load = Load(url, token, pool, number)
            threads = [threading.Thread(target=load.run, args=(worker,)) for worker in range(4)]
            for thread in threads:
                thread.start()
            assert load.enough.wait(60)
            threading.Event().wait(seed.random() * 0.1)  # a random moment
        finally:
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
        for thread in threads:
            thread.join()
        known |= load.requested
        released |= load.released
        tokens |= load.tokens
    assert len(known) >= 15 * ROUNDS
    assert len(set(known.values())) == len(known)


def test_sigterm_ends_it_cleanly_and_frees_the_directory(tmp_path):
    for sent in (signal.SIGTERM, signal.SIGINT):
        process, line = launch(tmp_path / "data")
        assert line["pid"] == process.pid
        process.send_signal(sent)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out) == (0, "")
        assert "Traceback" not in err
