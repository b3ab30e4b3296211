// Builds a site from the docs: docs/ and other pages -> target/site. Run by `make docs-site`, with mdBook's program in MDBOOK.
//
// On the site docs/ is the root: docs/install.md is install.html, README.md is index.html, docs/runbooks/X.md is runbooks/X.html, to which
// the alerts link. Links are changed accordingly, and the build checks all internal links.
import { execFileSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync, readFileSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { dirname, join, posix, relative, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const repository = resolve(here, "../..");
const work = join(repository, "target/site-build");
const site = join(repository, "target/site");

/** Where a file of the repository is on the site; a README is the page of its folder. */
const place = (path) => path.replace(/^docs\//, "").replace(/(^|\/)README\.md$/, "$1index.md");

/** All links of a page of Markdown, each changed by a function; blocks of code stay as they are. */
function withLinks(text, change) {
    let code = false;
    return text
        .split("\n")
        .map((line) => {
            if (line.trimStart().startsWith("```")) code = !code;
            if (code || line.startsWith("    ")) return line;
            return line.replace(/\]\(([^)\s]+)\)/g, (_, link) => `](${change(link)})`);
        })
        .join("\n");
}

/** Copies a page with the links of the site, and the other files of the repository that it links to. */
function copy(path, copied) {
    if (copied.has(path)) return;
    copied.add(path);
    const from = join(repository, path);
    const to = join(work, "src", place(path));
    mkdirSync(dirname(to), { recursive: true });
    if (statSync(from).isDirectory()) return;
    if (!path.endsWith(".md")) {
        cpSync(from, to);
        return;
    }
    const text = withLinks(readFileSync(from, "utf8"), (link) => {
        if (/^([a-z]+:|#)/.test(link)) return link;
        const [file, anchor] = link.split("#");
        const target = posix.join(posix.dirname(path), file).replace(/\/$/, "");
        if (!existsSync(join(repository, target))) throw new Error(`${path}: there is no ${target}`);
        // mdBook has no page for a folder, so the link leads to its first file.
        const page = statSync(join(repository, target)).isDirectory() ? firstOf(target) : target;
        copy(page, copied);
        const on = posix.relative(posix.dirname(place(path)), place(page));
        return anchor ? `${on}#${anchor}` : on;
    });
    writeFileSync(to, text);
}

function firstOf(folder) {
    const files = readdirSync(join(repository, folder)).sort();
    return posix.join(folder, files.includes("README.md") ? "README.md" : files[0]);
}

/** Every file below a folder. */
function files(folder) {
    return readdirSync(folder, { withFileTypes: true, recursive: true })
        .filter((entry) => entry.isFile())
        .map((entry) => join(entry.parentPath ?? entry.path, entry.name));
}

/** Links of the site that lead to no file, or to no anchor in it. */
function broken() {
    const pages = new Map(files(site).filter((file) => file.endsWith(".html")).map((file) => [file, readFileSync(file, "utf8")]));
    const wrong = [];
    for (const [page, text] of pages) {
        // mdBook's 404 page assumes that the site is at the root of a server.
        if (page === join(site, "404.html")) continue;
        for (const [, link] of text.matchAll(/(?:href|src)="([^"]*)"/g)) {
            if (/^([a-z]+:|$)/.test(link)) continue;
            const [path, anchor] = link.split("#");
            const target = path ? resolve(dirname(page), decodeURI(path)) : page;
            const inner = pages.get(target);
            if (!existsSync(target)) wrong.push(`${relative(site, page)}: ${link}: there is no such file`);
            else if (anchor && inner && !inner.includes(`id="${decodeURIComponent(anchor)}"`))
                wrong.push(`${relative(site, page)}: ${link}: there is no such place`);
        }
    }
    return wrong;
}

rmSync(work, { recursive: true, force: true });
rmSync(site, { recursive: true, force: true });
mkdirSync(work, { recursive: true });
cpSync(join(here, "book.toml"), join(work, "book.toml"));
copy("docs/SUMMARY.md", new Set());
execFileSync(process.env.MDBOOK ?? "mdbook", ["build", work], {
    stdio: ["ignore", "ignore", "inherit"],
    env: { ...process.env, MDBOOK_LOG: "warn" },
});
const wrong = broken();
if (wrong.length > 0) {
    console.error(wrong.join("\n"));
    process.exit(1);
}
console.log(`docs-site: ${files(site).filter((file) => file.endsWith(".html")).length} pages in ${relative(process.cwd(), site)}`);
