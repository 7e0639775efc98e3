"""The explorer's server: it refuses requests for other hosts and from other sites, before Streamlit sees them.

A page of another site could otherwise reach the explorer on this machine (DNS rebinding, cross-site requests).
Streamlit compares only web sockets with `server.allowedHosts`, and asks the internet for this machine's address when
the origin of one is unknown, while every session waits.
"""

import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocketClose
from streamlit import cli_util, config
from streamlit.starlette import App
from streamlit.web.server import server_util

from dse.explorer.launch import ANY, LOOPBACK

#: the script of the pages; not beside `pages`, whose files Streamlit would run as scripts of their own
SCRIPT = Path(__file__).parent / "script" / "page.py"


def host_name(authority: str) -> str:
    """Name or address in the Host header or the network location of an origin; empty where it is malformed."""
    with suppress(ValueError):
        parts = urlsplit(f"//{authority}")
        plain = not (parts.username or parts.password or parts.path or parts.query or parts.fragment)
        if plain and (parts.port is None or parts.port > 0):
            return (parts.hostname or "").removesuffix(".")
    return ""


def known_hosts() -> set[str]:
    """Names that the explorer answers to: this machine's own, the configured address, and `server.allowedHosts`."""
    configured = (config.get_option("server.address"), config.get_option("browser.serverAddress"))
    names = {*LOOPBACK, *config.get_option("server.allowedHosts"), *filter(None, configured)}
    return {name.strip().lower().removesuffix(".") for name in names} - set(ANY)


def is_known(host: str, known: set[str]) -> bool:
    """True where a host is one of `known`, in which `*.example.org` stands for its subdomains and `*` for all."""
    with suppress(ValueError):
        host = str(ipaddress.ip_address(host))
    patterns = (pattern for pattern in known if pattern.startswith("*"))
    return bool(host) and (host in known or any(host.endswith(pattern[1:]) for pattern in patterns))


def is_welcome(host: str, origin: str | None) -> bool:
    """True for a request to a known host that comes from the same server, from an allowed origin, or from no page."""
    if not is_known(host_name(host), known_hosts()):
        return False
    if origin is None or origin in config.get_option("server.corsAllowedOrigins"):
        return True
    if not config.get_option("server.enableCORS"):  # the reader's own choice: any site may ask
        return True
    with suppress(ValueError):
        site = urlsplit(origin)
        return site.scheme in ("http", "https") and is_known(host_name(site.netloc), known_hosts())
    return False


class Guard:
    """ASGI middleware: answers 403 to what is not welcome."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a welcome request on; a web socket's origin, checked here, is withheld from Streamlit's own check."""
        if scope["type"] in ("http", "websocket"):
            headers = Headers(scope=scope)
            if len(headers.getlist("host")) != 1 or not is_welcome(headers["host"], headers.get("origin")):
                refuse = PlainTextResponse("This host or origin may not use the explorer.\n", 403)
                await (refuse if scope["type"] == "http" else WebSocketClose(1008))(scope, receive, send)
                return
        if scope["type"] == "websocket":
            scope = {**scope, "headers": [pair for pair in scope["headers"] if pair[0] != b"origin"]}
        await self.app(scope, receive, send)


MIDDLEWARE = (Middleware(Guard),)


@asynccontextmanager
async def open_browser(app: App) -> AsyncIterator[None]:
    """Show the first page in the reader's browser, unless the server is headless; its socket listens already."""
    if not config.get_option("server.headless"):
        shown = config.get_option("browser.serverAddress") if config.is_manually_set("browser.serverAddress") else ""
        address = shown or server_util.get_display_address(config.get_option("server.address"))
        cli_util.open_browser(server_util.get_url(address))
    yield
