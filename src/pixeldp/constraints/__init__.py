"""Keeping the layers before the noise at a known sensitivity while they train (§3.3).

``holding`` divides a weight inside every forward pass, so that a bound holds at every step.
``parseval`` is the original's projection after every step, which approaches one.
``model.sensitivity`` still measures today's weights and trusts nothing that is said here.
"""

from pixeldp.constraints.holding import hold_sensitivity
from pixeldp.constraints.parseval import Parseval

__all__ = ["Parseval", "hold_sensitivity"]
