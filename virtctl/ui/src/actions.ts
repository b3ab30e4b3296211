// Actions on a machine, as buttons and as keys.
import { ask, Failed, machinePath } from "./api";
import { confirmed, h, notice } from "./dom";
import type { Guest } from "./store";
import { has, isRunning, status } from "./words";

interface Action {
    word: string;
    label: string;
    key: string;
    /** Whether the action makes sense now; the API server decides. */
    fits(guest: Guest): boolean;
    /** A question to confirm the action. */
    question?(guest: Guest): string;
}

const ACTIONS: Action[] = [
    {
        word: "start",
        label: "Start",
        key: "s",
        fits: (guest) => Boolean(guest.machine) && ["", "Stopped"].includes(status(guest).raw),
    },
    {
        word: "stop",
        label: "Stop",
        key: "x",
        fits: (guest) => Boolean(guest.machine) && !["", "Stopped", "Terminating"].includes(status(guest).raw),
        question: ({ name }) => `Stop ${name}? The guest is asked to shut down.`,
    },
    {
        word: "restart",
        label: "Restart",
        key: "r",
        fits: (guest) => Boolean(guest.machine) && isRunning(guest),
        question: ({ name }) => `Restart ${name}? The guest is asked to shut down, and starts again.`,
    },
    {
        word: "pause",
        label: "Pause",
        key: "p",
        fits: (guest) => isRunning(guest) && !has(guest.instance, "Paused"),
    },
    {
        word: "unpause",
        label: "Unpause",
        key: "p",
        fits: (guest) => isRunning(guest) && has(guest.instance, "Paused"),
    },
    {
        word: "migrate",
        label: "Migrate",
        key: "m",
        fits: (guest) => Boolean(guest.machine) && isRunning(guest),
    },
];

const MORE: Action[] = [
    {
        word: "softreboot",
        label: "Reboot the guest",
        key: "",
        fits: isRunning,
        question: ({ name }) => `Ask the guest of ${name} to reboot?`,
    },
    {
        word: "reset",
        label: "Reset",
        key: "",
        fits: isRunning,
        question: ({ name }) => `Reset ${name}? It is as if its reset button were pressed: what is not saved is lost.`,
    },
];

async function act(action: Action, guest: Guest): Promise<void> {
    if (action.question && !(await confirmed(action.question(guest), action.label))) return;
    const path = machinePath(guest.namespace, guest.name, `/do/${action.word}`);
    try {
        notice((await ask<{ message: string }>("POST", path)).message);
    } catch (error) {
        notice(`${action.label} ${guest.name}: ${error instanceof Failed ? error.message : error}`, true);
    }
}

/** Buttons for all actions that make sense now. `rest`: also rare ones. */
export function buttons(guest: Guest, rest = false): HTMLElement {
    const fitting = (rest ? [...ACTIONS, ...MORE] : ACTIONS).filter((action) => action.fits(guest));
    return h(
        "div",
        { class: "buttons" },
        ...fitting.map((action) =>
            h(
                "button",
                {
                    title: action.key ? `Key: ${action.key}` : undefined,
                    "data-action": action.word,
                    onclick: (event: Event) => {
                        event.stopPropagation();
                        void act(action, guest);
                    },
                },
                action.label,
            ),
        ),
    );
}

/** Performs the action of a key; returns whether the key has one. */
export function key(pressed: string, guest: Guest): boolean {
    const action = ACTIONS.find((action) => action.key === pressed && action.fits(guest));
    if (action) void act(action, guest);
    return Boolean(action);
}
