"""Addresses of servers: whether a server is there, before a client tries for minutes."""

import urllib.error
import urllib.request


def is_address(value: str) -> bool:
    """Whether a setting names a server, and not a file or a database."""
    return value.startswith(("http://", "https://"))


def answers(url: str, timeout: float = 5.0) -> bool:
    """Whether a server is there and in order; it need not know the page.

    Args:
        url: of a page, such as its health.
        timeout: seconds.
    """
    try:
        with urllib.request.urlopen(url, timeout=timeout):
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500
    except OSError:
        return False
