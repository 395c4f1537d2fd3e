"""What is on disk, as typed records with one reader and one atomic writer. Imports neither torch nor transformers."""

from open_nvib.store.files import InputError

__all__ = ["InputError"]
