"""The public names of the package."""

from __future__ import annotations

import pkgutil

import srns


def test_public_names_are_what_they_say_and_no_module_hides_one() -> None:
    modules = {module.name for module in pkgutil.iter_modules(srns.__path__)}
    assert not modules & set(srns.__all__)
    for name in srns.__all__:
        assert getattr(srns, name) is not None
    assert set(srns.__all__) <= set(dir(srns))


def test_what_is_not_there_raises() -> None:
    assert not hasattr(srns, "no_such_name")
