"""The data of an experiment: made once where it is missing, and never taken for what it is not."""

from pathlib import Path

from filelock import FileLock

from open_nvib.experiments.state import Say
from open_nvib.store.files import InputError
from open_nvib.store.settings import Recipe
from open_nvib.text.data import PrepareConfig, load_prepared, prepare
from open_nvib.text.data.prepare import make_recipe
from open_nvib.text.data.prepared import is_prepared
from open_nvib.text.data.sources import Source, open_source


def prepare_if_missing(config: PrepareConfig | None, say: Say) -> None:
    """Prepare the data once, however many cells want it at the same time. Data of another recipe is an InputError."""
    if config is None:
        return
    output = Path(config.output).expanduser()
    if not is_prepared(output):
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{output}: cannot be written ({error.strerror}). Give prepare another output.") from error
        with FileLock(output.with_name(f".{output.name}.lock")):
            if not is_prepared(output):
                say(f"preparing {config.source} in {output}")
                prepare(config)
                return
    check_recipe(config)


def check_recipe(config: PrepareConfig | None) -> None:
    """An InputError if the data is there and is of another recipe than this one."""
    if config is None or not is_prepared(output := Path(config.output).expanduser()):
        return
    known = load_prepared(output).recipe
    different = known.differences(make_recipe(config, _source(config, known)))
    if different:
        raise InputError(
            f"{output}: holds data of another recipe ({'; '.join(different)}) than prepare says. Give prepare "
            f"another output, or make the data anew with `nvib prepare --overwrite`."
        )


def _source(config: PrepareConfig, known: Recipe) -> Source:
    """The source, or as much as its name says where it is gone: what was made of it can be used without it."""
    try:
        return open_source(config)
    except InputError:
        return Source({**known.source, "source": Path(config.source).name}, [])
