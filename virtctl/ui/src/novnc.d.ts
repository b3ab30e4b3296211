// Types of the parts of noVNC that this page uses; noVNC has none.
declare module "@novnc/novnc" {
    export default class RFB extends EventTarget {
        constructor(target: HTMLElement, channel: WebSocket | string, options?: { shared?: boolean });
        scaleViewport: boolean;
        background: string;
        viewOnly: boolean;
        focus(): void;
        disconnect(): void;
        sendCtrlAltDel(): void;
        sendKey(keysym: number, code: string | null, down?: boolean): void;
        toDataURL(type?: string): string;
    }
}
declare module "*.css";
