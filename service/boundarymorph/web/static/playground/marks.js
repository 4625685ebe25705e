// The marks of the charts, which differ in shape as well as in colour: disc, ring, cross, dot.

export const KINDS = ["unasked", "scored-out", "inferred-in", "scored-in"]; // from back to front

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export function palette() {
  return Object.fromEntries([...KINDS, "text", "faint", "line", "band", "posterior", "prior", "boundary", "card", "seen"].map((name) => [name, colour(name)]));
}

export function drawMark(context, kind, x, y, size, colours) {
  context.beginPath();
  context.strokeStyle = context.fillStyle = colours[kind];
  context.lineWidth = size * 0.42;
  if (kind === "scored-out") {
    const arm = size * 0.8;
    context.moveTo(x - arm, y - arm);
    context.lineTo(x + arm, y + arm);
    context.moveTo(x + arm, y - arm);
    context.lineTo(x - arm, y + arm);
    context.stroke();
    return;
  }
  context.arc(x, y, size, 0, 2 * Math.PI);
  if (kind === "inferred-in") {
    context.fillStyle = colours.card;
    context.fill();
    context.stroke();
  } else {
    context.fill();
  }
}

export function drawHalo(context, x, y, size, colours) {
  context.beginPath();
  context.strokeStyle = colours.text;
  context.lineWidth = size * 0.25;
  context.arc(x, y, size * 2, 0, 2 * Math.PI);
  context.stroke();
}

// With an outline that separates them from the marks.
export function drawWords(context, words, x, y, colours) {
  context.font = `600 ${12 * devicePixelRatio}px system-ui`;
  context.lineJoin = "round";
  context.lineWidth = 4 * devicePixelRatio;
  context.strokeStyle = colours.card;
  context.fillStyle = colours.boundary;
  context.strokeText(words, x, y);
  context.fillText(words, x, y);
}

export function drawLegend() {
  const colours = palette();
  for (const canvas of document.querySelectorAll("canvas[data-mark]")) {
    canvas.width = canvas.height = 40;
    const context = canvas.getContext("2d");
    const size = { unasked: 5, "scored-out": 8 }[canvas.dataset.mark] ?? 10;
    drawMark(context, canvas.dataset.mark, 20, 20, size, colours);
    if ("latest" in canvas.dataset) drawHalo(context, 20, 20, size, colours);
  }
}
