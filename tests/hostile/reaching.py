"""Submissions that read and write where they have no business.

They try every door and do nothing behind it: a file is opened for writing and never written, so
that a hole which one of them finds does no harm to the machine that the tests run on.
"""

from functools import partial

from tests.hostile.notebooks import spoils

FAMILY = "reaching"
wins_if = partial(spoils, FAMILY)


def connects(name: str, family: str, address: str, kind: str = "SOCK_STREAM"):
    """Right only if something answers, or if a datagram leaves."""
    return wins_if(
        name,
        f"""
        import socket
        wire = socket.socket(socket.{family}, socket.{kind})
        wire.settimeout(2)
        wire.connect({address})
        won = wire.send(b"answers") > 0
        """,
    )


# What every other attack relies on: their worst would otherwise hit the machine itself.
WALLS = wins_if(
    "is outside: it sees other processes, can set the kernel's switches, or has a network",
    """
    import os, socket
    others = [n for n in os.listdir("/proc") if n.isdigit() and n not in ("1", str(os.getpid()))]
    switches = [f"/proc/sys/kernel/{name}" for name in ("core_pattern", "modprobe")]
    won = bool(others) or any(os.access(path, os.W_OK) for path in switches)
    won = won or len(socket.if_nameindex()) > 1
    """,
)

CORPUS = [
    WALLS,
    # --------------------------------------------------------------------------------- reading
    wins_if(
        "opens the gradebook",
        """
        import pathlib, sys
        for folder in pathlib.Path(sys.prefix).parents:
            won = won or any(folder.glob("autograder/gradebook.db"))
        """,
    ),
    wins_if(
        "looks for the secret in the environment, the command lines and the home folder",
        """
        import glob, os
        words = " ".join([*os.environ, *os.environ.values()])
        for file in glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ"):
            try:
                words += open(file, errors="replace").read()
            except OSError:
                pass
        kept = glob.glob("/*/.[bcs]*") + glob.glob("/home/*/.*") + glob.glob("/*/*secret*")
        won = "secret" in words.lower() or bool(kept)
        """,
    ),
    wins_if(
        "reads what other students handed in",
        """
        import os, sys
        folder = os.path.dirname(sys.prefix)
        won = any(
            os.path.exists(os.path.join(place, "autograder", name))
            for place in (folder, os.getcwd(), "/course")
            for name in ("submitted", "autograded", "feedback", "source")
        )
        """,
    ),
    wins_if(
        "reads the system's passwords",
        """
        won = bool(open("/etc/shadow").read())
        """,
    ),
    wins_if(
        "looks at the grader's processes",
        """
        import os
        won = len([name for name in os.listdir("/proc") if name.isdigit()]) > 3
        """,
    ),
    wins_if(
        "opens the memory of the first process",
        """
        won = open("/proc/1/mem", "r+b").fileno() > 0
        """,
    ),
    wins_if(
        "reads the memory of the first process by a system call",
        """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        won = libc.ptrace(16, 1, 0, 0) == 0
        """,
    ),
    wins_if(
        "opens what the first process has open",
        """
        import os
        won = any(os.open(f"/proc/1/fd/{number}", os.O_RDWR) for number in range(16))
        """,
    ),
    wins_if(
        "opens a disk",
        """
        import glob
        for device in [*glob.glob("/dev/[svx]d*"), "/dev/mem", "/dev/kmsg"]:
            try:
                won = won or bool(open(device, "rb").read(1))
            except OSError:
                pass
        """,
    ),
    wins_if(
        "has a capability, or could be given one",
        """
        for line in open("/proc/self/status"):
            name, _, value = line.partition(":")
            won = won or name.startswith("Cap") and int(value, 16) != 0
            won = won or name == "NoNewPrivs" and int(value) == 0
        """,
    ),
    # --------------------------------------------------------------------------------- writing
    wins_if(
        "finds another place that it may write",
        """
        import os
        devices = {f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")}
        for line in open("/proc/self/mountinfo"):
            path, options = line.split()[4:6]
            known = path in ("/scratch", "/dev/shm", "/proc") or path in devices
            won = won or "rw" in options.split(",") and not known
        for folder, _, files in os.walk("/proc"):
            folder_of_its_own = any(part.isdigit() for part in folder.split("/"))
            known = folder_of_its_own or "/self" in folder or "/thread-self" in folder
            places = [os.path.join(folder, file) for file in files]
            won = won or not known and any(os.access(place, os.W_OK) for place in places)
        """,
    ),
    wins_if(
        "writes beside the course's code",
        """
        import os, gpt
        folder = os.path.dirname(gpt.__file__)
        won = os.access(folder, os.W_OK) or os.open(gpt.__file__, os.O_WRONLY)
        """,
    ),
    wins_if(
        "writes into the environment that the grader itself uses",
        """
        import os, sys, torch
        for path in (torch.__file__, os.__file__, sys.executable):
            try:
                won = won or bool(os.open(path, os.O_WRONLY))
            except OSError:
                pass
        """,
    ),
    wins_if(
        "writes over the driver that the next submission is run with",
        """
        import os
        from autograder.drivers import kv_cache
        won = os.open(kv_cache.__file__, os.O_WRONLY) > 0
        """,
    ),
    wins_if(
        "makes namespaces of its own, in which it is root",
        """
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        won = libc.unshare(0x10000000) == 0 or libc.unshare(0x00020000) == 0
        """,
    ),
    wins_if(
        "has the system run a program of its own wherever something crashes",
        """
        import os
        won = os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY) > 0
        """,
    ),
    wins_if(
        "becomes root",
        """
        import os
        for become in (os.setuid, os.setgid):
            try:
                become(0)
                won = True
            except OSError:
                pass
        """,
    ),
    # --------------------------------------------------------------------------------- network
    connects("connects to the world", "AF_INET", '("1.1.1.1", 53)'),
    connects("sends a datagram", "AF_INET", '("8.8.8.8", 53)', "SOCK_DGRAM"),
    connects("connects over IPv6", "AF_INET6", '("2606:4700:4700::1111", 53)', "SOCK_DGRAM"),
    wins_if(
        "asks for a name",
        """
        import socket
        won = bool(socket.getaddrinfo("example.com", 80))
        """,
    ),
    wins_if(
        "asks the web",
        """
        import urllib.request
        won = bool(urllib.request.urlopen("http://example.com", timeout=3))
        """,
    ),
    wins_if(
        "connects to what listens on the grader's machine",
        """
        import socket
        for port in (22, 80, 443, 5432, 8786, 8787, 8888, 8889):
            try:
                won = won or bool(socket.create_connection(("127.0.0.1", port), 1))
            except OSError:
                pass
        """,
    ),
    wins_if(
        "connects to the sockets of the system",
        """
        import glob, socket
        for path in glob.glob("/run/**/*.sock*", recursive=True) + ["/var/run/docker.sock"]:
            wire = socket.socket(socket.AF_UNIX)
            won = won or wire.connect_ex(path) == 0
        """,
    ),
]
