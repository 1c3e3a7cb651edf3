"""Serve a model over HTTP, to any client of OpenAI's API and to a browser.

    python workbook.py serve                       the shipped model, on this machine only
    python workbook.py serve --technique prefix    with lab 8's prefix cache
    python workbook.py serve --mine                with your own pieces of lab 13 and of the engine
    python workbook.py serve --terminal            a chat here instead of a server
    python workbook.py serve --replicas 2          two servers behind a router
    python workbook.py serve --upstream http://127.0.0.1:8001 --upstream http://127.0.0.1:8002

The last one starts only a router, in front of servers that run already: ours or any other that
speaks the same API. Stop it with Ctrl+C: running requests end first.
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from solutions.server.connections import DrainingServer, allow_many_connections, listening
from solutions.server.settings import LOOPBACK, TECHNIQUES, Settings, host_name

KEY = "WORKBOOK_API_KEY"  # in the environment, where no list of processes shows it


def parser() -> argparse.ArgumentParser:
    parsed = argparse.ArgumentParser(
        "serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parsed.add_argument
    add("--model", default="fable", help="a shipped model, a folder, or a name on the hub")
    add("--host", default="127.0.0.1", help="address to listen on; another one needs --api-key")
    add("--port", type=int, default=8000, help="0 takes a free one")
    add("--technique", choices=TECHNIQUES, default="engine")
    add("--kernel", action="store_true", help="narrow steps as one compiled function (lab 21)")
    add("--same-bits", action="store_true",
        help="every step so: an answer doesn't depend on who else is served")  # fmt: skip
    add("--adapters", type=Path, metavar="FOLDER",
        help="serve its adapters, each from a folder by its name (lab 23)")  # fmt: skip
    add("--mine", action="store_true", help="use the solutions that passed their checks")
    add("--replicas", type=int, default=1, help="servers behind a router")
    add("--upstream", action="append", default=[], metavar="URL", help="a server to route to")
    add("--api-key", default=os.environ.get(KEY), help=f"clients must send it; or set {KEY}")
    add("--api-key-file", dest="api_key", type=content, metavar="FILE", help="the same, in a file")
    add("--name", action="append", default=[], help="a host name by which clients may call")
    add("--origin", action="append", default=[], help="of pages on the web that may call")
    add("--log", action="store_true", help="tell each request in a line of JSON on stderr")
    add("--debug", action="store_true", help="check the engine's blocks after each step")
    add("--open", action="store_true", help="open the page in a browser")
    add("--terminal", action="store_true", help="chat in the terminal, without a server")
    add("--threads", type=int, help="of the engine; by default all cores")
    add("--until-input-ends", action="store_true", help=argparse.SUPPRESS)  # for replicas
    add("--pool-mb", type=int, default=Settings.pool_bytes // 10**6,
        help="memory for keys and values (%(default)s)")  # fmt: skip
    add("--context", type=int, help="tokens of the longest text; by default as many as fit")
    add("--target-ttft", type=float, default=Settings.target_ttft,
        help="refuse requests that would wait longer, in seconds (%(default)s)")  # fmt: skip
    add("--drain", type=float, default=Settings.drain,
        help="how long requests may go on after Ctrl+C, in seconds (%(default)s)")  # fmt: skip
    return parsed


def content(file: str) -> str:
    try:
        return Path(file).read_text().strip()
    except (OSError, UnicodeError) as error:
        raise argparse.ArgumentTypeError(f"it can't be read: {error}") from error


def main(arguments: Sequence[str]) -> int:
    options = parser().parse_args(arguments)
    try:
        serve(options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # before it serves
        return 130
    return 0


def serve(options: argparse.Namespace) -> None:
    """Serve until a signal comes. Raises ValueError, with a sentence, for what can't be served."""
    if host_name(options.host) not in LOOPBACK and not options.api_key:
        raise ValueError(
            f"On {options.host}, other machines can use the server. Give it an --api-key, or "
            "listen on 127.0.0.1."
        )
    if options.replicas < 1:
        raise ValueError(f"There must be 1 replica or more, not {options.replicas}.")
    settings = Settings(
        model=options.model,
        technique=options.technique,
        kernel=options.kernel,
        same_bits=options.same_bits,
        adapters=options.adapters,
        threads=options.threads,
        pool_bytes=options.pool_mb * 10**6,
        context=options.context,
        api_key=options.api_key,
        origins=tuple(options.origin),
        log=options.log,
        debug=options.debug,
        hosts=(*options.name, *([] if options.host in ("0.0.0.0", "::") else [options.host])),
        target_ttft=options.target_ttft,
        drain=options.drain,
    )
    logging.basicConfig(format="%(levelname)s: %(message)s")
    allow_many_connections()
    if options.until_input_ends:
        threading.Thread(target=stop_when_input_ends, daemon=True).start()
    taken = None if options.terminal else listening(options.host, options.port)
    with contextlib.ExitStack() as stack:
        if options.replicas > 1 or options.upstream:
            app, drain, what = behind_router(options, settings, stack)
        else:
            app, drain, what = one_server(options, settings, stack)
        if taken is None:
            talk_here(app, settings, drain)
            return
        server = DrainingServer(app, settings, drain)
        app.state.stop = server.begin_to_stop
        host = options.host if options.host not in ("0.0.0.0", "::") else "127.0.0.1"
        address = f"http://{f'[{host}]' if ':' in host else host}:{taken.getsockname()[1]}"
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            runner.run(announced(server, taken, what, address, options.open))
        if app.state.fault:
            raise ValueError(app.state.fault)


def talk_here(app: Any, settings: Settings, drain: Any) -> None:
    from solutions.server.here import RunningServer
    from solutions.server.terminal import talk

    with RunningServer(app, settings, drain) as running:
        talk(running.url, settings.name, settings.api_key)


async def announced(
    server: DrainingServer, taken: Any, what: str, address: str, opens: bool
) -> None:
    """Serve, and print the address once the first request would be answered. opens: whether a
    browser is to show the page then.
    """

    async def announce() -> None:
        while not server.started:
            await asyncio.sleep(0.005)
        print(f"Serving {what} at {address}", flush=True)
        if opens and has_screen():
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    announcing = asyncio.create_task(announce())
    await server.serve([taken])
    announcing.cancel()


def has_screen() -> bool:
    """Return whether a browser has a window. A browser of texts would take the terminal."""
    return sys.platform != "linux" or bool(
        {"DISPLAY", "WAYLAND_DISPLAY", "BROWSER"} & {*os.environ}
    )


def one_server(
    options: argparse.Namespace, settings: Settings, stack: contextlib.ExitStack
) -> tuple[Any, Any, str]:
    from solutions.server.engine_process import EngineProcess

    labs = labs_of(options.mine)
    engine = EngineProcess(settings, labs)  # it loads while we import
    stack.callback(engine.stop)

    from solutions.server.app import new_app

    engine.wait()
    context, positions = engine.facts.context, engine.facts.n_positions
    if context < positions and options.context is None:
        held = f"{context:,} of the model's {positions:,} tokens"
        pool = f"--pool-mb {options.pool_mb}"
        held = f"{context:,} of the model's {positions:,} tokens, as many as {pool} holds"
        print(f"The context is {held}.", file=sys.stderr)
    app = new_app(settings, engine, labs)
    return app, app.state.service.drain, settings.name


def behind_router(
    options: argparse.Namespace, settings: Settings, stack: contextlib.ExitStack
) -> tuple[Any, Any, str]:
    from solutions.router.app import new_router_app
    from solutions.router.processes import STOP_WITHIN, replicas

    urls = options.upstream
    if not urls:
        if options.api_key:
            os.environ[KEY] = options.api_key  # the replicas' too
        starting = replicas(options.replicas, arguments_for(options), options.drain + STOP_WITHIN)
        urls = stack.enter_context(starting)
    app = new_router_app(settings, urls, labs_of(options.mine))
    what = f"{len(urls)} replicas of {options.model}"
    if options.upstream:
        what = ", ".join(urls)
    return app, app.state.router.drain, what


def arguments_for(options: argparse.Namespace) -> list[str]:
    """Return the arguments of each replica. They share the cores."""
    from timing.cores import usable_cores

    threads = options.threads or max(1, usable_cores() // options.replicas)
    given = ["--model", options.model, "--technique", options.technique, "--threads", str(threads)]
    given += ["--target-ttft", str(options.target_ttft), "--pool-mb", str(options.pool_mb)]
    given += ["--drain", str(options.drain)]
    given += [] if options.adapters is None else ["--adapters", str(options.adapters.resolve())]
    given += [] if options.context is None else ["--context", str(options.context)]
    flags = [flag for flag in ("mine", "debug", "kernel", "same_bits") if getattr(options, flag)]
    return [*given, *(f"--{flag.replace('_', '-')}" for flag in flags)]


def stop_when_input_ends() -> None:
    """Stop, as by SIGTERM, when the process that writes to the standard input closes it or ends."""
    while os.read(0, 1024):  # not by `sys.stdin`, whose lock would keep the process from ending
        pass
    signal.raise_signal(signal.SIGTERM)


def labs_of(mine: bool) -> Any:
    """Return what finds a lab's module: the reference's, or the one with a learner's solutions."""
    if mine:
        from autograder.check import mine as own

        return own
    from solutions.server.settings import reference

    return reference


if __name__ == "__main__":
    status = main(sys.argv[1:])
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    os._exit(status)  # at once: to take PyTorch's modules apart takes a second
