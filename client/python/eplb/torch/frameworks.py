"""Parts of a framework that an adapter needs, looked for by name, so that another release ends with an error that names them."""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

from eplb.errors import InvalidArgument

_PAGE = "docs/frameworks.md"


class Framework:
    """package: its name in the Python registry. tested: the releases that the adapter was tested with."""

    def __init__(self, package: str, tested: str) -> None:
        self._package, self._tested = package, tested

    def imported(self, module: str, name: str) -> Any:
        """Returns what a module of the framework has under a name. errors: InvalidArgument naming it."""
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError) as error:
            raise self.lacking(f"{module}.{name}", str(error)) from error

    def part(self, owner: Any, path: str) -> Any:
        """Returns an attribute, or one of an attribute: "a.b". errors: InvalidArgument naming it."""
        found = owner
        for name in path.split("."):
            try:
                found = getattr(found, name)
            except AttributeError as error:
                raise self.lacking(f"{type(owner).__name__}.{path}", str(error)) from error
        return found

    def lacking(self, what: str, why: str) -> InvalidArgument:
        """Returns the error of a part that is not there."""
        return InvalidArgument(f"{self._package} {self._version()} has no {what} ({why}): eplb was tested with {self._tested} "
                               f"({_PAGE})")

    def _version(self) -> str:
        try:
            return importlib.metadata.version(self._package)
        except importlib.metadata.PackageNotFoundError:
            return "(not installed)"
