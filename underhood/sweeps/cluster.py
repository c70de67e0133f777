"""The same jobs on a dask cluster. A job is a pure function of plain data, so that any worker may take it, twice if
need be; only this process writes, so that each run is written once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import underhood
from underhood.core.errors import UnderhoodError, one_line
from underhood.sweeps.job import Result, failures, run_job

PATIENCE = 60.0  # seconds without a scheduler, or without workers, before giving up
MOMENT = 0.2  # seconds between two looks
RETRIES = 3
_ADDRESS = re.compile(r"((tcp|tls|ucx|ws|wss)://)?[^/\s]+:(?P<port>[0-9]{1,5})")


@dataclasses.dataclass(frozen=True)
class Tls:
    """Files of a certificate: what a cluster that others can reach is to be run with."""

    ca_file: Path
    cert: Path
    key: Path


def require_address(address: str) -> None:
    """Refused before anything is written: dask would say so only when it connects, if at all."""
    found = _ADDRESS.fullmatch(address)
    if found is None or not 0 < int(found["port"]) < 2**16:
        raise UnderhoodError("expected the address of a dask scheduler", repr(address), "Such as tcp://127.0.0.1:8786.")


def run_on_cluster(
    jobs: Sequence[dict[str, Any]],
    address: str,
    done: Callable[[dict[str, Any], list[Result]], Any],
    *,
    tls: Tls | None = None,
    warn: Callable[[str], Any] = lambda text: None,
    patience: float = PATIENCE,
) -> None:
    """Every job once, through restarts of workers and of the scheduler itself; both are waited for a minute."""
    distributed = _distributed()
    _silence("distributed", "tornado")  # we say in one line what they say in 37
    waiting, missing = {job["id"]: job for job in jobs}, _Missing(address, patience, warn)
    while waiting:
        try:
            with _client(distributed, address, tls, timeout=5.0) as client:
                missing.wait_for_workers(client, len(waiting))
                _require_same_version(client)
                for identity, results in _gathered(distributed, client, list(waiting.values()), missing):
                    missing.is_back()
                    done(waiting.pop(identity), results)
        except _Lost as error:
            missing.wait(f"the scheduler at {address} is gone", len(waiting), str(error.__cause__ or error))


def _silence(*libraries: str) -> None:
    for name in [*libraries, *logging.root.manager.loggerDict]:
        if name.partition(".")[0] in libraries:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)


class _Lost(Exception):
    """No word from the scheduler: it is gone, or was started anew."""


class _Missing:
    """What is waited for, since when, and for how long."""

    def __init__(self, address: str, patience: float, warn: Callable[[str], Any]) -> None:
        self.address, self.patience, self.warn, self.since = address, patience, warn, None

    def is_back(self) -> None:
        self.since = None

    def wait(self, what: str, jobs: int, reason: str = "") -> None:
        """A moment, and a line at the first one; refused once patience is over."""
        now = time.monotonic()
        if self.since is None:
            self.since = now
            self.warn(f"{what}; {jobs} jobs wait for {self.patience:g} s")
        if now - self.since >= self.patience:
            remedy = "Start one: dask scheduler --host 127.0.0.1. What ended is kept: `resume=True`."
            reason = reason.splitlines()[0] if reason else "no answer"
            raise UnderhoodError(f"no dask scheduler answers at {self.address}: {reason}", remedy=remedy)
        time.sleep(MOMENT)

    def wait_for_workers(self, client: Any, jobs: int) -> None:
        """A scheduler may be there before its workers are, or lose them all."""
        while not _asked(lambda: client.scheduler_info()["workers"]):
            now = time.monotonic()
            if self.since is None:
                self.since = now
                self.warn(f"the scheduler at {self.address} has no workers; {jobs} jobs wait for {self.patience:g} s")
            if now - self.since >= self.patience:
                remedy = f"Start one: dask worker {self.address} --nthreads 1. What ended is kept: `resume=True`."
                raise UnderhoodError(f"the scheduler at {self.address} has no workers", remedy=remedy)
            time.sleep(MOMENT)
        self.is_back()


def _asked(question: Callable[[], Any]) -> Any:
    """The answer of the scheduler; what the network or dask's client raises means that it is gone."""
    from distributed import CancelledError
    from distributed.comm.core import CommClosedError

    try:
        return question()
    except (CommClosedError, CancelledError, OSError, TimeoutError) as error:
        raise _Lost from error


def _gathered(
    distributed: Any, client: Any, jobs: Sequence[dict[str, Any]], missing: _Missing
) -> Iterator[tuple[str, list[Result]]]:
    by_key = {f"underhood-{job['id']}": job for job in jobs}
    futures = _asked(
        lambda: [client.submit(run_job, job, key=key, retries=RETRIES, pure=False) for key, job in by_key.items()]
    )
    left = set(futures)
    while left:
        ended = [future for future in left if future.status != "pending"]
        if not ended:
            if client.status != "running":
                raise _Lost
            missing.wait_for_workers(client, len(left))
            time.sleep(MOMENT)
        for future in ended:
            left.discard(future)
            job = by_key[future.key]
            yield job["id"], _result_of(distributed, future, job)
            future.release()


def _result_of(distributed: Any, future: Any, job: dict[str, Any]) -> list[Result]:
    """Of a job that ended; what it raised is the job's own, not the scheduler's."""
    if future.status in ("cancelled", "lost"):
        raise _Lost  # the scheduler was restarted and knows nothing of it
    error = _asked(future.exception)
    if error is None:
        return _asked(future.result)
    if isinstance(error, distributed.KilledWorker):
        return failures(job, "every worker that took it died: too little memory?", own=False)
    return failures(job, f"{type(error).__name__}: {one_line(error)[:300]}", own=False)


@contextlib.contextmanager
def _client(distributed: Any, address: str, tls: Tls | None, timeout: float) -> Iterator[Any]:
    security = None
    if tls is not None:
        files = {"tls_ca_file": str(tls.ca_file), "tls_client_cert": str(tls.cert), "tls_client_key": str(tls.key)}
        security = distributed.Security(require_encryption=True, **files)
    client = _asked(lambda: distributed.Client(address, timeout=timeout, security=security, set_as_default=False))
    try:
        yield client
    finally:
        with contextlib.suppress(Exception):
            client.close(timeout=5)


def _require_same_version(client: Any) -> None:
    """A worker with another version would give other numbers."""
    versions = _asked(lambda: client.run(_version))
    other = {worker: version for worker, version in versions.items() if version != underhood.__version__}
    if other:
        worker, version = next(iter(other.items()))
        raise UnderhoodError(f"expected workers with underhood {underhood.__version__}", f"{version} on {worker}")


def _version() -> str:
    return underhood.__version__


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise UnderhoodError("a scheduler needs dask", remedy="pip install 'underhood[distributed]'") from None
    return distributed
