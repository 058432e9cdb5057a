"""Waits for the end of a process, then releases its session: started by `juice session request --watch-pid`."""

from __future__ import annotations

import os
import select
import sys

from ..client import ApiError
from .account import Failure, find_account, read_file, remove_file

LOOK_EVERY_S = 10.0


def main(controller: str, session_id: str, pid: int) -> int:
    """Returns when the process has ended and the session is released, or when somebody else has closed it."""
    account = find_account(controller)
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        process = -1
    with account.client() as client:
        while process >= 0:
            ended, _, _ = select.select([process], [], [], LOOK_EVERY_S)
            if ended:
                break
            try:
                if client.session(session_id).state in ("closed", "canceling"):
                    return 0
            except ApiError as error:
                if error.status == 404:
                    return 0
                # A controller that is away now may be back when the process ends.
        client.release_session(session_id)
    if read_file("session.json").get("id") == session_id:
        remove_file("session.json")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
    except (ApiError, Failure) as error:
        sys.exit(f"juice: {error}")
