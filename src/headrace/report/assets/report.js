// Hands each chart's options, made in Python, to ECharts. Adds only what JSON cannot hold: shapes and what the pointer shows.
"use strict";
(() => {
  const PRINT_WIDTH = 690; // CSS pixels between the margins of A4
  const specs = JSON.parse(document.getElementById("charts").textContent);
  const drawn = [];

  // Shapes of `custom` series, by name. Values: [from, to, count], [from, to, row], [x, low, high], [row, low, high].
  const SHAPES = {
    bin: (api, paint) => {
      const [left, top] = api.coord([api.value(0), api.value(2)]);
      const [right, bottom] = api.coord([api.value(1), 0]);
      return box(left, top, Math.max(right - left - 1, 0.5), bottom - top, paint);
    },
    stretch: (api, paint) => {
      const [left, middle] = api.coord([api.value(0), api.value(2)]);
      const [right] = api.coord([api.value(1), api.value(2)]);
      const height = Math.min(api.size([0, 1])[1] * 0.6, 18);
      return box(left, middle - height / 2, Math.max(right - left, 1), height, paint);
    },
    whisker: (api, paint) => whisker(api.coord([api.value(0), api.value(1)]), api.coord([api.value(0), api.value(2)]), paint),
    "whisker-x": (api, paint) => whisker(api.coord([api.value(1), api.value(0)]), api.coord([api.value(2), api.value(0)]), paint),
  };

  function box(x, y, width, height, paint) {
    return { type: "rect", shape: { x, y, width, height }, style: { fill: paint } };
  }

  // A line between two points with a short bar across each end.
  function whisker([x1, y1], [x2, y2], paint) {
    const upright = Math.abs(x1 - x2) < Math.abs(y1 - y2) || x1 === x2;
    const [dx, dy] = upright ? [4, 0] : [0, 4];
    const line = (a, b, c, d) => ({ type: "line", shape: { x1: a, y1: b, x2: c, y2: d }, style: { stroke: paint, lineWidth: 1.2 } });
    return {
      type: "group",
      children: [line(x1, y1, x2, y2), line(x1 - dx, y1 - dy, x1 + dx, y1 + dy), line(x2 - dx, y2 - dy, x2 + dx, y2 + dy)],
    };
  }

  function number(value) {
    const size = Math.abs(value);
    if (size >= 100) return value.toLocaleString("en", { maximumFractionDigits: 0 });
    return size >= 1e-4 || size === 0 ? String(Number(value.toPrecision(3))) : value.toExponential(2);
  }

  // Elements, never markup: names of stages and items are text, whatever they hold.
  function line(label, value, color) {
    const row = document.createElement("div");
    row.className = "tip";
    const mark = document.createElement("i");
    if (color) mark.style.background = color;
    const name = document.createElement("span");
    name.textContent = label;
    const shown = document.createElement("b");
    shown.textContent = value;
    row.append(mark, name, shown);
    return row;
  }

  function tooltip(spec) {
    return (found) => {
      const list = Array.isArray(found) ? found : [found];
      const out = document.createElement("div");
      const header = spec.option.tooltip.header;
      if (Array.isArray(found)) out.append(line(header ? `${number(list[0].axisValue)} ${header}` : list[0].name, "", ""));
      for (const one of list) {
        if (one.data && one.data.tip) {
          one.data.tip.forEach(([label, value]) => out.append(line(label, value, "")));
          continue;
        }
        const value = [].concat(one.value).pop();
        if (typeof value !== "number" || (one.componentSubType === "bar" && value === 0)) continue;
        out.append(line(one.seriesName, `${number(value)} ${spec.unit}`, one.color));
      }
      return out;
    };
  }

  function complete(spec) {
    const { option } = spec;
    Object.assign(option, { animation: false, textStyle: { fontFamily: getComputedStyle(document.body).fontFamily, fontSize: 12 } });
    Object.assign(option.tooltip, {
      confine: true,
      formatter: tooltip(spec),
      backgroundColor: "var(--card)",
      borderColor: "var(--line)",
      textStyle: { color: "var(--text)", fontSize: 12 },
      extraCssText: "max-width:min(340px,90vw);white-space:normal",
    });
    for (const series of option.series) {
      if (series.type !== "custom") continue;
      const shape = SHAPES[series.renderItem];
      const paint = series.itemStyle.color;
      series.renderItem = (_, api) => shape(api, paint);
    }
    return option;
  }

  function draw(spec) {
    const place = document.getElementById(spec.id);
    place.style.height = `${spec.height}px`;
    const chart = echarts.init(place, null, { renderer: "svg" });
    chart.setOption(complete(spec));
    drawn.push({ chart, place });
  }

  // One after the other, so that the page can be read and scrolled meanwhile.
  function drawNext() {
    const spec = specs[drawn.length];
    if (!spec) {
      document.documentElement.dataset.drawn = String(drawn.length);
      return;
    }
    draw(spec);
    if (drawn.length === 1) performance.mark("first-chart");
    setTimeout(drawNext);
  }

  function fit() {
    drawn.forEach(({ chart }) => chart.resize({ width: "auto" })); // else it keeps the width of the paper
  }

  let pending = 0;
  addEventListener("resize", () => {
    cancelAnimationFrame(pending);
    pending = requestAnimationFrame(fit);
  });
  addEventListener("beforeprint", () => {
    while (drawn.length < specs.length) draw(specs[drawn.length]);
    for (const { chart, place } of drawn) {
      chart.resize({ width: place.closest(".grid") ? (PRINT_WIDTH - 20) / 2 : PRINT_WIDTH });
      chart.getZr().flush(); // at once: paper does not wait for the next frame
    }
  });
  addEventListener("afterprint", fit);

  document.documentElement.classList.add("js");
  drawNext();
})();
