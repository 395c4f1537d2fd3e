"""The page of open_nvib as a Hugging Face Space: put this file and requirements.txt in one, and name the runs.

RUNS is a list of run directories in the Space, or of model repositories on the hub that hold one, parted by commas.
"""

import os
from pathlib import Path

from huggingface_hub import snapshot_download

from open_nvib.app import make_app, open_runs, serve


def directory_of(run: str) -> Path:
    """A directory as it is; anything else is the id of a repository, which is downloaded."""
    return Path(run) if Path(run).is_dir() else Path(snapshot_download(run))


if __name__ == "__main__":
    names = [name.strip() for name in os.environ.get("RUNS", "run").split(",") if name.strip()]
    serve(
        make_app(open_runs([directory_of(name) for name in names])),
        host=os.environ.get("GRADIO_SERVER_NAME", "0.0.0.0"),
        port=int(os.environ.get("GRADIO_SERVER_PORT", "7860")),
    )
