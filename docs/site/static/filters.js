// Selects above the survey's tables hide the rows that don't fit. Without this script all are shown.
const tables = [...document.querySelectorAll("article table")];
const cells = row => [...row.cells].map(cell => cell.innerText.trim());

function offer(bar, label, values, changed) {
  const select = document.createElement("select");
  select.append(new Option("any", ""), ...values.map(value => new Option(value)));
  select.ariaLabel = label;
  select.addEventListener("change", changed);
  const name = document.createElement("label");
  name.append(`${label} `, select);
  bar.append(name);
  return select;
}

function bar(table) {
  const made = document.createElement("p");
  made.className = "site-filters";
  (table.closest(".table-wrapper") ?? table).before(made);
  return made;
}

// The four questions: a select for each column before "Then look at".
const questions = tables.find(table => cells(table.tHead.rows[0])[0].startsWith("How many users?"));
if (questions) {
  const heads = cells(questions.tHead.rows[0]).map(text => text.split("\n")[0]);
  const rows = [...questions.tBodies[0].rows];
  const asked = heads.slice(0, heads.indexOf("Then look at"));
  const fits = (answer, wanted) => !wanted || answer === wanted || answer === "any";
  const show = () => rows.forEach(row => {
    row.hidden = !selects.every((select, column) => fits(cells(row)[column], select.value));
  });
  const above = bar(questions);
  const selects = asked.map((head, column) => {
    const values = new Set(rows.map(row => cells(row)[column]).filter(text => text !== "any"));
    return offer(above, head, [...values], show);
  });
}

// The engines: one that is looked for, or all that have a technique, in every table at once.
const marks = tables.filter(table => cells(table.tHead.rows[0])[0] === "");
if (marks.length) {
  const heads = marks.map(table => cells(table.tHead.rows[0]));
  const engines = [...marks[0].tBodies[0].rows].map(row => cells(row)[0]);
  const has = technique => {
    const table = heads.findIndex(head => head.includes(technique));
    const rows = [...marks[table].tBodies[0].rows];
    return rows.filter(row => cells(row)[heads[table].indexOf(technique)]).map(row => cells(row)[0]);
  };
  const show = () => {
    const able = technique.value ? has(technique.value) : engines;
    for (const row of marks.flatMap(table => [...table.tBodies[0].rows])) {
      const name = cells(row)[0];
      row.hidden = !able.includes(name) || Boolean(engine.value && name !== engine.value);
    }
  };
  const above = bar(marks[0]);
  const technique = offer(above, "Engines with", heads.flatMap(head => head.slice(1)), show);
  const engine = offer(above, "Engine", engines, show);
}
