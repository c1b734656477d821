import { defineConfig } from "vite";

// `npm run dev` serves the sources as they are edited, and passes calls of the API on to a broker.
const broker = process.env.NAKADI_URL ?? "http://127.0.0.1:8080";

export default defineConfig(({ command }) => ({
  // Relative, so that the console works below any path that a proxy gives it.
  base: command === "serve" ? "/console/" : "./",
  build: { outDir: "../.cache/console/built", emptyOutDir: true, assetsInlineLimit: 0, modulePreload: { polyfill: false } },
  server: { proxy: { "^/(?!console/)": broker } },
}));
