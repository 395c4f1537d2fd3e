"""`nvib app`."""

from jsonargparse import ArgumentParser, Namespace

from open_nvib.store.files import InputError


def describe_app(parser: ArgumentParser) -> None:
    parser.add_argument("runs", type=str, nargs="+", help="one or more run directories that `nvib train` wrote")
    parser.add_argument("--host", type=str, default="127.0.0.1", help="where to listen; 0.0.0.0 is every network")
    parser.add_argument("--port", type=int, default=7860, help="the port to listen on")
    parser.add_argument("--open", action="store_true", help="open the page in a browser")
    parser.add_argument("--device", type=str | None, default=None, help="such as cuda; the CPU if not given")


def run_app(given: Namespace) -> None:
    try:
        import gradio  # noqa: F401
    except ImportError as error:
        raise InputError("the page needs gradio. Install it: pip install 'open-nvib[app]'.") from error
    from open_nvib.app import make_app, open_runs, serve

    serve(
        make_app(open_runs(given.runs, device=given.device)),
        host=given.host,
        port=given.port,
        open_browser=given.open,
    )
