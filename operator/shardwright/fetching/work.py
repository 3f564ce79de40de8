"""The fetch of one model: list it, check the room, bring its files, check the whole, seal it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar

from shardwright import __version__
from shardwright.fetching import progress as telling
from shardwright.fetching.failures import (
    REASON_SOURCE_CHANGED,
    ChangedError,
    environment,
)
from shardwright.fetching.folders import Folders
from shardwright.fetching.kinds import Kind
from shardwright.fetching.patience import AbandonedError, Halt, Patience, Retrier
from shardwright.fetching.progress import Progress
from shardwright.fetching.remote import Listing, RemoteFile, Source, refuse_names
from shardwright.fetching.selection import is_weight
from shardwright.fetching.transfer import Transfer, full
from shardwright.runner.contract import (
    MANIFEST,
    FileEntry,
    Manifest,
    StepRequest,
)
from shardwright.runner.log import say
from shardwright.runner.verify import ArtifactError, Wanted, check

# Files at a time. A hub's store gives each connection some 100 MB/s, a node takes ten times that.
WORKERS = 8
# Times that the source is listed anew because it changed under way.
_ROUNDS = 2
# Beyond the files themselves: manifest, plan, and what a file system needs for their names.
_SPARE_BYTES = 16 * 2**20

Item = TypeVar("Item")
Result = TypeVar("Result")


class Fetch:
    """One attempt."""

    def __init__(
        self,
        request: StepRequest,
        kind: Kind,
        source: Source,
        folders: Folders,
        patience: Patience,
        halt: Halt,
    ) -> None:
        self._request = request
        self._kind = kind
        self._source = source
        self._folders = folders
        self._patience = patience
        self._halt = halt

    def run(self, commit: str) -> Manifest:
        """The manifest of an artifact that is whole and published when this returns.

        Args:
            commit: The commit that the uri names; empty when it names a branch, a tag or nothing.

        Raises:
            FetchError: It cannot be had.
            StoppedError: The pod was told to end.
            OSError: The storage failed.
        """
        self._folders.open()
        self._unseal()
        changed = ""
        for _ in range(_ROUNDS):
            try:
                listing = self._listing(commit)
                entries = self._brought(listing)
            except ChangedError as error:
                changed = str(error)
                say("the source has changed and is listed anew", found=changed)
                self._folders.drop_plan()
                continue
            names = [file.name for file in listing.files]
            facts = self._kind.facts(self._folders.final, names, self._request.source)
            manifest = Manifest(
                step=self._kind.step,
                key=self._request.key,
                inputs=self._request.inputs,
                files=entries,
                tools={"shardwright": __version__, **self._source.tools},
                commit=listing.commit,
                **facts,
            )
            self._folders.seal(manifest)
            return manifest
        raise environment(
            REASON_SOURCE_CHANGED,
            f"{self._request.source} changed while it was fetched, {_ROUNDS} times in a row: "
            f"{changed}; name a commit or digest, or wait until the upload is over",
        )

    def _unseal(self) -> None:
        """Take away a manifest that does not hold: until the files are right there is none."""
        manifest = self._folders.final / MANIFEST
        if manifest.exists():
            manifest.unlink()

    def _listing(self, commit: str) -> Listing:
        """What is fetched: as an earlier attempt has begun it, or as the source has it now."""
        source = self._request.source
        plan = self._folders.plan(source, commit)
        if plan is not None:
            say("going on with an earlier attempt", source=source, commit=plan.commit)
            return plan
        self._folders.drop_plan()
        retrier = Retrier(source, self._patience, self._halt)
        found = retrier.call(self._source.survey)
        refuse_names(found.files, source)
        chosen = self._each(self._kind.choose(found.files, source), self._described)
        listing = Listing(found.commit, tuple(chosen))
        self._folders.keep_plan(source, listing)
        # Another attempt may have been first.
        kept = self._folders.plan(source, commit) or listing
        say(
            "listed",
            source=source,
            commit=kept.commit,
            files=len(kept.files),
            left_out=len(found.files) - len(kept.files),
            bytes=kept.total_bytes,
            without_checksum=[file.name for file in kept.files if file.digest is None],
        )
        return kept

    def _described(self, file: RemoteFile) -> RemoteFile:
        retrier = Retrier(file.name, self._patience, self._halt)
        return retrier.call(lambda: self._source.describe(file))

    def _brought(self, listing: Listing) -> dict[str, FileEntry]:
        """All files, the texts first: what they say may spare the download of the weights."""
        self._folders.tidy([file.name for file in listing.files])
        self._check_room(listing)
        progress = Progress(listing.total_bytes, len(listing.files))
        transfer = Transfer(self._source, self._folders, self._patience, self._halt, progress)
        texts = [file for file in listing.files if not is_weight(file.name)]
        weights = [file for file in listing.files if is_weight(file.name)]
        names = [file.name for file in listing.files]
        try:
            entries = self._each(texts, transfer.bring, progress)
            self._kind.check_texts(self._folders.final, names, self._request.source)
            entries += self._each(weights, transfer.bring, progress)
        finally:
            progress.say()
        brought = [file.name for file in (*texts, *weights)]
        return dict(sorted(zip(brought, entries, strict=True)))

    def _check_room(self, listing: Listing) -> None:
        """Do nothing if the volume has room for what is missing.

        Raises:
            FetchError: It has not.
        """
        missing = 0
        for file in listing.files:
            final = self._folders.final / file.name
            if final.is_file() and final.stat().st_size == file.size:
                continue
            begun = [self._folders.partial(file), *self._folders.others_partial(file)]
            there = [path.stat().st_size for path in begun if path.is_file()]
            missing += max(0, file.size - max(there, default=0))
        free = self._folders.free_bytes()
        if missing and missing + _SPARE_BYTES > free:
            raise full(self._request.source, missing + _SPARE_BYTES, free)

    def _each(
        self,
        items: Sequence[Item],
        work: Callable[[Item], Result],
        progress: Progress | None = None,
    ) -> list[Result]:
        """Results in the order of the items; the first failure ends the work on all others."""
        with ThreadPoolExecutor(WORKERS, thread_name_prefix="fetch") as pool:
            futures = [pool.submit(work, item) for item in items]
            self._watch(futures, progress)
            # Without effect on those that are done, which is all of them if nothing has failed.
            self._halt.abandon()
            for future in futures:
                future.cancel()
        self._halt.resume()
        if (cause := _first_cause(futures)) is not None:
            raise cause
        return [future.result() for future in futures]

    def _watch(self, futures: Sequence[Future[Result]], progress: Progress | None) -> None:
        """Wait for all, or for the first failure; say how far it is now and then."""
        while True:
            _, pending = wait(
                futures, timeout=telling.INTERVAL_SECONDS, return_when=FIRST_EXCEPTION
            )
            if not pending or any(one.done() and one.exception() for one in futures):
                return
            if progress is not None:
                progress.say()


def _first_cause(futures: Sequence[Future[Result]]) -> BaseException | None:
    """The failure that ended the others; None when there is none."""
    errors = [
        error
        for future in futures
        if not future.cancelled() and (error := future.exception()) is not None
    ]
    causes = [error for error in errors if not isinstance(error, AbandonedError)]
    return next(iter(causes or errors), None)


def sealed(folders: Folders, step: str, key: str) -> Manifest | None:
    """The manifest of an artifact that is there already and whole; None when there is none.

    Raises:
        OSError: The storage failed.
    """
    try:
        return check(folders.final, Wanted(step, key))
    except ArtifactError as error:
        say("nothing finished to take over", found=str(error))
        return None
