// Prints how many bytes the files in a folder have in all, each compressed by gzip.

import { readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { gzipSync } from 'node:zlib';

const [folder] = process.argv.slice(2);
const sizes = readdirSync(folder).map((name) => gzipSync(readFileSync(join(folder, name)), { level: 9 }).length);
process.stdout.write(`${sizes.reduce((sum, size) => sum + size, 0)}\n`);
