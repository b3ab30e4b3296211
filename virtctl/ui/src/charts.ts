// Figures of a guest over the last minutes.
import { ask, Failed, machinePath } from "./api";
import { fill, h, svg } from "./dom";
import { bytes } from "./words";

const EVERY = 5000;
const KEPT = 120;
const WIDTH = 300;
const HEIGHT = 70;

interface Figure {
    name: string;
    of: string;
    value: number;
}

interface Sample {
    at: number;
    sums: Map<string, number>;
}

interface Chart {
    title: string;
    /** Names of the lines, and the metric of each; metrics with `rate` are counters. */
    lines: [label: string, metric: string][];
    rate: boolean;
    unit(value: number): string;
}

const each = (value: number) => `${bytes(value)}/s`;
const CHARTS: Chart[] = [
    {
        title: "CPU",
        lines: [["used", "cpu_usage_seconds_total"]],
        rate: true,
        unit: (value) => `${value.toFixed(2)} CPUs`,
    },
    {
        title: "Memory",
        lines: [["on the node", "memory_resident_bytes"]],
        rate: false,
        unit: bytes,
    },
    {
        title: "Disks",
        lines: [
            ["read", "storage_read_traffic_bytes_total"],
            ["written", "storage_write_traffic_bytes_total"],
        ],
        rate: true,
        unit: each,
    },
    {
        title: "Network",
        lines: [
            ["received", "network_receive_bytes_total"],
            ["sent", "network_transmit_bytes_total"],
        ],
        rate: true,
        unit: each,
    },
];

function series(samples: Sample[], metric: string, rate: boolean): (number | undefined)[] {
    const values = samples.map(({ sums }) => sums.get(`kubevirt_vmi_${metric}`));
    if (!rate) return values;
    return values.slice(1).map((value, at) => {
        const [before, from, to] = [values[at], samples[at], samples[at + 1]];
        if (value === undefined || before === undefined || !from || !to || value < before) return undefined;
        return (value - before) / Math.max(0.001, (to.at - from.at) / 1000);
    });
}

function draw(chart: Chart, samples: Sample[]): HTMLElement {
    const lines = chart.lines.map(([label, metric]) => ({ label, values: series(samples, metric, chart.rate) }));
    const known = lines.flatMap(({ values }) => values.filter((value) => value !== undefined));
    const top = Math.max(...known, chart.rate ? 1e-9 : 1) * 1.1;
    // The chart shows at least one minute; then the scale shrinks until it shows all stored values.
    const slots = Math.max(12, samples.length - 1);
    const x = (at: number, count: number) => WIDTH - ((count - 1 - at) * WIDTH) / slots;
    const y = (value: number) => HEIGHT - 2 - (value / top) * (HEIGHT - 6);
    const paths = lines.map(({ values }, number) => {
        const points = values.flatMap((value, at) =>
            value === undefined ? [] : [`${x(at, values.length).toFixed(1)},${y(value).toFixed(1)}`],
        );
        return svg("polyline", { class: `line${number}`, points: points.join(" "), fill: "none" });
    });
    const now = lines.map(({ label, values }, number) => {
        const value = values.at(-1);
        const shown = value === undefined ? "–" : chart.unit(value);
        return h("span", {}, h("i", { class: `dot line${number}` }), `${shown} ${label}`);
    });
    const label = `${chart.title}: ${now.map((one) => one.textContent).join(", ")}`;
    const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    drawing.setAttribute("aria-label", label);
    drawing.append(svg("path", { class: "ground", d: `M0 ${HEIGHT - 1}H${WIDTH}` }), ...paths);
    return h("figure", {}, h("figcaption", {}, h("strong", {}, chart.title), ...now), drawing);
}

/** Charts that draw themselves until `close`. */
export function charts(namespace: string, name: string): { element: HTMLElement; close(): void } {
    const element = h("div", { class: "charts" });
    const samples: Sample[] = [];
    let open = true;
    const sample = async () => {
        while (open) {
            try {
                const path = machinePath(namespace, name, "/metrics");
                const { figures } = await ask<{ figures: Figure[] }>("GET", path);
                const sums = new Map<string, number>();
                for (const { name, value } of figures) sums.set(name, (sums.get(name) ?? 0) + value);
                samples.push({ at: Date.now(), sums });
                if (samples.length > KEPT) samples.shift();
                fill(element, ...CHARTS.map((chart) => draw(chart, samples)));
            } catch (error) {
                if (!(error instanceof Failed)) throw error;
                const why = error.status === 404 ? "There are no figures yet" : "The figures cannot be read";
                fill(element, h("p", { class: "note" }, `${why}: ${error.message}`));
                // Rights do not change within a minute.
                if (error.status === 403) return;
            }
            await new Promise((resolve) => setTimeout(resolve, EVERY));
        }
    };
    void sample();
    return {
        element,
        close: () => {
            open = false;
        },
    };
}
