"""The page in a real browser: it writes, stops, colors, shows the engine and says what is wrong."""

import json
import re
from types import SimpleNamespace

import httpx2
import pytest
from playwright.sync_api import expect, sync_playwright

from solutions.server.here import serve_here
from tests.common.browser import LAUNCH
from tests.common.clients import ONE_TEXT, body
from tests.common.tools import find_browser

HOSTILE = "<img src=x onerror=\"document.title='taken'\"><b>bold</b>"
LOST = "The connection to the server was lost."
BUSY = {"error": {"message": "Too many requests are waiting. Try again later."}}
BROKEN = {"error": {"message": "The replica that wrote this answer has failed."}}

pytestmark = pytest.mark.needs("chromium")


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        expect.set_options(timeout=30_000)
        browser = playwright.chromium.launch(executable_path=find_browser(), args=LAUNCH)
        yield browser
        browser.close()


@pytest.fixture
def opened(browser):
    """Open a server's page. At the end its console must be empty, and all requests must have gone
    to that server. page.seen.said: the console."""
    seen = SimpleNamespace(said=[], urls=[], origins=[], contexts=[])

    def open_page(running, width=1280, **given):
        context = browser.new_context(viewport={"width": width, "height": 900}, **given)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on("console", lambda message: seen.said.append(message.text))
        page.on("pageerror", lambda error: seen.said.append(str(error)))
        page.on("request", lambda request: seen.urls.append(request.url))
        seen.contexts.append(context)
        seen.origins.append(f"{running.url}/")
        page.goto(running.url)
        page.seen = seen
        return page

    yield open_page
    for context in seen.contexts:
        context.close()
    assert seen.said == []
    asked = [url for url in seen.urls if not url.startswith("data:")]
    assert asked
    assert all(url.startswith(tuple(seen.origins)) for url in asked)


def write(page, prompt="Once upon a time", **given):
    """Fill the fields in, press Write and return the newest text."""
    page.locator("#beginning").fill(prompt)
    for name, value in {"temperature": 0, "max_tokens": 24, **given}.items():
        page.locator(f"#{name}").fill(str(value))
    page.get_by_role("button", name="Write").click()
    return page.locator("#texts article").first


def written(text):
    expect(text).not_to_have_class(re.compile("writing"))
    return text.locator(".tokens").text_content()


def style(locator, name):
    return locator.evaluate("(element, name) => getComputedStyle(element)[name]", name)


def streams(choices):
    """A made-up answer: an event for each."""
    return "".join(f"data: {json.dumps(one)}\n\n" for one in choices) + "data: [DONE]\n\n"


def test_the_texts_are_those_of_the_api(opened, server, client):
    page = opened(server)
    write(page, temperature=1, top_p=0.9, seed=3, n=2)
    given = body(prompt="Once upon a time", max_tokens=24, temperature=1, top_p=0.9, seed=3, n=2,
                 speculation=True)  # fmt: skip
    choices = client.post("/v1/completions", json=given).json()["choices"]
    texts = page.locator("#texts article").all()
    assert [written(text) for text in texts] == [choice["text"] for choice in choices]
    expect(texts[0]).to_contain_text("24 tokens · the first after")


def test_stop_ends_all_texts_and_frees_their_blocks(opened, server):
    page = opened(server)
    totals = server.app.state.service.metrics.totals
    before = totals["aborted"]
    write(page, max_tokens=900)
    write(page, prompt="There was a king", max_tokens=900)
    writing = page.locator("article.writing")
    for text in writing.all():
        text.locator(".token").nth(2).wait_for()
    assert writing.count() == 2
    page.locator("#stop").click()
    expect(writing).to_have_count(0)
    expect(page.get_by_text("· stopped")).to_have_count(2)
    expect(page.locator("#pool-counts")).to_have_text(re.compile("^0 of"))
    assert before < totals["aborted"] < before + 1800


def test_tokens_are_colored_and_explained_on_demand(opened, server, client):
    page = opened(server)
    text = write(page)
    written(text)
    given = body(prompt="Once upon a time", max_tokens=24, logprobs=5, speculation=True)
    logprobs = client.post("/v1/completions", json=given).json()["choices"][0]["logprobs"]
    expect(text.locator(".drafted")).to_have_count(sum(logprobs["drafted"]))
    unlikely, drafted = text.locator(".p1").first, text.locator(".drafted").first
    assert {style(one, "text-decoration-line") for one in (unlikely, drafted)} == {"none"}
    for choice, colored in (("probability", unlikely), ("accepted draft", drafted)):
        page.get_by_label(choice).check()
        assert style(colored, "text-decoration-line") == "underline"
        assert style(colored, "background-color") != "rgba(0, 0, 0, 0)"
    text.locator(".token").first.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tip .taken span").first).to_have_text(f"“{logprobs['tokens'][1]}”")
    expect(page.locator("#tip .choice")).to_have_count(5)
    page.keyboard.press("Escape")
    expect(page.locator("#tip")).to_be_hidden()
    text.locator(".token").first.hover()
    expect(page.locator("#tip")).to_be_visible()


@pytest.mark.slow
def test_a_burst_is_seen_by_who_has_the_key(opened):
    with serve_here(technique="prefix", pool_bytes=ONE_TEXT, api_key="secret") as small:
        page = opened(small)
        key = page.get_by_label("The API key is missing or wrong.")
        key.fill("secret")
        key.press("Enter")
        page.get_by_role("button", name="Send 40 texts").click()
        for rows in ("#running li", "#waiting li"):
            expect(page.locator(rows).first).to_be_visible()
        expect(page.locator("#pool-counts")).to_have_text(re.compile("[1-9]\\d* of 64 in use"))
        counts = page.locator("#burst-counts")
        expect(counts).to_have_text("Texts: 40 done · 0 under way · 0 refused · 0 failed")
        expect(page.locator("#requests")).to_be_hidden()
        assert int(page.locator("#counts dd").nth(2).text_content()) > 0  # preempted
        expect(page.locator("#ttft")).to_contain_text("p95")
        page.seen.said[:] = [line for line in page.seen.said if "status of 401" not in line]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ({"status": 429, "json": BUSY, "headers": {"retry-after": "7"}},
         "Too many requests are waiting. Try again later. Try again in 7 s."),
        ({"body": streams([BROKEN])}, BROKEN["error"]["message"]),
        ({"body": 'data: {"choices": [{"index": 0, "text": " a"}]}\n\n'}, LOST),
        (None, LOST),
    ],
    ids=["refused", "broken", "cut off", "not there"],
)  # fmt: skip
def test_an_error_is_shown_as_a_sentence(opened, server, answer, sentence):
    page = opened(server)
    page.route("**/v1/completions", lambda to: to.fulfill(**answer) if answer else to.abort())
    expect(write(page).get_by_role("alert")).to_have_text(sentence)
    page.seen.said.clear()  # the browser itself notes failed requests


def test_a_refusal_is_the_servers_own_sentence(opened, server):
    page = opened(server)
    alert = write(page, max_tokens=2000).get_by_role("alert")
    expect(alert).to_contain_text("more than the model's context of 1024.")
    page.seen.said.clear()


def test_html_stays_text(opened, server):
    page = opened(server)
    logprobs = {"tokens": [HOSTILE], "token_logprobs": [-1], "top_logprobs": [{HOSTILE: -1}]}
    choice = {"index": 0, "text": HOSTILE, "logprobs": logprobs, "finish_reason": "stop"}
    answer = streams([{"id": HOSTILE, "choices": [choice]}])
    page.route("**/v1/completions", lambda route: route.fulfill(body=answer))
    text = write(page, HOSTILE)
    assert written(text) == HOSTILE
    text.locator(".token").hover()
    expect(page.locator("#tip")).to_contain_text(HOSTILE)
    expect(page.locator("img, b:text('bold')")).to_have_count(0)
    assert page.title() == "Inference workbook"


def test_the_keyboard_is_enough(opened, server):
    page = opened(server)
    expect(page.locator("#engine")).to_be_visible()
    reached = []
    while len(reached) < 40 and (not reached or reached[-1] != "none"):
        page.keyboard.press("Tab")
        focused = page.locator(":focus")
        reached.append(focused.get_attribute("id") if focused.count() else "none")
        if focused.count():
            assert style(focused, "outline-style") != "none"
    fields = ["beginning", "temperature", "top_p", "max_tokens", "n", "seed", "speculation"]
    assert reached == [*fields, "write", "stop", "chat", "burst", "none"]
    page.locator("#max_tokens").fill("8")
    page.locator("#beginning").focus()
    page.keyboard.type(" son")
    page.keyboard.press("Control+Enter")
    assert written(page.locator("#texts article"))
    page.locator("#chat").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_label("probability")).to_be_checked()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_without_scrolling_sideways(opened, server, scheme):
    page = opened(server, width=360, color_scheme=scheme, reduced_motion="reduce")
    text = write(page, "Once" * 60)
    page.get_by_label("probability").check()
    written(text)
    expect(page.locator("#engine")).to_be_visible()
    assert page.locator("html").evaluate("html => html.scrollWidth") == 360
    assert style(page.locator("body"), "color") != style(page.locator("body"), "background-color")


# ---------------------------------------------------------------------------------------- a chat


def chat(page, said, **given):
    """Say something by the keyboard; return the answer."""
    for name, value in {"temperature": 0, "max_tokens": 12, **given}.items():
        page.locator(f"#{name}").fill(str(value))
    page.get_by_label("Your message").fill(said)
    page.get_by_label("Your message").press("Enter")
    return page.locator("#turns article").last


def test_a_chat_goes_on_with_all_its_turns(opened, chatty):
    page, sent = opened(chatty), []
    page.on("request", lambda request: sent.append(request.post_data_json))
    page.get_by_label("System prompt").fill("Answer in verse.")
    first = written(chat(page, HOSTILE))
    page.get_by_label("Your message").press("Shift+Enter")
    expect(page.locator("#turns article")).to_have_count(1)
    second = chat(page, "And\nwho?")
    text = written(second)
    system = {"role": "system", "content": "Answer in verse."}
    user, answer = {"role": "user", "content": HOSTILE}, {"role": "assistant", "content": first}
    messages = [body["messages"] for body in sent if body]
    assert messages == [
        [system, user],
        [system, user, answer, {"role": "user", "content": "And\nwho?"}],
    ]
    given = {"model": "chatty", "messages": messages[1], "max_tokens": 12, "temperature": 0}
    told = httpx2.post(f"{chatty.url}/v1/chat/completions", json=given, timeout=60).json()
    assert text == told["choices"][0]["message"]["content"]
    expect(second).to_contain_text("prompt tokens cached")
    expect(page.locator("#turns p.turn").first).to_have_text(HOSTILE)
    page.get_by_label("probability").check()
    second.locator(".token").first.hover()
    expect(page.locator("#tip .choice")).to_have_count(5)
    page.get_by_role("button", name="New chat").click()
    expect(page.locator("#turns > *")).to_have_count(0)
    assert page.title() == "Inference workbook"


def test_an_answer_of_a_chat_is_stopped_and_its_failure_is_no_turn(opened, chatty):
    page, sent = opened(chatty), []
    answer = chat(page, "Hello", max_tokens=300)
    answer.locator(".token").nth(2).wait_for()
    page.get_by_role("button", name="Stop", exact=True).first.click()
    expect(answer).to_contain_text("· stopped")
    failed = chat(page, "Go on", max_tokens=5000)
    expect(failed.get_by_role("alert")).to_contain_text("model's context of 512.")
    page.on("request", lambda request: sent.append(request.post_data_json))
    written(chat(page, "Go on"))
    [body] = filter(None, sent)
    assert [message["role"] for message in body["messages"]] == ["user", "assistant", "user"]
    page.seen.said.clear()


def test_a_chat_fits_a_phone_and_fables_page_has_none(opened, chatty, server):
    page = opened(chatty, width=360)
    written(chat(page, "Once" * 60))
    assert page.locator("html").evaluate("html => html.scrollWidth") == 360
    page = opened(server)
    expect(page.locator("#engine")).to_be_visible()
    for hidden in ("#turns", "#system", "#new-chat"):
        expect(page.locator(hidden)).to_be_hidden()
    expect(page.get_by_label("Texts at once")).to_be_visible()


def test_thoughts_are_folded_and_sent_back_and_have_a_budget(opened):
    with serve_here(model="sums", technique="prefix") as sums:
        page, sent = opened(sums, width=360), []
        page.on("request", lambda request: sent.append(request.post_data_json))
        answer = chat(page, "27182")
        assert written(answer) == "8"  # 12 tokens in all
        expect(answer.locator("summary")).to_have_text("Thoughts, 10 tokens")
        expect(answer.get_by_text("0213402886")).to_be_hidden()
        answer.locator("summary").click()
        expect(answer.get_by_text("0213402886")).to_be_visible()
        answer = chat(page, "27182", thinking_budget=4)
        written(answer)
        expect(answer.locator("summary")).to_have_text("Thoughts, 4 tokens")
        expect(answer).to_contain_text("8 tokens")
        *_, last = filter(None, sent)
        assert last["messages"][1]["reasoning_content"] == "0213402886"
        assert page.locator("html").evaluate("html => html.scrollWidth") == 360


def test_a_call_is_a_card_and_its_result_is_sent_back(opened, server, says):
    call = '<tool_call>\n{"name": "find", "arguments": {"who": "<b>fox</b>"}}\n</tool_call>'
    says(f"Well.{call}", " It is there.")
    page, sent = opened(server, width=360), []
    page.on("request", lambda request: sent.append(request.post_data_json))
    page.get_by_role("button", name="Chat, with tools").click()
    page.locator("#tools").fill("[")
    chat(page, "Where?", max_tokens=90)
    expect(page.locator("#tools:invalid")).to_have_count(1)
    page.get_by_role("button", name="Two as an example").click()
    first = chat(page, "Where?", max_tokens=90)
    assert written(first) == "Well."
    expect(first.locator(".call")).to_contain_text('calls find{"who": "<b>fox</b>"}')
    assert page.locator("html").evaluate("html => html.scrollWidth") == 360
    first.get_by_label("Result of find").fill("7")
    assert written(chat(page, "", max_tokens=90)) == " It is there."
    question, answer, result = [body for body in sent if body][-1]["messages"]
    assert (question["role"], answer["content"], result["content"]) == ("user", "Well.", "7")
    assert answer["tool_calls"][0]["id"] == result["tool_call_id"]
