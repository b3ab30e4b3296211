// `virtctl ui` in a real Chromium, against the cluster of this machine, in its own namespace. Run by `make ui-test`.
//
//   node virtctl/ui/test/page.mjs [--picture FILE.png]
//
// With --picture, it saves a picture of the page for the docs. VIRTCTL and MACHINE name another program and another machine's manifest
// than those of the repository, for example those of a release.
import { execFileSync, spawn } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const root = resolve(dirname(fileURLToPath(import.meta.url)), "../../..");
const { chromium } = createRequire(join(root, "target/ui-build/package.json"))("playwright-core");
const namespace = `ui-test-${Math.random().toString(36).slice(2, 8)}`;
const picture = process.argv[2] === "--picture" ? process.argv[3] : undefined;
// Emulated guests are slow.
const SOON = 30_000;
const BOOT = 240_000;

function kubectl(arguments_, input) {
    return execFileSync(join(root, "cluster-up/kubectl.sh"), arguments_, { input, encoding: "utf8" });
}

async function until(what, within, look) {
    const deadline = Date.now() + within;
    for (;;) {
        const seen = await look();
        if (seen) return seen;
        if (Date.now() > deadline) throw new Error(`${what}: not within ${within / 1000} s`);
        await new Promise((done) => setTimeout(done, 250));
    }
}

/** Starts `virtctl ui`, and waits for the address that it prints. */
async function serve() {
    const child = spawn(process.env.VIRTCTL ?? join(root, "cluster-up/virtctl.sh"), ["ui", "-n", namespace], { stdio: ["ignore", "pipe", "inherit"] });
    let said = "";
    child.stdout.on("data", (bytes) => (said += bytes));
    const url = await until("the address of the page", SOON, () => {
        if (child.exitCode !== null) throw new Error(`virtctl ui ended with ${child.exitCode}`);
        return /http:\S+/.exec(said)?.[0];
    });
    return { child, url };
}

const steps = {
    async "a stranger learns nothing"({ url }) {
        for (const path of ["/api/about", "/api/live", `/api/machines/${namespace}/testvm`]) {
            const { status } = await fetch(new URL(path, url));
            if (status !== 401) throw new Error(`${path} is answered with ${status}`);
        }
    },

    async "the machine is in the list"({ page, url }) {
        await page.goto(url);
        await page.getByRole("link", { name: "testvm" }).waitFor({ timeout: SOON });
        await row(page).getByText("Stopped").waitFor({ timeout: SOON });
        if (page.url().includes("token")) throw new Error("the token stays in the address");
        await page.reload();
        await row(page).waitFor({ timeout: SOON });
    },

    async "no other port of this machine gets the token"({ page, url }) {
        const heard = [];
        const other = createServer((request, answer) => {
            heard.push(JSON.stringify([request.url, request.headers]));
            answer.end("another page");
        });
        const tab = await page.context().newPage();
        await new Promise((done) => other.listen(0, "127.0.0.1", done));
        try {
            await tab.goto(`http://127.0.0.1:${other.address().port}/`);
            const token = new URL(url).hash.slice("#token=".length);
            if (token.length < 32) throw new Error(`there is no token in ${url}`);
            if (!heard.length) throw new Error("the other port was not asked");
            const told = heard.find((request) => request.includes(token) || /"cookie"/i.test(request));
            if (told) throw new Error(`it hears ${told}`);
        } finally {
            await tab.close();
            other.closeAllConnections();
            other.close();
        }
    },

    async "the address also enters from a tab that has the page"({ page, url }) {
        await page.evaluate(() => {
            sessionStorage.clear();
            document.body.dataset.former = "yes";
        });
        await page.goto(url);
        await page.locator("body:not([data-former])").waitFor({ state: "attached", timeout: SOON });
        await row(page).waitFor({ timeout: SOON });
        if (page.url().includes("token")) throw new Error("the token stays in the address");
    },

    async "a search hides it and shows it"({ page }) {
        await page.keyboard.press("/");
        await page.keyboard.type("nothing has this name");
        await row(page).waitFor({ state: "detached", timeout: SOON });
        await page.keyboard.press("Escape");
        await row(page).waitFor({ timeout: SOON });
    },

    async "start"({ page }) {
        await row(page).getByRole("button", { name: "Start" }).click();
        await row(page).getByText("Running").waitFor({ timeout: BOOT });
        await row(page).getByRole("button", { name: "Stop" }).waitFor({ timeout: SOON });
    },

    async "log in on the console"({ page }) {
        await page.getByRole("link", { name: "testvm" }).click();
        await page.getByRole("link", { name: "Console" }).click();
        await page.getByText("Connected.").waitFor({ timeout: SOON });
        let pressed = 0;
        await until("a prompt to log in", BOOT, async () => {
            // The guest does not print its earlier output again.
            if (pressed++ % 12 === 0) await page.keyboard.press("Enter");
            return /login: *$/.test(await terminal(page));
        });
        await page.keyboard.type("root\n");
        await until("a shell", SOON, async () => /# *$/.test(await terminal(page)));
        await page.keyboard.type("echo $((6 * 7))-is-it\n");
        await until("the answer", SOON, async () => (await terminal(page)).includes("42-is-it"));
        if (picture) await page.keyboard.type("while :; do md5sum /dev/vda; wget -qO- 127.0.0.1; sleep 7; done >/dev/null 2>&1 &\n");
    },

    async "the screen changes when keys are pressed"({ page }) {
        await page.getByRole("link", { name: "Screen" }).click();
        await page.getByText("Connected. Click").waitFor({ timeout: SOON });
        const canvas = page.locator(".screen canvas");
        const before = await until("a picture that stands still", SOON, async () => still(canvas));
        await canvas.click();
        await page.keyboard.type("root\n");
        await until("another picture", SOON, async () => !before.has(await pixels(canvas)));
    },

    async "the monitor answers"({ page }) {
        await page.getByRole("link", { name: "Monitor" }).click();
        const line = page.getByLabel("Command for QEMU's monitor");
        await line.fill("query-status");
        await line.press("Enter");
        await page.getByText('"status": "running"').waitFor({ timeout: SOON });
        await line.fill("quit");
        await line.press("Enter");
        await page.getByText("use virtctl qmp").first().waitFor({ timeout: SOON });
        await page.getByText("sends only queries").waitFor({ timeout: SOON });
    },

    async "the manifest is explained, compared and saved"({ page }) {
        await page.getByRole("link", { name: "Manifest" }).click();
        const manifest = page.getByLabel("Manifest of testvm");
        await until("the manifest", SOON, async () => (await manifest.inputValue()).includes("kind: VirtualMachine"));
        const text = await manifest.inputValue();
        await manifest.fill(text.replace("guest: 128Mi", "guest: 160Mi").replace("cores: 1", "cores: 2"));
        await page.getByRole("button", { name: "What changes" }).click();
        await page.getByText("needs a restart").waitFor({ timeout: SOON });
        await page.getByRole("button", { name: "Explain" }).click();
        await page.getByText("QEMU's command line").waitFor({ timeout: SOON });
        await manifest.fill(text.replace("app: testvm", "app: other"));
        await page.getByRole("button", { name: "Save" }).click();
        await page.getByText("testvm is changed").waitFor({ timeout: SOON });
        await manifest.fill(text);
        await page.getByRole("button", { name: "Save" }).click();
        await page.getByText("the object has been modified").waitFor({ timeout: SOON });
    },

    async "the overview has events and charts"({ page }) {
        await page.getByRole("link", { name: "Overview" }).click();
        await page.getByText("The guest is ready.").waitFor({ timeout: SOON });
        await page.locator(".event strong", { hasText: "Started" }).first().waitFor({ timeout: SOON });
        await until("a figure", SOON, async () => /\d CPUs used/.test(await page.locator(".charts").innerText()));
        if (picture) await portrait(page);
    },

    async "pause, unpause, migrate"({ page }) {
        await page.getByRole("button", { name: "Pause", exact: true }).click();
        await page.locator(".badge", { hasText: "Paused" }).waitFor({ timeout: SOON });
        await page.getByRole("button", { name: "Unpause" }).click();
        await page.locator(".badge", { hasText: "Running" }).waitFor({ timeout: SOON });
        await page.getByRole("button", { name: "Migrate" }).click();
        // It moves, or the API server says why not.
        const said = page.locator(".notice span", { hasText: /^Migrate testvm: .|will move to another node/ });
        console.log(`  ${await said.innerText({ timeout: SOON })}`);
    },

    async "restart brings another guest"({ page }) {
        const uid = () => kubectl(["get", "vmi", "testvm", "-n", namespace, "--ignore-not-found", "-o", "jsonpath={.metadata.uid}"]);
        const before = uid();
        await page.getByRole("button", { name: "Restart" }).click();
        await page.getByRole("dialog").getByRole("button", { name: "Restart" }).click();
        await until("another instance", BOOT, () => ![before, ""].includes(uid()));
        await page.locator(".badge", { hasText: "Running" }).waitFor({ timeout: BOOT });
    },

    async "stop, by a key"({ page }) {
        await page.keyboard.press("Escape");
        await row(page).focus();
        await page.keyboard.press("x");
        await page.getByRole("dialog").getByRole("button", { name: "Stop" }).click();
        await row(page).getByText("Stopped").waitFor({ timeout: BOOT });
    },

    async "a form makes a machine"({ page }) {
        await page.getByRole("link", { name: "New machine" }).click();
        await page.getByLabel("Name", { exact: true }).fill("formed");
        await page.getByLabel("Runs").selectOption("Halted");
        await page.getByLabel("Container disk").fill("localhost/barevirt/guest-tiny:devel");
        const manifest = page.getByLabel("Manifest of the new machine");
        await until("the manifest", SOON, async () => /name: formed[^]*guest-tiny/.test(await manifest.inputValue()));
        await page.getByRole("button", { name: "Check" }).click();
        await page.getByText("The API server accepts this manifest.").waitFor({ timeout: SOON });
        await page.getByRole("button", { name: "Create" }).click();
        await page.getByRole("heading", { name: "formed" }).waitFor({ timeout: SOON });
        kubectl(["get", "vm", "formed", "-n", namespace]);
    },

    async "nodes, and a phone's width"({ page }) {
        await page.setViewportSize({ width: 380, height: 800 });
        for (const view of ["Machines", "Nodes", "New machine"]) {
            await page.getByRole("navigation", { name: "Views" }).getByRole("link", { name: view }).click();
            await page.getByRole("heading", { name: view }).waitFor({ timeout: SOON });
            const wide = await page.evaluate(() => document.documentElement.scrollWidth);
            if (wide > 380) throw new Error(`${view} is ${wide} pixels wide`);
        }
    },
};

function row(page) {
    return page.locator(`tr[data-key="${namespace}/testvm"]`);
}

/** What the terminal shows, from its first line to the cursor. */
function terminal(page) {
    return page.evaluate(() => {
        const { buffer } = document.querySelector(".serial").terminal;
        const lines = [];
        for (let at = 0; at <= buffer.active.baseY + buffer.active.cursorY; at++)
            lines.push(buffer.active.getLine(at)?.translateToString(true) ?? "");
        return lines.join("\n");
    });
}

function pixels(canvas) {
    return canvas.evaluate((canvas) => canvas.toDataURL());
}

/** The visible part of a screen on which only a cursor blinks. */
async function still(canvas) {
    const seen = new Set();
    for (let look = 0; look < 8; look++) {
        seen.add(await pixels(canvas));
        await new Promise((done) => setTimeout(done, 300));
    }
    return seen.size <= 2 ? seen : undefined;
}

async function portrait(page) {
    await page.setViewportSize({ width: 1200, height: 860 });
    // Load in the guest, so that the charts have lines.
    await new Promise((done) => setTimeout(done, 75_000));
    await page.screenshot({ path: picture });
    await page.setViewportSize({ width: 1280, height: 800 });
}

async function main() {
    kubectl(["create", "namespace", namespace]);
    let child, browser;
    try {
        kubectl(["apply", "-n", namespace, "-f", "-"], readFileSync(process.env.MACHINE ?? join(root, "examples/vm-tiny.yaml"), "utf8"));
        const served = await serve();
        child = served.child;
        browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: ["--no-sandbox"] });
        // Tabs of one context share their cookies.
        const context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
        const page = await context.newPage();
        const errors = [];
        page.on("pageerror", (error) => errors.push(error.message));
        for (const [name, step] of Object.entries(steps)) {
            const begun = Date.now();
            try {
                await step({ page, url: served.url });
            } catch (error) {
                const seen = join(root, "target/ui-test.png");
                writeFileSync(seen, await page.screenshot());
                throw new Error(`${name}: ${error.message}\nThe page is in ${seen}`);
            }
            console.log(`ok  ${name} (${((Date.now() - begun) / 1000).toFixed(1)} s)`);
        }
        if (errors.length) throw new Error(`errors in the page: ${errors.join("; ")}`);
    } finally {
        await browser?.close();
        child?.kill();
        kubectl(["delete", "namespace", namespace, "--wait=false"]);
    }
}

main().catch((error) => {
    console.error(error.message);
    process.exitCode = 1;
});
