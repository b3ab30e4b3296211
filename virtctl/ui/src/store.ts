// The current state of the cluster.
import { Failed, lines } from "./api";

export interface Condition {
    type: string;
    status: string;
    reason?: string;
    message?: string;
    lastTransitionTime?: string;
}

interface Interface {
    name?: string;
    ipAddress?: string;
    ipAddresses?: string[];
    mac?: string;
}

export interface Resource {
    metadata: {
        name: string;
        namespace?: string;
        uid?: string;
        creationTimestamp?: string;
        deletionTimestamp?: string;
        labels?: Record<string, string>;
    };
    spec?: {
        running?: boolean;
        runStrategy?: string;
        instancetype?: { name?: string };
        unschedulable?: boolean;
    };
    status?: {
        conditions?: Condition[];
        phase?: string;
        reason?: string;
        printableStatus?: string;
        ready?: boolean;
        nodeName?: string;
        interfaces?: Interface[];
        addresses?: { type: string; address: string }[];
        guestOSInfo?: { prettyName?: string; name?: string; kernelRelease?: string };
        memory?: { guestCurrent?: string; guestRequested?: string };
        currentCPUTopology?: { cores?: number; sockets?: number; threads?: number };
        capacity?: Record<string, string>;
        allocatable?: Record<string, string>;
        nodeInfo?: { kubeletVersion?: string; osImage?: string; kernelVersion?: string };
        phaseTransitionTimestamps?: { phase: string; phaseTransitionTimestamp: string }[];
        migrationState?: { completed?: boolean; failed?: boolean; targetNode?: string; sourceNode?: string };
    };
}

type Kind = "machine" | "instance" | "node";

interface Line {
    kind: Kind;
    op: "reset" | "set" | "gone" | "synced" | "failed";
    object?: Resource;
    message?: string;
    cut?: boolean;
}

export const objects: Record<Kind, Map<string, Resource>> = {
    machine: new Map(),
    instance: new Map(),
    node: new Map(),
};
/** Kinds whose list is complete. */
export const synced = new Set<Kind>();
/** Kinds with more objects than are shown. */
export const cut = new Set<Kind>();
/** Why a kind cannot be shown. */
export const failures = new Map<Kind, string>();
/** Whether changes arrive. */
export let connected = false;
/** Why changes do not arrive. */
export let trouble = "";

const listeners = new Set<() => void>();
let drawn = 0;

/** Calls the function after changes; the returned function ends that. */
export function subscribe(listener: () => void): () => void {
    listeners.add(listener);
    return () => listeners.delete(listener);
}

function changed(): void {
    if (drawn) return;
    // Many changes at once are drawn together, also in a hidden page.
    drawn = window.setTimeout(() => {
        drawn = 0;
        for (const listener of listeners) listener();
    }, 50);
}

export function key(object: Resource): string {
    return `${object.metadata.namespace ?? ""}/${object.metadata.name}`;
}

// A new list replaces the former one at once, so that the page never shows an empty list.
const fresh: Partial<Record<Kind, Map<string, Resource>>> = {};

function take(line: Line): void {
    const { kind, op, object } = line;
    const into = fresh[kind] ?? objects[kind];
    if (op === "reset") fresh[kind] = new Map();
    else if (op === "set" && object) into.set(key(object), object);
    else if (op === "gone" && object) into.delete(key(object));
    else if (op === "failed") failures.set(kind, line.message ?? "");
    else if (op === "synced") {
        objects[kind] = into;
        delete fresh[kind];
        failures.delete(kind);
        synced.add(kind);
        if (line.cut) cut.add(kind);
        else cut.delete(kind);
    }
}

/** Follows the changes of the cluster for ever. */
export async function follow(): Promise<never> {
    for (;;) {
        try {
            for await (const line of lines("live", 35_000)) {
                if (!connected) [connected, trouble] = [true, ""];
                take(line as Line);
                changed();
            }
            trouble = "The connection to `virtctl ui` ended.";
        } catch (error) {
            trouble = error instanceof Failed ? error.message : "`virtctl ui` does not answer: it may have ended.";
        }
        connected = false;
        changed();
        await new Promise((resolve) => setTimeout(resolve, 2000));
    }
}

/** A machine, its instance, or both. */
export interface Guest {
    key: string;
    namespace: string;
    name: string;
    machine?: Resource;
    instance?: Resource;
}

export function guest(key: string): Guest | undefined {
    const [machine, instance] = [objects.machine.get(key), objects.instance.get(key)];
    const one = machine ?? instance;
    if (!one) return undefined;
    return { key, namespace: one.metadata.namespace ?? "", name: one.metadata.name, machine, instance };
}

export function guests(): Guest[] {
    const keys = new Set([...objects.machine.keys(), ...objects.instance.keys()]);
    return [...keys].sort().flatMap((key) => guest(key) ?? []);
}
