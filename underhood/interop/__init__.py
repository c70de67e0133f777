"""Models in and out: files, and other frameworks."""

from importlib import resources


def torch_modules_source() -> str:
    """torch_modules.py as text: an export puts it beside the weights, for programs without this package."""
    return resources.files(__name__).joinpath("torch_modules.py").read_text("utf-8")
