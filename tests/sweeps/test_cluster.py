"""A real dask scheduler and real workers on 127.0.0.1: killed, restarted, and spoken to over TLS."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.sweeps.specs import numbers, sweep
from underhood.core.errors import UnderhoodError
from underhood.sweeps.cluster import Tls, require_address, run_on_cluster
from underhood.sweeps.store import results
from underhood.sweeps.sweep import run_sweep

pytest.importorskip("distributed", reason="the extra `distributed` is not installed")

SPEC = sweep({"hidden": [3, 4, 5, 6], "steps": 1000})
MODULE = [sys.executable, "-m"]


class Cluster:
    """Processes of one test, ended with it."""

    def __init__(self, flags=(), protocol="tcp"):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.address = f"{protocol}://127.0.0.1:{self.port}"
        self.flags, self.processes = list(flags), []
        self.start_scheduler()

    def start(self, *arguments):
        environment = {**os.environ, "NPROC": "1", "OMP_NUM_THREADS": "1"}
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.processes.append(subprocess.Popen([*MODULE, *arguments, *self.flags], env=environment, **quiet))
        return self.processes[-1]

    def start_scheduler(self):
        where = ["--host", self.address.rsplit(":", 1)[0], "--port", str(self.port)]
        self.scheduler = self.start("distributed.cli.dask_scheduler", *where, "--no-dashboard")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            time.sleep(0.1)
        raise RuntimeError("no scheduler")

    def start_worker(self):
        flags = ["--nthreads", "1", "--memory-limit", "0", "--no-dashboard", "--no-nanny"]
        return self.start("distributed.cli.dask_worker", self.address, "--host", "127.0.0.1", *flags)

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture
def cluster():
    made = Cluster()
    try:
        yield made
    finally:
        made.end()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return numbers(run_sweep(SPEC, tmp_path_factory.mktemp("local") / "sweep", workers=1))


def client(spec, out, address):
    code = "import sys; from underhood.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "sweep", str(spec), "--out", str(out), "--scheduler", address, "--resume"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def wait_for(out, count, process, seconds=120.0):
    """Until so many runs have ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        if len(results(out)) >= count:
            return
        time.sleep(0.05)
    raise AssertionError(f"{len(results(out))} of {count} runs; exit code {process.poll()}")


@pytest.mark.slow
def test_workers_scheduler_and_client_die_and_every_run_ends_once(cluster, undisturbed, tmp_path):
    spec, out = tmp_path / "spec.json", tmp_path / "out"
    spec.write_text(json.dumps(SPEC))
    first, _ = cluster.start_worker(), cluster.start_worker()
    running = client(spec, out, cluster.address)
    wait_for(out, 1, running)
    first.send_signal(signal.SIGKILL)  # in the middle of its second job
    second = client(spec, out, cluster.address)  # another client on the same folder
    assert "is at work" in second.communicate(timeout=60)[1]
    assert second.returncode == 2
    wait_for(out, 2, running)
    running.send_signal(signal.SIGKILL)
    running.communicate()
    running = client(spec, out, cluster.address)
    time.sleep(4)
    cluster.scheduler.kill()  # and all that it knew with it
    cluster.scheduler.wait()
    cluster.start_scheduler()
    cluster.start_worker()
    told = running.communicate(timeout=180)[1]
    assert running.returncode == 0, told
    assert numbers(results(out)) == undisturbed
    assert len(results(out)) == len(undisturbed)


def test_the_same_numbers_as_on_one_machine(cluster, tmp_path):
    cluster.start_worker()
    small = sweep({"hidden": [3, 4], "steps": 40, "seeds": 2})
    there = run_sweep(small, tmp_path / "there", scheduler=cluster.address)
    here = run_sweep(small, tmp_path / "here", workers=1)
    assert numbers(there) == numbers(here)


def test_no_scheduler_is_a_clear_error():
    heard = []
    with pytest.raises(UnderhoodError, match="dask scheduler"):
        run_on_cluster([{"id": "a", "runs": []}], "tcp://127.0.0.1:9", print, warn=heard.append, patience=0.0)
    assert len(heard) == 1


@pytest.mark.parametrize("address", ["nonsense", "127.0.0.1", "http://127.0.0.1:8786", "tcp://127.0.0.1:99999", ""])
def test_what_is_no_address_is_refused_before_anything_is_written(address, tmp_path):
    with pytest.raises(UnderhoodError, match=r"Such as tcp://127\.0\.0\.1:8786"):
        run_sweep(sweep({}), tmp_path / "out", scheduler=address)
    assert not (tmp_path / "out").exists()
    for good in ("tcp://127.0.0.1:8786", "127.0.0.1:8786", "tls://[::1]:8786"):
        require_address(good)


def test_over_tls(tmp_path):
    ca, cert, key = _certificate(tmp_path)
    flags = ["--tls-ca-file", str(ca), "--tls-cert", str(cert), "--tls-key", str(key)]
    made = Cluster(flags, protocol="tls")
    try:
        made.start_worker()
        tls = Tls(ca, cert, key)
        records = run_sweep(sweep({"steps": 20}), tmp_path / "out", scheduler=made.address, tls=tls)
        assert [record["status"] for record in records] == ["done"]
        # Whoever has no certificate of ours is not let in.
        (tmp_path / "other").mkdir()
        other = Tls(*_certificate(tmp_path / "other"))
        from underhood.core.errors import UnderhoodError

        with pytest.raises(UnderhoodError, match="scheduler"):
            run_on_cluster([{"id": "a", "runs": []}], made.address, print, tls=other, patience=0.0)
    finally:
        made.end()


def _certificate(folder):
    """A certificate that is its own authority, for 127.0.0.1."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    private = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "underhood test")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(private, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    cert, key = folder / "cert.pem", folder / "key.pem"
    cert.write_bytes(certificate.public_bytes(pem))
    form = serialization.PrivateFormat.PKCS8
    key.write_bytes(private.private_bytes(pem, form, serialization.NoEncryption()))
    return cert, cert, key


def fails(job, folder=None):
    raise OSError(28, "No space left on device", "/somewhere")


def test_an_error_of_a_job_is_the_job_s(cluster, tmp_path, monkeypatch):
    """It read "the scheduler is gone", and the job was handed out again and again."""
    cluster.start_worker()
    warned = []
    monkeypatch.setattr("underhood.sweeps.cluster.run_job", fails)
    records = run_sweep(sweep({"hidden": [3, 4], "steps": 5}), tmp_path, scheduler=cluster.address, warn=warned.append)
    assert [each["status"] for each in records] == ["failed", "failed"]
    assert all("No space left on device" in each["reason"] and each["retry"] for each in records)
    assert not any("is gone" in text for text in warned)


def test_a_scheduler_without_workers_is_not_waited_for_in_silence(cluster, tmp_path):
    warned = []
    with pytest.raises(UnderhoodError, match=r"has no workers\. Start one: dask worker tcp://127"):
        run_on_cluster([{"id": "a", "runs": []}], cluster.address, print, warn=warned.append, patience=0.5)
    (text,) = warned
    assert "has no workers; 1 jobs wait" in text


def test_a_scheduler_that_is_gone_is_one_line(tmp_path):
    spec = tmp_path / "spec.json"
    spec.write_text(json.dumps(sweep({"steps": 5})))
    code = (
        "import sys; from underhood.sweeps import cluster, sweep; "
        "cluster.run_on_cluster.__kwdefaults__['patience'] = 0.0; "
        f"from underhood.cli import main; sys.exit(main(['sweep', {str(spec)!r}, '--out', {str(tmp_path / 'out')!r}, "
        "'--scheduler', 'tcp://127.0.0.1:9']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 2, done.stderr  # that it is waited for, and that it did not come
