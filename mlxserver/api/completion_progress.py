"""One running completion: the engine's events in, typed updates out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlxserver.api.completion_request import CompletionRequest
from mlxserver.api.errors import error_of
from mlxserver.api.generation import Began, Delta, ProbEntry, Progress, Result, Timings, Update
from mlxserver.chat.text_stream import TextRules, TextStream
from mlxserver.engine.task import Event, Failed, Finished, PromptProgress, Started, Token, TokenProbs, Vectors
from mlxserver.models.model import Tokenizer
from mlxserver.telemetry.log import slot

if TYPE_CHECKING:
    from mlxserver.engine.client import Run

SHORTEST_MS = 0.001
"""The time of generation is never below this once it began."""


class RunningCompletion:
    """Follows ``run``, stops it where its text ends it, and builds its result.

    ``is_child``: one of the further completions of a prompt, whose prompt is evaluated with the first one's.
    """

    def __init__(
        self,
        index: int,
        run: Run,
        request: CompletionRequest,
        prompt: tuple[int, ...],
        tokenizer: Tokenizer,
        show_special: bool,
        is_child: bool,
    ) -> None:
        self.run = run
        self.has_ended = False
        self._index = index
        self._request = request
        self._prompt = prompt
        self._tokenizer = tokenizer
        self._show_special = show_special
        self._is_child = is_child
        self._text = TextStream(tokenizer, _text_rules(request, show_special))
        self._tokens: list[int] = []
        self._probs: list[ProbEntry] = []
        self._id_slot = -1
        self._n_past = 0
        self._n_disk: int | None = None
        self._n_evaluated = 0
        self._num_ignored = 0
        self._t_start = self._t_prompt = self._t_first = self._t_last = 0.0

    def take(self, event: Event) -> list[Update]:
        """The updates that ``event`` leads to. Raises ``ApiError`` when the completion failed."""
        match event:
            case Token():
                return self._take_token(event)
            case Started():
                return self._begin(event)
            case PromptProgress():
                return self._progress(event)
            case Finished():
                return [self._finish(event)]
            case Vectors():
                return []
            case Failed():
                self.has_ended = True
                raise error_of(event)

    def _begin(self, event: Started) -> list[Update]:
        self._id_slot, self._n_past, self._n_disk = event.slot_id, event.n_past, event.n_disk
        self._t_start = self._t_prompt = event.t
        if self._is_child:
            return []
        if not (self._request.stream and self._request.return_progress):
            return [Began(self._index)]
        return [self._make_progress(event.n_prompt, event.n_past, event.n_past, event.t)]

    def _progress(self, event: PromptProgress) -> list[Update]:
        self._n_evaluated = event.processed - event.cache
        self._t_prompt = event.t
        return [self._make_progress(event.total, event.cache, event.processed, event.t)]

    def _make_progress(self, total: int, cache: int, processed: int, t: float) -> Progress:
        timings = self._timings() if self._request.timings_per_token else None
        return Progress(self._index, total, cache, processed, int((t - self._t_start) * 1e3), timings)

    def _take_token(self, event: Token) -> list[Update]:
        if self._text.stop_type != "none":
            self._num_ignored += 1
            return []
        self._tokens.append(event.token)
        self._mark_time(event.t)
        sent = self._text.add(event.token, self._predicted_ms())
        if self._text.stop_type in ("word", "limit"):
            self.run.stop(len(self._tokens))
        return [] if sent is None else [self._delta(event, sent)]

    def _mark_time(self, t: float) -> None:
        if len(self._tokens) == 1:
            self._n_evaluated = len(self._prompt) - self._n_past
            self._t_prompt = self._t_first = t
            self._t_start = self._t_start or t
        self._t_last = t

    def _delta(self, event: Token, sent: bytes) -> Delta:
        probs = self._prob_entry(event, sent)
        if probs is not None:
            self._probs.append(probs)
        with_timings = self._request.timings_per_token or self._text.met_stop_word
        return Delta(
            index=self._index,
            text=sent.decode("utf-8", "replace"),
            token=event.token,
            n_decoded=len(self._tokens),
            n_prompt=len(self._prompt),
            n_cached=self._n_past,
            probs=probs,
            timings=self._timings() if with_timings else None,
        )

    def _prob_entry(self, event: Token, sent: bytes) -> ProbEntry | None:
        if self._request.sampling.n_probs <= 0:
            return None
        is_probability = self._request.sampling.post_sampling_probs
        probs = event.probs
        if probs is None:
            return ProbEntry(event.token, sent, 1.0 if is_probability else 0.0, (), is_probability)
        top = self._top(probs, is_probability)
        return ProbEntry(event.token, sent, probs.chosen.value, top, is_probability)

    def _top(self, probs: TokenProbs, is_probability: bool) -> tuple[tuple[int, bytes, float], ...]:
        return tuple(
            (best.token, self._tokenizer.piece(best.token, self._show_special), best.value)
            for best in probs.top
            if best.value > 0 or not is_probability
        )

    def _finish(self, event: Finished) -> Result:
        self.has_ended = True
        self._log(event)
        text = self._text
        n_prompt, n_decoded = len(self._prompt), len(self._tokens)
        is_shifted = event.shifted_after is not None and event.shifted_after < n_decoded
        is_full = event.truncated and event.shifted_after is None and not self._num_ignored
        if text.stop_type == "none" or (is_full and text.stop_type == "word"):
            text.stop_type = "none" if event.reason == "stop" else event.reason
        return Result(
            index=self._index,
            content=text.text.decode("utf-8", "replace"),
            tokens=tuple(self._tokens) if self._request.return_tokens else (),
            id_slot=self._id_slot,
            n_decoded=n_decoded,
            n_prompt=n_prompt,
            n_cached=self._n_past,
            read_prompt=self._read_prompt,
            has_new_line=text.has_new_line,
            truncated=is_full or is_shifted,
            stop_type=text.stop_type,
            stopping_word=text.stopping_word,
            tokens_cached=min(event.n_tokens, n_prompt + n_decoded - 1) if n_decoded else event.n_tokens,
            timings=self._timings(),
            probs=self._kept_probs(),
            request=self._request,
        )

    def _log(self, event: Finished) -> None:
        """llama-server's timing lines; counts and times only."""
        timings = self._timings().json()
        log = slot("print_timing", self._id_slot, event.task_id)
        for name, part in (("prompt eval", "prompt"), ("       eval", "predicted")):
            log.info(
                "%s time = %10.2f ms / %5d tokens (%8.2f ms per token, %8.2f tokens per second)",
                name,
                *(timings[f"{part}_{key}"] for key in ("ms", "n", "per_token_ms", "per_second")),
            )
        total = timings["prompt_ms"] + timings["predicted_ms"]
        log.info(
            "      total time = %10.2f ms / %5d tokens", total, timings["prompt_n"] + timings["predicted_n"]
        )
        slot("release", self._id_slot, event.task_id).info(
            "stop processing: n_tokens = %d, truncated = %d", event.n_tokens, event.truncated
        )

    def _read_prompt(self) -> str:
        return self._tokenizer.decode(self._prompt, special=True).decode("utf-8", "replace")

    def _kept_probs(self) -> tuple[ProbEntry, ...]:
        """Without as many entries as the stop string has tokens on its own."""
        if self._request.stream or self._text.stop_type != "word" or not self._probs:
            return tuple(self._probs)
        word = self._tokenizer.encode(self._text.stopping_word, parse_special=False)
        return tuple(self._probs[: max(len(self._probs) - len(word), 0)])

    def _timings(self) -> Timings:
        return Timings(
            cache_n=self._n_past,
            prompt_n=self._n_evaluated,
            prompt_ms=_milliseconds(self._t_prompt - self._t_start),
            predicted_n=len(self._tokens),
            predicted_ms=self._predicted_ms(),
            cache_disk_n=self._n_disk,
        )

    def _predicted_ms(self) -> float:
        return max(_milliseconds(self._t_last - self._t_first), SHORTEST_MS) if self._tokens else 0.0


def _text_rules(request: CompletionRequest, show_special: bool) -> TextRules:
    return TextRules(
        stop=request.stop,
        n_indent=request.n_indent,
        t_max_predict_ms=request.t_max_predict_ms,
        show_special=show_special,
        preserved_tokens=request.preserved_tokens,
    )


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1e3, 3)
