"""Signatures of requests to S3, and the keys for them, by the AWS Common Runtime.

boto3 would be the usual client. Its botocore asks for python-dateutil < 3 and the client of
Kubernetes 37 for ≥ 3, so the two cannot be installed together. What a fetch needs of S3 is three
kinds of requests; signing them and finding keys in all the places that AWS knows is what should
not be written twice, and comes from AWS here too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from awscrt.auth import (
    AwsCredentialsProvider,
    AwsSignatureType,
    AwsSignedBodyHeaderType,
    AwsSignedBodyValue,
    AwsSigningAlgorithm,
    AwsSigningConfig,
    aws_sign_request,
)
from awscrt.exceptions import AwsCrtError
from awscrt.http import HttpHeaders, HttpRequest

from shardwright.fetching.failures import TransientError
from shardwright.runner.log import say

# Asking a node's metadata service where there is none takes its time.
_KEYS_SECONDS = 20.0
_SIGN_SECONDS = 20.0
# What the default chain finds keys by; without any of it, only the node's own role is left.
_KEY_ID, _KEY, _SESSION = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"


@dataclass(frozen=True, slots=True)
class Request:
    """A request without a body: method, address, and headers that are signed with it."""

    method: str
    url: str
    headers: Mapping[str, str]


class Signer:
    """Signs with keys of the environment, of a web identity, of the container or of the node.

    Without any keys requests go out unsigned: buckets may be public.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        """Take the keys of `env`; others are looked for at the first request."""
        self._env = env
        self._looked = False
        self._provider: AwsCredentialsProvider | None = None

    @property
    def anonymous(self) -> bool:
        """Whether no keys were found."""
        return self._looked and self._provider is None

    def look(self) -> None:
        """Find keys, once.

        Raises:
            TransientError: Half of a pair of keys is given.
        """
        if self._looked:
            return
        self._provider = self._found()
        self._looked = True

    def signed(self, request: Request, region: str) -> dict[str, str]:
        """The headers of a request with its signature for this region.

        Raises:
            TransientError: Keys that were found before are found no more.
        """
        self.look()
        if self._provider is None:
            return dict(request.headers)
        parts = urlsplit(request.url)
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        headers = HttpHeaders([("Host", parts.netloc), *request.headers.items()])
        config = AwsSigningConfig(
            algorithm=AwsSigningAlgorithm.V4,
            signature_type=AwsSignatureType.HTTP_REQUEST_HEADERS,
            credentials_provider=self._provider,
            region=region,
            service="s3",
            # A key is a key: S3 neither encodes it twice nor takes dots out of it.
            use_double_uri_encode=False,
            should_normalize_uri_path=False,
            signed_body_value=AwsSignedBodyValue.EMPTY_SHA256,
            signed_body_header_type=AwsSignedBodyHeaderType.X_AMZ_CONTENT_SHA_256,
        )
        try:
            done = aws_sign_request(HttpRequest(request.method, path, headers), config)
            return dict(done.result(timeout=_SIGN_SECONDS).headers)
        except (AwsCrtError, TimeoutError) as error:
            raise TransientError(f"a request to S3 cannot be signed: {error}") from error

    def _found(self) -> AwsCredentialsProvider | None:
        key_id, key = self._env.get(_KEY_ID, ""), self._env.get(_KEY, "")
        if key_id and key:
            return AwsCredentialsProvider.new_static(key_id, key, self._env.get(_SESSION) or None)
        chain = AwsCredentialsProvider.new_default_chain()
        try:
            chain.get_credentials().result(timeout=_KEYS_SECONDS)
        except (AwsCrtError, TimeoutError) as error:
            say("no keys for S3 found, requests are not signed", error=str(error))
            return None
        return chain
