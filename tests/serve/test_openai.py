"""OpenAI's own client, against a server of ours."""

import pytest

pytestmark = pytest.mark.system


@pytest.fixture
def client_for(server_of):
    """A function: a client of OpenAI's of a server of these runs."""
    openai = pytest.importorskip("openai", reason="the openai client is not installed")

    def make(*names):
        place, _ = server_of(*names)
        return openai.OpenAI(base_url=f"{place}/v1", api_key="any", max_retries=0)

    return make


def test_texts_are_continued_as_the_run_continues_them(client_for, runs_of):
    client, run = client_for("writer"), runs_of("writer")
    line = "The cat"
    greedy = {"model": "writer", "prompt": line, "temperature": 0, "max_tokens": 7}
    found = client.completions.create(**greedy)
    expected = run.replies(line, beams=1, sample=False, max_length=8)
    text = expected.details["text"]
    assert text.startswith(line)
    (choice,) = found.choices
    assert line + choice.text == text
    assert choice.finish_reason in ("stop", "length")
    assert found.usage.total_tokens == (
        found.usage.prompt_tokens + found.usage.completion_tokens
    )
    assert client.completions.create(**greedy, echo=True).choices[0].text == text
    stop = choice.text[2:4]
    cut = client.completions.create(**greedy, stop=stop).choices[0]
    assert cut.text == choice.text[: choice.text.index(stop)]
    assert cut.finish_reason == "stop"
    parts = [c.choices[0] for c in client.completions.create(**greedy, stream=True)]
    assert "".join(part.text for part in parts) == choice.text
    assert [part.finish_reason for part in parts[:-1]] == [None] * (len(parts) - 1)
    parts = client.completions.create(**greedy, stream=True, stop=stop)
    assert "".join(part.choices[0].text for part in parts) == cut.text


def test_max_tokens_counts_what_is_written_and_not_its_end(client_for):
    client = client_for("writer")
    asked = {"model": "writer", "prompt": "The cat", "temperature": 0}
    for most in (1, 3):
        found = client.completions.create(**asked, max_tokens=most)
        assert found.usage.completion_tokens == most
        assert found.choices[0].finish_reason == "length"
        assert found.choices[0].text
    with pytest.raises(Exception, match="at most 40 here"):
        client.completions.create(**asked, max_tokens=100)


def test_a_prompt_may_have_unknown_characters_stops_and_most_of_a_window(client_for):
    client = client_for("writer")
    for prompt in ("A\nB", "A😀B", "The cat sat on the mat. " * 4):
        asked = {"model": "writer", "prompt": prompt, "temperature": 0}
        asked |= {"max_tokens": 6}
        plain = client.completions.create(**asked, stop="\n").choices[0]
        parts = client.completions.create(**asked, stop="\n", stream=True)
        assert "".join(part.choices[0].text for part in parts) == plain.text
        whole = client.completions.create(**asked, stop="never this", stream=True)
        text = "".join(part.choices[0].text for part in whole)
        assert text == client.completions.create(**asked).choices[0].text


def test_a_beginning_of_a_stop_is_never_sent(client_for):
    client = client_for("writer")
    asked = {"model": "writer", "prompt": "The cat", "temperature": 0, "max_tokens": 6}
    text = client.completions.create(**asked).choices[0].text
    parts = client.completions.create(**asked, stop=text[:5], stream=True)
    assert "".join(part.choices[0].text for part in parts) == ""


def test_a_stream_tells_its_usage_and_the_prompt_if_asked(client_for):
    client = client_for("writer")
    asked = {"model": "writer", "prompt": "The cat", "temperature": 0, "max_tokens": 5}
    plain = client.completions.create(**asked, echo=True)
    more = {"stream": True, "stream_options": {"include_usage": True}}
    parts = list(client.completions.create(**asked, echo=True, **more))
    assert parts[-1].choices == [] and parts[-1].usage == plain.usage
    text = "".join(part.choices[0].text for part in parts[:-1])
    assert text == plain.choices[0].text


def test_samples_are_others_each_time_without_a_seed(client_for):
    client = client_for("writer")
    asked = {"model": "writer", "prompt": "The cat", "temperature": 1, "max_tokens": 9}
    found = {client.completions.create(**asked).choices[0].text for _ in range(4)}
    assert len(found) > 1


def test_a_stream_that_is_put_off_has_its_status(server_of):
    openai = pytest.importorskip("openai", reason="the openai client is not installed")
    place, service = server_of("writer")
    service.ready = False
    client = openai.OpenAI(base_url=f"{place}/v1", api_key="any", max_retries=0)
    with pytest.raises(openai.InternalServerError, match="not ready yet"):
        client.completions.create(model="writer", prompt="x", stream=True)


def test_samples_are_several_and_depend_on_the_seed(client_for):
    client = client_for("writer")
    asked = {"model": "writer", "prompt": ["The cat", "A dog"], "n": 3}
    asked |= {"temperature": 0.9, "top_p": 0.95, "max_tokens": 6}
    one, same, other = (
        [c.text for c in client.completions.create(**asked, seed=seed).choices]
        for seed in (4, 4, 5)
    )
    assert len(one) == 6 and one == same and one != other


def test_a_chat_goes_on_with_a_conversation(client_for, runs_of):
    client, run = client_for("chatbot"), runs_of("chatbot")
    turns = ["Hello!", "Hi.", "How are you?"]
    roles = ("user", "assistant", "user")
    messages = [
        {"role": role, "content": turn} for role, turn in zip(roles, turns, strict=True)
    ]
    messages[2]["content"] = [{"type": "text", "text": turns[2]}]
    asked = {"model": "chatbot", "messages": messages, "presence_penalty": 0}
    expected = run.predict(run.task.inference.context(turns)[0])
    found = client.chat.completions.create(**asked)
    assert found.choices[0].message.content == expected
    parts = client.chat.completions.create(**asked, stream=True)
    deltas = [part.choices[0].delta for part in parts]
    assert "".join(delta.content or "" for delta in deltas) == expected
    assert deltas[0].role == "assistant"


def test_a_translator_answers_a_message_and_its_models_are_listed(client_for, runs_of):
    client = client_for("translator", "judge")
    assert {one.id for one in client.models.list()} == {"translator", "judge"}
    messages = [{"role": "user", "content": "O gato dorme."}]
    found = client.chat.completions.create(model="translator", messages=messages)
    expected = runs_of("translator").predict("O gato dorme.")
    assert found.choices[0].message.content == expected


def test_what_is_not_supported_is_refused_in_words(client_for):
    openai = pytest.importorskip("openai", reason="the openai client is not installed")
    client = client_for("writer", "judge")
    complete, chat = client.completions.create, client.chat.completions.create
    said = {"role": "user", "content": "x"}
    for call, words in (
        (lambda: complete(model="judge", prompt="x"), "writes no text for a text"),
        (lambda: complete(model="writer", prompt=[]), "prompt is an empty list"),
        (
            lambda: complete(model="writer", prompt=["a", "b"], stream=True),
            "a stream is of one prompt and one answer: send several",
        ),
        (
            lambda: chat(model="writer", messages=[said], n=2, stream=True),
            "a stream is of one answer: leave out n",
        ),
        (
            lambda: chat(
                model="writer", messages=[{"role": "system", "content": "Be kind."}]
            ),
            "was not trained to follow system messages",
        ),
        (
            lambda: chat(
                model="writer", messages=[said, {"role": "assistant", "content": "x"}]
            ),
            "the last message must be the user's",
        ),
        (
            lambda: chat(model="chatbot", messages=[said]),
            "there is no such model",
        ),
        (
            lambda: complete(model="writer", prompt="x", stop=["a", "b", "c", "d", ""]),
            "stop: give at most 4 texts",
        ),
        (lambda: complete(model="writer", prompt="x", logprobs=2), "logprobs"),
    ):
        with pytest.raises(openai.APIStatusError, match=words):
            call()


def test_a_model_of_single_lines_reads_no_turns(client_of):
    client = client_of("translator")
    response = client.post("/v1/stream", json={"turns": ["a", "b"]})
    assert response.status_code == 400
    assert "answers single lines, and reads no turns" in response.text
