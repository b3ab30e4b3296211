// Descriptions of the cluster's status values.
import type { Condition, Guest, Resource } from "./store";

export type Tone = "good" | "bad" | "busy" | "idle";

export interface Said {
    text: string;
    tone: Tone;
}

const STATUS: Record<string, Said> = {
    Running: { text: "Running", tone: "good" },
    Paused: { text: "Paused", tone: "idle" },
    Stopped: { text: "Stopped", tone: "idle" },
    Starting: { text: "Starting", tone: "busy" },
    Stopping: { text: "Stopping", tone: "busy" },
    Terminating: { text: "Being deleted", tone: "busy" },
    Migrating: { text: "Moving to another node", tone: "busy" },
    Provisioning: { text: "Disks are being made", tone: "busy" },
    WaitingForVolumeBinding: { text: "Waits for a volume", tone: "busy" },
    WaitingForReceiver: { text: "Waits for the other side", tone: "busy" },
    CrashLoopBackOff: { text: "Ends again and again", tone: "bad" },
    ErrorUnschedulable: { text: "No node fits", tone: "bad" },
    ErrImagePull: { text: "Image cannot be fetched", tone: "bad" },
    ImagePullBackOff: { text: "Image cannot be fetched", tone: "bad" },
    ErrorPvcNotFound: { text: "A claim is missing", tone: "bad" },
    DataVolumeError: { text: "A DataVolume failed", tone: "bad" },
    Unknown: { text: "Node is silent", tone: "bad" },
    // Phases of an instance.
    Pending: { text: "Starting", tone: "busy" },
    Scheduling: { text: "Starting", tone: "busy" },
    Scheduled: { text: "Starting", tone: "busy" },
    Succeeded: { text: "Has ended", tone: "idle" },
    Failed: { text: "Failed", tone: "bad" },
};

/** The status value, and its description. */
export function status({ machine, instance }: Guest): Said & { raw: string } {
    let raw = machine?.status?.printableStatus ?? instance?.status?.phase ?? "";
    if (!machine && has(instance, "Paused")) raw = "Paused";
    if (!machine && instance?.metadata.deletionTimestamp) raw = "Terminating";
    return { ...(STATUS[raw] ?? { text: raw || "Not started yet", tone: "idle" }), raw };
}

export function has(object: Resource | undefined, type: string): boolean {
    return object?.status?.conditions?.some((one) => one.type === type && one.status === "True") ?? false;
}

export function isRunning({ instance }: Guest): boolean {
    return instance?.status?.phase === "Running" && !instance.metadata.deletionTimestamp;
}

export function addresses({ instance }: Guest): string[] {
    const all = (instance?.status?.interfaces ?? []).flatMap((one) => one.ipAddresses ?? one.ipAddress ?? []);
    return [...new Set(all.filter(Boolean))];
}

const CONDITIONS: Record<string, [whenTrue: Said, otherwise: Said]> = {
    Ready: [
        { text: "The guest is ready.", tone: "good" },
        { text: "The guest is not ready.", tone: "busy" },
    ],
    Paused: [
        { text: "The guest is paused: its CPUs stand still.", tone: "idle" },
        { text: "The guest is not paused.", tone: "good" },
    ],
    LiveMigratable: [
        { text: "It can move to another node while it runs.", tone: "good" },
        { text: "It cannot move to another node while it runs.", tone: "idle" },
    ],
    StorageLiveMigratable: [
        { text: "Its disks can move while it runs.", tone: "good" },
        { text: "Its disks cannot move while it runs.", tone: "idle" },
    ],
    AgentConnected: [
        { text: "The guest agent answers.", tone: "good" },
        { text: "The guest agent does not answer.", tone: "idle" },
    ],
    RestartRequired: [
        { text: "Some changes wait for a restart.", tone: "busy" },
        { text: "No change waits for a restart.", tone: "good" },
    ],
    Synchronized: [
        { text: "The guest is as it should be.", tone: "good" },
        { text: "The guest is not yet as it should be.", tone: "bad" },
    ],
    Failure: [
        { text: "Something failed.", tone: "bad" },
        { text: "Nothing failed.", tone: "good" },
    ],
    DataVolumesReady: [
        { text: "Its disks are filled.", tone: "good" },
        { text: "Its disks are not filled yet.", tone: "busy" },
    ],
    Provisioning: [
        { text: "Its disks are being made.", tone: "busy" },
        { text: "Its disks are made.", tone: "good" },
    ],
    Initialized: [
        { text: "The machine is set up.", tone: "good" },
        { text: "The machine is not set up yet.", tone: "busy" },
    ],
    HotVCPUChange: [
        { text: "CPUs are being changed.", tone: "busy" },
        { text: "No change of CPUs is under way.", tone: "good" },
    ],
    HotMemoryChange: [
        { text: "Memory is being changed.", tone: "busy" },
        { text: "No change of memory is under way.", tone: "good" },
    ],
    VolumesChange: [
        { text: "Volumes are being changed.", tone: "busy" },
        { text: "No change of volumes is under way.", tone: "good" },
    ],
    EvictionRequested: [
        { text: "It is asked to leave its node.", tone: "busy" },
        { text: "It may stay on its node.", tone: "good" },
    ],
    // Of nodes.
    MemoryPressure: [
        { text: "Memory is short.", tone: "bad" },
        { text: "Memory is enough.", tone: "good" },
    ],
    DiskPressure: [
        { text: "Disk space is short.", tone: "bad" },
        { text: "Disk space is enough.", tone: "good" },
    ],
    PIDPressure: [
        { text: "Too many processes run.", tone: "bad" },
        { text: "There is room for processes.", tone: "good" },
    ],
};

/** The description of a condition. An unknown condition is shown unchanged. */
export function condition(one: Condition): Said & { detail: string } {
    const known = CONDITIONS[one.type];
    const detail = one.message || (one.status === "True" ? "" : (one.reason ?? ""));
    if (one.status === "Unknown") return { text: `${one.type}: not known.`, tone: "bad", detail };
    if (known) return { ...known[one.status === "True" ? 0 : 1], detail };
    return { text: `${one.type}: ${one.status === "True" ? "yes" : "no"}`, tone: "idle", detail };
}

/** All conditions of a machine and its instance, each type once. */
export function conditions({ machine, instance }: { machine?: Resource; instance?: Resource }): Condition[] {
    const found = new Map<string, Condition>();
    for (const one of [...(instance?.status?.conditions ?? []), ...(machine?.status?.conditions ?? [])])
        if (!found.has(one.type)) found.set(one.type, one);
    return [...found.values()];
}

/** How long ago, in one unit. */
export function ago(time: string | undefined): string {
    if (!time) return "";
    const seconds = Math.max(0, (Date.now() - Date.parse(time)) / 1000);
    const units: [number, string][] = [
        [86400, "day"],
        [3600, "hour"],
        [60, "minute"],
        [1, "second"],
    ];
    for (const [size, unit] of units) {
        const count = Math.floor(seconds / size);
        if (count >= 1) return `${count} ${unit}${count === 1 ? "" : "s"}`;
    }
    return "now";
}

/** The time as a text. */
export function past(time: string | undefined): string {
    const since = ago(time);
    return since && since !== "now" ? `${since} ago` : since;
}

/** An amount of bytes. */
export function bytes(count: number): string {
    const units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let at = 0;
    while (count >= 1024 && at < units.length - 1) [count, at] = [count / 1024, at + 1];
    return `${count >= 100 || at === 0 ? Math.round(count) : count.toFixed(1)} ${units[at]}`;
}

/** A quantity of Kubernetes in bytes; NaN if it is not valid. */
export function quantity(text: string | undefined): number {
    const match = /^([0-9.]+)(m|[KMGTPE]i?|k)?$/.exec(text ?? "");
    if (!match) return NaN;
    const unit = match[2] ?? "";
    if (unit === "m") return Number(match[1]) / 1000;
    const power = unit ? "KMGTPE".indexOf(unit[0]?.toUpperCase() ?? "") + 1 : 0;
    return Number(match[1]) * (unit.endsWith("i") ? 1024 : 1000) ** power;
}
