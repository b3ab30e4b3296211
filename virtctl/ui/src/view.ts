/** The element that fills the page. */
export interface View {
    element: HTMLElement;
    title: string;
    /** Called after anything in the cluster changed. */
    update?(): void;
    /** Handles a key outside text fields; returns whether it was used. */
    key?(pressed: string): boolean;
    /** Called when the page shows another view. */
    close?(): void;
}
