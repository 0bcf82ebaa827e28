"""Keys and certificates of a deployment: a private CA, the server's certificate and the SuperNodes' keys.

All keys are elliptic-curve keys on P-384, the curve that Flower's node authentication asks for.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_DAYS = 3650
_BACKDATED = datetime.timedelta(hours=1)
"""A client whose clock is a little behind must not find the certificate not yet valid."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A private key and what it is known by: a certificate (PEM) or a public key (OpenSSH), all as files' contents."""

    private: bytes
    public: bytes


def certificate_authority(name: str) -> Pair:
    """A CA that may sign servers' certificates and nothing below them; valid for `CA_DAYS`."""
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    certificate = (
        _builder(subject, subject, key.public_key(), CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .sign(key, hashes.SHA384())
    )
    return Pair(_pem(key), certificate.public_bytes(serialization.Encoding.PEM))


def server_certificate(authority: Pair, hosts: Sequence[str], days: int) -> Pair:
    """A certificate for the `hosts` (names and IP addresses), signed by `authority`; valid for `days`."""
    signer = serialization.load_pem_private_key(authority.private, password=None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise ValueError("the CA's key is no elliptic-curve key")
    issuer = x509.load_pem_x509_certificate(authority.public)
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Oblivionis SuperLink")])
    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    certificate = (
        _builder(subject, issuer.subject, key.public_key(), days)
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA384())
    )
    return Pair(_pem(key), certificate.public_bytes(serialization.Encoding.PEM))


def node_keys(comment: str) -> Pair:
    """A SuperNode's key pair in OpenSSH's formats; Flower refuses PEM."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return Pair(private, public + b" " + comment.encode() + b"\n")


def hosts_of(certificate: bytes) -> list[str]:
    """The names and addresses that a certificate (PEM) is for."""
    extensions = x509.load_pem_x509_certificate(certificate).extensions
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(name.value) for name in names]


def is_address(host: str) -> bool:
    """Whether `host` is an IP address rather than a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _general_name(host: str) -> x509.GeneralName:
    return x509.IPAddress(ipaddress.ip_address(host)) if is_address(host) else x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _usage(**allowed: bool) -> x509.KeyUsage:
    every = (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    )
    return x509.KeyUsage(**{name: allowed.get(name, False) for name in every})


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
