"""The same jobs on a dask cluster. A job is a pure function of plain data, so that any worker may take it, twice if
need be; only this process writes, so that each run is written once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import underhood
from underhood.core.errors import UnderhoodError
from underhood.sweeps.job import Result, failures, run_job

PATIENCE = 60.0  # seconds without a scheduler before giving up
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
    done: Callable[[list[Result]], Any],
    *,
    tls: Tls | None = None,
    warn: Callable[[str], Any] = lambda text: None,
    patience: float = PATIENCE,
) -> None:
    """Every job once, through restarts of workers and of the scheduler itself."""
    distributed = _distributed()
    lost = (distributed.CancelledError, *_lost_errors(distributed))
    waiting, unreachable = {job["id"]: job for job in jobs}, None
    while waiting:
        try:
            with _client(distributed, address, tls, timeout=5.0) as client:
                _require_same_version(client)
                unreachable = None
                for identity, results in _gathered(distributed, client, list(waiting.values())):
                    done(results)
                    del waiting[identity]
        except lost as error:
            now = time.monotonic()
            if unreachable is None:
                unreachable = now
                warn(f"the scheduler at {address} is gone; {len(waiting)} jobs wait for it to come back")
            if now - unreachable >= patience:
                raise UnderhoodError(
                    f"no dask scheduler answers at {address}: "
                    + (str(error).splitlines()[0] if str(error) else type(error).__name__),
                    remedy="Start one: dask scheduler --host 127.0.0.1. What ended is kept: `resume=True`.",
                ) from None
            time.sleep(0.5)


def _gathered(distributed: Any, client: Any, jobs: Sequence[dict[str, Any]]) -> Iterator[tuple[str, list[Result]]]:
    by_key = {f"underhood-{job['id']}": job for job in jobs}
    futures = [client.submit(run_job, job, key=key, retries=RETRIES, pure=False) for key, job in by_key.items()]
    for future in distributed.as_completed(futures, loop=client.loop):
        if future.status == "cancelled":
            raise distributed.CancelledError(future.key)  # the scheduler was restarted and knows nothing of it
        try:
            results = future.result()
        except distributed.KilledWorker:
            reason = "every worker that took it died: too little memory?"
            results = failures(by_key[future.key], reason, own=False)
        yield by_key[future.key]["id"], results
        future.release()


@contextlib.contextmanager
def _client(distributed: Any, address: str, tls: Tls | None, timeout: float) -> Iterator[Any]:
    security = None
    if tls is not None:
        files = {"tls_ca_file": str(tls.ca_file), "tls_client_cert": str(tls.cert), "tls_client_key": str(tls.key)}
        security = distributed.Security(require_encryption=True, **files)
    client = distributed.Client(address, timeout=timeout, security=security, set_as_default=False)
    try:
        yield client
    finally:
        with contextlib.suppress(Exception):
            client.close(timeout=5)


def _require_same_version(client: Any) -> None:
    """A worker with another version would give other numbers."""
    versions = client.run(_version)
    other = {worker: version for worker, version in versions.items() if version != underhood.__version__}
    if other:
        worker, version = next(iter(other.items()))
        raise UnderhoodError(f"expected workers with underhood {underhood.__version__}", f"{version} on {worker}")


def _version() -> str:
    return underhood.__version__


def _lost_errors(distributed: Any) -> tuple[type[BaseException], ...]:
    from distributed.comm.core import CommClosedError

    return (CommClosedError, OSError, TimeoutError)


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise UnderhoodError("a scheduler needs dask", remedy="pip install 'underhood[distributed]'") from None
    return distributed
