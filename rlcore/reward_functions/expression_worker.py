"""Compares expressions with math-verify. Not to be imported: `expressions` starts this file as a process of its own.

Standard input brings one pair [gold, found] as JSON a line, standard output takes `true` or `false` for each. A
comparison that takes too long ends the process, in the middle of whatever it does: powers and simplifications block the
interpreter, so no exception could.
"""

import json
import logging
import resource
import signal
import sys

from math_verify import LatexExtractionConfig, parse, verify

CPU_SECONDS, MEMORY_BYTES = 2.0, 1 << 30
DECIMALS = 12
"""Decimals to which numbers that are written as decimals have to agree: approximations are not equal."""


def main() -> None:
    """Answer until the input ends."""
    logging.disable()
    highest = resource.getrlimit(resource.RLIMIT_AS)[1]
    memory = MEMORY_BYTES if highest == resource.RLIM_INFINITY else min(MEMORY_BYTES, highest)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    print("ready", flush=True)  # noqa: T201 - the parent's end of the pipe
    for line in sys.stdin:
        # Of processor time, not of the clock: a busy machine changes no answer. SIGPROF ends the process by default.
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        answer = equal(*json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(answer), flush=True)  # noqa: T201


def equal(gold: str, found: str) -> bool:
    """Whether math-verify takes the two for the same; False where it cannot read one of them."""
    golds, founds = (
        parse(f"${text}$", [LatexExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None)
        for text in (gold, found)
    )
    return bool(verify(golds, founds, float_rounding=DECIMALS, timeout_seconds=None))


if __name__ == "__main__":
    main()
