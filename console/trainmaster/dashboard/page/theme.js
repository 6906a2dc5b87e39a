// Runs before the first paint, so that a chosen theme doesn't flash. Nothing but this choice outlives the tab.
try {
  const chosen = localStorage.getItem("trainmaster-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // A browser that keeps nothing has the system's theme.
}
