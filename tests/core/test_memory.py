"""Need against what is free: the machine's memory, a container's limit, a process's own."""

from __future__ import annotations

import resource

import pytest

import underhood as uh
from underhood.core import memory


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine with 2 GB free, in a container without a limit."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9000000 kB\nMemFree: 1 kB\nMemAvailable:    2000000 kB\n")
    monkeypatch.setattr(memory, "_MEMINFO", meminfo)
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    return tmp_path


def test_what_fits_is_let_through_and_what_does_not_is_refused_with_need_and_limit(machine):
    memory.require_memory(2_048_000_000, "a small thing")
    with pytest.raises(uh.UnderhoodError, match=r"for a large thing: it needs at least 2\.1 GB, and 2\.05 GB are free"):
        memory.require_memory(2.1e9, "a large thing")


def test_a_containers_limit_counts_less_what_is_used(machine):
    (machine / "memory.max").write_text("500000000\n")
    (machine / "memory.current").write_text("400000000\n")
    assert memory.available_memory() == 1e8
    (machine / "memory.max").write_text("max\n")
    assert memory.available_memory() == 2_048_000_000


def test_a_limit_of_the_process_counts(machine, monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (10**6, 10**6))
    assert memory.available_memory() == 1e6


def test_without_meminfo_the_machines_size_counts(machine, monkeypatch):
    monkeypatch.setattr(memory, "_MEMINFO", machine / "nowhere")
    assert memory.available_memory() > 1e8
    with pytest.raises(uh.UnderhoodError, match="PB"):
        memory.require_memory(1e20, "anything")
