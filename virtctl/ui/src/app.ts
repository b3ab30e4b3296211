// The page of `virtctl ui`: the current view, and the keys.
import "./app.css";
import { ask, enter, Failed } from "./api";
import { fill, h } from "./dom";
import { machines, nodes } from "./lists";
import { machine } from "./machine";
import { create } from "./manifests";
import { connected, follow, subscribe, trouble } from "./store";
import type { View } from "./view";

interface About {
    server: string;
    namespace: string;
    scope: string | null;
    version: string;
}

const KEYS: [string, string][] = [
    ["g then m", "machines"],
    ["g then n", "nodes"],
    ["g then c", "a new machine"],
    ["/", "search"],
    ["j, k or arrows", "next and previous machine"],
    ["Enter", "open the machine"],
    ["s", "start"],
    ["x", "stop"],
    ["r", "restart"],
    ["p", "pause, and unpause"],
    ["m", "migrate"],
    ["1 to 5", "tabs of a machine"],
    ["Esc", "back"],
    ["Ctrl and ]", "leave the terminal"],
];

let about: About | undefined;
let view: View | undefined;
let prefix = false;

const main = h("main", { id: "main", tabindex: "-1" });
const state = h("span", { class: "connection" });
const where = h("span", { class: "where" });
const links = [
    h("a", { href: "#/" }, "Machines"),
    h("a", { href: "#/nodes" }, "Nodes"),
    h("a", { href: "#/new" }, "New machine"),
];

function find(hash: string): View {
    const [first, namespace, name, tab] = hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
    if (first === "nodes") return nodes();
    if (first === "new") return create(about?.scope ?? about?.namespace ?? "");
    if (first === "m" && namespace && name) return machine(namespace, name, tab ?? "overview");
    return machines();
}

function show(): void {
    // The address of this run may be opened in a tab that has the page already.
    if (enter()) return location.reload();
    view?.close?.();
    view = find(location.hash);
    document.title = `${view.title} – Barevirt`;
    fill(main, view.element);
    for (const link of links) {
        const here = (location.hash || "#/") === link.getAttribute("href");
        if (here) link.setAttribute("aria-current", "page");
        else link.removeAttribute("aria-current");
    }
}

function help(): void {
    const rows = KEYS.flatMap(([key, does]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, does)]);
    const dialog = h("dialog", { class: "help" }, h("h2", {}, "Keys"), h("dl", { class: "facts" }, ...rows));
    dialog.append(h("button", { class: "main", onclick: () => dialog.close() }, "Close"));
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
}

/** Whether keys belong to a text field, a guest, or a dialog. */
function isTaken(event: KeyboardEvent): boolean {
    const target = event.target as Element | null;
    return Boolean(
        event.ctrlKey ||
            event.altKey ||
            event.metaKey ||
            document.querySelector("dialog[open]") ||
            target?.closest("textarea, select, .serial, .screen") ||
            (target?.closest("input") && event.key !== "Escape") ||
            (event.key === "Enter" && target?.closest("a, button")),
    );
}

function press(event: KeyboardEvent): void {
    if (isTaken(event)) return;
    if (event.key === "Escape") (document.activeElement as HTMLElement | null)?.blur();
    const to = { m: "#/", n: "#/nodes", c: "#/new" }[event.key];
    const led = prefix && to !== undefined;
    prefix = event.key === "g";
    if (led) location.hash = to;
    else if (event.key === "?") help();
    else if (!view?.key?.(event.key)) return;
    event.preventDefault();
}

function changed(): void {
    const text = connected ? "live" : trouble || "connecting…";
    state.className = connected ? "connection good" : "connection bad";
    state.textContent = text;
    view?.update?.();
}

async function start(): Promise<void> {
    enter();
    const header = h(
        "header",
        {},
        h("a", { class: "home", href: "#/" }, h("img", { src: "/icon.svg", alt: "", width: 26, height: 26 }), "Barevirt"),
        h("nav", { "aria-label": "Views" }, ...links),
        where,
        state,
        h("button", { class: "plain", onclick: help, title: "Key: ?" }, "Keys"),
    );
    const footer = h("footer", {}, h("a", { href: "/licences.txt", target: "_blank" }, "Licences"));
    document.body.append(h("a", { class: "skip", href: "#main", onclick: skip }, "To the content"), header, main, footer);
    addEventListener("hashchange", show);
    addEventListener("keydown", press);
    subscribe(changed);
    try {
        about = await ask<About>("GET", "about");
        where.textContent = [about.server && `Kubernetes ${about.server}`, about.scope && `namespace ${about.scope}`]
            .filter(Boolean)
            .join(", ");
    } catch (error) {
        where.textContent = error instanceof Failed ? error.message : String(error);
    }
    show();
    void follow();
}

function skip(event: Event): void {
    event.preventDefault();
    main.focus();
}

void start();
