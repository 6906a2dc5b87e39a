// Shows a form for a Kubernetes token. The page shows only what the token's owner may see.

import { forgetToken, setToken } from "./api.js";
import { copyButton, h } from "./dom.js";

const COMMAND = "kubectl create token my-account --namespace my-team --duration 8h";

/** Asks for a token in `main`, shows the reason, and then calls `done`. A laptop's page needs no token. */
export function signIn(main, refused, done) {
  forgetToken();
  document.title = "Sign in · Trainmaster";
  if (refused.mode === "laptop") {
    main.replaceChildren(h("section.card.form", h("h1", "This tab has no access"), h("p", refused.message),
      h("p", "Open it again from the terminal: "), command("kubectl dtj open")));
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
      h("h1", "Sign in"),
      h("p", { id: "token-why", role: "alert" }, refused.message),
      form,
      h("div", { id: "token-help" },
        h("p", "This page shows what the account of your Kubernetes token may see. ",
          "Your administrator may have given you a token. If you may create tokens for a service account, run:"),
        command(COMMAND),
        h("p.muted", "The token stays in this tab and is dropped when you close it."))));
  field.focus();
}

/** Returns a command with a button to copy it. */
export function command(line) {
  return h("div.command", h("code", { tabindex: 0 }, line), copyButton(() => line));
}
