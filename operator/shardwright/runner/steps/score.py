"""The step that measures: a tool or the runner itself asks the engine, and the report has a score.

Nothing is left on the claim. A score is a number and stands in the operator's record; a pod that is
lost measures again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from shardwright.runner.contract import (
    DONE,
    ENVIRONMENT,
    PERMANENT,
    REASON_DATASET_NOT_FOUND,
    REASON_LEADER_GONE,
    REASON_NO_SCORE,
    ROOT,
    STORE,
    TOOL_LM_EVAL,
    TOOL_PERPLEXITY,
    TOOL_TRTLLM_EVAL,
    Command,
    Report,
)
from shardwright.runner.served import write_config
from shardwright.runner.steps import perplexity
from shardwright.runner.steps import request as requests
from shardwright.runner.steps.around import MemoryWatch
from shardwright.runner.steps.before import beside_there
from shardwright.runner.steps.beside import await_server, last_words
from shardwright.runner.steps.classify import Cause
from shardwright.runner.steps.failure import StepFailedError
from shardwright.runner.steps.scores import LoggedScore, NoScoreError, Score, saved_score
from shardwright.runner.steps.step import Step
from shardwright.runner.steps.tool import to_stdout
from shardwright.runner.verify import ArtifactError, Wanted, check
from shardwright.runner.versions import tool_versions

_FOLDER = "score"


@dataclass(frozen=True)
class _Scratch:
    """Where the tool writes: on scratch, which nobody takes away."""

    out: Path

    def check(self) -> None:
        """Nothing can have happened to it."""


class ScoreStep(Step):
    """One pod's attempt at a score; every way in which it can end is in the report, as in Step."""

    def _run(self) -> Report:
        requests.check_score(self.request)
        self._data_there()
        self._loads_what_was_made()
        beside_there(self.request, self.places, self._between)
        scratch = _Scratch(self.places.scratch / _FOLDER)
        shutil.rmtree(scratch.out, ignore_errors=True)
        scratch.out.mkdir()
        command = self._addressed(self.request.commands[0])
        if self.request.beside is not None:
            await_server(self.request.beside, self.places.scratch, self._between)
        else:
            write_config(self.places.scratch, self.request.config)
        try:
            found = _MEASURE[command.tool](self, command, scratch)
        except StepFailedError as error:
            # A tool whose server ended says that nobody answers; the server says why.
            raise self._server_first(error) from error
        except NoScoreError as error:
            said = f"{command.tool} ended well, but {error}"
            raise StepFailedError(Cause(PERMANENT, REASON_NO_SCORE, said), self._tail) from error
        return Report(
            outcome=DONE,
            step=self.request.step,
            key=self.request.key,
            tools=tool_versions(),
            seconds=self._seconds(),
            score=found.value,
            samples=found.samples,
        )

    def _server_first(self, error: StepFailedError) -> StepFailedError:
        server = self.request.beside
        if server is None or self.stop.is_set():
            return error
        return last_words(server, self.places.scratch) or error

    def _addressed(self, command: Command) -> Command:
        """The command with the replica's address in it."""
        words = (word.replace("{leader}", self.request.leader) for word in command.argv)
        return replace(command, argv=tuple(words))

    def _data_there(self) -> None:
        """Before a model is loaded for minutes: whether the data are on the claim.

        Raises:
            StepFailedError: They are not. That is mended under the same key.
        """
        dataset = self.request.inputs.get("dataset")
        if isinstance(dataset, str) and not (self.places.store / dataset).exists():
            raise StepFailedError(
                Cause(
                    PERMANENT,
                    REASON_DATASET_NOT_FOUND,
                    f"quantization.accuracy.dataset {dataset} is not on the claim; put it there, "
                    "then edit the spec or set the annotation shardwright.dev/restartedAt",
                )
            )

    def _loads_what_was_made(self) -> None:
        """Check the artifact as a serving pod would, before a tool loads it.

        A model on the user's own claim has no manifest beside it.

        Raises:
            StepFailedError: It is not there, or not what its key says.
        """
        prefix = f"{STORE}/{ROOT}/"
        if not self.request.source.startswith(prefix):
            return
        step, _, key = self.request.source[len(prefix) :].strip("/").partition("/")
        try:
            check(self._on_claim(self.request.source), Wanted(step, key), between=self._between)
        except ArtifactError as error:
            said = f"{step} {key} cannot be measured: {error}; it is made anew"
            raise StepFailedError(Cause(ENVIRONMENT, error.reason, said)) from error

    def _on_claim(self, path: str) -> Path:
        return self.places.store / path[len(STORE) :].strip("/")

    def _by_log(self, command: Command, scratch: _Scratch) -> Score:
        """A tool that loads the engine itself, and logs the score."""
        reader = LoggedScore(str(self.request.inputs["task"]))

        def read(line: bytes) -> None:
            reader(line)
            to_stdout(line)

        self._tool(command, scratch, MemoryWatch(self.cgroup), read)
        return reader.score()

    def _by_file(self, command: Command, scratch: _Scratch) -> Score:
        """A tool that asks a server, and saves its results."""
        self._tool(command, scratch, MemoryWatch(self.cgroup))
        task = command.argv[command.argv.index("--tasks") + 1]
        return saved_score(scratch.out, task)

    def _by_asking(self, command: Command, scratch: _Scratch) -> Score:
        """The runner asks the server."""
        argv = requests.command_line(command, self.places, scratch.out)
        asked = perplexity.Asked.parse(argv[1:])
        text = str(asked.text)
        if text.startswith(f"{STORE}/"):
            asked = replace(asked, text=self._on_claim(text))
        try:
            return perplexity.measure(asked, self._between)
        except perplexity.ServerError as error:
            cause = Cause(ENVIRONMENT, REASON_LEADER_GONE, str(error))
            raise StepFailedError(cause) from error


_MEASURE: Mapping[str, Callable[[ScoreStep, Command, _Scratch], Score]] = {
    TOOL_TRTLLM_EVAL: ScoreStep._by_log,  # noqa: SLF001 - a table of this class's own ways
    TOOL_LM_EVAL: ScoreStep._by_file,  # noqa: SLF001 - as above
    TOOL_PERPLEXITY: ScoreStep._by_asking,  # noqa: SLF001 - as above
}
