"""Guard of the page's server: which hosts and origins it answers, and how much one client asks.

The page asks without gradio's queue, so a request is open until it is answered: to bound open requests bounds all work.
"""

import contextlib
import ipaddress
import logging
import re
from collections import Counter
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

MAX_POSTS = 64  # requests to a model that may be open, those that wait included
MAX_POSTS_PER_CLIENT = MAX_POSTS // 2
MAX_OPEN_PER_CLIENT = 256
"""Requests of any kind of one client that may be open, among them the stream of each of its pages."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
HOST = re.compile(r"(\[[\da-f:.]+\]|[\w.-]+)(:\d+)?", re.ASCII | re.IGNORECASE)
"""Form of a Host header: user names, schemes and paths have no place in it."""
HOST_HEADERS = ("host", "x-forwarded-host", "x-gradio-server")
"""Headers from which gradio takes the address that the page sends its requests to."""
PATHS = {"/", "/config", "/favicon.ico", "/manifest.json", "/robots.txt", "/theme.css"} | {
    f"/gradio_api/{name}" for name in ("app_id", "info", "run/predict", "startup-events")
}
FOLDERS = ("/assets/", "/static/", "/gradio_api/heartbeat/")
"""With PATHS all that the page asks for. Gradio has more, such as uploads, a queue, and links that it keeps on disk."""

log = logging.getLogger(__name__)


class Guard:
    """Starlette middleware: answers requests to these hosts, from pages of the same origin, within bounds.

    Requests are answered at `hosts`, on loopback and at the address they came in at; pages at `origins` may ask, too.
    """

    def __init__(self, app: ASGIApp, hosts: Iterable[str], origins: Iterable[str]) -> None:
        self.app, self.origins = app, {host_name(name.rpartition("://")[2].strip("/")) for name in origins} - {""}
        self.hosts = {*LOOPBACK, *(name.lower() for name in hosts)} | self.origins
        self.open: Counter[str] = Counter()
        self.posts: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        client, posts = client_name((scope.get("client") or ("",))[0]), scope["method"] == "POST"
        if refusal := self.refusal(scope, client, posts=posts):
            status, reason = refusal
            return await JSONResponse({"error": reason}, status)(scope, receive, send)
        self.open[client] += 1
        self.posts[client] += posts
        try:
            await self.app(scope, receive, send)
        except Exception as error:  # answered already, by status 500
            log.warning("a request to %.200r failed: %.200r", scope["path"], error)
        finally:
            self.open[client] -= 1
            self.posts[client] -= posts
            self.open, self.posts = +self.open, +self.posts  # without clients that wait for nothing

    def refusal(self, scope: Scope, client: str, *, posts: bool) -> tuple[int, str] | None:
        """Status and reason of a refusal; None for a request that is taken."""
        headers = Headers(scope=scope)
        hosts = [host.strip() for name in HOST_HEADERS for value in headers.getlist(name) for host in value.split(",")]
        here = self.hosts | {(scope.get("server") or ("",))[0]}
        if not hosts or any(not host_name(host) or host_name(host) not in here for host in hosts):
            return 403, "This page is not served at this host; --allowed-hosts adds names."
        for origin in headers.getlist("origin"):
            scheme, _, place = origin.partition("://")
            if scheme not in ("http", "https") or not (place in hosts or host_name(place) in self.origins):
                return 403, "This page takes no requests from pages of another origin."
        if scope["path"] not in PATHS and not scope["path"].startswith(FOLDERS):
            return 404, "There is nothing at this address."
        if self.open[client] >= MAX_OPEN_PER_CLIENT or (posts and self.posts[client] >= MAX_POSTS_PER_CLIENT):
            return 429, "Too many requests of your address are open. Wait for their answers."
        if posts and self.posts.total() >= MAX_POSTS:
            return 503, "Too many people ask at once. Try again in a moment."
        return None


def client_name(address: str) -> str:
    """The client that an address belongs to: this machine for loopback, the network of 64 bits for IPv6.

    One client can send from all addresses of either.
    """
    with contextlib.suppress(ValueError):
        found = ipaddress.ip_address(address)
        found = getattr(found, "ipv4_mapped", None) or found
        if found.is_loopback:
            return "this machine"
        return str(ipaddress.ip_network((found, 64), strict=False)) if found.version == 6 else str(found)
    return address


def host_name(host: str) -> str:
    """The name or address in a Host header or an option, without its port; "" if it has another form."""
    found = HOST.fullmatch(host)
    return found[1].strip("[]").lower() if found else ""
