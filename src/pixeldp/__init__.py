"""Certified robustness for PyTorch networks: a radius with every prediction."""

from pixeldp._version import __version__
from pixeldp.bounds import confidence_bounds
from pixeldp.certificates import certified_radius
from pixeldp.certification import certify
from pixeldp.errors import PixelDPError
from pixeldp.mechanisms import Gaussian, Laplace
from pixeldp.model import PixelDP
from pixeldp.prediction import predict
from pixeldp.runs import load
from pixeldp.sensitivities import sensitivity

__all__ = [
    "Gaussian",
    "Laplace",
    "PixelDP",
    "PixelDPError",
    "__version__",
    "certified_radius",
    "certify",
    "confidence_bounds",
    "load",
    "predict",
    "sensitivity",
]
