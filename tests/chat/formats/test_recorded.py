"""Every family's answers, whole and cut everywhere."""

from __future__ import annotations

import pytest

from mlxserver.chat.answer_deltas import CallArguments, CallBegin
from tests.chat.formats.cutting import answer_of, check_cuttings, parse
from tests.chat.formats.recorded import BY_NAME, RECORDINGS, Recording

each_recording = pytest.mark.parametrize(
    "recording", RECORDINGS, ids=[f"{r.family}-{number}" for number, r in enumerate(RECORDINGS)]
)


@each_recording
def test_an_answer_is_told_apart(recording: Recording) -> None:
    answer = answer_of(recording.rules, recording.text)
    assert answer.content == recording.content
    assert answer.reasoning_content.strip() == recording.reasoning
    assert tuple((call.name, call.arguments) for call in answer.tool_calls) == recording.calls
    if recording.ids:
        assert tuple(call.id for call in answer.tool_calls) == recording.ids


@each_recording
def test_cuts_change_nothing(recording: Recording) -> None:
    check_cuttings(recording.rules, recording.text)


@each_recording
def test_a_call_begins_before_its_arguments(recording: Recording) -> None:
    begun = -1
    for delta in parse(recording.rules, recording.text):
        match delta:
            case CallBegin():
                begun += 1
                assert delta.index == begun and delta.name and delta.id
            case CallArguments():
                assert delta.index == begun


@each_recording
def test_marks_of_a_cut_call_never_show(recording: Recording) -> None:
    """An answer that a limit cut inside a call has the content of the whole one, or less."""
    whole = answer_of(recording.rules, recording.text).content
    for size in range(len(recording.text)):
        assert whole.startswith(answer_of(recording.rules, recording.text[:size], False).content)


def test_every_family_is_recorded() -> None:
    assert {recording.family for recording in RECORDINGS} == set(BY_NAME)
