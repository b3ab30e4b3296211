// The serial console and the screen of a guest.
import RFB from "@novnc/novnc";
import { Terminal } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";
import { goodbye, hasMoved, websocket } from "./api";
import { h } from "./dom";

/** An open stream on the page. */
export interface Stream {
    element: HTMLElement;
    close(): void;
}

const COLUMNS = 80;
const ROWS = 24;
/** The width of a character, relative to the font size. */
const SLIM = 0.605;

/** A terminal on the first serial line. */
export function terminal(namespace: string, name: string): Stream {
    const state = h("span", { class: "note" });
    const screen = h("div", { class: "serial" });
    const again = h("button", { onclick: () => connect() }, "Connect");
    // A serial line has no size: guests assume 80 by 24.
    const term = new Terminal({
        cols: COLUMNS,
        rows: ROWS,
        scrollback: 5000,
        cursorBlink: true,
        fontFamily: "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace",
        theme: { background: "#14171a" },
    });
    let socket: WebSocket | undefined;
    let opened = false;
    // After a move, the state begins with the new node.
    const connect = (before = "") => {
        socket?.close();
        const mine = websocket(namespace, name, "console");
        socket = mine;
        again.hidden = true;
        state.textContent = "Connecting…";
        mine.onopen = () => {
            state.textContent = `${before}Connected. Press Enter for a prompt. Ctrl and ] leaves the terminal.`;
            if (!before) term.focus();
        };
        mine.onmessage = ({ data }) => term.write(new Uint8Array(data as ArrayBuffer));
        mine.onclose = (event) => {
            if (socket !== mine) return;
            if (hasMoved(event)) return connect(`${event.reason}. `);
            state.textContent = goodbye(event);
            again.hidden = false;
        };
    };
    const send = (data: string | Uint8Array<ArrayBuffer>) => {
        if (socket?.readyState === WebSocket.OPEN)
            socket.send(typeof data === "string" ? new TextEncoder().encode(data) : data);
    };
    term.onData(send);
    term.onBinary((data) => send(Uint8Array.from(data, (letter) => letter.charCodeAt(0))));
    term.attachCustomKeyEventHandler((event) => {
        if (!(event.ctrlKey && event.key === "]")) return true;
        if (event.type === "keydown") again.hidden ? term.blur() : again.focus();
        return false;
    });
    const fit = () => {
        const width = screen.clientWidth;
        if (width) term.options.fontSize = Math.max(6, Math.min(17, Math.floor((width - 24) / COLUMNS / SLIM)));
    };
    const watch = new ResizeObserver(() => {
        if (!opened && screen.isConnected) {
            opened = true;
            fit();
            term.open(screen);
            connect();
        }
        fit();
    });
    watch.observe(screen);
    // For tests of this page: what the terminal shows.
    Object.assign(screen, { terminal: term });
    return {
        element: h("div", {}, h("div", { class: "bar" }, state, again), screen),
        close: () => {
            watch.disconnect();
            const last = socket;
            socket = undefined;
            last?.close();
            term.dispose();
        },
    };
}

/** The display, with keyboard and mouse. */
export function display(namespace: string, name: string): Stream {
    const state = h("span", { class: "note" });
    const screen = h("div", { class: "screen" });
    let rfb: RFB | undefined;
    let socket: WebSocket | undefined;
    const connect = (before = "") => {
        const takesKeys = !before || screen.contains(document.activeElement);
        rfb?.disconnect();
        screen.replaceChildren();
        again.hidden = true;
        state.textContent = "Connecting…";
        const mine = websocket(namespace, name, "vnc");
        socket = mine;
        const viewer = new RFB(screen, mine);
        rfb = viewer;
        viewer.scaleViewport = true;
        viewer.background = "transparent";
        mine.addEventListener("close", (event) => {
            if (socket !== mine) return;
            if (hasMoved(event)) return connect(`${event.reason}. `);
            state.textContent = goodbye(event);
            again.hidden = false;
        });
        viewer.addEventListener("connect", () => {
            state.textContent = `${before}Connected. Click the screen to type.`;
            if (takesKeys) viewer.focus();
        });
        viewer.addEventListener("securityfailure", () => {
            state.textContent = "The display refused the connection.";
        });
    };
    const again = h("button", { onclick: () => connect() }, "Connect");
    const keys = h("button", { onclick: () => rfb?.sendCtrlAltDel() }, "Send Ctrl-Alt-Del");
    const full = h("button", { onclick: () => void screen.requestFullscreen() }, "Full screen");
    const save = h(
        "button",
        {
            onclick: () => {
                const picture = rfb?.toDataURL("image/png");
                if (picture) h("a", { href: picture, download: `${name}.png` }).click();
            },
        },
        "Save a picture",
    );
    // The element is on the page only after the current task.
    const timer = setTimeout(connect);
    return {
        element: h("div", {}, h("div", { class: "bar" }, state, again, keys, full, save), screen),
        close: () => {
            clearTimeout(timer);
            socket = undefined;
            rfb?.disconnect();
        },
    };
}
