// Checks the types of the page with TypeScript. The page imports the vendored lit-html, which has no
// types, so it is checked in a copy where the module of the package stands in its place.

import { cpSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { spawnSync } from 'node:child_process';

/** The folder with the packages, and the root of the repository. */
const [packages, repository] = process.argv.slice(2);
const copy = mkdtempSync(join(packages, 'types-'));
const ui = join(copy, 'crates/gateway/ui');
try {
  cpSync(join(repository, 'crates/gateway/ui'), ui, { recursive: true });
  rmSync(join(ui, 'lit-html.js'));
  writeFileSync(join(ui, 'lit-html.d.ts'), "export * from 'lit-html';\n");
  mkdirSync(join(copy, 'tests/page'), { recursive: true });
  const here = dirname(fileURLToPath(import.meta.url));
  for (const file of ['shapes.js', 'tsconfig.json']) cpSync(join(here, file), join(copy, 'tests/page', file));
  const tsc = join(packages, 'node_modules/typescript/bin/tsc');
  const project = join(copy, 'tests/page/tsconfig.json');
  const { status } = spawnSync(process.execPath, [tsc, '-p', project, '--pretty', 'false'], { stdio: 'inherit' });
  process.exitCode = status ?? 1;
} finally {
  rmSync(copy, { recursive: true, force: true });
}
