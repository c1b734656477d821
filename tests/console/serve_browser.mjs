/** Starts a browser that the scripts of all tests share, and prints its address. Ends when its standard input ends. */

import { chromium, launchOptions } from "./launch.mjs";

const server = await chromium.launchServer(launchOptions());
process.stdin.on("end", () => server.close());
process.stdin.resume();
console.log(server.wsEndpoint());
