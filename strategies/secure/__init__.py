"""Secure aggregation: the server learns the sum of the clients' updates and nothing else of any of them.

SecAgg+ (Bell et al. 2020, after Bonawitz et al. 2017) in five stages over Flower's message API: keys, shares, masked
vectors, confirming, unmasking. Shamir shares and their encryption are Flower's (`flwr.common.secure_aggregation`),
X25519, HKDF and ChaCha20 those of `cryptography`. Flower's mask generator is not used: it seeds numpy's Mersenne
Twister with 32 bits, which anybody can try out, and never draws the largest number.
"""
