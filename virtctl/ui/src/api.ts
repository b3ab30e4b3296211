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

/** The answer to a request; fails with the server's message. */
export async function ask<T>(method: string, path: string, body?: string | object): Promise<T> {
    let answer: Response;
    try {
        answer = await fetch(`/api/${path}`, {
            method,
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
    const socket = new WebSocket(`ws://${location.host}/api/${machinePath(namespace, name, `/${what}`)}`);
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
        const answer = await fetch(`/api/${path}`, { signal: abort.signal });
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
