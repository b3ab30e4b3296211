// The lists of machines and of nodes.
import * as actions from "./actions";
import { type Child, fill, h } from "./dom";
import { cut, failures, guest, type Guest, guests, objects, type Resource, synced } from "./store";
import type { View } from "./view";
import { addresses, ago, bytes, condition, has, quantity, type Said, status } from "./words";

export function badge({ text, tone }: Said, title = ""): HTMLElement {
    return h("span", { class: `badge ${tone}`, title }, text);
}

/** Rows by key: unchanged rows keep their position, their element and the focus. */
class Rows {
    private readonly known = new Map<string, { was: string; row: HTMLTableRowElement }>();

    constructor(private readonly body: HTMLTableSectionElement) {}

    show(rows: { key: string; is: unknown; cells: () => HTMLTableCellElement[]; open?: () => void }[]): void {
        const wanted = rows.map(({ key, is, cells, open }) => {
            const now = JSON.stringify(is);
            let known = this.known.get(key);
            if (!known) {
                const row = h("tr", { "data-key": key, tabindex: open ? "0" : undefined });
                if (open) row.addEventListener("click", open);
                known = { was: "", row };
                this.known.set(key, known);
            }
            if (known.was !== now) {
                fill(known.row, ...cells());
                known.was = now;
            }
            return known.row;
        });
        wanted.forEach((row, at) => {
            if (this.body.rows[at] !== row) this.body.insertBefore(row, this.body.rows[at] ?? null);
        });
        while (this.body.rows.length > wanted.length) this.body.rows[wanted.length]?.remove();
        const keys = new Set(rows.map(({ key }) => key));
        for (const key of this.known.keys()) if (!keys.has(key)) this.known.delete(key);
    }
}

function cell(label: string, ...children: Child[]): HTMLTableCellElement {
    return h("td", { "data-label": label }, ...children);
}

function table(heads: string[], body: HTMLTableSectionElement): HTMLElement {
    const row = h("tr", {}, ...heads.map((head) => h("th", { scope: "col" }, head)));
    return h("table", {}, h("thead", {}, row), body);
}

function go(key: string): void {
    location.hash = `#/m/${key}`;
}

// The last search and the selected row are kept for when the list is shown again.
let searched = "";
let chosen = "";

/** All machines, with a search. */
export function machines(): View {
    const body = h("tbody");
    const rows = new Rows(body);
    const note = h("p", { class: "note" });
    const search = h("input", {
        type: "search",
        placeholder: "Search name, namespace, status, node or address",
        "aria-label": "Search machines",
        value: searched,
        oninput: () => {
            searched = search.value;
            update();
        },
    });
    search.value = searched;

    const text = (one: Guest) =>
        [one.name, one.namespace, status(one).text, status(one).raw, one.instance?.status?.nodeName, ...addresses(one)]
            .join(" ")
            .toLowerCase();

    const update = () => {
        const words = searched.toLowerCase().split(/\s+/).filter(Boolean);
        const all = guests();
        const shown = all.filter((one) => words.every((word) => text(one).includes(word)));
        rows.show(
            shown.map((one) => {
                const said = status(one);
                const ready = has(one.instance, "Ready") || has(one.machine, "Ready");
                const seen = [one.name, one.namespace, addresses(one).join(", ")];
                const node = one.instance?.status?.nodeName ?? "";
                const paused = has(one.instance, "Paused");
                return {
                    key: one.key,
                    is: [...seen, said, ready, node, paused, one.instance?.metadata.uid, one.instance?.status?.phase],
                    open: () => go(one.key),
                    cells: () => [
                        cell(
                            "Name",
                            h("a", { href: `#/m/${one.key}` }, one.name),
                            !one.machine && h("span", { class: "dim" }, " instance only"),
                        ),
                        cell("Namespace", one.namespace),
                        cell("Status", badge(said, said.raw)),
                        cell("Ready", ready ? "yes" : "no"),
                        cell("Node", node || "–"),
                        cell("Addresses", addresses(one).join(", ") || "–"),
                        cell("", actions.buttons(one)),
                    ],
                };
            }),
        );
        note.textContent = remark(all.length, shown.length);
        mark();
    };
    const remark = (all: number, shown: number) => {
        const failure = failures.get("machine") ?? failures.get("instance");
        if (failure) return `The list cannot be read: ${failure}`;
        if (!synced.has("machine")) return "The list is being read…";
        if (all === 0) return "There is no machine yet. “New machine” makes one.";
        const more = cut.has("machine") ? " There are more: show one namespace with `virtctl ui -n NAMESPACE`." : "";
        return `${shown === all ? all : `${shown} of ${all}`} ${all === 1 ? "machine" : "machines"}.${more}`;
    };
    const mark = () => {
        for (const row of body.rows) row.classList.toggle("chosen", row.dataset["key"] === chosen);
    };
    body.addEventListener("focusin", (event) => {
        const row = (event.target as Element).closest("tr");
        chosen = row?.dataset["key"] ?? chosen;
        mark();
    });
    const move = (by: number) => {
        const all = [...body.rows];
        const at = all.findIndex((row) => row.dataset["key"] === chosen);
        const next = all[Math.min(all.length - 1, Math.max(0, at < 0 ? 0 : at + by))];
        next?.focus();
    };
    const key = (pressed: string): boolean => {
        const one = guest(chosen);
        if (pressed === "/") search.focus();
        else if (pressed === "j" || pressed === "ArrowDown") move(1);
        else if (pressed === "k" || pressed === "ArrowUp") move(-1);
        else if (pressed === "Enter" && one) go(chosen);
        else if (pressed === "Escape" && searched) {
            search.value = searched = "";
            update();
        } else return one !== undefined && actions.key(pressed, one);
        return true;
    };
    const heads = ["Name", "Namespace", "Status", "Ready", "Node", "Addresses", ""];
    const element = h(
        "section",
        {},
        h("div", { class: "bar" }, h("h1", {}, "Machines"), search),
        note,
        h("div", { class: "wide" }, table(heads, body)),
    );
    update();
    return { element, title: "Machines", update, key };
}

/** All nodes. */
export function nodes(): View {
    const body = h("tbody");
    const rows = new Rows(body);
    const note = h("p", { class: "note" });

    const state = (node: Resource): Said => {
        if (!has(node, "Ready")) return { text: "Not ready", tone: "bad" };
        if (node.spec?.unschedulable) return { text: "Takes no new machines", tone: "idle" };
        return { text: "Ready", tone: "good" };
    };
    const update = () => {
        const all = [...objects.node.values()].sort((a, b) => (a.metadata.name < b.metadata.name ? -1 : 1));
        rows.show(
            all.map((node) => {
                const name = node.metadata.name;
                const on = guests().filter((one) => one.instance?.status?.nodeName === name).length;
                const { capacity, nodeInfo, conditions } = node.status ?? {};
                const memory = quantity(capacity?.["memory"]);
                const address = node.status?.addresses?.find(({ type }) => type === "InternalIP")?.address;
                const kvm = quantity(node.status?.allocatable?.["devices.kubevirt.io/kvm"]) > 0;
                const pressing = (conditions ?? [])
                    .filter((one) => one.type.endsWith("Pressure") && one.status !== "False")
                    .map((one) => condition(one).text);
                return {
                    key: name,
                    is: [state(node), on, capacity, nodeInfo, address, kvm, pressing],
                    cells: () => [
                        cell("Name", h("strong", {}, name)),
                        cell("State", badge(state(node)), ...pressing.map((text) => badge({ text, tone: "bad" }))),
                        cell("Machines", on),
                        cell("CPUs", capacity?.["cpu"] ?? "–"),
                        cell("Memory", Number.isNaN(memory) ? "–" : bytes(memory)),
                        cell("KVM", kvm ? "yes" : "no: guests are emulated"),
                        cell("Address", address ?? "–"),
                        cell("Kubelet", nodeInfo?.kubeletVersion ?? "–"),
                        cell("Age", ago(node.metadata.creationTimestamp)),
                    ],
                };
            }),
        );
        const failure = failures.get("node");
        if (failure) note.textContent = `The nodes cannot be read: ${failure}`;
        else note.textContent = synced.has("node") ? "" : "The list is being read…";
    };
    const heads = ["Name", "State", "Machines", "CPUs", "Memory", "KVM", "Address", "Kubelet", "Age"];
    const element = h(
        "section",
        {},
        h("div", { class: "bar" }, h("h1", {}, "Nodes")),
        note,
        h("div", { class: "wide" }, table(heads, body)),
    );
    update();
    return { element, title: "Nodes", update };
}
