"""Strict by default: shapes are checked at run time, rank promotion is an error, examples never change."""

import jax
from hypothesis import settings
from jaxtyping import install_import_hook

pytest_plugins = ["tests.browser"]  # the fixture `browser`: headless Chromium

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")
jax.config.update("jax_numpy_rank_promotion", "raise")
install_import_hook("underhood", "beartype.beartype")
