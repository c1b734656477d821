/** Starts a browser that the scripts of all tests share, prints its address, and ends with its standard input. */

import { chromium, launchOptions } from "./launch.mjs";

const server = await chromium.launchServer(launchOptions());
process.stdin.on("end", () => server.close());
process.stdin.resume();
console.log(server.wsEndpoint());
