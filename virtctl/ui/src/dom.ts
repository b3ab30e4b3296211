// Makes elements in one line. Text is always text: nothing from a cluster or a guest becomes
// markup.

export type Child = Node | string | number | null | undefined | false;
type Attributes = Record<string, unknown>;

/** An element with attributes, handlers (`onclick`) and children. */
export function h<K extends keyof HTMLElementTagNameMap>(
    tag: K,
    attributes: Attributes = {},
    ...children: Child[]
): HTMLElementTagNameMap[K] {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
        if (value === undefined || value === null || value === false) continue;
        if (name.startsWith("on")) element.addEventListener(name.slice(2), value as EventListener);
        else element.setAttribute(name, value === true ? "" : String(value));
    }
    element.append(...kept(children));
    return element;
}

/** The same for drawings. */
export function svg(tag: string, attributes: Attributes = {}, ...children: Child[]): SVGElement {
    const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
    element.append(...kept(children));
    return element;
}

export function fill(element: Element, ...children: Child[]): void {
    element.replaceChildren(...kept(children));
}

function kept(children: Child[]): (Node | string)[] {
    return children.flatMap((child) => {
        if (child === null || child === undefined || child === false) return [];
        return [typeof child === "number" ? String(child) : child];
    });
}

const notices = h("div", { class: "notices", role: "status", "aria-live": "polite" });

/** Shows a message at the edge of the page; failures stay until they are closed. */
export function notice(text: string, bad = false): void {
    if (!notices.isConnected) document.body.append(notices);
    const box = h("div", { class: bad ? "notice bad" : "notice" }, h("span", {}, text));
    box.append(h("button", { class: "plain", "aria-label": "Close", onclick: () => box.remove() }, "×"));
    notices.append(box);
    if (!bad) setTimeout(() => box.remove(), 5000);
}

/** Asks the user to confirm. */
export function confirmed(question: string, yes: string): Promise<boolean> {
    return new Promise((resolve) => {
        const dialog = h("dialog", {});
        const close = (answer: boolean) => {
            dialog.close();
            dialog.remove();
            resolve(answer);
        };
        dialog.addEventListener("cancel", () => close(false));
        dialog.append(
            h("p", {}, question),
            h(
                "div",
                { class: "buttons" },
                h("button", { class: "main", onclick: () => close(true) }, yes),
                h("button", { onclick: () => close(false) }, "Cancel"),
            ),
        );
        document.body.append(dialog);
        dialog.showModal();
    });
}
