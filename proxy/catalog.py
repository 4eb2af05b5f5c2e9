"""The models that clients may name: aliases, permissions, and what /v1/models lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol
from urllib.parse import unquote

from auth.access import Access
from core.errors import Forbidden, NotFound
from core.principal import Principal


class Model(Protocol):
    """What the catalog needs of a model's configuration."""

    @property
    def name(self) -> str: ...

    @property
    def aliases(self) -> Sequence[str]: ...

    @property
    def max_model_len(self) -> int | None: ...


class Catalog:
    """Every model by each of its names. `created` is in Unix seconds, as OpenAI shows it. `access`:
    rules beyond what a caller's credential says (None: there are none)."""

    def __init__(self, models: Sequence[Model], created: int, access: Access | None = None) -> None:
        self._created = created
        self._access = access
        self._by_name = {name: model for model in models for name in (model.name, *model.aliases)}

    def __repr__(self) -> str:
        return f"<Catalog {sorted(self._by_name)}>"

    def resolve(self, name: str, principal: Principal, route: str = "") -> str:
        """The canonical name of the model that `principal` asked for as `name` at `route`. Raises
        NotFound or Forbidden."""
        model = self._by_name.get(name)
        if model is None:
            raise NotFound(
                f"The model `{name[:128]}` does not exist.", code="model_not_found", param="model"
            )
        if principal.models is not None and not _named(model, name, principal):
            raise Forbidden(
                f"You may not use the model `{name}`.", code="model_not_allowed", param="model"
            )
        if self._access is not None:
            missing = self._access.missing(principal, (model.name, *model.aliases), route)
            if missing is not None:
                raise Forbidden(
                    f"You may not use the model `{name}` here: that takes {missing}.",
                    code="model_not_allowed",
                    param="model",
                )
        return model.name

    def list(self, principal: Principal) -> dict[str, Any]:
        """The answer of GET /v1/models."""
        data = [
            self._card(name)
            for name, model in self._by_name.items()
            if self._shown(model, name, principal)
        ]
        return {"object": "list", "data": data}

    def card(self, segment: str, principal: Principal) -> dict[str, Any]:
        """The answer of GET /v1/models/{id}, `segment` being the percent-encoded id. A model that
        may not be used is not shown."""
        name = unquote(segment)
        model = self._by_name.get(name)
        if model is None or not self._shown(model, name, principal):
            raise NotFound(
                f"The model `{name[:128]}` does not exist.", code="model_not_found", param="model"
            )
        return self._card(name)

    def _shown(self, model: Model, name: str, principal: Principal) -> bool:
        if not _named(model, name, principal):
            return False
        names = (model.name, *model.aliases)
        return self._access is None or self._access.shows(principal, names)

    def _card(self, name: str) -> dict[str, Any]:
        model = self._by_name[name]
        card: dict[str, Any] = {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "headrace",
        }
        if name != model.name:
            card["root"] = model.name
        if model.max_model_len is not None:
            card["max_model_len"] = model.max_model_len
        return card


def _named(model: Model, name: str, principal: Principal) -> bool:
    """Whether the caller's credential covers the model."""
    return principal.may_use(name) or principal.may_use(model.name)
