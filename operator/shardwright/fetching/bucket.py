"""s3://: the objects below a prefix of a bucket, on AWS or on anything that speaks like it.

An object is fetched under the ETag it was listed with, so that one that is written anew meanwhile
is noticed. What its checksum is depends on how it was uploaded; see `bucket_checksums`.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from urllib.parse import quote, unquote_plus, urlencode
from xml.etree import ElementTree as ET

from shardwright.fetching.bucket_checksums import checksum_of, is_composite
from shardwright.fetching.failures import (
    ChangedError,
    FetchError,
    TransientError,
    environment,
    permanent,
)
from shardwright.fetching.remote import FILES_LIMIT, Body, Listing, RemoteFile
from shardwright.fetching.signing import Request, Signer
from shardwright.fetching.uris import BucketFolder
from shardwright.fetching.wire import Answer, StatusError, Wire
from shardwright.runner.contract import (
    REASON_ACCESS_DENIED,
    REASON_MODEL_NOT_FOUND,
    REASON_TOOL_FAILED,
)

DEFAULT_REGION = "us-east-1"
_DENIED = frozenset(
    {
        *("AccessDenied", "AllAccessDisabled", "ExpiredToken", "InvalidAccessKeyId"),
        *("InvalidToken", "SignatureDoesNotMatch", "TokenRefreshRequired"),
    }
)
_OK = 200
_DENIALS = (401, 403)
_NOT_FOUND = 404
_PRECONDITION_FAILED = 412


class Bucket:
    """One prefix of one bucket."""

    def __init__(self, folder: BucketFolder, wire: Wire, env: Mapping[str, str]) -> None:
        """Name the prefix; nothing is asked yet.

        Args:
            folder: Bucket and prefix.
            wire: Carries all requests.
            env: As AWS's own tools read it: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
                `AWS_SESSION_TOKEN`, `AWS_REGION` or `AWS_DEFAULT_REGION`, `AWS_ENDPOINT_URL_S3` or
                `AWS_ENDPOINT_URL`.
        """
        self.tools = {"awscrt": version("awscrt"), "urllib3": version("urllib3")}
        self._folder = folder
        self._wire = wire
        self._signer = Signer(env)
        self._region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or DEFAULT_REGION
        self._told_region = False
        self._endpoint = (
            env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL") or ""
        ).rstrip("/")

    def survey(self) -> Listing:
        """All objects below the prefix, without their checksums.

        Raises:
            FetchError: No such bucket or prefix, or no access.
            TransientError: Not now.
        """
        files: list[RemoteFile] = []
        token = ""
        while True:
            page, token = self._page(token)
            files.extend(page)
            if not token:
                break
            if len(files) > FILES_LIMIT:
                raise permanent(
                    REASON_MODEL_NOT_FOUND,
                    f"{self._where()} has more than {FILES_LIMIT} objects; name the model's own "
                    "prefix",
                )
        if not files:
            raise permanent(
                REASON_MODEL_NOT_FOUND,
                f"{self._where()}: the bucket has no object below this prefix; correct model.uri",
            )
        return Listing("", tuple(files))

    def describe(self, file: RemoteFile) -> RemoteFile:
        """The object with the strongest checksum that S3 has for it.

        Raises:
            FetchError: No access.
            ChangedError: It is gone, or another one.
            TransientError: Not now.
        """
        headers = self._head(file, {}).headers
        parts = 0
        if "-" in file.version or is_composite(headers):
            first = self._head(file, {"partNumber": "1"}).headers
            parts = int(first.get("Content-Length", "0"))
        digest = checksum_of(headers, file.version, file.size, parts)
        return RemoteFile(file.name, file.size, digest, file.address, file.version)

    def open(self, file: RemoteFile, offset: int) -> Body:
        """The object's bytes from `offset` on.

        Raises:
            FetchError: No access.
            ChangedError: It is gone, or another one.
            TransientError: Not now.
        """
        wanted = {"If-Match": f'"{file.version}"'}
        try:
            return self._open(file, wanted, offset)
        except StatusError as error:
            if not self._moved(error.answer):
                raise self._judged(error.answer, file) from error
        try:
            return self._open(file, wanted, offset)
        except StatusError as error:
            raise self._judged(error.answer, file) from error

    def close(self) -> None:
        """Nothing is kept open."""

    def _page(self, token: str) -> tuple[list[RemoteFile], str]:
        """One page of the listing, and the token of the next or an empty string."""
        prefix = f"{self._folder.prefix}/"
        query = {"encoding-type": "url", "list-type": "2", "prefix": prefix}
        if token:
            query["continuation-token"] = token
        answer = self._ask("GET", "", query, {})
        if answer.status != _OK:
            raise self._judged(answer, None)
        root = _xml(answer.data, self._where())
        found: list[RemoteFile] = []
        for entry in root.iterfind("{*}Contents"):
            key = unquote_plus(entry.findtext("{*}Key", ""))
            name = key.removeprefix(prefix)
            # Consoles make an empty object for each folder.
            if name and not name.endswith("/"):
                size = int(entry.findtext("{*}Size", "0"))
                etag = entry.findtext("{*}ETag", "").strip('"')
                found.append(RemoteFile(name, size, None, key, etag))
        more = root.findtext("{*}IsTruncated", "false") == "true"
        return found, root.findtext("{*}NextContinuationToken", "") if more else ""

    def _head(self, file: RemoteFile, query: Mapping[str, str]) -> Answer:
        headers = {"x-amz-checksum-mode": "ENABLED"}
        if not query:
            # Not for a part: servers other than AWS's compare it with the part's own ETag.
            headers["If-Match"] = f'"{file.version}"'
        answer = self._ask("HEAD", file.address, query, headers)
        if answer.status not in (_OK, 206):
            raise self._judged(answer, file)
        return answer

    def _open(self, file: RemoteFile, headers: Mapping[str, str], offset: int) -> Body:
        request = Request("GET", self._url(file.address), headers)
        signed = self._signer.signed(request, self._region)
        return self._wire.open(request.url, signed, offset, file.size)

    def _ask(
        self, method: str, key: str, query: Mapping[str, str], headers: Mapping[str, str]
    ) -> Answer:
        while True:
            request = Request(method, self._url(key, query), headers)
            signed = self._signer.signed(request, self._region)
            answer = self._wire.ask(request.url, signed, method=method)
            if answer.status == _OK or not self._moved(answer):
                return answer

    def _moved(self, answer: Answer) -> bool:
        """Whether S3 tells that the bucket lives in another region; that one is asked from now."""
        home = answer.headers.get("x-amz-bucket-region", "")
        if not home or home == self._region or self._told_region:
            return False
        self._region, self._told_region = home, True
        return True

    def _base(self) -> str:
        """The bucket's address: as a host name on AWS, as a path elsewhere."""
        bucket = self._folder.bucket
        if self._endpoint:
            return f"{self._endpoint}/{bucket}"
        domain = "amazonaws.com.cn" if self._region.startswith("cn-") else "amazonaws.com"
        host = f"s3.{self._region}.{domain}"
        # A certificate for *.s3… covers no name with more dots.
        return f"https://{host}/{bucket}" if "." in bucket else f"https://{bucket}.{host}"

    def _url(self, key: str, query: Mapping[str, str] | None = None) -> str:
        base = self._base()
        path = f"/{quote(key, safe='/-_.~')}" if key or not self._endpoint else ""
        return f"{base}{path}" + (f"?{urlencode(query, quote_via=quote)}" if query else "")

    def _where(self) -> str:
        place = f" ({self._endpoint})" if self._endpoint else ""
        return f"s3://{self._folder.bucket}/{self._folder.prefix}{place}"

    def _judged(
        self, answer: Answer, file: RemoteFile | None
    ) -> FetchError | ChangedError | TransientError:
        """What an answer that is no success means."""
        code = _code(answer.data)
        told = f"HTTP {answer.status}" + (f" {code}" if code else "")
        where = self._where()
        if code == "RequestTimeTooSkewed":
            return environment(
                REASON_TOOL_FAILED, f"{where}: {told}: the clock of this node is wrong"
            )
        if answer.status in _DENIALS or code in _DENIED:
            return permanent(REASON_ACCESS_DENIED, f"{where}: {told}: {self._advice()}")
        if file is not None and answer.status in (_NOT_FOUND, _PRECONDITION_FAILED):
            return ChangedError(f"{where}: {file.name} was written anew or deleted: {told}")
        if answer.status == _NOT_FOUND:
            return permanent(
                REASON_MODEL_NOT_FOUND,
                f"{where}: {told}: no such bucket; correct model.uri, or the endpoint in "
                "AWS_ENDPOINT_URL",
            )
        return permanent(REASON_TOOL_FAILED, f"{where}: {told} from region {self._region}")

    def _advice(self) -> str:
        rights = "s3:ListBucket and s3:GetObject on it"
        if self._signer.anonymous:
            return (
                "no keys were found and the bucket is not public; set model.secretRef to a Secret "
                "with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or pod.serviceAccountName to "
                f"one with a role that has {rights}"
            )
        return (
            "the keys are wrong, have run out, or lack "
            f"{rights}; correct AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN in "
            "model.secretRef's Secret, or the role's policy"
        )


def _xml(data: bytes, where: str) -> ET.Element:
    try:
        # Expat bounds the expansion of entities and fetches none; the answer's size is bounded.
        return ET.fromstring(data)  # noqa: S314
    except ET.ParseError as error:
        raise TransientError(f"{where}: the answer is no listing: {error}") from error


def _code(data: bytes) -> str:
    """S3's word for an error, or nothing: answers to HEAD have no body."""
    try:
        return ET.fromstring(data).findtext("{*}Code", "")[:60]  # noqa: S314 - as above
    except ET.ParseError:
        return ""
