"""Whether a server is there, before a client tries for minutes."""

import urllib.error
import urllib.request


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
