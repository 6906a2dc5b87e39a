// The form for a Kubernetes token: the page shows what its owner may see.

import { forgetToken, setToken } from "./api.js";
import { copyButton, h } from "./dom.js";

const COMMAND = "kubectl create token my-account --namespace my-team --duration 8h";

/** Asks for a token in `main`, says why, and calls `done` when there is one. On a laptop there is none to ask for. */
export function signIn(main, refused, done) {
  forgetToken();
  document.title = "Sign in · Trainmaster";
  if (refused.mode === "laptop") {
    main.replaceChildren(h("section.card.form", h("h1", "This tab has no access"), h("p", refused.message),
      h("p", "Open it anew from the terminal: "), command("kubectl dtj open")));
    return;
  }
  const field = h("input", { type: "password", id: "token", autocomplete: "off", spellcheck: "false", required: true, "aria-describedby": "token-help token-why" });
  const form = h("form", {
    onsubmit: (event) => {
      event.preventDefault();
      setToken(field.value.trim());
      done();
    },
  },
    h("label", { for: "token" }, "Token"), field, h("button.primary", "Show my jobs"));
  main.replaceChildren(
    h("section.card.form", {},
      h("h1", "Whose jobs?"),
      h("p", { id: "token-why", role: "alert" }, refused.message),
      form,
      h("div", { id: "token-help" },
        h("p", "A Kubernetes token says who you are; this page shows what that account may see, and nothing else. ",
          "Your administrator may have given you one. Who may make tokens for a service account gets one so:"),
        command(COMMAND),
        h("p.muted", "It stays in this tab and is forgotten when you close it."))));
  field.focus();
}

/** Returns a command with a button that copies it. */
export function command(line) {
  return h("div.command", h("code", { tabindex: 0 }, line), copyButton(() => line));
}
