#!/usr/bin/env node
// Runs the program of the package for this platform, which npm installed beside this one.
"use strict";
const { constants } = require("node:os");
const names = { "linux x64": ["linux-x64", "linux-x64-musl"], "linux arm64": ["linux-arm64"],
  "darwin x64": ["darwin-x64"], "darwin arm64": ["darwin-arm64"], "win32 x64": ["win32-x64"] };
const file = process.platform === "win32" ? "rialto.exe" : "rialto";
const found = (names[`${process.platform} ${process.arch}`] || []).flatMap((name) => {
  try { return [require.resolve(`rialto-mcp-${name}/bin/${file}`)]; } catch { return []; }
});
if (found.length === 0) {
  console.error(`rialto-mcp has no program for ${process.platform} ${process.arch}, or npm left it out: install without --omit=optional`);
  process.exit(1);
}
const args = process.argv.slice(2);
// From here on this process is Rialto.
if (process.execve && process.platform !== "win32") process.execve(found[0], [found[0], ...args], process.env);
const child = require("node:child_process").spawn(found[0], args, { stdio: "inherit" });
for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
child.on("error", (error) => { console.error(`rialto-mcp: ${error.message}`); process.exit(1); });
child.on("exit", (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
