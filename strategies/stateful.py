"""State that must last beyond a round, for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

from numpy.typing import NDArray


class Stateful:
    """A part of a run that may have a state; by default it has none."""

    def state_dict(self) -> dict[str, NDArray]:
        """State for a checkpoint, by name.

        Returns
        -------
        dict of arrays
            Empty by default.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, NDArray]) -> None:
        """Restore the state of a checkpoint from `state_dict`.

        Parameters
        ----------
        state : mapping of arrays

        Raises
        ------
        ValueError
            For a state that cannot be loaded; by default for any that is not empty.
        """
        if state:
            raise ValueError(f"{type(self).__name__} cannot load a state ({sorted(state)})")
