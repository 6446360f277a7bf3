// Splits the server's message about invalid rules into problems, each with its line in the text.

/** Returns `[{ line, message }]`. `line` is null if the message names none. Understands `7:3: …`, `… (line 7)` and `line 7: …`. */
export function problems(said) {
  return said.split("\n").filter((words) => words.trim()).map((words) => {
    const front = /^\s*(?:line\s+)?(\d+)(?::\d+)?:\s*(.+)$/i.exec(words);
    if (front) return { line: Number(front[1]), message: front[2] };
    const within = /\(?\bline\s+(\d+)(?:[,:]?\s*(?:column\s*)?\d+)?\)?/i.exec(words);
    if (!within) return { line: null, message: words.trim() };
    const message = within[0].startsWith("(") ? words.replace(within[0], "") : words;
    return { line: Number(within[1]), message: message.trim() };
  });
}
