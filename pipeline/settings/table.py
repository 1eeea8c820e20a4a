"""What all tables of a configuration share."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, StringConstraints

NonEmpty = Annotated[str, StringConstraints(min_length=1)]
MANY = 2**31 - 1
"""No count of a step goes beyond this."""


class Table(BaseModel):
    """A frozen table that knows its keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)
