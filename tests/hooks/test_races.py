"""Races between hooks of one job that the deterministic simulation has found."""

from __future__ import annotations


def run_until_request(hook, method, path):
    """Run a hook up to, but not including, its first request of that kind."""
    while True:
        call, value = hook._next
        effect = call(value)
        if type(effect).__name__ == "Request" and effect.values[0] == method and effect.values[1].startswith(path):
            hook._next = (lambda _: effect, None)  # it is carried out when the hook goes on
            return
        hook._next = (lambda _, effect=effect: effect, None)
        assert hook.step()


def test_an_attempt_that_an_epilog_is_releasing_is_not_forgotten_by_its_prolog(site, process, juice):
    # The prolog, still under way beside the epilog of its own start, is refused and sure that it has no session. The epilog
    # meanwhile uses the key up, which makes one, and cannot delete it: the journal must still name it.
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
