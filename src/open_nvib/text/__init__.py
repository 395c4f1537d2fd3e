"""The toolkit for text: data, models, training, and what one does with a trained model. Needs the extra `text`.

`__init__.pyi` lists the public names; each is imported on first use.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
