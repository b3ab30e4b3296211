// Builds the page of `virtctl ui`: virtctl/ui -> target/ui, each file compressed. Run by `make ui`.
//
// npm's packages are in target/ui-build, which CI keeps from one run to the next. A file is written only when it changed,
// because cargo compiles virtctl again when a file is newer.
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { cpSync, existsSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const here = dirname(fileURLToPath(import.meta.url));
const target = resolve(here, "../../target");
const out = join(target, "ui");
const work = join(target, "ui-build");
const packages = join(work, "node_modules");

/** Installs the packages, unless the last installation matches the lock file. */
function install() {
    const lock = readFileSync(join(here, "package-lock.json"));
    const done = join(work, "installed.json");
    if (existsSync(done) && readFileSync(done).equals(lock)) return;
    mkdirSync(work, { recursive: true });
    for (const file of ["package.json", "package-lock.json"]) cpSync(join(here, file), join(work, file));
    execFileSync("npm", ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], {
        cwd: work,
        stdio: ["ignore", "ignore", "inherit"],
    });
    writeFileSync(done, lock);
}

/** A hash of everything that decides the result of the build. */
function inputs() {
    const hash = createHash("sha256").update(process.version);
    const files = readdirSync(join(here, "src"), { withFileTypes: true })
        .filter((entry) => entry.isFile())
        .map((entry) => join("src", entry.name))
        .sort();
    for (const file of ["build.mjs", "package-lock.json", "tsconfig.json", ...files])
        hash.update(file).update("\0").update(readFileSync(join(here, file))).update("\0");
    return hash.digest("hex");
}

function check() {
    const arguments_ = ["-p", join(here, "tsconfig.json"), "--noEmit"];
    // The TypeScript compiler looks for types of packages beside the sources, like esbuild for the packages.
    execFileSync(process.execPath, [join(packages, "typescript/bin/tsc"), ...arguments_], { stdio: "inherit" });
}

function licences() {
    const names = ["@xterm/xterm", "@novnc/novnc"];
    return names
        .map((name) => {
            const folder = join(packages, name);
            const file = readdirSync(folder).find((file) => /^LICEN[CS]E/i.test(file));
            const { version, license } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
            const text = file ? readFileSync(join(folder, file), "utf8") : "";
            return `${name} ${version}, ${license}: https://www.npmjs.com/package/${name}\n\n${text}`;
        })
        .join("\n----------------------------------------\n\n");
}

async function bundle() {
    const esbuild = createRequire(join(work, "package.json"))("esbuild");
    const { outputFiles } = await esbuild.build({
        absWorkingDir: here,
        entryPoints: { app: "src/app.ts" },
        bundle: true,
        minify: true,
        format: "esm",
        target: "es2022",
        nodePaths: [packages],
        outdir: out,
        write: false,
        legalComments: "none",
        logLevel: "warning",
    });
    const files = new Map(outputFiles.map((file) => [file.path.slice(out.length + 1), Buffer.from(file.contents)]));
    files.set("index.html", readFileSync(join(here, "src/index.html")));
    files.set("icon.svg", readFileSync(join(here, "src/icon.svg")));
    files.set("licences.txt", Buffer.from(licences()));
    return files;
}

function write(files) {
    mkdirSync(out, { recursive: true });
    for (const [name, bytes] of files) {
        const path = join(out, `${name}.gz`);
        const packed = gzipSync(bytes, { level: 9 });
        if (!existsSync(path) || !readFileSync(path).equals(packed)) writeFileSync(path, packed);
    }
    const known = new Set([...files.keys()].map((name) => `${name}.gz`));
    for (const file of readdirSync(out)) if (!known.has(file)) rmSync(join(out, file));
}

async function build() {
    const stamp = join(work, "built");
    const wanted = inputs();
    if (existsSync(stamp) && readFileSync(stamp, "utf8") === wanted && existsSync(join(out, "app.js.gz"))) return;
    install();
    check();
    write(await bundle());
    writeFileSync(stamp, wanted);
}

try {
    await build();
} catch (error) {
    console.error(`virtctl/ui/build.mjs: ${error.message}`);
    process.exit(1);
}
