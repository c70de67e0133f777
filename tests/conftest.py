"""Strict by default: shapes are checked at run time, rank promotion is an error, examples never change."""

import jax
from hypothesis import settings
from jaxtyping import install_import_hook

pytest_plugins = ["tests.browser"]  # the fixture `browser`: headless Chromium

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
jax.config.update("jax_numpy_rank_promotion", "raise")
install_import_hook("underhood", "beartype.beartype")


def pytest_collection_modifyitems(items):
    """The longest first: a process that is done early can take over short tests, not half of a long one."""
    items.sort(key=lambda item: item.originalname != "test_nothing_is_lost")
