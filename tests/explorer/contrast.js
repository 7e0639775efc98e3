// The contrast of captions and of the words of figures with what is behind them, as WCAG 2 counts it, by kind.
() => {
    const numbers = text => (text.match(/[\d.]+/g) || []).map(Number);
    const channel = v => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
    const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
    const behind = element => {
        for (let e = element; e; e = e.parentElement) {
            const color = numbers(getComputedStyle(e).backgroundColor);
            if (color.length === 3 || color[3] > 0.99) return color.slice(0, 3);
        }
        return [255, 255, 255];
    };
    const opacity = element => {
        let share = 1;
        for (let e = element; e && e.nodeType === 1; e = e.parentElement) share *= +getComputedStyle(e).opacity;
        return share;
    };
    const kinds = {
        caption: "[data-testid=stMain] [data-testid=stCaptionContainer] p",
        axis: ".js-plotly-plot .xtick text",
        title: ".js-plotly-plot .ytitle",
        legend: ".js-plotly-plot .legendtext",
    };
    const found = {};
    for (const [kind, selector] of Object.entries(kinds)) {
        const element = document.querySelector(selector), style = getComputedStyle(element);
        const isText = kind === "caption", [r, g, b, alpha = 1] = numbers(isText ? style.color : style.fill);
        const share = alpha * opacity(element) * (isText ? 1 : +style.fillOpacity), back = behind(element);
        const shown = [r, g, b].map((v, i) => v * share + back[i] * (1 - share));
        const [high, low] = [light(shown), light(back)].sort((x, y) => y - x);
        found[kind] = (high + 0.05) / (low + 0.05);
    }
    return found;
}
