"""The page of open_nvib as a Hugging Face Space: put this file and requirements.txt in one, and name the runs.

RUNS is a list of run directories in the Space, or of model repositories on the hub that hold one, parted by commas.
"""

import os
import sys
from pathlib import Path

from huggingface_hub import snapshot_download

from open_nvib.app import make_app, open_runs, serve
from open_nvib.store.files import InputError

HERE = "run"


def runs() -> list[Path]:
    """A directory as it is; anything else is the id of a repository, which is downloaded and keeps its name."""
    names = [name.strip() for name in os.environ.get("RUNS", "").split(",") if name.strip()]
    if not names and not Path(HERE).is_dir():
        raise InputError(f"there is no run: no folder {HERE!r} here, and RUNS is not set. Give one of them.")
    return [
        Path(name) if Path(name).is_dir() else Path(snapshot_download(name, local_dir=Path("downloaded") / name))
        for name in names or [HERE]
    ]


if __name__ == "__main__":
    try:
        serve(
            make_app(open_runs(runs())),
            host=os.environ.get("GRADIO_SERVER_NAME", "0.0.0.0"),
            port=int(os.environ.get("GRADIO_SERVER_PORT", "7860")),
        )
    except InputError as error:
        sys.exit(f"open_nvib: {error}")
