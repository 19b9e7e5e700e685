"use strict";
// What the page can do beyond being read: sort tables, read values off charts, hide lines, change colours, copy commands.
// Without this script everything is still there.
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const make = (tag, className, text) => {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };

  // Colours: those of the system until the reader chooses others.
  const root = document.documentElement, theme = document.getElementById("theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : dark.matches);
  const showTheme = () => theme.setAttribute("aria-pressed", String(isDark()));
  const remembered = (value) => {
    try {
      if (value) localStorage.setItem("srns-theme", value);
      return localStorage.getItem("srns-theme");
    } catch { return null; } // a browser may keep nothing for files
  };
  if (["light", "dark"].includes(remembered())) root.dataset.theme = remembered();
  theme.hidden = false;
  showTheme();
  dark.addEventListener("change", showTheme);
  theme.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remembered(root.dataset.theme);
    showTheme();
  });

  // Tables: numbers by their value, text as people order it, what is missing always last.
  const collator = new Intl.Collator(undefined, { numeric: true, sensitivity: "base" });
  const key = (cell) => {
    if (cell.dataset.sort !== undefined) return cell.dataset.sort === "" ? null : Number(cell.dataset.sort);
    return cell.textContent.trim() || null;
  };
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : collator.compare(String(a), String(b)));
  const sort = (table, column) => {
    const heads = all("thead th", table), body = table.tBodies[0];
    const down = heads[column].getAttribute("aria-sort") === "ascending" ? -1 : 1;
    const rows = [...body.rows].map((row, place) => ({ row, place, key: key(row.cells[column]) }));
    rows.sort((a, b) => {
      if (a.key === null || b.key === null) return (a.key === null) - (b.key === null) || a.place - b.place;
      return down * compare(a.key, b.key) || a.place - b.place;
    });
    heads.forEach((head, n) => head.setAttribute("aria-sort", n !== column ? "none" : down > 0 ? "ascending" : "descending"));
    body.append(...rows.map(({ row }) => row));
  };
  all("table.sortable").forEach((table) => all("thead th", table).forEach((head, column) => {
    const button = make("button", "", head.textContent || "sort");
    button.type = "button";
    button.addEventListener("click", () => sort(table, column));
    head.replaceChildren(button);
    head.setAttribute("aria-sort", "none");
  }));

  // Commands.
  all("figure.code").forEach((figure) => {
    const button = figure.querySelector(".copy"), code = figure.querySelector("code");
    const mark = () => {
      const range = document.createRange();
      range.selectNodeContents(code);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
    };
    const say = (text) => {
      button.textContent = text;
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    };
    button.hidden = false;
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(code.textContent);
        say("Copied");
      } catch { // not allowed for this page: the older way, or at least the text is marked
        mark();
        say(document.execCommand("copy") ? "Copied" : "Marked");
      }
    });
  });

  // Charts.
  const MOST_STOPS = 400, MOST_LINES = 10;
  const scale = ([low, high, log]) => {
    const [from, to] = log ? [Math.log10(low), Math.log10(high)] : [low, high];
    return { share: (v) => ((log ? Math.log10(v) : v) - from) / (to - from), value: (s) => (log ? 10 ** (from + s * (to - from)) : from + s * (to - from)) };
  };
  const written = (v) => (v === null ? "–" : Math.abs(v) >= 1000 || Number.isInteger(v) ? v.toLocaleString("en", { maximumFractionDigits: 0 }) : String(Number(v.toPrecision(4))));
  const nearest = (xs, x) => { // xs rise
    let low = 0, high = xs.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (xs[middle] <= x) low = middle; else high = middle;
    }
    return Math.abs(xs[high] - x) < Math.abs(xs[low] - x) ? high : low;
  };

  class Chart {
    constructor(figure) {
      this.figure = figure;
      this.data = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
      this.frame = figure.querySelector(".frame");
      this.readout = figure.querySelector(".readout");
      this.cursor = figure.querySelector(".cursor");
      this.across = scale(this.data.across);
      this.up = scale(this.data.up);
      this.lines = all("g.curve", figure);
      this.buttons = all(".legend button[data-curve]", figure);
      this.shown = this.data.curves.map(() => true);
      this.points = this.data.curves.map((curve) => curve.x
        .map((x, n) => ({ x, y: curve.y[n], low: curve.low?.[n] ?? null, high: curve.high?.[n] ?? null }))
        .filter((point) => point.x !== null && point.y !== null)
        .sort((a, b) => a.x - b.x));
      this.xs = this.points.map((points) => points.map((point) => point.x));
      const union = [...new Set(this.xs.flat())].sort((a, b) => a - b);
      this.stops = union.length <= MOST_STOPS ? union : Array.from({ length: MOST_STOPS }, (_, n) => this.across.value(n / (MOST_STOPS - 1)));
      this.at = -1;
      this.listen();
      this.addAllButtons();
    }

    listen() {
      const frame = this.frame;
      frame.tabIndex = 0; // arrow keys move along x; a slider is what tells them so to those who do not see it
      frame.setAttribute("role", "slider");
      frame.setAttribute("aria-valuemin", this.data.across[0]);
      frame.setAttribute("aria-valuemax", this.data.across[1]);
      frame.setAttribute("aria-valuenow", this.stops[0] ?? 0);
      frame.setAttribute("aria-valuetext", "use the arrow keys to read values");
      frame.addEventListener("pointermove", (event) => this.point(event));
      frame.addEventListener("pointerdown", (event) => this.point(event));
      frame.addEventListener("pointerleave", () => { if (document.activeElement !== frame) this.clear(); });
      frame.addEventListener("focus", () => { if (this.at < 0 && frame.matches(":focus-visible")) this.show(this.stops.length - 1); });
      frame.addEventListener("blur", () => this.clear());
      frame.addEventListener("keydown", (event) => this.press(event));
      this.buttons.forEach((button, n) => {
        button.disabled = false;
        button.addEventListener("click", () => this.toggle(n, !this.shown[n]));
      });
    }

    addAllButtons() {
      if (this.buttons.length < 5) return;
      for (const [text, on] of [["show all", true], ["hide all", false]]) {
        const button = make("button", "every", text), item = make("li");
        button.type = "button";
        button.addEventListener("click", () => this.shown.forEach((_, n) => this.toggle(n, on)));
        item.append(button);
        this.figure.querySelector(".legend").append(item);
      }
    }

    toggle(n, on) {
      this.shown[n] = on;
      this.buttons[n].setAttribute("aria-pressed", String(on));
      this.lines[n].classList.toggle("off", !on);
    }

    point(event) {
      const box = this.frame.getBoundingClientRect();
      const stop = nearest(this.stops, this.across.value((event.clientX - box.left) / box.width));
      this.show(stop, 1 - (event.clientY - box.top) / box.height);
    }

    press(event) {
      const far = Math.max(1, Math.round(this.stops.length / 10)), last = this.stops.length - 1;
      const moves = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -far, PageUp: far, Home: -Infinity, End: Infinity };
      if (event.key === "Escape") this.clear();
      if (!(event.key in moves)) return;
      event.preventDefault();
      this.show(Math.min(last, Math.max(0, (this.at < 0 ? last : this.at) + moves[event.key])));
    }

    clear() {
      this.at = -1;
      this.readout.hidden = true;
      this.cursor.classList.remove("on");
      this.lines.forEach((line) => line.classList.remove("dim"));
    }

    show(stop, height) {
      if (!(stop >= 0)) return;
      this.at = stop;
      const x = this.stops[stop], place = this.across.share(x), found = [];
      this.points.forEach((points, n) => {
        const xs = this.xs[n];
        if (!this.shown[n] || !xs.length) return;
        const step = (this.data.across[1] - this.data.across[0]) / 100; // a line that ended long before has no value here
        if (x < xs[0] - step || x > xs[xs.length - 1] + step) return;
        const point = points[nearest(xs, x)];
        found.push({ n, point, far: height === undefined ? 0 : Math.abs(this.up.share(point.y) - height) });
      });
      found.sort((a, b) => a.far - b.far || b.point.y - a.point.y);
      const near = height === undefined || found.length < 2 ? -1 : found[0].n;
      const listed = found.slice(0, MOST_LINES).sort((a, b) => b.point.y - a.point.y);
      this.say(x, listed, found.length - listed.length, near);
      this.lines.forEach((line, n) => line.classList.toggle("dim", near >= 0 && n !== near));
      this.cursor.setAttribute("x1", `${100 * place}%`);
      this.cursor.setAttribute("x2", `${100 * place}%`);
      this.cursor.classList.add("on");
      this.readout.hidden = false;
      const room = this.frame.clientWidth - this.readout.offsetWidth, left = place * this.frame.clientWidth;
      this.readout.style.left = `${Math.max(0, Math.min(room, place < 0.5 ? left + 14 : left - 14 - this.readout.offsetWidth))}px`;
    }

    say(x, listed, more, near) {
      const rows = listed.map(({ n, point }) => {
        const row = make("div", n === near ? "near" : "");
        const range = point.low === null || point.high === null ? "" : ` (${written(point.low)} to ${written(point.high)})`;
        row.append(this.buttons[n].querySelector("svg").cloneNode(true), make("span", "name", this.data.curves[n].name), make("span", "", written(point.y) + range));
        return row;
      });
      this.readout.replaceChildren(make("span", "", `${this.data.x} ${written(x)}`), ...rows, ...(more > 0 ? [make("span", "", `and ${more} more`)] : []));
      this.frame.setAttribute("aria-valuenow", x);
      this.frame.setAttribute("aria-valuetext", [`${this.data.x} ${written(x)}`, ...listed.map(({ n, point }) => `${this.data.curves[n].name} ${written(point.y)}`)].join(", "));
    }
  }
  all("figure.chart").filter((figure) => figure.querySelector(".frame")).forEach((figure) => new Chart(figure));

  // Paper cannot be unfolded: what is folded away is opened for it, and folded again.
  let opened = [];
  const open = () => {
    opened.push(...all("details:not(.numbers):not([open])"));
    opened.forEach((each) => { each.open = true; });
  };
  const close = () => {
    opened.forEach((each) => { each.open = false; });
    opened = [];
  };
  addEventListener("beforeprint", open);
  addEventListener("afterprint", close);
})();
