// A browser for servers that ask for no password: `node browser.mjs URL` follows all redirects of the page.

const response = await fetch(process.argv[2]);
await response.arrayBuffer();
