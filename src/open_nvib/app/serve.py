"""Put the page on the network: on this machine alone unless told otherwise, and without asking anything of another."""

import errno
import os
import socket
from importlib.resources import files
from typing import Any

import gradio as gr
from gradio import themes
from starlette.middleware import Middleware

from open_nvib.app.limits import Limits
from open_nvib.store.files import InputError

LOOPBACK = "127.0.0.1"
PORT = 7860

FONTS = {
    "font": ["system-ui", "-apple-system", "Segoe UI", "Roboto", "Helvetica", "Arial", "sans-serif"],
    "font_mono": ["ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "monospace"],
}


def serve(
    blocks: gr.Blocks, *, host: str = LOOPBACK, port: int = PORT, open_browser: bool = False, wait: bool = True
) -> str:
    """Serve the page until interrupted, or in the background with `wait` False. Returns its address."""
    _check_free(host, port)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    _, address, _ = blocks.launch(server_name=host, server_port=port, inbrowser=open_browser, **settings())
    if wait:
        print(f"The page is at {address} (Ctrl+C stops it)", flush=True)
        blocks.block_thread()
    return address


def settings() -> dict[str, Any]:
    """How `launch` is called, wherever the page is served: nothing from elsewhere, no uploads, no history."""
    return {
        "theme": theme(),
        "css": (files("open_nvib.app") / "page.css").read_text(encoding="utf-8"),
        "app_kwargs": {"middleware": [Middleware(Limits)], "docs_url": None, "redoc_url": None, "openapi_url": None},
        "share": False,
        "ssr_mode": False,
        "mcp_server": False,
        "run_history": False,
        "enable_monitoring": False,
        "footer_links": [],
        "max_file_size": "1b",
        "prevent_thread_lock": True,
        "quiet": True,
    }


def theme() -> themes.Base:
    """Fonts that are on the reader's machine, and small print dark enough to read."""
    return themes.Default(primary_hue="sky", **FONTS).set(  # pyright: ignore[reportArgumentType]
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_300",
        block_label_text_color="*neutral_700",
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_300",
    )


def _check_free(host: str, port: int) -> None:
    if not 1 <= port <= 65535:
        raise InputError(f"port is {port}, wanted 1 to 65535.")
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise InputError(f"port {port} of {host} is in use. Give another: --port {port + 1}.") from error
        raise InputError(f"host {host}, port {port}: cannot be served from here ({error}).") from error
