/** What fills the page. */
export interface View {
    element: HTMLElement;
    title: string;
    /** After anything in the cluster changed. */
    update?(): void;
    /** A key outside of text fields; whether it was taken. */
    key?(pressed: string): boolean;
    /** The page shows something else now. */
    close?(): void;
}
