"""onnxruntime in a process of its own, with limits of memory and time: a graph of 200 bytes may ask for anything.

Parent and child exchange arrays through pipes, each message an 8-byte length and the bytes: the child reads the graph,
says what inputs it has, and then answers sequences one by one. An answer that begins with "!" is an error's text.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import select
import struct
import subprocess
import sys
import time
import weakref
from typing import IO, Any, BinaryIO

import numpy as np

from underhood.core.errors import UnderhoodError, one_line

SECONDS = 60.0  # for one sequence, and for loading the graph
MEMORY = 4 << 30  # bytes of addresses; onnxruntime and NumPy take about one GB of them
LONGEST = 1 << 30  # bytes of an answer


class Runner:
    """A graph in a child process, which ends with this object."""

    def __init__(self, content: bytes, source: str) -> None:
        self.source = source
        command = [sys.executable, "-m", "underhood.interop.onnx_child"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        weakref.finalize(self, _end, self._child)
        self.inputs: list[dict[str, Any]] = json.loads(self._ask(content, f"onnxruntime cannot run {source}"))

    def __call__(self, xs: np.ndarray) -> np.ndarray:
        buffer = io.BytesIO()
        np.save(buffer, xs)
        what = f"{self.source} failed on a sequence of shape {xs.shape}"
        return np.load(io.BytesIO(self._ask(buffer.getvalue(), what)), allow_pickle=False)

    def _ask(self, message: bytes, what: str) -> bytes:
        """One message there and one back, within the time."""
        assert self._child.stdin is not None and self._child.stdout is not None
        until = time.monotonic() + SECONDS
        try:
            _write(self._child.stdin, message)
            length = struct.unpack("<Q", self._read(8, until))[0]
            answer = self._read(min(length, LONGEST), until)
        except TimeoutError:
            _end(self._child)
            raise UnderhoodError(f"{what}: it took longer than {SECONDS:.0f} seconds") from None
        except (OSError, EOFError, struct.error):
            _end(self._child)
            raise UnderhoodError(f"{what}: it took more than {MEMORY >> 30} GB, or crashed") from None
        if answer.startswith(b"!"):
            raise UnderhoodError(f"{what}: {one_line(answer[1:].decode('utf-8', 'replace'))[:200]}")
        return answer

    def _read(self, count: int, until: float) -> bytes:
        assert self._child.stdout is not None
        found = bytearray()
        while len(found) < count:
            ready, _, _ = select.select([self._child.stdout], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                raise TimeoutError
            piece = os.read(self._child.stdout.fileno(), min(count - len(found), 1 << 20))
            if not piece:
                raise EOFError
            found += piece
        return bytes(found)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def _write(file: IO[bytes], message: bytes) -> None:
    file.write(struct.pack("<Q", len(message)) + message)
    file.flush()


def serve(given: BinaryIO, gives: BinaryIO) -> None:
    """The child: answers until its input ends."""
    with contextlib.suppress(ValueError, OSError):  # a system without such limits
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    session: Any = None
    while head := given.read(8):
        message = given.read(struct.unpack("<Q", head)[0])
        try:
            if session is None:
                session = _session(message)
                told = [{"name": one.name, "type": one.type, "shape": list(one.shape)} for one in session.get_inputs()]
                answer = json.dumps(told).encode()
            else:
                buffer = io.BytesIO()
                xs = np.load(io.BytesIO(message), allow_pickle=False)
                np.save(buffer, np.asarray(session.run(None, {session.get_inputs()[0].name: xs})[0]))
                answer = buffer.getvalue()
        except Exception as error:
            answer = b"!" + str(error).encode() if str(error) else b"!out of memory"
        _write(gives, answer)


def _session(content: bytes) -> Any:
    import onnxruntime

    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # networks this small gain nothing from more
    options.enable_cpu_mem_arena = False
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
