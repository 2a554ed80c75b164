// Sends the decision on a draft, and moves on to the next draft when it is written.
const token = document.querySelector("meta[name=rag-eval-token]").content;
const left = document.querySelector("#left");

async function send(form, decision) {
  const answer = await fetch("/decide", {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Rag-Eval-Token": token },
    body: JSON.stringify({
      query_id: form.dataset.queryId,
      version: form.dataset.version,
      decision,
      text: form.elements.text.value,
    }),
  });
  if (!answer.ok) throw new Error((await answer.json()).error);
}

function next() {
  const open = document.querySelector("form.draft:not([data-decided]) input");
  if (open) open.focus();
  else location.reload(); // shows what to do next
}

for (const form of document.querySelectorAll("form.draft")) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const decision = event.submitter?.value ?? "accept";
    const status = form.querySelector("[role=status]");
    const fields = form.querySelectorAll("input, button");
    status.textContent = "Writing…";
    for (const field of fields) field.disabled = true;
    try {
      await send(form, decision);
    } catch (error) {
      status.textContent = error instanceof TypeError ? "The viewer does not answer." : error.message;
      for (const field of fields) field.disabled = false;
      return;
    }
    form.dataset.decided = decision;
    status.textContent = decision === "accept" ? "Accepted." : "Dropped.";
    left.dataset.left -= 1;
    left.textContent = `${left.dataset.left} left`;
    next();
  });
}
