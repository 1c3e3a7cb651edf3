// Renew the page when it comes into view again, from the server that renews it whenever it reads it.
// This works in JupyterLab and does nothing elsewhere.
(() => {
  const page = document.currentScript.closest(".start-page");
  const config = document.getElementById("jupyter-config-data");
  if (!page || !config) return;
  const { path } = page.dataset;
  const address = `${JSON.parse(config.textContent).baseUrl}api/contents/${path}?content=1`;

  async function renew() {
    if (document.hidden || !page.isConnected) return;
    const answer = await fetch(address).catch(() => null);
    if (!answer?.ok) return;
    const { cells } = (await answer.json()).content;
    const html = cells.find((cell) => cell.id === "start-page")?.outputs[0]?.data["text/html"] ?? "";
    const fresh = new DOMParser().parseFromString(html, "text/html").querySelector(".start-page");
    if (!fresh || fresh.dataset.state === page.dataset.state) return;
    for (const link of fresh.querySelectorAll("a")) openInsideJupyterLab(link);
    page.dataset.state = fresh.dataset.state;
    page.replaceChildren(...fresh.childNodes);
  }

  function openInsideJupyterLab(link) {
    const [file, fragment] = link.getAttribute("href").split("#");
    const args = { path: path.replace(/[^/]*$/, file), id: fragment && `#${fragment}` };
    link.dataset.commandlinkerCommand = "rendermime:handle-local-link";
    link.dataset.commandlinkerArgs = JSON.stringify(args);
  }

  new IntersectionObserver(renew).observe(page);
  document.addEventListener("visibilitychange", renew);
})();
