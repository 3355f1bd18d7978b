"""The version, in one place that neither the build nor the package imports anything for."""

__version__ = "0.1.0"
