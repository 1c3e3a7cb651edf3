"""The sandbox that a student's code runs in: bubblewrap, limits, and a filter of system calls.

Inside there is no network, no file but the system's and the few that an attempt needs, and nobody
else: namespaces of its own for users, processes, memory and network. Which walls hold differs by
machine; `limits` says in words which do, and every report repeats it.
"""

import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import psutil

from autograder.course.lesson import lessons
from autograder.course.reference import GIVEN, ROOT, SOLUTIONS, parts_of
from autograder.grading.refused import writing_temporary
from autograder.grading.temporary import Temporary

COURSE, SCRATCH = Path("/course"), Path("/scratch")  # in the sandbox
NOBODY = 65534
UNPRIVILEGED: dict[str, Any] = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
GIB = 1 << 30
START = 120  # seconds, on a machine however busy
ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "USER": "student",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
# Of the kernel or the whole machine: some of these can be written by anybody.
SWITCHES = [f"/proc/{name}" for name in ("sys", "sysrq-trigger", "irq", "bus", "pressure")]
WORKER = (sys.executable, "-P", "-m", "autograder.sandbox")
# What a student's code has no business with. Whatever else there is, the namespaces stand before.
FORBIDDEN = (
    *("ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd"),
    *("bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter"),
    *("mount", "umount2", "pivot_root", "chroot", "unshare", "setns", "fsopen", "open_tree"),
    *("keyctl", "add_key", "request_key", "open_by_handle_at", "name_to_handle_at"),
    *("setpriority", "ioprio_set", "sched_setaffinity", "sched_setscheduler", "sched_setattr"),
    *(
        "sched_setparam",
        "shmget",
        "shmat",
        "semget",
        "semop",
        "msgget",
        "msgsnd",
        "msgrcv",
        "mq_open",
    ),
    *("init_module", "finit_module", "delete_module", "kexec_load", "reboot", "swapon"),
    *("personality", "acct", "quotactl", "syslog", "vhangup", "memfd_secret"),
)


class JailError(RuntimeError):
    """Why a student's code can't be run here, and what to do."""


@dataclass
class Jail:
    """How attempts are shut in.

    seconds: of processor time for one exercise; budget: for a submission, after which every further
    exercise has only a fifth of `seconds`. memory: bytes, for one process and, where a cgroup can
    be made, for all together. processes: at most so many. sandboxed: False runs an attempt as an
    ordinary process of yours, which can read and write whatever you can.
    """

    seconds: float = 10.0
    budget: float = 40.0
    memory: int = 3 * GIB
    processes: int = 48
    sandboxed: bool = True
    stages: dict[str, Path] = field(default_factory=dict, repr=False)
    idle: dict[str, "Sandbox"] = field(default_factory=dict, repr=False)

    def __enter__(self) -> Self:
        """Raises JailError where no sandbox can be had."""
        with writing_temporary(JailError):
            self.temporary = Temporary("grader")
        self.folder = self.temporary.path
        self.folder.chmod(0o755)
        try:
            self.limits  # noqa: B018  (tries out which walls hold)
        except BaseException:
            self.temporary.remove()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        for sandbox in self.idle.values():
            sandbox.close()
        self.idle.clear()
        self.temporary.remove()

    # ------------------------------------------------------------------------------ what it offers

    def start(self, lab: str) -> "Sandbox":
        """A fresh sandbox with what an attempt at this lab may see."""
        return Sandbox(self, lab)

    def take(self, lab: str) -> "Sandbox":
        """A sandbox for attempts at this lab: the one that was given back, else a fresh one."""
        sandbox = self.idle.pop(lab, None)
        return sandbox if sandbox is not None and sandbox.runs() else self.start(lab)

    def give_back(self, lab: str, sandbox: "Sandbox") -> None:
        """Let the next submission have it: starting one takes most of the time that grading does.

        It is as new, or it would have been closed. Without the filter of system calls an attempt
        may have set something of its first process that isn't looked at: then it is closed.
        """
        if self.filter or not self.sandboxed:
            self.idle[lab] = sandbox
        else:
            sandbox.close()

    @property
    def resources(self) -> dict[str, int]:
        """What one process may use at most, by the names of `resource`."""
        found = {
            "RLIMIT_FSIZE": 64 << 20,
            "RLIMIT_NOFILE": 128,
            "RLIMIT_CORE": 0,
            "RLIMIT_CPU": int(3 * self.seconds) + 5,
        }
        if sys.platform == "linux":  # elsewhere it counts all the user's own, or isn't obeyed
            found |= {"RLIMIT_AS": self.memory, "RLIMIT_NPROC": self.processes}
        return found

    @cached_property
    def limits(self) -> tuple[str, ...]:
        """The walls that hold on this machine, in words."""
        fifth = "for a submission before these are cut to a fifth"
        ordinary = (
            f"{self.seconds:.0f} s of processor time for an exercise, {self.budget:.0f} s {fifth}",
            f"{self.memory / GIB:.0f} GiB of memory for a process"
            if "RLIMIT_AS" in self.resources
            else "no limit for the memory of a process",
        )
        if not self.sandboxed:
            return ("no sandbox: the code ran as an ordinary process of the grader's", *ordinary)
        require_course_apart()
        self.is_root  # noqa: B018  (a sandbox can be made)
        together = f"{self.memory / GIB:.0f} GiB and {self.processes} processes for all together"
        return (
            "bubblewrap: no network, no other files, namespaces of its own, a user without rights",
            "a filter of system calls (seccomp)" if self.filter else "no filter of system calls",
            *ordinary,
            f"{together} (cgroup)" if self.has_group else "no cgroup: no limit for all together",
        )

    # ------------------------------------------------------------------------- what it is made of

    def stage(self, lab: str) -> Path:
        """A folder with the code that an attempt at this lab may see; no answer is in it."""
        if lab not in self.stages:
            with writing_temporary(JailError):
                self.stages[lab] = staged(lab, self.folder / lab)
        return self.stages[lab]

    @cached_property
    def is_root(self) -> bool:
        """Whether bubblewrap runs as root and its worker then gives all of root's rights away.

        Else it runs as an ordinary user, in a user namespace. Never is the user inside root outside
        of it: much in /proc goes by that. Tries out which works.
        """
        if shutil.which("bwrap") is None:
            raise JailError(
                "Grading needs bubblewrap, which shuts in what students wrote, and there is no "
                "`bwrap` here. Install it (Debian and Ubuntu: apt install bubblewrap). Where you "
                "trust every line of every submission: --unsandboxed."
            )
        first = next(iter(lessons()))
        self.stage(first)  # if this fails, bubblewrap is not to blame
        said: list[str] = []
        for is_root in [True, False] if os.geteuid() == 0 else [False]:
            self.__dict__["is_root"] = is_root
            try:
                sandbox = self.start(first)
                self.has_group = bool(sandbox.group)
                sandbox.close()
                return is_root
            except JailError as error:
                said.append(str(error))
        del self.__dict__["is_root"]
        raise JailError(
            f"bubblewrap is here and could not make a sandbox: {' '.join(said)} Are user "
            "namespaces switched off? Where you trust every line of every submission: "
            "--unsandboxed."
        )

    @cached_property
    def filter(self) -> bytes:
        """The seccomp program; empty where there is no libseccomp."""
        try:
            import pyseccomp
        except (ImportError, OSError, RuntimeError):
            return b""
        rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
        for name in FORBIDDEN:
            with suppress(OSError, ValueError, RuntimeError):  # not every kernel knows every call
                rules.add_rule(pyseccomp.ERRNO(1), name)
        new_user = pyseccomp.Arg(0, pyseccomp.MASKED_EQ, 0x10000000, 0x10000000)  # CLONE_NEWUSER
        rules.add_rule(pyseccomp.ERRNO(1), "clone", new_user)
        rules.add_rule(pyseccomp.ERRNO(38), "clone3")  # its flags can't be read; libc does without
        not_local = pyseccomp.Arg(0, pyseccomp.NE, socket.AF_UNIX)
        rules.add_rule(pyseccomp.ERRNO(1), "socket", not_local)
        of_another = pyseccomp.Arg(0, pyseccomp.NE, 0)
        rules.add_rule(pyseccomp.ERRNO(1), "prlimit64", of_another)
        with open(os.memfd_create("filter"), "w+b") as file:
            rules.export_bpf(file)
            file.seek(0)
            return file.read()


numbers = itertools.count()


def new_user() -> int:
    """A user that nobody is, and no other sandbox: what one does counts for no other's limits."""
    return 10**9 + (os.getpid() * 1000 + next(numbers)) % 10**9


def staged(lab: str, folder: Path) -> Path:
    """Copy what an attempt at this lab may see: the drivers and the solutions of earlier labs."""
    labs = list(lessons())
    from_here = labs[labs.index(lab) :]
    answers = {part for other in from_here for part in parts_of(other)}
    hidden = answers | {part for other in from_here[1:] for part in GIVEN.get(other, ())}
    hidden_files = {SOLUTIONS / f"{part}.py" for part in hidden}
    own = ROOT / "autograder"
    files = [ROOT / "gpt.py", own / "__init__.py"]
    files += [path for path in SOLUTIONS.rglob("*.py") if path not in hidden_files]
    rooms = {"judging": ("failure", "source"), "course": ("reference",)}
    files += [own / room / f"{m}.py" for room, ms in rooms.items() for m in ("__init__", *ms)]
    files += [*(own / "sandbox").glob("*.py")]
    drivers = "__init__.py", "seen.py", "queues.py", f"{lab}.py"
    files += [own / "drivers" / name for name in drivers]
    for path in files:
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        target.chmod(0o644)
    (folder / "models").mkdir()
    for path in [folder, *(p for p in folder.rglob("*") if p.is_dir())]:
        path.chmod(0o755)
    return folder


def environment(course: Path, scratch: Path) -> dict[str, str]:
    return {**ENVIRONMENT, "PYTHONPATH": str(course), "HOME": str(scratch), "TMPDIR": str(scratch)}


def python_folders() -> list[Path]:
    prefixes = {Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)}
    packages = {Path(p).resolve() for p in sys.path if p.endswith("-packages") and Path(p).is_dir()}
    return sorted(prefixes | packages)


def require_course_apart() -> None:
    """Raise JailError where the answers lie in a folder that the sandbox shows."""
    for folder in (Path("/usr"), *python_folders()):
        if ROOT.is_relative_to(folder):
            raise JailError(
                f"The course lies in {ROOT}, and a student's code can read all of {folder}, with "
                "Python in it: the answers too. Move the course to a folder of its own, and grade "
                "from there."
            )


def system_folders() -> Iterator[tuple[str, ...]]:
    """How bubblewrap shows the system and this Python, read-only."""
    yield "--ro-bind", "/usr", "/usr"
    for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        path = Path(name)
        if path.is_symlink():
            yield "--symlink", os.readlink(path), name
        elif path.is_dir():
            yield "--ro-bind", name, name
    yield "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"
    prefixes = python_folders()
    if not any(prefix.is_relative_to("/tmp") for prefix in prefixes):
        yield "--symlink", str(SCRATCH), "/tmp"
    for prefix in prefixes:
        if prefix.is_relative_to("/usr"):
            continue
        for parent in reversed(prefix.parents[:-1]):
            yield "--perms", "0755", "--dir", str(parent)  # else only root could pass
        yield "--ro-bind", str(prefix), str(prefix)


def devices() -> Iterator[str]:
    """How bubblewrap shows the devices that a program needs: no terminals, and none can be made.

    They are bound one by one into the read-only root, so that nothing stays in /dev.
    """
    yield from ("--perms", "0755", "--dir", "/dev")  # else only root could pass
    for name in ("null", "zero", "full", "random", "urandom"):
        yield from ("--dev-bind", f"/dev/{name}", f"/dev/{name}")
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        yield from ("--symlink", f"/proc/self/fd/{number}", f"/dev/{name}")
    yield from ("--symlink", "/proc/self/fd", "/dev/fd")


class Sandbox:
    """A running sandbox. It tries exercises one after the other, each in a process of its own."""

    def __init__(self, jail: Jail, lab: str) -> None:
        self.control, theirs = socket.socketpair()
        self.control.settimeout(START)
        self.scratch: Temporary | None = None
        self.group: list[Path] = []
        self.log = tempfile.TemporaryFile()  # noqa: SIM115  (what is said of a start that fails)
        with theirs:
            start = self.shut_in if jail.sandboxed else self.at_large
            try:
                self.process = start(jail, lab, theirs.fileno())
            except OSError as error:
                raise JailError(f"No process could be started for it: {error}.") from None
        self.root = psutil.Process(self.process.pid)
        self.expect(b"ready")

    def shut_in(self, jail: Jail, lab: str, control: int) -> subprocess.Popen:
        release, block = os.pipe()
        info, tell = os.pipe()
        passed = [control, release, tell]
        own_user = [
            "--unshare-user",
            "--disable-userns",
            "--uid",
            str(NOBODY),
            "--gid",
            str(NOBODY),
        ]
        rights = ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP")
        to_leave_root = [part for right in rights for part in ("--cap-add", right)]
        command = ["bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"]
        command += ["--unshare-cgroup-try", "--hostname", "sandbox", "--cap-drop", "ALL"]
        command += to_leave_root if jail.is_root else own_user
        command += ["--die-with-parent", "--new-session", "--as-pid-1"]
        command += ["--clearenv"]
        for name, value in environment(COURSE, SCRATCH).items():
            command += ["--setenv", name, value]
        for bind in system_folders():
            command += bind
        command += ["--ro-bind", str(jail.stage(lab)), str(COURSE)]
        command += ["--ro-bind", str(ROOT / "models"), str(COURSE / "models")]
        command += ["--proc", "/proc", *devices()]
        for file in SWITCHES:
            command += ["--ro-bind-try", file, file]
        for folder in (str(SCRATCH), "/dev/shm"):
            command += ["--perms", "1777", "--size", str(256 << 20), "--tmpfs", folder]
        command += ["--remount-ro", "/", "--chdir", str(SCRATCH)]
        command += ["--block-fd", str(release), "--info-fd", str(tell)]
        if jail.filter:
            rules = os.memfd_create("rules")
            os.write(rules, jail.filter)
            os.lseek(rules, 0, os.SEEK_SET)
            passed.append(rules)
            command += ["--seccomp", str(rules)]
        user = new_user() if jail.is_root else os.geteuid()
        command += ["--", *WORKER, str(control), str(SCRATCH), lab, str(user)]
        process = subprocess.Popen(
            command,
            pass_fds=passed,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.log,
            cwd="/",
            **(UNPRIVILEGED if os.geteuid() == 0 and not jail.is_root else {}),
        )
        for descriptor in passed[1:]:
            os.close(descriptor)
        with os.fdopen(info) as answer:
            said = answer.read()
        if said:
            inside = json.loads(said)["child-pid"]
            self.group = grouped(jail, [process.pid, inside])
        with suppress(BrokenPipeError):
            os.write(block, b"go")
        os.close(block)
        return process

    def at_large(self, jail: Jail, lab: str, control: int) -> subprocess.Popen:
        with writing_temporary(JailError):
            self.scratch = Temporary("attempt")
        scratch = self.scratch.path
        return subprocess.Popen(
            [*WORKER, str(control), str(scratch), lab, str(os.geteuid())],
            pass_fds=[control],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.log,
            cwd=scratch,
            env=environment(jail.stage(lab), scratch),
            start_new_session=True,
        )

    # --------------------------------------------------------------------------------- exercises

    def begin(self) -> socket.socket:
        """A wire to a fresh process for one exercise."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self.control, [b"run"], [theirs.fileno()])
        return ours

    def end(self) -> tuple[float, bool]:
        """Kill everything of that exercise: the processor seconds that it took, and whether the
        sandbox is as new. Raises JailError where the sandbox is gone as well."""
        try:
            self.control.sendall(b"end")
            told = json.loads(self.control.recv(1024))
            return float(told["seconds"]), bool(told["clean"])
        except (OSError, ValueError, KeyError):
            raise JailError("The sandbox is gone.") from None

    def runs(self) -> bool:
        return self.process.poll() is None

    def processes(self) -> list[psutil.Process]:
        with suppress(psutil.Error):
            return [self.root, *self.root.children(recursive=True)]
        return []

    def used(self) -> float:
        """Processor seconds of all that has run in here."""
        total = 0.0
        for process in self.processes():
            with suppress(psutil.Error):
                total += sum(process.cpu_times()[:4])
        return total

    def waits_for_a_disk(self) -> bool:
        """Whether something in here is being read, a library's code for instance, on a busy
        machine."""
        for process in self.processes():
            with suppress(psutil.Error):
                if process.status() == psutil.STATUS_DISK_SLEEP:
                    return True
        return False

    def expect(self, message: bytes) -> None:
        try:
            found = self.control.recv(64)
        except OSError:
            found = b""
        if found != message:
            self.log.seek(0)
            said = self.log.read(4000).decode(errors="replace").strip().splitlines()
            self.close()
            raise JailError(f"The process in the sandbox did not start: {' '.join(said[-1:])}")

    def close(self) -> None:
        """Whatever runs in here, and whatever it left behind, is gone."""
        self.control.close()
        self.log.close()
        with suppress(ProcessLookupError):
            self.process.kill()  # with it the first process of the namespace, and so all of it
        self.process.wait()
        if self.scratch is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.scratch.remove()
        for folder in self.group:
            removed(folder)


# ---------------------------------------------------------------------------------------- cgroups


def cgroups() -> list[tuple[Path, str]]:
    """The folders in which a cgroup can be made, and the file that takes its limit."""
    top = Path("/sys/fs/cgroup")
    kinds = [("memory", "memory.limit_in_bytes"), ("pids", "pids.max")]
    found = [(top / name, limit) for name, limit in kinds if os.access(top / name, os.W_OK)]
    if found and all((folder / "cgroup.procs").exists() for folder, _ in found):
        return found
    enabled = top / "cgroup.subtree_control"  # of version 2
    if enabled.exists() and os.access(top, os.W_OK):
        controllers = enabled.read_text().split()
        files = {"memory": "memory.max", "pids": "pids.max"}
        return [(top, limit) for name, limit in files.items() if name in controllers]
    return []


def grouped(jail: Jail, processes: list[int]) -> list[Path]:
    """Put processes into cgroups with limits for all of them together, where that can be done."""
    made: list[Path] = []
    for parent, limit in cgroups():
        remove_leftover_groups(parent)
        folder = parent / f"inference-grader-{processes[0]}"
        most = jail.processes + 8 if limit.startswith("pids") else jail.memory
        try:
            folder.mkdir(exist_ok=True)
            (folder / limit).write_text(str(most))
            for process in processes:
                (folder / "cgroup.procs").write_text(str(process))
        except OSError:
            continue
        made.append(folder)
    return list(dict.fromkeys(made))


def remove_leftover_groups(parent: Path) -> None:
    """Remove the cgroups of sandboxes whose grader was killed."""
    for folder in parent.glob("inference-grader-*"):
        if not psutil.pid_exists(int(folder.name.split("-")[-1])):
            with suppress(OSError):  # one in use stays, of a grader in another container, say
                folder.rmdir()


def removed(folder: Path) -> None:
    """Take a cgroup away, whose last processes may need a moment to die."""
    for _ in range(50):
        try:
            folder.rmdir()
            return
        except OSError:
            time.sleep(0.02)
