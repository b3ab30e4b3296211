// Manifests of an existing machine and of a new one.
import { ask, Failed, machinePath } from "./api";
import { h, notice } from "./dom";
import type { View } from "./view";

interface Text {
    text: string;
}

function field(text: string, label: string): HTMLTextAreaElement {
    const area = h("textarea", {
        class: "manifest",
        "aria-label": label,
        spellcheck: "false",
        autocapitalize: "off",
        autocomplete: "off",
        wrap: "off",
    });
    area.value = text;
    return area;
}

/** Runs the request of a button, and shows its answer or the error in `output`. */
async function answered(output: HTMLElement, work: () => Promise<string>): Promise<boolean> {
    output.textContent = "…";
    output.classList.remove("bad");
    try {
        output.textContent = await work();
        return true;
    } catch (error) {
        output.textContent = error instanceof Failed ? error.message : String(error);
        output.classList.add("bad");
        return false;
    }
}

const explained = async (text: string) => (await ask<Text>("POST", "explain", text)).text;

/** The manifest of a machine, which can be edited, explained, compared and saved. */
export function editor(namespace: string, name: string): HTMLElement {
    const area = field("", `Manifest of ${name}`);
    const output = h("pre", { class: "answer", "aria-live": "polite" });
    const path = machinePath(namespace, name, "/manifest");
    const load = async () => {
        area.value = (await ask<Text>("GET", path)).text;
        return "Edit it, then see what a change means before you save it.";
    };
    const save = async () => {
        const said = (await ask<{ message: string }>("PUT", path, area.value)).message;
        area.value = (await ask<Text>("GET", path)).text;
        return said;
    };
    const compare = async () => (await ask<Text>("POST", "diff", area.value)).text;
    const run = (work: () => Promise<string>) => () => void answered(output, work);
    void answered(output, load);
    return h(
        "div",
        { class: "halves" },
        area,
        h(
            "div",
            {},
            h(
                "div",
                { class: "buttons" },
                h("button", { onclick: run(compare) }, "What changes"),
                h("button", { onclick: run(() => explained(area.value)) }, "Explain"),
                h("button", { class: "main", onclick: run(save) }, "Save"),
                h("button", { onclick: run(load) }, "Read again"),
            ),
            output,
        ),
    );
}

interface Input {
    name: string;
    label: string;
    value?: string;
    hint?: string;
    options?: string[];
    lines?: number;
}

const INPUTS: Input[] = [
    { name: "name", label: "Name", hint: "a random one" },
    { name: "namespace", label: "Namespace" },
    { name: "runStrategy", label: "Runs", options: ["Always", "Halted", "RerunOnFailure", "Manual", "Once"] },
    { name: "cores", label: "CPUs", hint: "1" },
    { name: "memory", label: "Memory", hint: "512Mi" },
    { name: "image", label: "Container disk", hint: "an image, such as quay.io/containerdisks/fedora:42" },
    { name: "claim", label: "Volume claim", hint: "the name of a claim that is there" },
    { name: "blank", label: "Empty disk", hint: "its size, such as 10Gi" },
    { name: "instancetype", label: "Instance type", hint: "instead of CPUs and memory" },
    { name: "preference", label: "Preference" },
    { name: "user", label: "User", hint: "made by cloud-init" },
    { name: "sshKey", label: "SSH key", hint: "ssh-ed25519 AAAA… you@home" },
    { name: "userData", label: "cloud-init", hint: "#cloud-config …, instead of user and key", lines: 4 },
];

function base64(text: string): string {
    return btoa(String.fromCharCode(...new TextEncoder().encode(text)));
}

/** A form for a new machine, beside its manifest. */
export function create(namespace: string): View {
    const area = field("", "Manifest of the new machine");
    const output = h("pre", { class: "answer", "aria-live": "polite" });
    const inputs = new Map<string, HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement>();
    const rows = INPUTS.map(({ name, label, hint, options, lines }) => {
        const id = `new-${name}`;
        const about = { id, name, placeholder: hint, autocomplete: "off", autocapitalize: "off", spellcheck: "false" };
        const input = options
            ? h("select", { id, name }, ...options.map((option) => h("option", { value: option }, option)))
            : lines
              ? h("textarea", { ...about, rows: lines })
              : h("input", about);
        inputs.set(name, input);
        return h("div", { class: "row" }, h("label", { for: id }, label), input);
    });
    const given = inputs.get("namespace");
    if (given) given.value = namespace;

    let edited = false;
    let asked = 0;
    const draft = async () => {
        const form: Record<string, string> = {};
        for (const [name, input] of inputs) form[name] = input.value;
        form["userData"] = form["userData"] ? base64(form["userData"]) : "";
        const number = ++asked;
        await answered(output, async () => {
            const said = await ask<Text & { warnings: string[] }>("POST", "draft", form);
            if (number === asked) area.value = said.text;
            return said.warnings.join("\n") || "This is the manifest. You may change it before you create the machine.";
        });
    };
    let timer = 0;
    const changed = () => {
        window.clearTimeout(timer);
        timer = window.setTimeout(() => {
            if (edited) notice("The manifest is made anew from the form: your changes of it are gone.");
            edited = false;
            void draft();
        }, 300);
    };
    area.addEventListener("input", () => (edited = true));
    const check = () =>
        answered(output, async () => {
            const text = await explained(area.value);
            const said = await ask<{ message: string }>("POST", "check", area.value);
            return `${said.message}\n\n${text}`;
        });
    const make = () =>
        answered(output, async () => {
            const made = await ask<{ namespace: string; name: string }>("POST", "create", area.value);
            notice(`${made.name} is made.`);
            location.hash = `#/m/${made.namespace}/${made.name}`;
            return "";
        });
    const form = h("form", { class: "form", oninput: changed, onsubmit: (event: Event) => event.preventDefault() });
    form.append(...rows);
    const element = h(
        "section",
        {},
        h("div", { class: "bar" }, h("h1", {}, "New machine")),
        h(
            "div",
            { class: "halves" },
            form,
            h(
                "div",
                {},
                area,
                h(
                    "div",
                    { class: "buttons" },
                    h("button", { onclick: () => void check() }, "Check"),
                    h("button", { class: "main", onclick: () => void make() }, "Create"),
                ),
                output,
            ),
        ),
    );
    void draft();
    return { element, title: "New machine", close: () => window.clearTimeout(timer) };
}
