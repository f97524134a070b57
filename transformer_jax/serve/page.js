"use strict";
// The page of the service. It asks the same routes as any other client.

const PAUSE = 250; // milliseconds after a key, before an answer is asked for
const OTHERS = 4; // answers to choose from
const CONTINUATIONS = 3;

const $ = (id) => document.getElementById(id);
let models = [];
let token = sessionStorage.getItem("token") || "";

// ---- Asking

function headers(more = {}) {
  return token ? { ...more, authorization: `Bearer ${token}` } : more;
}

async function ask(path, body, signal) {
  const options = { headers: headers(), signal };
  if (body instanceof FormData) {
    Object.assign(options, { method: "POST", body });
  } else if (body) {
    options.method = "POST";
    options.headers = headers({ "content-type": "application/json" });
    options.body = JSON.stringify(body);
  }
  const response = await fetch(path, options);
  if (response.ok) return response;
  $("access").hidden = response.status !== 401;
  const found = await response.json().catch(() => null);
  throw new Error(found?.error?.message || `status ${response.status}`);
}

// Read server-sent events: call `told` with (kind, content) of each.
async function follow(path, body, signal, told) {
  const response = await ask(path, body, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  let ended = false;
  for (;;) {
    const { value, done } = await reader.read();
    if (done) break;
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      const kind = /^event: (.*)$/m.exec(event)?.[1] || "text";
      const content = JSON.parse(/^data: (.*)$/m.exec(event)[1]);
      if (kind === "error") throw new Error(content.error.message);
      ended ||= kind === "done";
      told(kind, content);
    }
  }
  if (!ended) throw new Error("the connection broke off: try again");
}

// Only the latest request of a kind matters; the one before is given up.
const running = {};
async function latest(kind, work) {
  running[kind]?.abort();
  const control = new AbortController();
  running[kind] = control;
  try {
    await work(control.signal);
    if (running[kind] === control) show("");
  } catch (error) {
    if (error.name !== "AbortError" && running[kind] === control) show(error.message);
  }
}

function show(problem) {
  $("problem").textContent = problem;
  $("problem").hidden = !problem;
}

const chosen = () => models.find((one) => one.id === $("model").value);

function later(work) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(work, PAUSE);
  };
}

// ---- A line and its answer

function searchOptions() {
  const found = {};
  if (!("beams" in chosen().about.options)) return found;
  const beams = Number($("beams").value);
  if (beams > 0) found.beams = beams;
  if ($("more").open) {
    found.n_best = OTHERS;
    found.beams = Math.max(beams, OTHERS);
  }
  return found;
}

const answer = later(() => {
  if ($("line").hidden) return;
  const line = $("text").value;
  $("note").textContent = "";
  clearAttention();
  if (!line.trim()) {
    running.answer?.abort();
    $("answer").textContent = "";
    $("others").replaceChildren();
    return;
  }
  const lines = line.split("\n");
  latest("answer", (signal) =>
    lines.length === 1 && chosen().about.streams
      ? streamAnswer(line, signal)
      : answerLines(lines, signal),
  );
});

async function streamAnswer(line, signal) {
  const output = $("answer");
  const body = { model: chosen().id, line, options: searchOptions() };
  body.prefix = $("prefix").value;
  output.dataset.growing = "";
  try {
    await follow("v1/stream", body, signal, (kind, found) => {
      output.textContent = found.text;
      if (kind !== "done") return;
      note(found);
      listOthers(found);
    });
  } finally {
    if (!signal.aborted) delete output.dataset.growing;
  }
  if ($("attending").open) await attend(line, signal);
}

async function answerLines(lines, signal) {
  const filled = lines.filter((line) => line.trim());
  const body = { model: chosen().id, lines: filled };
  if (chosen().about.streams) {
    body.options = { ...searchOptions(), n_best: 1 };
  }
  const found = await (await ask("v1/predict", body, signal)).json();
  const replies = found.replies.map((one) => one.error || one.text);
  $("answer").textContent = lines
    .map((line) => (line.trim() ? replies.shift() : ""))
    .join("\n");
  if (filled.length === 1) note(found.replies[0]);
}

function note(reply) {
  const parts = [];
  if (typeof reply.score === "number") parts.push(`score ${reply.score.toFixed(2)}`);
  if (reply.unknown) parts.push(`not known to the model: ${reply.unknown.join(" ")}`);
  for (const [name, value] of Object.entries(reply.details || {})) {
    if (typeof value !== "object") parts.push(`${name} ${round(value)}`);
    else if (value && !Array.isArray(value)) parts.push(describe(value));
  }
  $("note").textContent = parts.join(" · ");
}

function describe(shares) {
  return Object.entries(shares)
    .slice(0, 5)
    .map(([name, value]) => `${name} ${round(value)}`)
    .join(", ");
}

const round = (value) => (typeof value === "number" ? +value.toFixed(3) : value);

function listOthers(best) {
  const rows = [best, ...(best.others || [])].map((one) => {
    const row = document.createElement("li");
    row.dir = "auto";
    row.textContent = `${one.text} `;
    const score = document.createElement("span");
    score.className = "score";
    score.textContent = one.score?.toFixed(2) ?? "";
    row.append(score);
    return row;
  });
  $("others").replaceChildren(...rows);
}

// ---- Attention

let maps = null;
let piece = 0;

function clearAttention() {
  maps = null;
  for (const id of ["read", "written", "layer"]) $(id).replaceChildren();
  $("looks").textContent = "";
}

async function attend(line, signal) {
  const body = { model: chosen().id, line };
  if (chosen().about.streams) body.answer = $("answer").textContent;
  const found = (await (await ask("v1/attention", body, signal)).json()).maps;
  maps = found.cross || found.encoder || Object.values(found)[0];
  $("layer").replaceChildren(
    ...maps.weights.map((_, i) => new Option(i + 1, i, false, i + 1 === maps.weights.length)),
  );
  $("read").replaceChildren(...maps.keys.map(asPiece));
  $("written").replaceChildren(...maps.queries.map(asPiece));
  [...$("written").children].forEach((span, i) => {
    span.setAttribute("role", "option");
    span.id = `piece-${i}`;
    span.onclick = span.onmouseenter = () => choosePiece(i);
  });
  choosePiece(0);
}

function asPiece(text) {
  const span = document.createElement("span");
  span.textContent = text;
  return span;
}

function choosePiece(i) {
  if (!maps) return;
  piece = Math.min(Math.max(i, 0), maps.queries.length - 1);
  [...$("written").children].forEach((span, j) =>
    span.setAttribute("aria-selected", String(j === piece)),
  );
  $("written").setAttribute("aria-activedescendant", `piece-${piece}`);
  const weights = maps.weights[Number($("layer").value)][piece];
  [...$("read").children].forEach((span, j) => {
    span.style.setProperty("--weight", weights[j]);
    span.title = `${Math.round(100 * weights[j])} %`;
  });
  const order = weights.map((_, j) => j).sort((a, b) => weights[b] - weights[a]);
  const best = order.slice(0, 3).map((j) => `${maps.keys[j]} ${Math.round(100 * weights[j])} %`);
  $("looks").textContent = `${maps.queries[piece]} looks at ${best.join(", ")}`;
}

// ---- A text to continue

let offered = 0;

async function offer(signal) {
  const prompt = $("draft").value;
  const body = { model: chosen().id, prompt, n: CONTINUATIONS };
  body.max_tokens = Number($("length").value) || 30;
  body.temperature = Number($("temperature").value) || 0.8;
  body.seed = Math.floor(Math.random() * 2 ** 31);
  const found = await (await ask("v1/completions", body, signal)).json();
  if ($("draft").value !== prompt) return; // it was typed on
  $("continuations").replaceChildren(
    ...found.choices.map((choice, i) => {
      const row = document.createElement("li");
      row.textContent = choice.text;
      row.dir = "auto";
      row.setAttribute("role", "option");
      row.onclick = () => {
        offered = i;
        accept();
      };
      return row;
    }),
  );
  chooseOffer(0);
}

function chooseOffer(i) {
  const rows = [...$("continuations").children];
  if (!rows.length) return;
  offered = (i + rows.length) % rows.length;
  rows.forEach((row, j) => row.setAttribute("aria-selected", String(j === offered)));
}

function accept() {
  const row = $("continuations").children[offered];
  if (!row) return;
  $("draft").value += row.textContent;
  $("continuations").replaceChildren();
  $("draft").focus();
  $("draft").scrollTop = $("draft").scrollHeight;
}

function writeOn(event) {
  const open = $("continuations").children.length > 0;
  if (event.key === "Tab" && !event.shiftKey) {
    event.preventDefault();
    if (open) accept();
    else latest("offer", offer);
  } else if (open && (event.key === "ArrowDown" || event.key === "ArrowUp")) {
    event.preventDefault();
    chooseOffer(offered + (event.key === "ArrowDown" ? 1 : -1));
  } else if (event.key === "Escape") {
    if (!open) $("continue").focus(); // so that Tab does not trap the keyboard
    $("continuations").replaceChildren();
  }
}

// ---- A conversation

let turns = [];

function beginAnew() {
  running.chat?.abort();
  turns = [];
  wait(null);
  drawTurns();
}

function drawTurns(forgotten = 0) {
  $("turns").replaceChildren(
    ...turns.map((turn, i) => {
      const row = document.createElement("li");
      row.dir = "auto";
      row.textContent = turn;
      row.className = i % 2 ? "theirs" : "mine";
      if (i < forgotten) row.classList.add("forgotten");
      return row;
    }),
  );
  $("forgotten").textContent = forgotten
    ? `The first ${forgotten} turns are no longer read.`
    : "";
}

let speaking = null; // the turns of the conversation that waits for an answer

function wait(conversation) {
  speaking = conversation;
  $("send").disabled = Boolean(conversation);
}

async function speak(signal) {
  const said = $("turn").value.trim();
  const mine = turns; // a new conversation has others
  if (!said) return;
  wait(mine);
  $("turn").value = "";
  mine.push(said, "…");
  drawTurns();
  const place = mine.length - 1;
  try {
    const body = { model: chosen().id, turns: mine.slice(0, place) };
    await follow("v1/stream", body, signal, (kind, found) => {
      mine[place] = found.text;
      if (turns === mine) drawTurns(kind === "done" ? found.forgotten : 0);
    });
  } catch (error) {
    mine.length = place - 1; // it was not answered
    if (turns === mine) {
      drawTurns();
      $("turn").value = said;
    }
    throw error;
  } finally {
    if (speaking === mine) wait(null);
  }
}

// ---- Files

async function send(files, signal) {
  if (!files.length) return;
  const form = new FormData();
  form.append("model", chosen().id);
  for (const file of files) form.append("files", file);
  const found = await (await ask("v1/predict_files", form, signal)).json();
  $("found").replaceChildren(
    ...found.replies.map((reply, i) => {
      const row = document.createElement("li");
      note(reply);
      const more = $("note").textContent;
      row.textContent = `${files[i].name}: ${reply.error || reply.text}${more ? ` (${more})` : ""}`;
      return row;
    }),
  );
}

// ---- The beginning

function open() {
  const about = chosen()?.about;
  if (!about) return;
  const kind =
    about.reads !== "text" ? "file" : about.continues ? "story" : about.converses ? "chat" : "line";
  for (const id of ["line", "story", "chat", "file"]) $(id).hidden = id !== kind;
  $("about").textContent = `${about.task}, ${about.weights} parameters of step ${about.step}`;
  $("more").hidden = !about.streams;
  $("attending").hidden = !about.attention;
  $("beams").value = about.options.beams?.default ?? "";
  running.answer?.abort();
  running.offer?.abort();
  $("continuations").replaceChildren();
  show("");
  beginAnew();
  answer();
}

async function begin() {
  const found = await (await ask("v1/models")).json();
  models = found.data;
  $("model").replaceChildren(...models.map((one) => new Option(one.id, one.id)));
  open();
}

$("model").onchange = open;
for (const id of ["text", "prefix", "beams"]) $(id).oninput = answer;
for (const id of ["more", "attending"]) $(id).ontoggle = () => $(id).open && answer();
$("layer").onchange = () => choosePiece(piece);
$("written").onkeydown = (event) => {
  const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!move) return;
  event.preventDefault();
  choosePiece(piece + move);
};
$("draft").onkeydown = writeOn;
$("draft").oninput = () => $("continuations").replaceChildren(); // of another text
$("continue").onclick = () => latest("offer", offer);
$("say").onsubmit = (event) => {
  event.preventDefault();
  if (!speaking) latest("chat", speak);
};
$("again").onclick = beginAnew;
$("files").onchange = () => latest("files", (signal) => send([...$("files").files], signal));
$("drop").ondragover = (event) => {
  event.preventDefault();
  $("drop").classList.add("over");
};
$("drop").ondragleave = () => $("drop").classList.remove("over");
$("drop").ondrop = (event) => {
  event.preventDefault();
  $("drop").classList.remove("over");
  latest("files", (signal) => send([...event.dataTransfer.files], signal));
};
$("access").onsubmit = (event) => {
  event.preventDefault();
  token = $("token").value;
  sessionStorage.setItem("token", token);
  $("access").hidden = true;
  latest("begin", begin);
};
latest("begin", begin);
