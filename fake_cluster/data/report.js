"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const charts = data.charts;
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const groupColor = (index) => (index < 0 ? css("--soft") : css("--c" + (index % 8)));
  const tip = document.getElementById("tip");
  const whole = [0, Math.max(charts.end, 0.001)];
  let view = whole.slice(); // the stretch of time that all time charts show
  const LEFT = 56, RIGHT = 14;
  const drawn = []; // every chart, for redrawing

  const seconds = (value) => {
    if (value === null || value === undefined) return "";
    if (value >= 3600) return Math.floor(value / 3600) + " h " + Math.floor((value % 3600) / 60) + " min";
    if (value >= 600) return Math.floor(value / 60) + " min " + Math.round(value % 60) + " s";
    return (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2)) + " s";
  };
  const gib = (value) => (value >= 100 ? value.toFixed(0) : +value.toFixed(2)) + " GiB";

  // Round steps for an axis: 1, 2 or 5 times a power of ten, near `count` of them.
  const ticks = (low, high, count) => {
    const span = Math.max(high - low, 1e-9);
    const power = Math.pow(10, Math.floor(Math.log10(span / count)));
    const step = [1, 2, 5, 10].map((n) => n * power).find((n) => span / n <= count) || power * 10;
    const result = [];
    for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-6; value += step) result.push(+value.toFixed(9));
    return result;
  };

  const fit = (canvas, height) => {
    const width = canvas.parentElement.clientWidth;
    const ratio = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = height + "px";
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = "11.5px system-ui, sans-serif";
    return { pen, width, height };
  };

  const show = (event, text) => {
    if (!text) { tip.style.display = "none"; return; }
    tip.textContent = text;
    tip.style.display = "block";
    const box = tip.getBoundingClientRect();
    let x = event.clientX + 14, y = event.clientY + 14;
    if (x + box.width > innerWidth - 8) x = event.clientX - box.width - 14;
    if (y + box.height > innerHeight - 8) y = event.clientY - box.height - 14;
    tip.style.left = Math.max(4, x) + "px";
    tip.style.top = Math.max(4, y) + "px";
  };

  const levelAt = (points, at) => {
    let low = 0, high = points.length - 1, best = -1;
    while (low <= high) {
      const middle = (low + high) >> 1;
      if (points[middle][0] <= at) { best = middle; low = middle + 1; } else high = middle - 1;
    }
    return best < 0 ? 0 : points[best][1];
  };

  const scaleX = (width) => (at) => LEFT + ((at - view[0]) / (view[1] - view[0])) * (width - LEFT - RIGHT);
  const timeAxis = (pen, width, bottom, x) => {
    pen.fillStyle = css("--soft");
    pen.textAlign = "center";
    pen.textBaseline = "top";
    for (const at of ticks(view[0], view[1], Math.max(3, Math.floor(width / 110)))) pen.fillText(seconds(at).replace(/\.00? /, " ").replace(/(\.\d)0 /, "$1 "), x(at), bottom + 5);
  };
  const faultMarks = (pen, top, bottom, x, labelled) => {
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, 0, pen.canvas.width, bottom + 2);
    pen.clip();
    let lastLabel = -99;
    for (const [number, at, until] of charts.faults) {
      if (until !== null && until > at) {
        // How long it lasted: a bar along the top edge. Filling the height would hide the data under many faults.
        pen.globalAlpha = 0.45;
        pen.fillStyle = css("--fault");
        pen.fillRect(x(at), top - 1, Math.max(1, x(until) - x(at)), 3);
      }
      pen.globalAlpha = 0.6;
      pen.strokeStyle = css("--fault");
      pen.setLineDash([3, 3]);
      pen.beginPath();
      pen.moveTo(Math.round(x(at)) + 0.5, top);
      pen.lineTo(Math.round(x(at)) + 0.5, bottom);
      pen.stroke();
      pen.setLineDash([]);
      if (labelled && x(at) - lastLabel > pen.measureText(String(number)).width + 5) {
        pen.globalAlpha = 1;
        pen.fillStyle = css("--fault");
        pen.textAlign = "center";
        pen.textBaseline = "bottom";
        pen.fillText(String(number), x(at), top - 2);
        lastLabel = x(at);
      }
    }
    pen.restore();
  };
  const faultsNear = (at, width) => {
    const reach = ((view[1] - view[0]) / Math.max(1, width - LEFT - RIGHT)) * 4;
    return charts.faults.filter((f) => Math.abs(f[1] - at) <= reach).slice(0, 6)
      .map((f) => "Fault " + f[0] + ": " + f[3] + (f[4] ? " (" + f[4] + ")" : "")).join("\n");
  };

  // Dragging over a time chart narrows all of them; a double click shows everything again.
  const setView = (low, high) => {
    view = [Math.max(whole[0], low), Math.min(whole[1], high)];
    document.getElementById("reset").disabled = view[0] === whole[0] && view[1] === whole[1];
    drawAll();
  };
  const interact = (canvas, describe) => {
    let from = null;
    const timeAt = (event) => {
      const box = canvas.getBoundingClientRect();
      const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
      return view[0] + Math.min(1, Math.max(0, share)) * (view[1] - view[0]);
    };
    canvas.addEventListener("pointerdown", (event) => { from = timeAt(event); canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointerup", (event) => {
      const to = timeAt(event);
      if (from !== null && Math.abs(to - from) > (view[1] - view[0]) / 100) setView(Math.min(from, to), Math.max(from, to));
      from = null;
    });
    canvas.addEventListener("dblclick", () => setView(whole[0], whole[1]));
    canvas.addEventListener("pointermove", (event) => {
      const at = timeAt(event);
      if (from !== null) { show(event, seconds(Math.min(from, at)) + " to " + seconds(Math.max(from, at))); return; }
      const box = canvas.getBoundingClientRect();
      const near = faultsNear(at, box.width);
      const text = describe(at, event.clientY - box.top, box.height);
      show(event, [text, near].filter(Boolean).join("\n"));
    });
    canvas.addEventListener("pointerleave", () => show(null, ""));
  };

  const legend = (id, entries) => {
    const box = document.getElementById(id);
    for (const [name, variable] of entries) {
      const item = document.createElement("span");
      const mark = document.createElement("i");
      mark.style.background = variable.startsWith("--") ? "var(" + variable + ")" : variable;
      item.append(mark, name);
      box.append(item);
    }
  };

  // Steps over time; `stacked` series lie on each other, others are lines.
  const stepChart = (id, series, options) => {
    const canvas = document.getElementById(id);
    const draw = () => {
      const { pen, width, height } = fit(canvas, options.height || 210);
      const top = 18, bottom = height - 24, x = scaleX(width);
      const stacked = series.filter((s) => s.stacked);
      const times = [...new Set([view[0], ...stacked.flatMap((s) => s.points.map((p) => p[0])).filter((t) => t > view[0] && t < view[1]), view[1]])].sort((a, b) => a - b);
      let most = options.most || 0;
      for (const at of times) most = Math.max(most, stacked.reduce((sum, s) => sum + levelAt(s.points, at), 0));
      for (const s of series) if (!s.stacked) for (const [at, value] of s.points) if (at <= view[1]) most = Math.max(most, value);
      most = most || 1;
      const y = (value) => bottom - (value / (most * 1.04)) * (bottom - top);
      pen.textBaseline = "middle";
      for (const value of ticks(0, most, 5)) {
        pen.strokeStyle = css("--grid");
        pen.beginPath();
        pen.moveTo(LEFT, Math.round(y(value)) + 0.5);
        pen.lineTo(width - RIGHT, Math.round(y(value)) + 0.5);
        pen.stroke();
        pen.fillStyle = css("--soft");
        pen.textAlign = "right";
        pen.fillText(String(value), LEFT - 7, y(value));
      }
      const base = times.map(() => 0);
      for (const s of stacked) {
        const upper = times.map((at, i) => base[i] + levelAt(s.points, at));
        pen.beginPath();
        times.forEach((at, i) => { if (i) pen.lineTo(x(at), y(upper[i - 1])); pen.lineTo(x(at), y(upper[i])); });
        for (let i = times.length - 1; i >= 0; i--) { pen.lineTo(x(times[i]), y(base[i])); if (i) pen.lineTo(x(times[i]), y(base[i - 1])); }
        pen.closePath();
        pen.globalAlpha = 0.85;
        pen.fillStyle = css(s.color);
        pen.fill();
        pen.globalAlpha = 1;
        upper.forEach((value, i) => { base[i] = value; });
      }
      for (const s of series.filter((one) => !one.stacked)) {
        pen.strokeStyle = css(s.color);
        pen.lineWidth = s.dashed ? 1.2 : 1.8;
        pen.setLineDash(s.dashed ? [5, 4] : []);
        pen.beginPath();
        let previous = levelAt(s.points, view[0]);
        pen.moveTo(x(view[0]), y(previous));
        for (const [at, value] of s.points) {
          if (at <= view[0] || at > view[1]) continue;
          pen.lineTo(x(at), y(previous));
          pen.lineTo(x(at), y(value));
          previous = value;
        }
        pen.lineTo(x(view[1]), y(previous));
        pen.stroke();
        pen.lineWidth = 1;
        pen.setLineDash([]);
      }
      faultMarks(pen, top, bottom, x, true);
      timeAxis(pen, width, bottom, x);
    };
    interact(canvas, (at) => seconds(at) + "\n" + series.map((s) => s.name + ": " + (options.unit ? options.unit(levelAt(s.points, at)) : levelAt(s.points, at))).join("\n"));
    drawn.push(draw);
  };

  // One row per GPU; what is filled of its height is the share of its VRAM that is granted.
  const gpuChart = () => {
    const canvas = document.getElementById("gpus");
    const rows = charts.gpus.rows;
    const rowHeight = Math.max(9, Math.min(30, Math.floor(900 / Math.max(1, rows.length))));
    const gap = rowHeight > 14 ? 4 : 2, top = 18, label = 176;
    const heads = []; // y of each row
    let y = top;
    rows.forEach((row, i) => {
      if (i && (row.pool !== rows[i - 1].pool)) y += 12;
      else if (i && row.host !== rows[i - 1].host) y += 4;
      heads.push(y);
      y += rowHeight + gap;
    });
    const height = y + 24;
    const left = label;
    const xOf = (width) => (at) => left + ((at - view[0]) / (view[1] - view[0])) * (width - left - RIGHT);
    const draw = () => {
      const { pen, width } = fit(canvas, height);
      const x = xOf(width);
      const bottom = height - 24;
      rows.forEach((row, i) => {
        const head = heads[i];
        const first = !i || row.pool !== rows[i - 1].pool || row.host !== rows[i - 1].host;
        pen.fillStyle = css("--soft");
        pen.textBaseline = "middle";
        pen.textAlign = "right";
        if (rowHeight >= 11 || first) pen.fillText(String(row.index), left - 8, head + rowHeight / 2);
        if (first) {
          pen.textAlign = "left";
          pen.fillStyle = css("--text");
          let name = row.pool + " / " + row.host;
          while (name.length > 6 && pen.measureText(name).width > left - 32) name = name.slice(0, -2) + "\u2026";
          pen.fillText(name, 2, head + rowHeight / 2);
        }
        pen.fillStyle = css("--row");
        pen.fillRect(left, head, width - left - RIGHT, rowHeight);
        pen.save();
        pen.beginPath();
        pen.rect(left, head, width - left - RIGHT, rowHeight);
        pen.clip();
        for (const [from, to] of row.absent) {
          pen.fillStyle = css("--absent");
          pen.fillRect(x(from), head, x(to) - x(from), rowHeight);
        }
        for (const [from, to, offset, size, all, group] of row.segments) {
          if (to < view[0] || from > view[1]) continue;
          const share = rowHeight / row.vram;
          const low = head + rowHeight - (offset + size) * share;
          const tall = Math.max(1, size * share);
          const wide = Math.max(1, x(to) - x(from));
          pen.fillStyle = groupColor(group);
          pen.globalAlpha = all ? 0.95 : 0.72;
          pen.fillRect(x(from), low, wide, tall);
          pen.globalAlpha = 1;
          if (wide > 3 && tall > 2) {
            pen.strokeStyle = css("--card");
            pen.lineWidth = 0.8;
            pen.strokeRect(x(from) + 0.4, low + 0.4, wide - 0.8, tall - 0.8);
          }
        }
        pen.restore();
      });
      pen.save();
      pen.beginPath();
      pen.rect(left, 0, width, height);
      pen.clip();
      faultMarks(pen, top - 2, bottom, x, true);
      pen.restore();
      timeAxis(pen, width, bottom, x);
    };
    let from = null;
    const timeAt = (event) => {
      const box = canvas.getBoundingClientRect();
      const share = (event.clientX - box.left - left) / (box.width - left - RIGHT);
      return view[0] + Math.min(1, Math.max(0, share)) * (view[1] - view[0]);
    };
    canvas.addEventListener("pointerdown", (event) => { from = timeAt(event); canvas.setPointerCapture(event.pointerId); });
    canvas.addEventListener("pointerup", (event) => {
      const to = timeAt(event);
      if (from !== null && Math.abs(to - from) > (view[1] - view[0]) / 100) setView(Math.min(from, to), Math.max(from, to));
      from = null;
    });
    canvas.addEventListener("dblclick", () => setView(whole[0], whole[1]));
    canvas.addEventListener("pointerleave", () => show(null, ""));
    canvas.addEventListener("pointermove", (event) => {
      const at = timeAt(event);
      if (from !== null) { show(event, seconds(Math.min(from, at)) + " to " + seconds(Math.max(from, at))); return; }
      const box = canvas.getBoundingClientRect();
      const down = event.clientY - box.top;
      const i = heads.findIndex((head) => down >= head && down < head + rowHeight);
      const near = faultsNear(at, box.width);
      if (i < 0) { show(event, [seconds(at), near].filter(Boolean).join("\n")); return; }
      const row = rows[i];
      const lines = [row.pool + " / " + row.host + ", GPU " + row.index + " (" + row.name + ", " + gib(row.vram) + ")", seconds(at)];
      const height01 = (heads[i] + rowHeight - down) / rowHeight * row.vram;
      const here = row.segments.filter((s) => s[0] <= at && at < s[1]);
      const hit = here.find((s) => height01 >= s[2] && height01 <= s[2] + s[3]);
      if (hit) {
        lines.push("Job " + hit[6] + (hit[5] >= 0 ? " (" + charts.groups[hit[5]] + ")" : ""));
        lines.push((hit[4] ? "whole GPU" : "slice of " + gib(hit[3])) + ", " + seconds(hit[0]) + " to " + seconds(hit[1]));
        lines.push("session " + hit[7] + ", closed: " + hit[8]);
      } else {
        lines.push(row.absent.some((a) => a[0] <= at && at < a[1]) ? "agent is away" : gib(Math.max(0, row.vram - here.reduce((sum, s) => sum + s[3], 0))) + " free");
      }
      if (near) lines.push(near);
      show(event, lines.join("\n"));
    });
    drawn.push(draw);
  };

  const barChart = (id, bars, options) => {
    const canvas = document.getElementById(id);
    const geometry = (width) => {
      const plot = width - LEFT - RIGHT;
      if (options.timed) {
        const x = scaleX(width);
        const step = bars.length > 1 ? bars[1][0] - bars[0][0] : whole[1];
        return bars.map(([at, value]) => [x(at), Math.max(1, x(at + step) - x(at) - 1), at, value]);
      }
      const wide = Math.min(70, plot / bars.length);
      return bars.map(([name, value], i) => [LEFT + i * wide + 2, wide - 4, name, value]);
    };
    const draw = () => {
      const { pen, width, height } = fit(canvas, options.height || 170);
      const top = 18, bottom = height - 24;
      const most = Math.max(1, ...bars.map((bar) => bar[1]));
      const y = (value) => bottom - (value / (most * 1.05)) * (bottom - top);
      pen.textBaseline = "middle";
      for (const value of ticks(0, most, 4).filter((v) => Number.isInteger(v))) {
        pen.strokeStyle = css("--grid");
        pen.beginPath();
        pen.moveTo(LEFT, Math.round(y(value)) + 0.5);
        pen.lineTo(width - RIGHT, Math.round(y(value)) + 0.5);
        pen.stroke();
        pen.fillStyle = css("--soft");
        pen.textAlign = "right";
        pen.fillText(String(value), LEFT - 7, y(value));
      }
      pen.save();
      pen.beginPath();
      pen.rect(LEFT, 0, width - LEFT - RIGHT, height);
      pen.clip();
      for (const [left, wide, name, value] of geometry(width)) {
        pen.fillStyle = css(options.color);
        pen.fillRect(left, y(value), wide, bottom - y(value));
        if (!options.timed && (wide > 14 || bars.indexOf(bars.find((b) => b[0] === name)) % 5 === 0)) {
          pen.fillStyle = css("--soft");
          pen.textAlign = "center";
          pen.textBaseline = "top";
          pen.fillText(String(name), left + wide / 2, bottom + 5);
        }
      }
      pen.restore();
      if (options.timed) { faultMarks(pen, top, bottom, scaleX(width), false); timeAxis(pen, width, bottom, scaleX(width)); }
    };
    const describe = (event) => {
      const box = canvas.getBoundingClientRect();
      const at = event.clientX - box.left;
      const bar = geometry(box.width).find(([left, wide]) => at >= left - 1 && at <= left + wide + 1);
      return bar ? options.describe(bar[2], bar[3]) : "";
    };
    if (options.timed) interact(canvas, (at) => { const bar = bars.filter((b) => b[0] <= at).pop(); return bar ? options.describe(bar[0], bar[1]) : ""; });
    else {
      canvas.addEventListener("pointermove", (event) => show(event, describe(event)));
      canvas.addEventListener("pointerleave", () => show(null, ""));
    }
    drawn.push(draw);
  };

  // Share of values up to x, one line per series.
  const shareChart = (id, series) => {
    const canvas = document.getElementById(id);
    const most = Math.max(0.001, ...series.flatMap((s) => s.points.map((p) => p[0])));
    const draw = () => {
      const { pen, width, height } = fit(canvas, 210);
      const top = 8, bottom = height - 24;
      const x = (value) => LEFT + (value / most) * (width - LEFT - RIGHT);
      const y = (share) => bottom - share * (bottom - top);
      pen.textBaseline = "middle";
      for (const share of [0, 0.25, 0.5, 0.75, 1]) {
        pen.strokeStyle = css("--grid");
        pen.beginPath();
        pen.moveTo(LEFT, Math.round(y(share)) + 0.5);
        pen.lineTo(width - RIGHT, Math.round(y(share)) + 0.5);
        pen.stroke();
        pen.fillStyle = css("--soft");
        pen.textAlign = "right";
        pen.fillText(Math.round(share * 100) + " %", LEFT - 7, y(share));
      }
      pen.textAlign = "center";
      pen.textBaseline = "top";
      for (const value of ticks(0, most, 6)) pen.fillText(+value.toFixed(3) + " s", x(value), bottom + 5);
      for (const s of series) {
        pen.strokeStyle = s.color.startsWith("--") ? css(s.color) : s.color;
        pen.lineWidth = 1.8;
        pen.beginPath();
        pen.moveTo(x(0), y(0));
        let previous = 0;
        for (const [value, share] of s.points) { pen.lineTo(x(value), y(previous)); pen.lineTo(x(value), y(share)); previous = share; }
        pen.lineTo(x(most), y(previous));
        pen.stroke();
        pen.lineWidth = 1;
      }
    };
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      const value = Math.max(0, ((event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT)) * most);
      show(event, "within " + seconds(value) + "\n" + series.map((s) => s.name + ": " + Math.round(levelAt(s.points, value) * 100) + " %").join("\n"));
    });
    canvas.addEventListener("pointerleave", () => show(null, ""));
    drawn.push(draw);
  };

  // The table of jobs, a page at a time.
  const jobTable = () => {
    const PAGE = 50;
    const rows = data.job_rows;
    const body = document.querySelector("#jobs-table tbody");
    const filter = document.getElementById("filter");
    const status = document.getElementById("page-status");
    const earlier = document.getElementById("earlier"), later = document.getElementById("later");
    let page = 0, column = -1, up = true;
    const render = () => {
      const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
      let found = words.length ? rows.filter((row) => { const text = row.join(" ").toLowerCase(); return words.every((word) => text.includes(word)); }) : rows.slice();
      if (column >= 0) {
        found.sort((a, b) => {
          const left = a[column], right = b[column];
          if (left === right) return 0;
          if (left === null) return 1;
          if (right === null) return -1;
          const order = typeof left === "number" ? left - right : String(left).localeCompare(String(right), undefined, { numeric: true });
          return up ? order : -order;
        });
      }
      const pages = Math.max(1, Math.ceil(found.length / PAGE));
      page = Math.min(page, pages - 1);
      body.replaceChildren(...found.slice(page * PAGE, page * PAGE + PAGE).map((row) => {
        const line = document.createElement("tr");
        row.forEach((value, i) => {
          const cell = document.createElement("td");
          if (i >= 4 && i <= 7) cell.className = "number";
          if (i === 2) cell.className = "state-" + value;
          cell.textContent = i >= 4 && i <= 6 ? seconds(value) : value === null ? "" : value;
          line.append(cell);
        });
        return line;
      }));
      status.textContent = found.length ? page * PAGE + 1 + " to " + Math.min(found.length, page * PAGE + PAGE) + " of " + found.length : "no job";
      earlier.disabled = page === 0;
      later.disabled = page >= pages - 1;
    };
    filter.addEventListener("input", () => { page = 0; render(); });
    earlier.addEventListener("click", () => { page -= 1; render(); });
    later.addEventListener("click", () => { page += 1; render(); });
    document.querySelectorAll("#jobs-table th").forEach((head, i) => {
      const sort = () => { up = column === i ? !up : true; column = i; render(); };
      head.addEventListener("click", sort);
      head.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); } });
    });
    render();
  };

  const drawAll = () => { for (const draw of drawn) draw(); };
  const groupEntries = charts.groups.map((name, i) => [name, "--c" + (i % 8)]);
  if (charts.gpus.rows.length) { legend("gpus-legend", groupEntries); gpuChart(); }
  legend("levels-legend", [["waiting in the queue", "--waiting"], ["in the prolog", "--prolog"], ["running", "--running"]]);
  stepChart("levels", [
    { name: "running", points: charts.jobs.running, color: "--running", stacked: true },
    { name: "in the prolog", points: charts.jobs.prolog, color: "--prolog", stacked: true },
    { name: "waiting", points: charts.jobs.waiting, color: "--waiting", stacked: true },
  ], {});
  legend("vram-legend", [["VRAM granted (GiB)", "--c0"], ["all VRAM", "--soft"]]);
  stepChart("vram", [
    { name: "granted", points: charts.vram, color: "--c0", stacked: true },
    { name: "all", points: [[0, charts.vram_total]], color: "--soft", dashed: true },
  ], { unit: gib });
  legend("use-legend", [["GPUs with a session", "--c2"], ["GPUs present", "--soft"]]);
  stepChart("use", [
    { name: "in use", points: charts.in_use, color: "--c2", stacked: true },
    { name: "present", points: charts.present, color: "--soft", dashed: true },
  ], {});
  const waits = charts.groups.filter((name) => (charts.waits[name] || []).length).map((name) => ({ name, points: charts.waits[name], color: "--c" + (charts.groups.indexOf(name) % 8) }));
  legend("waits-legend", waits.map((s) => [s.name, s.color]));
  shareChart("waits", waits);
  shareChart("prologs", [{ name: "granted prologs", points: charts.prologs, color: "--prolog" }]);
  barChart("requeues", charts.requeues, { timed: true, color: "--waiting", describe: (at, value) => seconds(at) + ": " + value + " requeued" });
  barChart("restarts", charts.restarts, { color: "--c0", describe: (name, value) => value + " jobs were requeued " + name + " times" });
  jobTable();
  document.getElementById("reset").addEventListener("click", () => setView(whole[0], whole[1]));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  matchMedia("print").addEventListener("change", drawAll);
  let waiting = 0;
  addEventListener("resize", () => { clearTimeout(waiting); waiting = setTimeout(drawAll, 60); });
  drawAll();
})();
