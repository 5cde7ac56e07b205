"""Random numbers by name: a key's do not depend on what else was drawn, so resumed and re-batched runs agree."""

import hashlib

import numpy as np


def stream_seed(*key: int | str) -> int:
    """A 64-bit seed for the random stream that the key names, such as (seed, "rollout", iteration, row)."""
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def permutation(count: int, *key: int | str) -> list[int]:
    """The permutation of range(count) that the key names."""
    order: list[int] = np.random.Generator(np.random.Philox(key=stream_seed(*key))).permutation(count).tolist()
    return order
