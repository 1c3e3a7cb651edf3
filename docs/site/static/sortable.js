// The button in a table's heading sorts the rows by that column; pressed again, the other way.
for (const table of document.querySelectorAll("article table")) {
  const headings = [...table.querySelectorAll("thead th")];
  for (const [column, heading] of headings.entries()) {
    const button = document.createElement("button");
    button.className = "site-sorts";
    button.ariaLabel = `Sort by ${heading.innerText || "name"}`;
    heading.append(button);
    button.addEventListener("click", () => {
      const order = heading.ariaSort === "ascending" ? "descending" : "ascending";
      for (const other of headings) other.ariaSort = other === heading ? order : null;
      const text = row => row.cells[column].innerText.trim();
      const compare = (one, other) =>
        !text(one) - !text(other) || // empty cells come last
        text(one).localeCompare(text(other), "en", { numeric: true }) *
          (order === "ascending" ? 1 : -1);
      const body = table.tBodies[0];
      body.append(...[...body.rows].sort(compare));
    });
  }
}
