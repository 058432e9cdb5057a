"""What the deterministic simulation has found in the hooks: races between hooks of one job, and doubts not had."""

from __future__ import annotations

import socket
import threading


def run_until_request(hook, method, path):
    """Run a hook up to, but not including, its first request of that kind."""
    while True:
        call, value = hook._next
        effect = call(value)
        hook._next = (lambda _, effect=effect: effect, None)  # it is carried out when the hook goes on
        if type(effect).__name__ == "Request" and effect.values[0] == method and effect.values[1].startswith(path):
            return
        assert hook.step()


def test_an_attempt_that_an_epilog_is_releasing_is_not_forgotten_by_its_prolog(site, process, juice):
    # The prolog, still under way beside the epilog of its own start, is refused and sure that it has no session. The
    # epilog meanwhile uses the key up, which makes one, and cannot delete it: the journal must still name it.
    prolog = process(site, "prolog", job_id=12, restart=0)
    run_until_request(prolog, "POST", "/v1/request/session")
    epilog = process(site, "epilog", job_id=12, restart=1)
    run_until_request(epilog, "POST", "/v1/request/session")
    juice.faults({"action": "status", "status": 429, "retry_after": 60, "path": "/v1/request/session"})
    assert prolog.run() == 1
    juice.faults({"action": "status", "status": 503, "retry_after": 60, "method": "DELETE", "path": "/v1/session/"})
    assert epilog.run() == 1
    assert len(juice.sessions()) == 1
    assert [attempt["state"] for attempt in site.attempts(12)] == ["releasing"]
    juice.faults()
    assert site.epilog(job_id=12, restart=1) == 0
    assert juice.settled() == []
    assert site.leftovers() == []


def test_a_late_prolog_of_a_start_that_runs_already_takes_nothing_from_it(site, process, juice):
    # slurmctld was killed and has run the prolog again. The first one, which nobody waits for any more, comes late to
    # the attempt of the second, fails, and must leave session and session file to the job that runs on them.
    late = process(site, "prolog", job_id=12, restart=0)
    assert not late.holds_a_lock
    assert site.prolog(job_id=12, restart=0) == 0
    before = site.fields(12)
    run_until_request(late, "GET", "/v1/session/")
    juice.faults({"action": "status", "status": 429, "method": "GET", "path": "/v1/session/"})
    assert late.run() == 1
    juice.faults()
    assert [s["id"] for s in juice.settled()] == [before["session_id"]]
    assert site.fields(12) == before
    assert site.epilog(job_id=12, restart=0) == 0
    assert juice.settled() == []
    assert site.leftovers() == []


def test_no_key_is_used_up_that_the_journal_could_not_mark(site, process, juice, hook):
    prolog = process(site, "prolog", job_id=12, restart=0)
    run_until_request(prolog, "POST", "/v1/request/session")
    prolog.kill()
    generator = hook.epilog(site.job(job_id=12, restart=1), site.settings)
    machine, asked = site.machine("epilog"), []

    def full(*_):
        raise OSError(28, "No space left on device")

    machine.write_file = full
    request = machine.request
    machine.request = lambda *values: asked.append(values[:2]) or request(*values)
    hook.run(generator, machine)
    assert ("POST", "/v1/request/session") not in asked
    assert juice.settled() == []
    assert site.epilog(job_id=12, restart=1) == 0
    assert site.leftovers() == []


def test_a_request_on_a_kept_connection_that_broke_may_have_been_carried_out(hook):
    # The controller answers once, takes the next request, and dies: the second connection is refused, but the first had
    # carried the request. A hook that thought it was never sent would forget a session.
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]

    def serve():
        connection, _ = listener.accept()
        assert connection.recv(65536)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")
        assert b"POST" in connection.recv(65536)
        listener.close()
        connection.close()

    server = threading.Thread(target=serve)
    server.start()
    settings = hook.Settings({"JUICE_CONTROLLER": f"http://127.0.0.1:{port}"})
    machine = hook.Machine(settings, "test")
    assert machine.request("GET", "/v1/pools", None, None, 5.0).status == 200
    reply = machine.request("POST", "/v1/request/session", "{}", "key", 5.0)
    server.join()
    assert reply.status == 0
    assert "ECONNREFUSED" in reply.error
    assert reply.sent
