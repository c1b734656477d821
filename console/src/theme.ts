/** The theme: light, dark, or that of the system. */

export type Theme = "system" | "light" | "dark";

const THEME = "nakadi.theme";

export function theme(): Theme {
  const stored = localStorage.getItem(THEME);
  return stored === "light" || stored === "dark" ? stored : "system";
}

export function applyTheme(chosen?: Theme): void {
  if (chosen) localStorage.setItem(THEME, chosen);
  const now = theme();
  document.documentElement.style.colorScheme = now === "system" ? "light dark" : now;
}
