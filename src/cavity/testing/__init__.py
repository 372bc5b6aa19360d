"""Conformance checks for losses and schemes: the ones shipped here, and your own."""

from cavity.testing._losses import check_joint_loss, check_loss
from cavity.testing._schemes import check_scheme

__all__ = ["check_joint_loss", "check_loss", "check_scheme"]
