// The marks of the chart, which differ in shape as well as in colour: disc, ring, cross.

export const KINDS = ["scored-out", "inferred-in", "scored-in"]; // from back to front

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
    const size = canvas.dataset.mark === "scored-out" ? 8 : 10;
    drawMark(context, canvas.dataset.mark, 20, 20, size, colours);
  }
}
