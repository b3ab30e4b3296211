// A command line for QEMU's monitor, and the answer.
import { ask, Failed, machinePath } from "./api";
import { h } from "./dom";

const SHOWN = 50;
// Kept while the page is open, for all machines together.
const typed: string[] = [];

export function monitor(namespace: string, name: string): HTMLElement {
    const output = h("div", { class: "answers", "aria-live": "polite" });
    const known = h("datalist", { id: "commands" });
    const input = h("input", {
        placeholder: "query-status",
        list: "commands",
        "aria-label": "Command for QEMU's monitor",
        autocomplete: "off",
        autocapitalize: "off",
        spellcheck: "false",
    });
    let at = typed.length;
    const say = async (line: string) => {
        const answer = h("pre", {}, "…");
        output.prepend(h("article", {}, h("h3", {}, line), answer));
        while (output.children.length > SHOWN) output.lastElementChild?.remove();
        try {
            const said = await ask<{ answer: unknown }>("POST", machinePath(namespace, name, "/monitor"), line);
            answer.textContent = JSON.stringify(said.answer, null, 2);
        } catch (error) {
            answer.textContent = error instanceof Failed ? error.message : String(error);
            answer.classList.add("bad");
        }
    };
    input.addEventListener("keydown", (event) => {
        if (event.key === "ArrowUp") at = Math.max(0, at - 1);
        else if (event.key === "ArrowDown") at = Math.min(typed.length, at + 1);
        else return;
        if (typed.length) input.value = typed[at] ?? "";
    });
    const form = h(
        "form",
        {
            class: "bar",
            onsubmit: (event: Event) => {
                event.preventDefault();
                const line = input.value.trim();
                if (!line) return;
                typed.push(line);
                at = typed.length;
                input.value = "";
                void say(line);
            },
        },
        input,
        h("button", { class: "main" }, "Ask"),
        known,
    );
    const read = async () => {
        try {
            const path = machinePath(namespace, name, "/monitor");
            const { answer } = await ask<{ answer: { name: string }[] }>("POST", path, "query-commands");
            const names = answer.map((one) => one.name).filter((one) => one.startsWith("query-"));
            known.append(...names.sort().map((value) => h("option", { value })));
        } catch {
            // Without the list there is no completion; the answer to a command reports the error.
        }
    };
    void read();
    const note =
        "Commands that ask, such as query-block, or query-stats target=vm. For commands that change the guest, use virtctl qmp.";
    return h("div", {}, form, h("p", { class: "note" }, note), output);
}
