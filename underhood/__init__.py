"""What recurrent networks do under the hood.

    attention ──compile──▶ gated RNN ──train──▶ trained RNN ──decompile──▶ attention + certificate
                                                     └────────report (tables, figures, HTML)

The public names are listed in `__init__.pyi` and imported on first use, so that `import underhood` costs nothing.
"""

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
