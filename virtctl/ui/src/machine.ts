// One machine.
import * as actions from "./actions";
import { ask, Failed, machinePath } from "./api";
import { charts } from "./charts";
import { type Child, fill, h } from "./dom";
import { badge } from "./lists";
import { editor } from "./manifests";
import { monitor } from "./monitor";
import { guest, type Resource, synced } from "./store";
import { display, terminal } from "./streams";
import type { View } from "./view";
import { addresses, ago, condition, conditions, isRunning, past, status } from "./words";

interface Event {
    when: string;
    type: string;
    reason: string;
    message: string;
    count?: number;
    of: string;
    from?: string;
}

interface Details {
    machine: Full | null;
    instance: Full | null;
    pods: { name: string; phase: string; node?: string }[];
    events: Event[];
    missing: string[];
}

interface Domain {
    cpu?: { cores?: number; sockets?: number; threads?: number };
    memory?: { guest?: string };
}

type Full = Resource & {
    spec: { domain?: Domain; template?: { spec?: { domain?: Domain } } };
};

interface Tab {
    word: string;
    label: string;
    /** Only while the guest runs. */
    runs?: boolean;
    open(namespace: string, name: string): { element: HTMLElement; update?(): void; close?(): void };
}

const EVERY = 5000;

function overview(namespace: string, name: string): ReturnType<Tab["open"]> {
    const facts = h("dl", { class: "facts" });
    const states = h("ul", { class: "states" });
    const events = h("div", { class: "events" });
    const missing = h("p", { class: "note" });
    const drawings = h("div");
    let drawn: ReturnType<typeof charts> | undefined;
    let open = true;
    let details: Details | undefined;

    const show = () => {
        const one = guest(`${namespace}/${name}`);
        if (!one) return;
        const { instance, machine } = one;
        const domain = details?.instance?.spec.domain ?? details?.machine?.spec.template?.spec?.domain;
        const topology = instance?.status?.currentCPUTopology ?? domain?.cpu;
        const cpus = (topology?.cores ?? 1) * (topology?.sockets ?? 1) * (topology?.threads ?? 1);
        const memory = instance?.status?.memory?.guestCurrent ?? domain?.memory?.guest;
        const info = instance?.status?.guestOSInfo;
        const started = instance?.status?.phaseTransitionTimestamps?.find(({ phase }) => phase === "Running");
        const move = instance?.status?.migrationState;
        const rows: [string, Child][] = [
            ["Node", instance?.status?.nodeName || "–"],
            ["Addresses", addresses(one).join(", ") || "–"],
            ["CPUs", domain || topology ? cpus : "–"],
            ["Memory", memory ?? (machine?.spec?.instancetype?.name ? "by its instance type" : "–")],
            ["Instance type", machine?.spec?.instancetype?.name],
            ["Runs", machine?.spec?.runStrategy ?? (machine ? (machine.spec?.running ? "Always" : "Halted") : undefined)],
            ["Guest", info?.prettyName ?? info?.name],
            ["Runs since", started && ago(started.phaseTransitionTimestamp)],
            ["Made", past((machine ?? instance)?.metadata.creationTimestamp)],
            ["Pods", details?.pods.map((pod) => `${pod.name} (${pod.phase})`).join(", ")],
            ["Last move", move && (move.failed ? "failed" : move.completed ? `to ${move.targetNode ?? "?"}` : "under way")],
        ];
        fill(
            facts,
            ...rows.flatMap(([term, value]) =>
                value === undefined || value === "" ? [] : [h("dt", {}, term), h("dd", {}, value)],
            ),
        );
        const said = conditions(one).map(condition);
        fill(
            states,
            ...(said.length
                ? said.map(({ text, tone, detail }) =>
                      h("li", { class: tone }, text, detail && h("span", { class: "dim" }, ` ${detail}`)),
                  )
                : [h("li", { class: "idle" }, "It says nothing of itself yet.")]),
        );
        if (isRunning(one) && !drawn) {
            drawn = charts(namespace, name);
            fill(drawings, h("h2", {}, "Figures"), drawn.element);
        } else if (!isRunning(one) && drawn) {
            drawn.close();
            drawn = undefined;
            fill(drawings);
        }
    };
    const showEvents = () => {
        const all = details?.events ?? [];
        fill(
            events,
            ...(all.length
                ? all.map((event) =>
                      h(
                          "div",
                          { class: event.type === "Warning" ? "event bad" : "event" },
                          h("time", { datetime: event.when, title: event.when }, past(event.when)),
                          h("strong", {}, event.reason),
                          h("span", {}, event.message, (event.count ?? 1) > 1 && h("em", {}, ` ${event.count} times`)),
                      ),
                  )
                : [h("p", { class: "note" }, "Nothing happened lately.")]),
        );
        missing.textContent = (details?.missing ?? []).map((why) => `Not shown: ${why}`).join(" ");
    };
    const read = async () => {
        while (open) {
            try {
                if (!document.hidden) details = await ask<Details>("GET", machinePath(namespace, name));
                show();
                showEvents();
            } catch (error) {
                missing.textContent = error instanceof Failed ? error.message : String(error);
            }
            await new Promise((resolve) => setTimeout(resolve, EVERY));
        }
    };
    show();
    void read();
    const left = h("div", {}, facts, h("h2", {}, "State"), states, drawings);
    const right = h("div", {}, h("h2", {}, "Events"), missing, events);
    return {
        element: h("div", { class: "halves" }, left, right),
        update: show,
        close: () => {
            open = false;
            drawn?.close();
        },
    };
}

const TABS: Tab[] = [
    { word: "overview", label: "Overview", open: overview },
    { word: "console", label: "Console", runs: true, open: terminal },
    { word: "screen", label: "Screen", runs: true, open: display },
    { word: "monitor", label: "Monitor", runs: true, open: (...of) => ({ element: monitor(...of) }) },
    { word: "manifest", label: "Manifest", open: (...of) => ({ element: editor(...of) }) },
];

/** One machine, at one of its tabs. */
export function machine(namespace: string, name: string, word: string): View {
    const key = `${namespace}/${name}`;
    const tab = TABS.find((tab) => tab.word === word) ?? TABS[0];
    const state = h("span");
    const doings = h("div");
    const body = h("div", { class: "tab" });
    let content: ReturnType<Tab["open"]> | undefined;
    let run = "";
    let was = "";

    const link = (tab: Tab, at: number) =>
        h(
            "a",
            {
                href: `#/m/${key}/${tab.word}`,
                "aria-current": tab.word === word ? "page" : undefined,
                title: `Key: ${at + 1}`,
            },
            tab.label,
        );
    const close = () => {
        content?.close?.();
        content = undefined;
    };
    const update = () => {
        const one = guest(key);
        if (!one) {
            close();
            run = was = "";
            fill(doings);
            const why = synced.has("machine") ? "There is no such machine, or it is gone." : "It is being looked for…";
            fill(body, h("p", { class: "note" }, why));
            return;
        }
        const said = status(one);
        fill(state, badge(said, said.raw));
        const now = JSON.stringify([said, one.instance?.metadata.uid, one.instance?.status]);
        if (now !== was) {
            was = now;
            fill(doings, actions.buttons(one, true));
        }
        if (tab?.runs && !isRunning(one)) {
            // The guest's last output stays visible.
            if (!content) fill(body, h("p", { class: "note" }, `${name} does not run: there is nothing to connect to.`));
            run = "";
            return;
        }
        const next = one.instance?.metadata.uid ?? "";
        // The machine's next run needs a new terminal.
        if (content && tab?.runs && run !== next) close();
        run = next;
        if (!content && tab) {
            content = tab.open(namespace, name);
            fill(body, content.element);
        }
        content?.update?.();
    };
    const pressed = (pressed: string): boolean => {
        const tab = TABS[Number(pressed) - 1];
        const one = guest(key);
        if (tab) location.hash = `#/m/${key}/${tab.word}`;
        else if (pressed === "Escape") location.hash = "#/";
        else return one !== undefined && actions.key(pressed, one);
        return true;
    };
    const element = h(
        "section",
        {},
        h("div", { class: "bar" }, h("h1", {}, name, " ", h("small", {}, namespace)), state, doings),
        h("nav", { class: "tabs", "aria-label": `About ${name}` }, ...TABS.map(link)),
        body,
    );
    update();
    return { element, title: name, update, key: pressed, close };
}
