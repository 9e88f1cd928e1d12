// A person with a browser, for servers that let everybody in: `node browser.mjs URL` follows the page to where it leads.

const response = await fetch(process.argv[2]);
await response.arrayBuffer();
