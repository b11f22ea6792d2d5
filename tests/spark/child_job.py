"""A job in a child process, to be killed: its processes, and the micro-batch that it is in. Only what descends from it is killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from dovetail.spark.state.shared_memory import shared_memory_root


class ChildJob:
    """A job that may be killed and started again: `python SCRIPT FOLDER ...`, with its checkpoint in FOLDER/checkpoint."""

    most_seconds = 180.0
    """After which a job that was started is taken to hang."""

    def __init__(self, folder: Path, script: Path) -> None:
        self.folder, self.script = folder, script
        self.process: subprocess.Popen[bytes] | None = None
        self.deadline = time.monotonic() + self.most_seconds

    def start(self, *arguments: str, **environment: str) -> None:
        command = [sys.executable, str(self.script), str(self.folder), *arguments]
        self.deadline = time.monotonic() + self.most_seconds
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **environment},
            )

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def _log(self) -> Path:
        return self.folder / "log"

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def is_running(self) -> bool:
        """Whether the job is alive; it fails if the job has been running for too long."""
        assert time.monotonic() < self.deadline or not self.is_alive, f"the job hangs\n{self.log[-3000:]}"
        return self.is_alive

    def begun(self) -> int:
        """Batches that were begun."""
        return len(self._entries("offsets"))

    def is_in_batch(self) -> bool:
        return self.begun() > len(self._entries("commits"))

    def _entries(self, log: str) -> list[Path]:
        folder = self.folder / "checkpoint" / log
        return [path for path in folder.iterdir() if path.name.isdigit()] if folder.exists() else []

    def processes(self) -> dict[int, str]:
        """The job's process and all that descend from it now, with their command lines; parents come first."""
        if not self.is_alive:
            return {}
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    status = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                    children.setdefault(int(status[1]), []).append(int(entry.name))
        found, waiting = {}, [self.pid]
        while waiting:
            pid = waiting.pop(0)
            with suppress(OSError):
                found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            waiting += children.get(pid, [])
        return found

    def workers(self) -> list[int]:
        """Python workers: forked by a daemon, which the job's JVM, or that of an executor, has started."""
        daemons = [pid for pid, line in self.processes().items() if "spark.worker.daemon" in line]
        return [pid for pid in daemons if parent(pid) in daemons]

    def executors(self) -> list[int]:
        return [pid for pid, line in self.processes().items() if "CoarseGrainedExecutorBackend" in line]

    def note(self, victim: str) -> None:
        """Say in the job's log what is killed when, for whoever reads it."""
        with self._log.open("a", encoding="utf-8") as log:
            where = "in" if self.is_in_batch() else "after"
            log.write(f"KILL {victim} {where} batch {self.begun() - 1}\n")

    def kill(self, pid: int) -> None:
        """Kill one process, if the chain of its parents still leads to the job."""
        above = parent(pid)
        while above not in (0, 1, self.pid):
            above = parent(above)
        if above == self.pid:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def crash(self, *, workers_too: bool) -> None:
        """Kill the driver and its JVMs; its Python workers with them, or they end a moment later when they notice."""
        processes = self.processes()
        if processes:
            self.note("driver and workers" if workers_too else "driver")
        for pid, line in processes.items():
            if workers_too or "spark.worker.daemon" not in line:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait(30)

    def finish(self) -> None:
        """Let the job end by itself, starting it if it does not run."""
        if not self.is_running():
            self.start()
        while self.is_running():
            time.sleep(0.1)
        assert self.process is not None
        assert self.process.returncode == 0, self.log[-5000:]

    def clear(self) -> None:
        self.crash(workers_too=True)
        for root in self.live():
            shutil.rmtree(root, ignore_errors=True)
        for name in ("checkpoint", "scratch"):
            shutil.rmtree(self.folder / name, ignore_errors=True)

    def live(self) -> list[Path]:
        """What all its lives have left in shared memory."""
        runs = self.folder / "runs"
        roots = [shared_memory_root(run) for run in runs.read_text(encoding="utf-8").split()] if runs.exists() else []
        return [root for root in roots if root.exists()]


def parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])
    except OSError:
        return 0


def wait_for_batch(job: ChildJob, number: int) -> bool:
    """Wait until so many batches were begun and the last is under way; False if the job ends before."""
    while job.begun() < number or not job.is_in_batch():
        if not job.is_running():
            return False
        time.sleep(0.005)
    return True


def kill_a_worker(job: ChildJob, rng: random.Random) -> None:
    """Kill a Python worker inside an attempt at a shard; any worker, if none is seen there for long."""
    until = time.monotonic() + 10
    inside: list[int] = []
    workers: list[int] = []
    while not inside and (not workers or time.monotonic() < until):
        assert job.is_running(), job.log[-5000:]
        workers = job.workers()
        for _ in range(50):  # an attempt takes milliseconds: look often
            inside = [pid for pid in workers if is_joining(pid)]
            if inside:
                break
            time.sleep(0.001)
    job.kill(rng.choice(inside or workers))
    job.note("busy worker" if inside else "worker")


def is_joining(worker: int) -> bool:
    """Whether a worker has arrays mapped that it took over and has not given back."""
    try:
        return "/work-" in Path(f"/proc/{worker}/maps").read_text(encoding="utf-8")
    except OSError:
        return False
