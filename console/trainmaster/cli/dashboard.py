"""Runs the dashboard until Ctrl-C; on a laptop, it opens the browser or prints the address."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
import ssl
import sys
import webbrowser
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

from trainmaster.cli.terminal import say
from trainmaster.client.errors import ClientError, InvalidRequest
from trainmaster.client.history import find_history
from trainmaster.dashboard.app import Dashboard, DashboardSettings, serving
from trainmaster.dashboard.guards import CODE_SECONDS, Launch, launch_file
from trainmaster.dashboard.sessions import history_at
from trainmaster_operator.serving import stop_event

# Interval between readings of the certificate's files (seconds).
RELOAD_SECONDS = 60.0

_log = logging.getLogger(__name__)


def _load(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Loads a certificate with its key into the context. Raises InvalidRequest."""
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        files = f"--tls-cert {certificate} and --tls-key {key}"
        raise InvalidRequest(f"{files} are no certificate with its key in PEM: {error}") from error


async def _keep_loading(context: ssl.SSLContext, certificate: Path, key: Path) -> None:
    """Reloads both files periodically, because the renewal of a certificate replaces the files' contents."""
    while True:
        await asyncio.sleep(RELOAD_SECONDS)
        try:
            await asyncio.to_thread(_load, context, certificate, key)
        except ClientError as error:
            _log.warning("Keeping the old certificate: %s", error)


async def serve(
    settings: DashboardSettings,
    host: str,
    port: int,
    *,
    history: str | None = None,
    certificate: tuple[Path, Path] | None = None,
    path: str = "/",
    browser: bool = False,
) -> None:
    """Serves until SIGINT or SIGTERM. Raises ClientError.

    `history` is an address; None means the cluster's history. `certificate` contains two paths: the certificate's and
    its key's.
    """
    if settings.mode == "laptop" and settings.server.acting_as is None:
        # Refuses a wrong address before serving.
        find_history(history, settings.server)
    # Garbage is collected less often than by default. As in `operator run`, almost all allocations are decoded JSON,
    # which contains no cycles. Connections contain cycles and survive into the second generation, which is collected
    # before it reaches tens of megabytes.
    gc.freeze()
    gc.set_threshold(20_000, 5, 200)
    stop = stop_event()
    async with AsyncExitStack() as stack:
        context = None
        if certificate is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            _load(context, *certificate)
            reloading = asyncio.create_task(_keep_loading(context, *certificate))
            stack.callback(reloading.cancel)
        dashboard = Dashboard(settings, history_at(history))
        try:
            _, bound = await stack.enter_async_context(serving(dashboard, host, port, tls=context))
        except OSError as error:
            raise InvalidRequest(f"{host}:{port} can't be listened on: {error.strerror}; give --port") from error
        if dashboard.launch is None:
            _log.info("Serving jobs of %s on port %d", settings.server.address, bound)
        else:
            _invite(dashboard.launch, f"http://127.0.0.1:{bound}", path, stack, browser=browser)
        await stop.wait()


def _invite(launch: Launch, base: str, path: str, stack: AsyncExitStack, *, browser: bool) -> None:
    """Opens a laptop's page in the browser, or prints its address. Each address works once; Enter prints another."""
    loop = asyncio.get_running_loop()

    def address() -> str:
        return f"{base}{path}#launch={launch.new_code()}"

    def opened() -> bool:
        file = launch_file(address())
        remove = partial(shutil.rmtree, file.parent, ignore_errors=True)
        stack.callback(remove)
        loop.call_later(CODE_SECONDS, remove)
        try:
            return webbrowser.open(file.as_uri())
        except webbrowser.Error:
            return False

    def say_address() -> None:
        more = "; Enter gives another one" if sys.stdin.isatty() else ""
        say(f"Open this within {CODE_SECONDS:g} s; it works once{more}:")
        say(address())

    def entered() -> None:
        if sys.stdin.readline():
            say_address()
        else:
            loop.remove_reader(sys.stdin)

    say(f"The dashboard is at {base} until you press Ctrl-C.")
    if os.environ.get("SSH_CONNECTION"):
        say(f"On your browser's machine run: {forwarding(base, os.environ)}")
    if not (browser and has_browser(os.environ) and opened()):
        say_address()
    if sys.stdin.isatty():
        loop.add_reader(sys.stdin, entered)
        stack.callback(loop.remove_reader, sys.stdin)


def has_browser(environment: Mapping[str, str]) -> bool:
    """Returns whether a browser can open here. Text browsers don't count, because they occupy the terminal."""
    if environment.get("BROWSER"):
        return True
    if environment.get("SSH_CONNECTION"):
        return False
    return sys.platform != "linux" or bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def forwarding(base: str, environment: Mapping[str, str]) -> str:
    """Returns the command that forwards the address to the machine from which the user has connected by SSH."""
    words = environment.get("SSH_CONNECTION", "").split()
    host = words[2] if len(words) == 4 else "THIS_MACHINE"
    port = base.rpartition(":")[2]
    return f"ssh -N -L {port}:127.0.0.1:{port} {environment.get('USER') or 'USER'}@{host}"
