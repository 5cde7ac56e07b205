"""The weight of the KL penalty, steered so that the policy keeps a given distance to its reference."""

import math
from collections.abc import Mapping

from rlcore.errors import CheckpointError, ConfigError

MAX_ERROR = 0.2  # an update never reacts to more than a fifth of relative error


class AdaptiveKLController:
    """Proportional controller of the KL coefficient (Ziegler et al. 2019, section 2.2).

        error  = clip(current / target - 1, -0.2, 0.2)
        value *= 1 + error * n_steps / horizon

    It knows no unit: `current` has to be in that of `target`, nats per token or nats per response. The KL of whole
    responses against a target meant per token saturates the clip at once. Coefficient 0 stays 0: the penalty is off.

    Attributes:
        value: the coefficient, reward units per nat.
    """

    def __init__(self, init_kl_coef: float, target: float, horizon: float) -> None:
        """Start at init_kl_coef.

        Args:
            init_kl_coef: at least 0, reward units per nat.
            target: above 0, nats.
            horizon: above 0, in responses. One horizon of too much KL raises the coefficient by a fifth.

        Raises:
            ConfigError: an argument is out of range.
        """
        if not 0 <= init_kl_coef < math.inf:
            raise ConfigError(f"init_kl_coef={init_kl_coef}: expected at least 0. Use 0 to switch the penalty off.")
        if not 0 < target < math.inf:
            raise ConfigError(
                f"target={target}: expected a KL above 0. To switch the penalty off set the coefficient to 0."
            )
        if not 0 < horizon < math.inf:
            raise ConfigError(f"horizon={horizon}: expected a number of responses above 0. 10000 is usual.")
        self.value = float(init_kl_coef)
        self.target = float(target)
        self.horizon = float(horizon)

    def update(self, current: float, n_steps: int) -> float:
        """Move the coefficient after n_steps responses whose mean KL was `current`, and return it.

        More responses than the horizon count as one horizon, so that the coefficient stays above 0. A KL that is not a
        number moves nothing.

        Raises:
            ConfigError: n_steps is negative.
        """
        if not n_steps >= 0:
            raise ConfigError(f"n_steps={n_steps}: expected the number of responses behind `current`, 0 or more.")
        if not math.isnan(current):
            error = min(max(current / self.target - 1, -MAX_ERROR), MAX_ERROR)
            self.value *= 1 + error * min(n_steps / self.horizon, 1.0)
        return self.value

    def state_dict(self) -> dict[str, float]:
        """What a resumed run needs: the coefficient. Target and horizon come from its config."""
        return {"value": self.value}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Go on from state_dict().

        Raises:
            CheckpointError: there is no finite coefficient of at least 0 in state.
        """
        value = state.get("value")
        if value is None or not 0 <= value < math.inf:
            raise CheckpointError(
                f"Found {dict(state)!r} as the state of the KL controller; expected a finite `value` of at least 0. "
                "Resume from an older checkpoint."
            )
        self.value = float(value)
