"""The HTTP service: limits, decoding, dynamic batching, the routes and the server that listens."""

from importlib import metadata


def version() -> str:
    """vitlab's, as it was installed."""
    try:
        return metadata.version("vitlab")
    except metadata.PackageNotFoundError:
        return "0+unknown"  # run from a checkout that was never installed
