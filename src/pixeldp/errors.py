"""One tree of exceptions; every misuse of the library ends in one of its leaves.

::

    PixelDPError
    ├── InvalidArgument          a parameter that cannot be (also a ValueError)
    │   ├── InvalidInput         an input of the wrong shape, outside its range, or not finite
    │   └── TooFewDraws          draws and confidence that could not certify anything
    ├── NetworkError             the network itself
    │   ├── UnknownLayer         a name that is no layer of it
    │   ├── CannotTrace          its computation cannot be captured as a graph
    │   ├── NoiseBypassed        a path from the input to the output misses the noise
    │   ├── UnsupportedLayer     no proven sensitivity for what precedes the noise
    │   ├── InvalidScores        it returned NaN, or something that is no score
    │   └── TrainingDiverged     its loss became NaN or infinite
    ├── RunError                 a run folder
    │   ├── RunMissing           it is not there
    │   ├── NotARun              something else is there
    │   ├── RunIncomplete        half written
    │   ├── RunTooNew            written by a newer version
    │   ├── RunCorrupt           its files do not belong together, or cannot be read
    │   ├── RunExists            it is there already and would be overwritten
    │   ├── RunUnfinished        it holds draws of another certification that is not finished
    │   ├── RunBusy              another process is working on it
    │   └── RunInaccessible      the disk is full, or the folder may not be read or written
    └── MissingExtra             an optional part is not installed

A message is one sentence that names the thing, its value, and the remedy where there is one.
"""


class PixelDPError(Exception):
    """The root: catch it to catch every refusal of this library."""

    exit_status = 2
    """What the command line exits with: 2 for misuse, 1 where the work itself failed."""


class InvalidArgument(PixelDPError, ValueError):
    """A parameter has a value that makes no sense; the message names it, its value and the rule."""


class InvalidInput(InvalidArgument):
    """An input has the wrong shape, lies outside the stated range, or is not finite."""


class TooFewDraws(InvalidArgument):
    """So few draws that not even unanimous ones could certify at this confidence."""


class NetworkError(PixelDPError):
    """Something about the wrapped network prevents a sound certificate."""


class UnknownLayer(NetworkError):
    """The layer after which the noise was asked for does not exist or is not run once."""


class CannotTrace(NetworkError):
    """The network's computation cannot be captured as a graph, so nothing can be proved of it."""


class NoiseBypassed(NetworkError):
    """Some path from the input to the output does not pass through the noise."""


class UnsupportedLayer(NetworkError):
    """An operation before the noise for which no sensitivity is proven."""


class InvalidScores(NetworkError):
    """The network returned NaN or an output that is not one row of scores per input."""


class TrainingDiverged(NetworkError):
    """The loss became NaN or infinite."""

    exit_status = 1


class RunError(PixelDPError):
    """A run folder cannot be used."""


class RunMissing(RunError):
    """There is no such folder."""


class NotARun(RunError):
    """The folder, or a file in it, is not part of a run."""


class RunIncomplete(RunError):
    """The folder is a run that was not finished."""


class RunTooNew(RunError):
    """The folder was written by a newer version of pixeldp."""


class RunCorrupt(RunError):
    """The files of a run cannot be read or do not belong together."""


class RunExists(RunError):
    """A run is there already and was not to be overwritten."""


class RunUnfinished(RunError):
    """Draws of another certification lie in the run, and would be lost or mixed with others."""


class RunBusy(RunError):
    """Another process is working on the run."""


class RunInaccessible(RunError):
    """The operating system refused to read or write: a full disk, missing permissions."""

    exit_status = 1


class MissingExtra(PixelDPError):
    """An optional part of pixeldp is needed and not installed."""
