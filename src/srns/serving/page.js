"use strict";
// The page of the service: all text is set as text, so that whatever an item is called stays text.
const at = (id) => document.getElementById(id);
const LISTED = 10, REASONS = 3, HISTORY = 25, LONGEST = 1000, SEARCHED = 12;
let health = {}, shown = null, asked = 0, found = [], chosen = -1, timer = 0;

// Integers beyond 2^53, which can only be ids, are kept as text: as numbers they would be rounded.
const TOKENS = /"(?:[^"\\]|\\.)*"|-?\d[\d.eE+-]*/g;
const read = (text) => JSON.parse(text.replace(TOKENS, (token) => (/^-?\d{16,}$/.test(token) ? `"${token}"` : token)));
const most = (wanted, limit) => Math.min(wanted, health.limits[limit]);

async function get(address) {
  const answer = await fetch(address, { headers: { accept: "application/json" } });
  const content = read(await answer.text());
  if (!answer.ok) throw new Error(content.error || `status ${answer.status}`);
  return content;
}

const path = (kind, id, rest) => `${kind}/${encodeURIComponent(id)}/${rest}`;

function made(kind, name, text) {
  const element = document.createElement(kind);
  if (name) element.className = name;
  if (text !== undefined) element.textContent = text;
  return element;
}

function say(text, wrong = false) {
  at("status").textContent = text;
  at("status").classList.toggle("wrong", wrong);
}

function named(item) {
  const box = made("div");
  const title = made(health.compares ? "button" : "span", "title", item.title || String(item.item));
  if (health.compares) {
    title.type = "button";
    title.setAttribute("aria-haspopup", "dialog");
    title.addEventListener("click", () => showSimilar(item));
  }
  box.append(title);
  const about = [item.title ? String(item.item) : "", item.about || ""].filter(Boolean).join(" · ");
  if (about) box.append(" ", made("span", "about", about));
  return box;
}

function reasons(why) {
  const list = made("ul", "why");
  list.setAttribute("aria-label", "Because of");
  const most = Math.max(...why.map((each) => each.share));
  for (const each of why) {
    const row = made("li"), bar = made("span", "bar");
    bar.style.width = `${Math.max(4, 100 * each.share / most)}%`;
    bar.title = `adds ${each.share.toFixed(2)} to the score of somebody with the same items`;
    row.append(made("span", "", each.title || String(each.item)), bar);
    list.append(row);
  }
  return list;
}

function fill(list, items, value) {
  list.replaceChildren(...items.map((item) => {
    const row = made("li");
    row.append(named(item));
    if (value) {
      const number = made("span", "value", item[value].toFixed(2));
      number.title = value;
      row.append(number);
    }
    if (item.why && item.why.length) row.append(made("span", "because", "because of"), reasons(item.why));
    return row;
  }));
}

async function show(user, focus) {
  const turn = ++asked;
  shown = user;
  at("user").value = user;
  closeList();
  say(`Looking up user ${user} …`);
  at("result").classList.add("busy");
  try {
    const [list, past] = await Promise.all([
      get(path("users", user, `recommendations?k=${most(LISTED, "k")}&why=${health.explains ? most(REASONS, "why") : 0}`)),
      get(path("users", user, `items?limit=${most(HISTORY, "items")}`)),
    ]);
    if (turn !== asked) return;
    fill(at("recommended"), list.items, "score");
    at("recommended-title").textContent = `Recommended to user ${user}`;
    at("recommended-note").textContent = health.explains ? "Best first, with those of their items that speak most for it." : "Best first.";
    showHistory(past);
    at("result").hidden = false;
    document.title = `${user}: recommendations`;
    say(`${list.items.length} recommendations for user ${user}.`);
    if (focus) at("recommended-title").focus({ preventScroll: true });
  } catch (error) {
    if (turn !== asked) return;
    at("result").hidden = true;
    say(`No recommendations: ${error.message}`, true);
  } finally {
    if (turn === asked) at("result").classList.remove("busy");
  }
}

function showHistory(past) {
  fill(at("history"), past.items, null);
  const order = past.order === "time" ? "the latest first" : "the most popular first";
  const all = past.items.length === past.total;
  at("history-note").textContent = `${past.total} items, ${order}${all ? "" : `; ${past.items.length} shown`}.`;
  at("more").hidden = all || past.items.length >= most(LONGEST, "items");
}

async function showSimilar(item) {
  const dialog = at("similar");
  at("similar-title").textContent = `Like ${item.title || item.item}`;
  at("similar-note").textContent = "Looking …";
  at("similar-items").replaceChildren();
  if (!dialog.open) dialog.showModal();
  try {
    const list = await get(path("items", item.item, `similar?k=${most(LISTED, "k")}`));
    at("similar-note").textContent = "By the angle between what the model learnt of both; 1 is the same.";
    fill(at("similar-items"), list.similar, "similarity");
  } catch (error) {
    at("similar-note").textContent = error.message;
  }
}

function go(user) {
  const address = `#user=${encodeURIComponent(user)}`;
  if (location.hash === address) show(user, true);
  else location.hash = address;
}

function follow() {
  const user = new URLSearchParams(location.hash.slice(1)).get("user");
  if (user !== null && user !== "") show(user, true);
}

function closeList() {
  clearTimeout(timer);
  at("found").hidden = true;
  at("user").setAttribute("aria-expanded", "false");
  at("user").removeAttribute("aria-activedescendant");
  chosen = -1;
}

function choose(place) {
  chosen = place;
  [...at("found").querySelectorAll("[role=option]")].forEach((each, n) => {
    each.setAttribute("aria-selected", String(n === place));
    if (n === place) each.scrollIntoView({ block: "nearest" });
  });
  if (place < 0) at("user").removeAttribute("aria-activedescendant");
  else at("user").setAttribute("aria-activedescendant", `found-${place}`);
}

async function search() {
  const prefix = at("user").value.trim();
  try {
    const list = await get(`users?limit=${most(SEARCHED, "users")}&prefix=${encodeURIComponent(prefix)}`);
    if (at("user").value.trim() !== prefix || document.activeElement !== at("user")) return;
    found = list.users.map(String);
    const rows = found.map((user, n) => {
      const row = made("li", "", user);
      row.id = `found-${n}`;
      row.setAttribute("role", "option");
      row.setAttribute("aria-selected", "false");
      row.addEventListener("mousedown", (event) => { event.preventDefault(); go(user); });
      return row;
    });
    if (list.more || !found.length) {
      const rest = made("li", "rest", found.length ? "more: go on typing" : "no user begins so");
      rest.setAttribute("role", "presentation");
      rows.push(rest);
    }
    at("found").replaceChildren(...rows);
    at("found").hidden = false;
    at("user").setAttribute("aria-expanded", "true");
    chosen = -1;
  } catch (error) {
    say(error.message, true);
  }
}

at("user").addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(search, 120); });
at("user").addEventListener("focus", () => { at("user").select(); });
at("user").addEventListener("blur", closeList);
at("user").addEventListener("keydown", (event) => {
  const open = !at("found").hidden;
  if (event.key === "ArrowDown" || event.key === "ArrowUp") {
    event.preventDefault();
    if (!open) search();
    else if (found.length) choose((chosen + (event.key === "ArrowDown" ? 1 : chosen < 0 ? 0 : -1) + found.length) % found.length);
  } else if (event.key === "Escape") closeList();
});
at("search").addEventListener("submit", (event) => {
  event.preventDefault();
  const user = chosen >= 0 ? found[chosen] : at("user").value.trim();
  if (user) go(user);
  else say("Type the beginning of a user's id, or take any user.");
});
at("random").addEventListener("click", async () => {
  try { go(String((await get("users/random")).user)); } catch (error) { say(error.message, true); }
});
at("more").addEventListener("click", async () => {
  const user = shown;
  try {
    const past = await get(path("users", user, `items?limit=${most(LONGEST, "items")}`));
    if (user === shown) showHistory(past);
  } catch (error) { say(error.message, true); }
});
at("close").addEventListener("click", () => at("similar").close());
at("similar").addEventListener("click", (event) => { if (event.target === at("similar")) at("similar").close(); });
addEventListener("hashchange", follow);

get("health").then((answer) => {
  health = answer;
  const number = (value) => value.toLocaleString("en");
  at("facts").textContent = `${health.run}: ${number(health.users)} users, ${number(health.items)} items`;
  follow();
}, (error) => say(`The service does not answer: ${error.message}`, true));
