"""Quantisation to integers and additive masks for secure aggregation: what a client sends looks uniformly random."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Final

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from strategies.secure.agreed_parameters import LARGEST_TALLY, TALLY_STEP, Terms

Words = NDArray[np.uint64]

SEED_BYTES: Final = 32
_BLOCK = 1 << 18


def new_private() -> bytes:
    """A new X25519 private key, 32 bytes."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_of(private: bytes) -> bytes:
    """The public key of a private X25519 key.

    Parameters
    ----------
    private : bytes of length 32

    Returns
    -------
    bytes of length 32
    """
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, public: bytes, purpose: str) -> bytes:
    """Secret that the owners of two X25519 key pairs share, for one purpose (HKDF with SHA-256).

    Parameters
    ----------
    private, public : bytes of length 32
        The own private key and the other's public key.
    purpose : str
        Different purposes give independent secrets.

    Returns
    -------
    bytes of length 32

    Raises
    ------
    ValueError
        For a degenerate public key.
    """
    secret = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    return _derived(secret, purpose)


def fernet_key(private: bytes, public: bytes, purpose: str) -> bytes:
    """Key with which two clients encrypt for each other, in the form that Flower's `encrypt` takes.

    Parameters
    ----------
    private, public, purpose
        As in `agreed`.

    Returns
    -------
    bytes of length 44
        The secret of `agreed` in URL-safe Base64.

    Raises
    ------
    ValueError
        As `agreed`.
    """
    return base64.urlsafe_b64encode(agreed(private, public, purpose))


def _derived(secret: bytes, purpose: str) -> bytes:
    """32 bytes derived from a secret for one purpose."""
    kdf = HKDF(algorithm=hashes.SHA256(), length=SEED_BYTES, salt=None, info=f"oblivionis/{purpose}".encode())
    return kdf.derive(secret)


class Stream:
    """Stream of uniform 64-bit words from a seed (ChaCha20); each `add` takes the next ones.

    Parameters
    ----------
    seed : bytes of length 32
    session : str
        Different sessions give independent streams.
    """

    def __init__(self, seed: bytes, session: str) -> None:
        cipher = Cipher(ChaCha20(_derived(seed, f"mask/{session}"), bytes(16)), mode=None)
        self._encryptor = cipher.encryptor()

    def add(self, words: Words, *, negative: bool = False) -> None:
        """Add the next words to `words` (n,) in place, or subtract them, modulo 2^64."""
        for start in range(0, words.size, _BLOCK):
            part = words[start : start + _BLOCK]
            mask = np.frombuffer(self._encryptor.update(bytes(8 * part.size)), "<u8")
            if negative:
                part -= mask
            else:
                part += mask


def quantised(update: NDArray, terms: Terms) -> tuple[NDArray[np.int64], int]:
    """Clip and quantise an update to integers.

    Parameters
    ----------
    update : array (n,)
    terms : Terms
        Clipping range ± c, and L levels on either side.

    Returns
    -------
    integers : array (n,), int64
        The nearest, in ± L.
    clipped : int
        How many numbers were clipped.

    Raises
    ------
    ValueError
        If a number is not finite.
    """
    if not np.isfinite(update).all():
        raise ValueError("the update holds NaN or infinite numbers")
    clipped = int(np.count_nonzero(np.abs(update) > terms.clipping))
    scaled = np.clip(update.astype(np.float64), -terms.clipping, terms.clipping) / terms.step
    return np.rint(scaled).astype(np.int64), clipped


def fixed_point(values: Sequence[float]) -> NDArray[np.int64]:
    """Tallies as integers in steps of `TALLY_STEP`.

    Parameters
    ----------
    values : sequence of n floats
        Clipped to ± `LARGEST_TALLY`.

    Returns
    -------
    array (n,), int64
        The nearest.
    """
    return np.rint(np.clip(np.asarray(values, np.float64), -LARGEST_TALLY, LARGEST_TALLY) / TALLY_STEP).astype(np.int64)


def packed(words: Words, bits: int) -> bytes:
    """Encode words modulo 2^bits.

    Parameters
    ----------
    words : array (n,), uint64
    bits : int, 1 to 64

    Returns
    -------
    bytes
        ⌈bits/8⌉ of each word, little-endian.
    """
    width = -(-bits // 8)
    return words.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width].tobytes()


def unpacked(data: bytes, count: int, bits: int) -> Words:
    """Decode what `packed` gave, modulo 2^bits.

    Parameters
    ----------
    data : bytes
    count, bits : int
        Number of words n and bits of each.

    Returns
    -------
    array (n,), uint64

    Raises
    ------
    ValueError
        For another number of bytes.
    """
    width = -(-bits // 8)
    if len(data) != count * width:
        raise ValueError(f"{len(data)} bytes for {count} words of {width} bytes")
    full = np.zeros((count, 8), np.uint8)
    full[:, :width] = np.frombuffer(data, np.uint8).reshape(count, width)
    return full.view("<u8").reshape(-1).astype(np.uint64) & modulus_mask(bits)


def modulus_mask(bits: int) -> np.uint64:
    """2^bits − 1.

    Parameters
    ----------
    bits : int, 1 to 64

    Returns
    -------
    uint64
    """
    return np.uint64(2**bits - 1)


def signed(words: Words, bits: int) -> NDArray[np.int64]:
    """Residues modulo 2^bits as signed integers.

    Parameters
    ----------
    words : array (n,), uint64
    bits : int, 1 to 64

    Returns
    -------
    array (n,), int64
        In [−2^(bits−1), 2^(bits−1)).
    """
    shift = np.uint64(64 - bits)
    return (words << shift).view(np.int64) >> np.int64(64 - bits)
