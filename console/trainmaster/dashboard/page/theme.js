// Sets the chosen theme before the first paint, so that the page doesn't flash. Only this choice outlives the tab.
try {
  const chosen = localStorage.getItem("trainmaster-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
} catch {
  // If the browser stores nothing, the system's theme applies.
}
