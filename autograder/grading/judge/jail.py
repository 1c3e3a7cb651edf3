"""The sandbox that a student's code runs in: bubblewrap, limits, and a filter of system calls.

Inside there is no network, no file except the system's and the few that an attempt needs, and no
other process: it has its own namespaces for users, processes, memory and network. Which limits hold
depends on the machine; `limits` lists them, and every report repeats the list.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count
from pathlib import Path
from typing import Any, Self

import psutil

from autograder.grading.judge.border import shown_files
from autograder.grading.refused import writing_temporary
from autograder.grading.temporary import Temporary
from autograder.judging.patience import can_run
from autograder.text.lesson import lessons
from autograder.text.reference import ROOT, SOLUTIONS

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
    "NUMBA_DISABLE_JIT": "1",  # checks run the Python form, whether numba is installed or not
}
OWN_USER = "--unshare-user", "--disable-userns", "--uid", str(NOBODY), "--gid", str(NOBODY)
TO_LEAVE_ROOT = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP"]
ROOM_TO_WRITE = "--perms", "1777", "--size", str(256 << 20), "--tmpfs"
# Of the kernel or the whole machine: any user can write some of these.
SWITCHES = [f"/proc/{name}" for name in ("sys", "sysrq-trigger", "irq", "bus", "pressure")]
WORKER = ("-P", "-m", "autograder.attempt")
# System calls that no student's code needs. The namespaces are in the way of all others.
FORBIDDEN = (
    *("ptrace", "process_vm_readv", "process_vm_writev", "kcmp", "pidfd_getfd"),
    *("bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter"),
    *("mount", "umount2", "pivot_root", "chroot", "unshare", "setns", "fsopen", "open_tree"),
    *("keyctl", "add_key", "request_key", "open_by_handle_at", "name_to_handle_at"),
    *("setpriority", "ioprio_set", "sched_setaffinity", "sched_setscheduler", "sched_setattr"),
    *("sched_setparam", "shmget", "shmat", "semget", "semop", "msgget", "msgsnd", "msgrcv"),
    *("init_module", "finit_module", "delete_module", "kexec_load", "reboot", "swapon"),
    *("personality", "acct", "quotactl", "syslog", "vhangup", "memfd_secret", "mq_open"),
)


class JailError(RuntimeError):
    """Why a student's code can't be run here, and what to do."""


@dataclass
class Jail:
    """How attempts are confined.

    seconds: of processor time for one exercise. budget: seconds for a submission, after which every
    further exercise has only a fifth of `seconds`. memory: bytes, for one process and, if a cgroup
    can be made, for all together. processes: their greatest number. sandboxed: False runs an
    attempt as an ordinary process of yours, which can read and write whatever you can.
    """

    seconds: float = 10.0
    budget: float = 40.0
    memory: int = 3 * GIB
    processes: int = 48
    sandboxed: bool = True
    stages: dict[str, Path] = field(default_factory=dict, repr=False)
    idle: dict[str, "Sandbox"] = field(default_factory=dict, repr=False)

    def __enter__(self) -> Self:
        """Raises JailError if no sandbox can be made."""
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

    # ------------------------------------------------------------------------------------ sandboxes

    def start(self, lab: str) -> "Sandbox":
        """Start a new sandbox with the files that an attempt at this lab may see."""
        return Sandbox(self, lab)

    def take(self, lab: str) -> "Sandbox":
        """Return a sandbox for attempts at this lab: one that was given back, or a new one."""
        sandbox = self.idle.pop(lab, None)
        return sandbox if sandbox is not None and sandbox.runs() else self.start(lab)

    def give_back(self, lab: str, sandbox: "Sandbox") -> None:
        """Keep a sandbox for the next submission, because starting one takes most of the time.

        It is as good as new, otherwise it would have been closed. Without the filter of system
        calls, an attempt may have changed unchecked settings of its first process, so it is closed.
        """
        if self.filter or not self.sandboxed:
            self.idle[lab] = sandbox
        else:
            sandbox.close()

    @property
    def resources(self) -> dict[str, int]:
        """Return the limits of one process, by the names of `resource`."""
        limits = {
            "RLIMIT_FSIZE": 64 << 20,
            "RLIMIT_NOFILE": 128,
            "RLIMIT_CORE": 0,
            "RLIMIT_CPU": int(3 * self.seconds) + 5,
        }
        if sys.platform == "linux":  # elsewhere they count more, or aren't enforced
            limits |= {"RLIMIT_AS": self.memory, "RLIMIT_NPROC": self.processes}
        return limits

    @cached_property
    def limits(self) -> tuple[str, ...]:
        """The limits that hold on this machine, in words."""
        fifth = "for a submission before these are cut to a fifth"
        ordinary = (
            f"{self.seconds:.0f} s of processor time for an exercise, {self.budget:.0f} s {fifth}",
            f"{self.memory / GIB:.0f} GiB of memory for a process"
            if "RLIMIT_AS" in self.resources
            else "no limit for the memory of a process",
        )
        if not self.sandboxed:
            return ("no sandbox: the code ran as an ordinary process of the grader", *ordinary)
        require_course_apart()
        self.is_root  # noqa: B018  (a sandbox can be made)
        together = f"{self.memory / GIB:.0f} GiB and {self.processes} processes for all together"
        return (
            "bubblewrap: no network, no other files, namespaces of its own, a user without rights",
            "a filter of system calls (seccomp)" if self.filter else "no filter of system calls",
            *ordinary,
            f"{together} (cgroup)" if self.has_group else "no cgroup: no limit for all together",
        )

    # ------------------------------------------------------------------------------------ its parts

    def stage(self, lab: str) -> Path:
        """Return a folder with the code that an attempt at this lab may see, without any answer."""
        if lab not in self.stages:
            with writing_temporary(JailError):
                self.stages[lab] = staged(shown_files(lab), self.folder / lab)
        return self.stages[lab]

    @cached_property
    def is_root(self) -> bool:
        """Whether bubblewrap runs as root and its worker then gives up all of root's rights.

        Otherwise it runs as an ordinary user, in a user namespace. The user inside is never root
        outside, because much in /proc depends on that. Tries both to find which works.
        """
        if shutil.which("bwrap") is None:
            raise JailError(
                "Grading needs bubblewrap, which confines students' code, but there is no `bwrap` "
                "here. Install it (Debian and Ubuntu: apt install bubblewrap). If you trust every "
                "line of every submission, use `grade --unsandboxed`."
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
            f"bubblewrap is installed but could not make a sandbox: {' '.join(said)} Are user "
            "namespaces switched off? If you trust every line of every submission, use "
            "`grade --unsandboxed`."
        )

    @cached_property
    def filter(self) -> bytes:
        """The seccomp program; empty if there is no libseccomp."""
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
        rules.add_rule(pyseccomp.ERRNO(38), "clone3")  # its flags can't be read; libc uses clone
        not_local = pyseccomp.Arg(0, pyseccomp.NE, socket.AF_UNIX)
        rules.add_rule(pyseccomp.ERRNO(1), "socket", not_local)
        of_another = pyseccomp.Arg(0, pyseccomp.NE, 0)
        rules.add_rule(pyseccomp.ERRNO(1), "prlimit64", of_another)
        with open(os.memfd_create("filter"), "w+b") as file:
            rules.export_bpf(file)
            file.seek(0)
            return file.read()


numbers = count()


def new_user(jail: Jail) -> int:
    """Return whom to become in a sandbox: as root, a user that nothing else is, so that no sandbox
    uses up another's limits."""
    own = 10**9 + (os.getpid() * 1000 + next(numbers)) % 10**9
    return own if jail.is_root else os.geteuid()


def staged(files: Iterable[Path], folder: Path) -> Path:
    """Copy files of the course that code in a sandbox may see."""
    for path in files:
        target = folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    (folder / "models").mkdir()
    return readable(folder)


def readable(folder: Path) -> Path:
    """Let every user read a folder: code in a sandbox runs as another one."""
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return folder


def environment(course: Path, scratch: Path) -> dict[str, str]:
    return {**ENVIRONMENT, "PYTHONPATH": str(course), "HOME": str(scratch), "TMPDIR": str(scratch)}


PYTHON = "bin", "lib", "lib64", "pyvenv.cfg"  # of its folder, and of an environment's
SYSTEM = *("bin", "sbin", "lib", "lib32", "lib64"), *("local/bin", "local/lib", "local/lib64")


def shown_paths() -> list[Path]:
    """Return all that an attempt may read besides what is staged: the system and this Python."""
    prefixes = {Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)}
    packages = {Path(p).resolve() for p in sys.path if p.endswith("-packages")}
    shown = {prefix / part for prefix in prefixes for part in PYTHON} | packages
    shown |= {Path("/usr", part) for part in SYSTEM} | {interpreter().resolve()}
    shown = {path for path in shown if path.exists()}
    return sorted(path for path in shown if shown.isdisjoint(path.parents))


def require_course_apart() -> None:
    """Raise JailError if the answers are in a folder that the sandbox shows."""
    for folder in shown_paths():
        if ROOT.is_relative_to(folder):
            raise JailError(
                f"The course is in {ROOT}, but a student's code can read all of {folder}, where "
                "Python is, so it could read the answers too. Move the course to another folder "
                "and grade from there."
            )
        for inside in ("", "python*/*-packages/"):
            for copy in folder.glob(f"{inside}{SOLUTIONS.name}/"):
                raise JailError(
                    f"A copy of the answers is in {copy}, where a student's code could read them. "
                    "Uninstall the course there (pip uninstall inference-workbook), and install it "
                    'from its folder with -e: pip install -e ".[grade]" -c constraints.txt'
                )


def interpreter() -> Path:
    """Return this Python's path without links to its folder, which is shown where it really is."""
    given = Path(sys.executable)
    return given.parent.resolve() / given.name


def link_outside(shown: list[Path]) -> Path | None:
    """Return the first link on the way from this Python to its program that isn't shown."""
    path = interpreter()
    while path.is_symlink():
        path = Path(os.path.normpath(path.parent / os.readlink(path)))
        if not any(map(path.is_relative_to, shown)):
            return path
    return None


def system_folders() -> Iterator[tuple[str, ...]]:
    """Yield bubblewrap's options that show the system and this Python, read-only."""
    for name in ("/bin", "/sbin", "/lib", "/lib32", "/lib64"):
        path = Path(name)
        if path.is_symlink():
            yield "--symlink", os.readlink(path), name
        elif path.is_dir():
            yield "--ro-bind", name, name
    yield "--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"
    shown = shown_paths()
    link = link_outside(shown)
    paths = [*shown, *([link] if link else [])]
    if not any(path.is_relative_to("/tmp") for path in paths):
        yield "--symlink", str(SCRATCH), "/tmp"
    for path in paths:
        for parent in reversed(path.parents[:-1]):
            yield "--perms", "0755", "--dir", str(parent)  # otherwise only root could pass
        if path == link:
            yield "--symlink", str(path.resolve()), str(path)
        else:
            yield "--ro-bind", str(path), str(path)


def devices() -> Iterator[str]:
    """Yield bubblewrap's options for the devices that a program needs, without terminals.

    They are bound one by one into the read-only root, so that nothing can be left in /dev.
    """
    yield from ("--perms", "0755", "--dir", "/dev")  # otherwise only root could pass
    for name in ("null", "zero", "full", "random", "urandom"):
        yield from ("--dev-bind", f"/dev/{name}", f"/dev/{name}")
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        yield from ("--symlink", f"/proc/self/fd/{number}", f"/dev/{name}")
    yield from ("--symlink", "/proc/self/fd", "/dev/fd")


def walls(jail: Jail, *shown: tuple[Path, Path]) -> list[str]:
    """Return bubblewrap's options, in the order in which it builds.

    shown: the staged course, and what else a program may read, each with its place in the sandbox.
    """
    return [
        # No network, no other process, no memory or name in common with anything outside.
        *("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts"),
        *("--unshare-cgroup-try", "--hostname", "sandbox"),
        # A user without rights, also where the grader runs as root.
        *("--cap-drop", "ALL", *(TO_LEAVE_ROOT if jail.is_root else OWN_USER)),
        # It ends with the grader, has no terminal to write into, and inherits no variable.
        *("--die-with-parent", "--new-session", "--clearenv"),
        *chain(*(("--setenv", *pair) for pair in environment(COURSE, SCRATCH).items())),
        # Of files, the system's, this Python and what the attempt needs, all read-only.
        *chain(*system_folders()),
        *chain(*(("--ro-bind", str(path), str(place)) for path, place in shown)),
        *("--ro-bind", str(ROOT / "models"), str(COURSE / "models")),
        *("--proc", "/proc", *devices()),
        *chain(*(("--ro-bind-try", file, file) for file in SWITCHES)),
        # Two folders to write into, which a child leaves as they were or the sandbox is closed.
        *chain(*((*ROOM_TO_WRITE, folder) for folder in (str(SCRATCH), "/dev/shm"))),
        *("--remount-ro", "/", "--chdir", str(SCRATCH)),
    ]


def confined(
    jail: Jail,
    options: Sequence[str],
    program: Sequence[str],
    pass_fds: Sequence[int] = (),
    **others: Any,
) -> tuple[subprocess.Popen, list[Path]]:
    """Start this Python in a sandbox. Return bubblewrap's process and the folders of its cgroups.

    options: of bubblewrap, `walls` first. program: Python's arguments. others: those of Popen.
    """
    release, block = os.pipe()
    info, tell = os.pipe()
    inside = [release, tell]
    command = ["bwrap", *options, "--block-fd", str(release), "--info-fd", str(tell)]
    if jail.filter:
        rules = os.memfd_create("rules")
        os.write(rules, jail.filter)
        os.lseek(rules, 0, os.SEEK_SET)
        inside.append(rules)
        command += ["--seccomp", str(rules)]
    process = subprocess.Popen(
        [*command, "--", str(interpreter()), *program],
        pass_fds=[*pass_fds, *inside],
        cwd="/",
        **others,
        **(UNPRIVILEGED if os.geteuid() == 0 and not jail.is_root else {}),
    )
    for descriptor in inside:
        os.close(descriptor)
    with os.fdopen(info) as answer:
        said = answer.read()
    group = grouped(jail, [process.pid, json.loads(said)["child-pid"]]) if said else []
    with suppress(BrokenPipeError):
        os.write(block, b"go")
    os.close(block)
    return process, group


class Sandbox:
    """A running sandbox. It runs one exercise after the other, each in a new process."""

    def __init__(self, jail: Jail, lab: str) -> None:
        self.control, theirs = socket.socketpair()
        self.control.settimeout(START)
        self.scratch: Temporary | None = None
        self.group: list[Path] = []
        self.log = tempfile.TemporaryFile()  # noqa: SIM115  (the errors of a start that fails)
        with theirs:
            start = self.shut_in if jail.sandboxed else self.at_large
            try:
                self.process = start(jail, lab, theirs.fileno())
            except OSError as error:
                self.control.close()
                self.log.close()
                raise JailError(f"No process could be started for the sandbox: {error}.") from None
        self.root = psutil.Process(self.process.pid)
        self.expect(b"ready")

    def shut_in(self, jail: Jail, lab: str, control: int) -> subprocess.Popen:
        process, self.group = confined(
            jail,
            [*walls(jail, (jail.stage(lab), COURSE)), "--as-pid-1"],
            [*WORKER, str(control), str(SCRATCH), lab, str(new_user(jail))],
            pass_fds=[control],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.log,
        )
        return process

    def at_large(self, jail: Jail, lab: str, control: int) -> subprocess.Popen:
        with writing_temporary(JailError):
            self.scratch = Temporary("attempt")
        scratch = self.scratch.path
        return subprocess.Popen(
            [sys.executable, *WORKER, str(control), str(scratch), lab, str(os.geteuid())],
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
        """Return a connection to a new process for one exercise."""
        ours, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self.control, [b"run"], [theirs.fileno()])
        return ours

    def end(self) -> tuple[float, bool]:
        """Kill all processes of the exercise.

        Return the processor seconds that they took, and whether the sandbox is as good as new.
        Raises JailError if the sandbox has ended too.
        """
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
        """Return the processor seconds of all processes in the sandbox."""
        total = 0.0
        for process in self.processes():
            with suppress(psutil.Error):
                total += sum(process.cpu_times()[:4])
        return total

    def can_run(self) -> bool | None:
        """Return whether a process in the sandbox works, or would if it had a processor.

        Waiting for a disk doesn't count, because the system says the same of a process that waits
        for a child, which can sleep forever.
        """
        return can_run(process.pid for process in self.processes())

    def expect(self, message: bytes) -> None:
        try:
            answer = self.control.recv(64)
        except OSError:
            answer = b""
        if answer != message:
            self.log.seek(0)
            said = self.log.read(4000).decode(errors="replace").strip().splitlines()
            self.close()
            raise JailError(f"The process in the sandbox did not start: {' '.join(said[-1:])}")

    def close(self) -> None:
        """End all processes in the sandbox and remove their files."""
        self.control.close()
        self.log.close()
        with suppress(ProcessLookupError):
            self.process.kill()  # ends the first process of the namespace, and so all of them
        self.process.wait()
        if self.scratch is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.scratch.remove()
        for folder in self.group:
            removed(folder)


# ---------------------------------------------------------------------------------------- cgroups


def cgroups() -> list[tuple[Path, str]]:
    """Return the folders in which a cgroup can be made, each with the file for its limit."""
    top = Path("/sys/fs/cgroup")
    kinds = [("memory", "memory.limit_in_bytes"), ("pids", "pids.max")]
    folders = [(top / name, limit) for name, limit in kinds if os.access(top / name, os.W_OK)]
    if folders and all((folder / "cgroup.procs").exists() for folder, _ in folders):
        return folders
    enabled = top / "cgroup.subtree_control"  # of version 2
    if enabled.exists() and os.access(top, os.W_OK):
        controllers = enabled.read_text().split()
        files = {"memory": "memory.max", "pids": "pids.max"}
        return [(top, limit) for name, limit in files.items() if name in controllers]
    return []


def grouped(jail: Jail, processes: list[int]) -> list[Path]:
    """Put processes into cgroups that limit all of them together, if that is possible."""
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
            with suppress(OSError):  # one in use, in another container, stays
                folder.rmdir()


def removed(folder: Path) -> None:
    """Remove a cgroup, whose last processes may need a moment to end."""
    for _ in range(50):
        try:
            folder.rmdir()
            return
        except OSError:
            time.sleep(0.02)
