"""The service: the same answers as the command line, refusals in words, no harm."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from waiting import wait_for

from transformer_jax.base.errors import UserError
from transformer_jax.decoding.live import Caller
from transformer_jax.serve import service as services
from transformer_jax.serve.models import Limits, Model, _Gathered

LINES = ["O gato dorme.", "", "A casa é azul e grande.", "Onde está o livro?"]


def post(client, path, body, **headers):
    return client.post(path, json=body, headers=headers)


def said(response):
    return response.json()["error"]["message"]


def events(text):
    """Return (kind, content) of server-sent events."""
    found = []
    for event in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in event.split("\n"))
        content = fields["data"]
        content = content if content == "[DONE]" else json.loads(content)
        found.append((fields.get("event", ""), content))
    return found


def test_answers_are_those_of_the_command_line_with_scores_and_others(
    client_of, runs_of
):
    client, run = client_of("translator"), runs_of("translator")
    body = {"lines": LINES, "options": {"n_best": 2, "beams": 3}, "alignment": True}
    found = post(client, "/v1/predict", body).json()
    assert found["model"] == "translator"
    expected = run.replies(LINES, n_best=2, beams=3)
    for one, reply in zip(found["replies"], expected, strict=True):
        assert one["text"] == reply.text
        assert one["score"] == pytest.approx(reply.score, rel=1e-4)
        texts = [other["text"] for other in one.get("others", [])]
        assert texts == [other.text for other in reply.others]
    pairs = run.align(LINES[2], found["replies"][2]["text"])
    assert [tuple(p) for p in found["replies"][2]["alignment"]] == pairs


@pytest.mark.system
def test_clients_at_the_same_time_get_their_own_answers(client_of, runs_of):
    client, run = client_of("translator"), runs_of("translator")
    lines = [f"O gato {'muito ' * (n % 5)}dorme {n}." for n in range(24)]
    expected = run.predict(lines)

    def ask(line):
        found = post(client, "/v1/predict", {"lines": [line]})
        return found.json()["replies"][0]["text"]

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(ask, lines)) == expected


def test_a_stream_grows_to_the_answer(client_of, runs_of):
    client, run = client_of("translator"), runs_of("translator")
    for options in ({"beams": 1}, {"beams": 3}):
        body = {"line": LINES[2], "options": options}
        response = post(client, "/v1/stream", body)
        assert response.headers["content-type"].startswith("text/event-stream")
        found = events(response.text)
        kinds = [kind for kind, _ in found]
        assert kinds == [""] * (len(kinds) - 1) + ["done"]
        assert found[-1][1]["text"] == run.predict(LINES[2], **options)
        if options["beams"] == 1:
            assert len(found) > 2
            for _, part in found[:-1]:
                assert found[-1][1]["text"].startswith(part["text"])


def test_an_answer_begins_as_the_client_says(client_of, runs_of):
    client, run = client_of("translator"), runs_of("translator")
    body = {"lines": LINES[:1], "prefixes": ["The dog"]}
    text = post(client, "/v1/predict", body).json()["replies"][0]["text"]
    assert text == run.replies(LINES[0], prefixes="The dog").text
    assert text.startswith("The dog")
    body = {"line": LINES[0], "prefix": "The dog"}
    assert events(post(client, "/v1/stream", body).text)[-1][1]["text"] == text


def test_an_answer_includes_what_the_client_says(client_of, runs_of):
    client, run = client_of("translator"), runs_of("translator")
    body = {"lines": LINES[:2], "include": [["dog"], []], "options": {"beams": 2}}
    found = post(client, "/v1/predict", body).json()["replies"]
    expected = run.replies(LINES[:2], include=[["dog"], []], beams=2)
    assert [one["text"] for one in found] == [reply.text for reply in expected]
    assert "dog" in found[0]["text"]


def test_attention_is_that_of_the_run(client_of, runs_of):
    client, run = client_of("translator"), runs_of("translator")
    body = {"line": LINES[2], "answer": "The house is blue."}
    found = post(client, "/v1/attention", body).json()
    expected = run.attention(LINES[2], "The house is blue.")
    assert set(found["maps"]) == {"encoder", "decoder", "cross"}
    cross = found["maps"]["cross"]
    assert cross["queries"] == list(expected.tokens["cross"][0])
    weights = expected["cross"].mean(axis=1)
    np.testing.assert_allclose(cross["weights"], weights, atol=1e-4)


def test_a_model_without_attention_says_so(client_of, runs_of, monkeypatch):
    client = client_of("translator")
    task = runs_of("translator").task
    monkeypatch.setitem(vars(task), "inspector", None)
    response = post(client, "/v1/attention", {"line": "x"})
    assert "shows no attention: ask another model" in said(response)


def test_models_are_listed_with_what_they_do(client_of):
    client = client_of("translator", "writer", "judge", "eye", "chatbot")
    found = {one["id"]: one["about"] for one in client.get("/v1/models").json()["data"]}
    assert found["translator"]["aligns"] and found["translator"]["streams"]
    assert found["writer"]["continues"] and found["chatbot"]["converses"]
    assert found["eye"]["reads"] == "image" and found["judge"]["options"] == {}
    assert found["translator"]["options"]["beams"]["meaning"]
    assert "pictures" not in found["translator"]["options"]
    assert client.get("/v1/models/writer").json()["id"] == "writer"
    assert said(client.get("/v1/models/writter")).startswith("there is no such model.")
    response = post(client, "/v1/predict", {"lines": ["a"]})
    assert response.status_code == 400
    assert "name a model: translator, writer" in said(response)


def test_tasks_that_answer_at_once_share_a_pass(client_of, runs_of):
    client, run = client_of("judge"), runs_of("judge")
    lines = ["the soup was cold", "what a lovely place"]
    found = post(client, "/v1/predict", {"lines": lines}).json()["replies"]
    assert [one["text"] for one in found] == run.predict(lines)
    assert found[0]["details"]
    response = post(client, "/v1/predict", {"lines": lines, "options": {"beams": 2}})
    assert "are not searched, and so have no options" in said(response)


def test_requests_that_wait_are_computed_in_one_pass():
    passes, release = [], threading.Event()

    def answers(params, requests, mesh, options):
        passes.append(list(requests))
        release.wait(10)
        for number, request in enumerate(requests):
            if request == "bad":
                raise ValueError("a bad request")
            yield number, f"answer to {request}"

    gathered = _Gathered(answers)

    def call(*requests):
        return [reply for _, reply in gathered.answers(None, requests, None, None)]

    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(call, "a")
        wait_for(lambda: passes)
        others = [pool.submit(call, *some) for some in (["b", "c"], ["bad"], ["d"])]
        wait_for(lambda: len(gathered._waiting) == 3)
        release.set()
        assert first.result() == ["answer to a"]
        assert others[0].result() == ["answer to b", "answer to c"]
        assert others[2].result() == ["answer to d"]
        with pytest.raises(ValueError, match="a bad request"):
            others[1].result()
    assert sorted(passes[1]) == ["b", "bad", "c", "d"]


def test_pictures_are_uploaded_and_paths_are_not_read(client_of, runs_of, tmp_path):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    client, run = client_of("eye"), runs_of("eye")
    path = tmp_path / "one.png"
    pixels = np.random.default_rng(0).integers(0, 255, (8, 8), np.uint8)
    image.fromarray(pixels).save(path)
    files = [("files", ("mine.png", path.read_bytes())), ("files", ("x", b"no image"))]
    found = client.post("/v1/predict_files", files=files).json()["replies"]
    assert found[0]["text"] == run.predict(str(path))
    assert found[1]["error"] and "/tmp" not in found[1]["error"]
    assert "transformer_jax-" not in found[1]["error"]
    response = post(client, "/v1/predict", {"lines": [str(path)]})
    assert response.status_code == 400
    assert "reads image files: upload them to /v1/predict_files" in said(response)


def test_pictures_with_too_many_pixels_are_refused_before_they_are_read(
    client_of, tmp_path
):
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    client = client_of("eye", limits=Limits(pixels=10_000))
    path = tmp_path / "large.png"
    image.new("L", (101, 100)).save(path)
    files = [("files", ("large.png", path.read_bytes()))]
    response = client.post("/v1/predict_files", files=files)
    assert response.status_code == 400
    words = "a picture of 101 times 100 pixels: at most 10,000 are read"
    assert words in said(response)


def test_lengths_of_many_sizes_are_one_kind_of_search(runs_of):
    model = Model("writer", runs_of("writer"), Limits())
    for most in range(1, 200):
        model.choose({"max_length": most, "beams": 1})
    assert len(model._settings) < 20


def test_files_are_refused_where_text_is_read_and_options_must_be_an_object(client_of):
    client = client_of("translator", "eye")
    files = [("files", ("x.png", b"x"))]
    data = {"model": "translator"}
    response = client.post("/v1/predict_files", files=files, data=data)
    assert "reads text: send it to /v1/predict" in said(response)
    for options in ("[1]", "{", "[" * 5000):
        data = {"model": "eye", "options": options}
        response = client.post("/v1/predict_files", files=files, data=data)
        assert "options must be a JSON object" in said(response)
    response = post(client, "/v1/attention", {"line": "x", "model": "eye"})
    assert "reads files, whose attention is not shown" in said(response)
    response = post(client, "/v1/stream", {"line": "x", "model": "eye"})
    assert "reads files: upload them" in said(response)


def test_a_conversation_says_how_many_turns_are_no_longer_read(client_of, runs_of):
    client, run = client_of("chatbot"), runs_of("chatbot")
    turns = ["Hello!", "Hi.", "How are you?", "Fine.", "What is your name?"]
    line, forgotten = run.task.inference.context(turns)
    assert forgotten
    found = events(post(client, "/v1/stream", {"turns": turns}).text)[-1][1]
    assert found["forgotten"] == forgotten
    assert found["text"] == run.predict(line)
    response = post(client, "/v1/stream", {"turns": turns, "line": "Hello!"})
    assert "give either a line or turns" in said(response)


REFUSED = {
    "no lines": ({"lines": []}, 422, "body.lines"),
    "another name": ({"lines": ["a"], "optoins": {}}, 422, "body.optoins"),
    "no text": ({"lines": [3]}, 422, "body.lines.0"),
    "half a pair": ({"lines": ["\ud800"]}, 422, "unicode"),
    "unknown option": ({"lines": ["a"], "options": {"beans": 2}}, 400, "'beams'"),
    "bound": ({"lines": ["a"], "options": {"beams": 0}}, 400, "at least 1"),
    "beams": ({"lines": ["a"], "options": {"beams": 7}}, 400, "is 7: at most 6 here"),
    "n-grams": (
        {"lines": ["a"], "options": {"no_repeat": 17}},
        400,
        "is 17: at most 16 here",
    ),
    "long prefix": ({"lines": ["a"], "prefixes": ["a" * 301]}, 400, "301 characters"),
    "list": ({"lines": ["a"], "options": {"beams": [2]}}, 422, "body.options.beams"),
    "many lines": ({"lines": ["a"] * 21}, 400, "21 lines in a request: at most 20"),
    "long line": (
        {"lines": ["ab" * 200]},
        400,
        "line 1 has 400 characters: at most 300 are read",
    ),
    "prefixes": ({"lines": ["a"], "prefixes": ["a", "b"]}, 400, "there are 2 prefixes"),
    "include": ({"lines": ["a"], "include": [[], []]}, 400, "2 lists to include for 1"),
    "contrast": (
        {"lines": ["a"], "options": {"contrast": 0.6, "top_k": 1000}},
        400,
        "options.top_k is 1000, and with contrast each is read: at most",
    ),
    "long word": ({"lines": ["a"], "include": [["a" * 301]]}, 400, "301 characters"),
    "pieces": ({"lines": ["gato " * 50]}, 400, "pieces"),
}


@pytest.mark.parametrize(("body", "status", "words"), REFUSED.values(), ids=REFUSED)
def test_bad_requests_are_refused_in_words(client_of, body, status, words):
    client = client_of("translator")
    content = json.dumps(body)
    headers = {"content-type": "application/json"}
    response = client.post("/v1/predict", content=content, headers=headers)
    assert response.status_code == status, response.text
    assert words in said(response)
    assert response.json()["error"]["code"] == status


def test_a_refused_line_among_others_has_an_error(client_of):
    client = client_of("translator")
    body = {"lines": ["O gato dorme.", "gato " * 50]}
    first, second = post(client, "/v1/predict", body).json()["replies"]
    assert first["text"] and "pieces" in second["error"]


def test_a_body_that_is_no_json_or_no_known_page(client_of):
    client = client_of("translator")
    headers = {"content-type": "application/json"}
    response = client.post("/v1/predict", content=b"\xff{", headers=headers)
    assert response.status_code in (400, 422) and said(response)
    assert client.get("/v2/predict").status_code == 404
    assert client.get("/v1/predict").status_code == 405


def test_options_that_need_programs_are_limited_and_numbers_are_not(
    client_of, monkeypatch
):
    from transformer_jax.serve import models

    client = client_of("translator")
    monkeypatch.setattr(models, "SETTINGS", 2)
    for alpha in (0.1, 0.2, 0.3, 0.4):
        body = {"lines": ["O gato dorme."], "options": {"alpha": alpha, "beams": 1}}
        assert post(client, "/v1/predict", body).status_code == 200
    body["options"] = {"no_repeat": 2, "beams": 1}
    assert post(client, "/v1/predict", body).status_code == 200
    body["options"] = {"no_repeat": 3, "beams": 1}
    response = post(client, "/v1/predict", body)
    assert "2 combinations of options have been asked for" in said(response)


def test_options_that_are_no_numbers_are_not_taken(runs_of):
    model = Model("translator", runs_of("translator"), Limits())
    with pytest.raises(ValueError, match="must be a number, or true or false"):
        model.choose({"pictures": "/etc"})


def test_large_bodies_tokens_and_rates_are_refused_before_the_body_is_read(client_of):
    guards = {"most_bytes": 500, "rate": 4.0, "token": "secret"}
    client = client_of("translator", guards=guards)
    right = {"authorization": "Bearer secret"}
    assert client.get("/healthz").json() == {"status": "alive"}
    for given in ({}, {"authorization": "Bearer secre"}, {"authorization": "secret"}):
        response = client.get("/v1/models", headers=given)
        assert response.status_code == 401
        assert "give the token of this service" in said(response)
    body = {"lines": ["a" * 600]}
    response = post(client, "/v1/predict", body, **right)
    assert response.status_code == 413
    assert "at most 500 are read" in said(response)
    statuses = {client.get("/v1/models", headers=right).status_code for _ in range(9)}
    assert statuses == {200, 429}
    response = client.get("/v1/models", headers=right)
    assert "more than 4 requests a second: wait" in said(response)
    assert response.headers["retry-after"] == "1"


def test_a_service_that_is_not_ready_stops_or_is_full_puts_off(client_of, service_of):
    from fastapi.testclient import TestClient

    from transformer_jax.serve.app import make_app

    service = service_of("translator", queue=3)
    with TestClient(make_app(service)) as client:
        service.ready = False
        assert client.get("/readyz").status_code == 503
        response = post(client, "/v1/predict", {"lines": ["a"]})
        assert response.status_code == 503
        assert "the models are not ready yet: see /readyz" in said(response)
        service.ready, service.closing = True, True
        response = post(client, "/v1/predict", {"lines": ["a"]})
        assert "the service is stopping: it takes no more requests" in said(response)
        service.closing, service.lines = False, 2
        response = post(client, "/v1/predict", {"lines": ["a", "b"]})
        assert "2 lines are being answered, and at most 3" in said(response)
        assert response.headers["retry-after"] == "1"
        service.lines = 0
        assert client.get("/readyz").status_code == 200
        body = {"lines": ["O gato dorme."] * 5}  # alone, any number is answered
        assert post(client, "/v1/predict", body).status_code == 200


def test_what_takes_too_long_is_cancelled(client_of, monkeypatch):
    client, callers = client_of("translator", seconds=0.3), []

    def wait(self, caller, lines, options, prefixes=(), include=()):
        callers.append(caller)
        while not caller.cancelled:
            time.sleep(0.01)
        return []

    monkeypatch.setattr(Model, "answer", wait)
    response = post(client, "/v1/predict", {"lines": ["a"]})
    assert response.status_code == 504
    assert "the answer takes too long: ask for fewer" in said(response)
    assert callers[0].cancelled


def test_a_fault_is_logged_and_not_shown(client_of, monkeypatch, caplog):
    client = client_of("translator")

    def fail(self, caller, lines, options, prefixes=(), include=()):
        raise ZeroDivisionError("a secret path")

    monkeypatch.setattr(Model, "answer", fail)
    response = post(client, "/v1/predict", {"lines": ["my secret text"]})
    assert response.status_code == 500
    assert "secret" not in response.text and "its log has" in said(response)
    assert "a secret path" in caplog.text  # the traceback is in the log
    assert "my secret text" not in caplog.text


def test_a_full_disk_is_a_fault_that_is_logged(client_of, monkeypatch, caplog):
    client = client_of("translator")

    def fail(self, caller, lines, options, prefixes=(), include=()):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Model, "answer", fail)
    assert post(client, "/v1/predict", {"lines": ["a"]}).status_code == 500
    assert "No space left on device" in caplog.text
    assert "POST /v1/predict 499" not in caplog.text


def test_a_stream_that_fails_later_says_so(client_of, monkeypatch):
    client, failures = client_of("translator"), []

    def stream(self, show, line, options, prefix=""):
        def answer():
            show("The")
            time.sleep(0.1)
            raise failures[-1]

        return Caller(), answer

    monkeypatch.setattr(Model, "stream", stream)
    for failure, status in ((TypeError("secret"), 500), (UserError("too large"), 400)):
        failures.append(failure)
        found = events(post(client, "/v1/stream", {"line": "a"}).text)
        assert found[0] == ("", {"text": "The"})
        kind, content = found[-1]
        assert kind == "error" and content["error"]["code"] == status
        assert "secret" not in content["error"]["message"]


def test_requests_are_counted_and_logged_without_their_texts(client_of, caplog):
    client = client_of("translator")
    with caplog.at_level("INFO", logger="transformer_jax.serve"):
        post(client, "/v1/predict", {"lines": ["O gato dorme."]})
        client.get("/gato?gato=gato")
        client.get("/healthz")
    assert "POST /v1/predict 200" in caplog.text and "GET other 404" in caplog.text
    assert "gato" not in caplog.text and "healthz" not in caplog.text
    shown = client.get("/metrics").text
    assert 'requests_total{route="/v1/predict",status="200"} 1.0' in shown
    assert 'lines_total{model="translator"} 1.0' in shown
    assert "process_open_fds" in shown


def test_a_host_by_another_name_is_refused(client_of):
    client = client_of("translator", guards={"hosts": ("localhost", "testserver")})
    assert client.get("/healthz").status_code == 200
    headers = {"host": "attacker.example"}
    assert client.get("/healthz", headers=headers).status_code == 400


def test_a_cancelled_caller_is_not_answered(runs_of, service_of):
    model = service_of("translator").models["translator"]
    with model.serving():
        caller = Caller()
        caller.cancel()
        with pytest.raises(services.Cancelled):
            model.answer(caller, ["O gato dorme."], model.options)
        caller = Caller()
        (reply,) = model.answer(caller, ["O gato dorme."], model.options)
    assert reply.text == runs_of("translator").predict("O gato dorme.")


@pytest.mark.system
@pytest.mark.parametrize("name", ["writer", "chatbot", "judge"])
def test_every_kind_of_model_warms_up(service_of, name):
    model = service_of(name).models[name]
    with model.serving():
        model.warm_up()
        (reply,) = model.answer(Caller(), ["Hello!"], model.options)
    assert not reply.error
