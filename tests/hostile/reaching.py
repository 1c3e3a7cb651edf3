"""Submissions that read and write where they have no business.

They try every door and do nothing behind it: a file is opened for writing and never written, so
that a hole which one of them finds does no harm to the machine that the tests run on.
"""

from tests.hostile.notebooks import spoils

FAMILY = "reaching"

# What every other attack relies on: their worst would otherwise hit the machine itself.
OUTSIDE = {
    "is outside: it sees other processes, can set the kernel's switches, or has a network": """
        own = "1", str(os.getpid())
        others = [name for name in os.listdir("/proc") if name.isdigit() and name not in own]
        switches = [f"/proc/sys/kernel/{name}" for name in ("core_pattern", "modprobe")]
        won = bool(others) or any(os.access(path, os.W_OK) for path in switches)
        won = won or len(socket.if_nameindex()) > 1
        """
}
READS = {
    "opens the gradebook": """
        for folder in pathlib.Path(sys.prefix).parents:
            won = won or any(folder.glob("autograder/gradebook.db"))
        """,
    "looks for the secret in the environment, the command lines and the home folder": """
        words = " ".join([*os.environ, *os.environ.values()])
        for file in glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ"):
            with contextlib.suppress(OSError):
                words += open(file, errors="replace").read()
        kept = glob.glob("/*/.[bcs]*") + glob.glob("/home/*/.*") + glob.glob("/*/*secret*")
        won = "secret" in words.lower() or bool(kept)
        """,
    "reads what other students handed in": """
        won = any(
            os.path.exists(os.path.join(place, "autograder", name))
            for place in (os.path.dirname(sys.prefix), os.getcwd(), "/course")
            for name in ("submitted", "autograded", "feedback", "source")
        )
        """,
    "reads the system's passwords": 'won = bool(open("/etc/shadow").read())',
    "looks at the grader's processes": """
        won = len([name for name in os.listdir("/proc") if name.isdigit()]) > 3
        """,
    "opens the memory of the first process": 'won = open("/proc/1/mem", "r+b").fileno() > 0',
    "reads the memory of the first process by a system call": """
        won = ctypes.CDLL(None).ptrace(16, 1, 0, 0) == 0
        """,
    "opens what the first process has open": """
        for number in range(16):
            with contextlib.suppress(OSError):
                won = won or bool(os.open(f"/proc/1/fd/{number}", os.O_RDWR))
        """,
    "opens a disk": """
        for device in [*glob.glob("/dev/[svx]d*"), "/dev/mem", "/dev/kmsg"]:
            with contextlib.suppress(OSError):
                won = won or bool(open(device, "rb").read(1))
        """,
    "has a capability, or could be given one": """
        for line in open("/proc/self/status"):
            name, _, value = line.partition(":")
            won = won or name.startswith("Cap") and int(value, 16) != 0
            won = won or name == "NoNewPrivs" and int(value) == 0
        """,
}
WRITES = {
    "finds another place that it may write": """
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
    "writes to the course, to the driver of the next one, or beside them": """
        import gpt
        from autograder.attempt.drivers import kv_cache
        won = os.access(os.path.dirname(gpt.__file__), os.W_OK)
        for path in (gpt.__file__, kv_cache.__file__):
            with contextlib.suppress(OSError):
                won = won or bool(os.open(path, os.O_WRONLY))
        """,
    "writes into the environment that the grader itself uses": """
        for path in (torch.__file__, os.__file__, sys.executable):
            with contextlib.suppress(OSError):
                won = won or bool(os.open(path, os.O_WRONLY))
        """,
    "makes namespaces of its own, in which it is root": """
        won = any(ctypes.CDLL(None).unshare(kind) == 0 for kind in (0x10000000, 0x00020000))
        """,
    "has the system run a program of its own wherever something crashes": """
        won = os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY) > 0
        """,
    "becomes root": """
        for become in (os.setuid, os.setgid):
            with contextlib.suppress(OSError):
                become(0)
                won = True
        """,
}
ADDRESSES = {
    "connects to the world": ("AF_INET", "SOCK_STREAM", ("1.1.1.1", 53)),
    "sends a datagram": ("AF_INET", "SOCK_DGRAM", ("8.8.8.8", 53)),
    "connects over IPv6": ("AF_INET6", "SOCK_DGRAM", ("2606:4700:4700::1111", 53)),
}
CONNECTS = """
wire = socket.socket(socket.{}, socket.{})
wire.settimeout(2)
wire.connect({})
won = wire.send(b"answers") > 0
"""
TALKS = {
    **{name: CONNECTS.format(*address) for name, address in ADDRESSES.items()},
    "asks for a name": 'won = bool(socket.getaddrinfo("example.com", 80))',
    "asks the web": """
        import urllib.request
        won = bool(urllib.request.urlopen("http://example.com", timeout=3))
        """,
    "connects to what listens on the grader's machine": """
        for port in (22, 80, 443, 5432, 8786, 8787, 8888, 8889):
            with contextlib.suppress(OSError):
                won = won or bool(socket.create_connection(("127.0.0.1", port), 1))
        """,
    "connects to the sockets of the system": """
        for path in glob.glob("/run/**/*.sock*", recursive=True) + ["/var/run/docker.sock"]:
            wire = socket.socket(socket.AF_UNIX)
            won = won or wire.connect_ex(path) == 0
        """,
}
CORPUS = spoils(FAMILY, {**OUTSIDE, **READS, **WRITES, **TALKS})
WALLS = CORPUS[0]
