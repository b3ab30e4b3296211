// Requests to `virtctl ui`.

/** A failed request, with a message for the user. */
export class Failed extends Error {
    constructor(
        message: string,
        readonly status: number,
    ) {
        super(message);
    }
}

/** The token of this run of `virtctl ui`. */
let token = "";
/** Its name in the storage of this tab, which no other host or port can read. */
const KEPT = "token";

/** Takes the token out of the address, or what a former load of this tab took. Whether the address had one. */
export function enter(): boolean {
    const given = /^#token=([0-9a-f]+)$/.exec(location.hash)?.[1];
    try {
        if (given) sessionStorage.setItem(KEPT, given);
        token = given ?? sessionStorage.getItem(KEPT) ?? token;
    } catch {
        // Without storage the token lasts until the page is loaded again.
        token = given ?? token;
    }
    // Neither the address nor the history keeps it.
    if (given) history.replaceState(null, "", "/");
    return given !== undefined;
}

function headers(): HeadersInit {
    return { authorization: `Bearer ${token}` };
}

/** The answer to a request; fails with the server's message. */
export async function ask<T>(method: string, path: string, body?: string | object): Promise<T> {
    let answer: Response;
    try {
        answer = await fetch(`/api/${path}`, {
            method,
            headers: headers(),
            body: typeof body === "object" ? JSON.stringify(body) : body,
            signal: AbortSignal.timeout(60_000),
        });
    } catch {
        throw new Failed("`virtctl ui` does not answer: it may have ended.", 0);
    }
    const text = await answer.text();
    if (answer.ok) return JSON.parse(text) as T;
    let message = text.trim();
    try {
        message = (JSON.parse(text) as { message: string }).message;
    } catch {
        // The text itself is the message.
    }
    throw new Failed(message || `The answer is ${answer.status}.`, answer.status);
}

/** The path of a machine. */
export function machinePath(namespace: string, name: string, rest = ""): string {
    return `machines/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}${rest}`;
}

/** A stream of a guest. */
export function websocket(namespace: string, name: string, what: "console" | "vnc"): WebSocket {
    const path = machinePath(namespace, name, `/${what}`);
    // A websocket has no headers of the page, but protocols; the server takes the first.
    const socket = new WebSocket(`ws://${location.host}/api/${path}`, ["virtctl-ui", `token-${token}`]);
    socket.binaryType = "arraybuffer";
    return socket;
}

/** Whether a stream ended because the guest is on another node now, where it can be opened again. */
export function hasMoved(event: CloseEvent): boolean {
    return event.code === 4012;
}

/** A sentence about how a stream of a guest ended. */
export function goodbye(event: CloseEvent): string {
    if (event.code === 4001) return "Another user has opened it, and took it over.";
    if (event.code === 4000 || event.code === 1000) return "The guest has ended it.";
    return event.reason || "The connection broke off.";
}

/** The lines of a streamed answer, as objects. Ends when nothing has arrived for `silence` milliseconds. */
export async function* lines(path: string, silence: number): AsyncGenerator<unknown> {
    const abort = new AbortController();
    let timer = setTimeout(() => abort.abort(), silence);
    try {
        const answer = await fetch(`/api/${path}`, { headers: headers(), signal: abort.signal });
        if (!answer.ok || !answer.body) throw new Failed((await answer.text()).trim(), answer.status);
        const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
        let rest = "";
        for (;;) {
            const { done, value } = await reader.read();
            if (done) return;
            clearTimeout(timer);
            timer = setTimeout(() => abort.abort(), silence);
            const parts = (rest + value).split("\n");
            rest = parts.pop() ?? "";
            for (const part of parts) if (part) yield JSON.parse(part);
        }
    } finally {
        clearTimeout(timer);
        abort.abort();
    }
}
