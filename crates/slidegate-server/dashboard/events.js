// Reads server-sent events from a stream of bytes. EventSource cannot send a token.

/** Yields `{ event, data }` until the stream ends. */
export async function* events(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let [event, data] = ["message", []];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += value;
      // A lone \r at the end may be half of \r\n.
      const lines = rest.split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (data.length) yield { event, data: data.join("\n") };
          [event, data] = ["message", []];
          continue;
        }
        const [, field, content] = /^([^:]*):? ?(.*)$/s.exec(line);
        if (field === "event") event = content;
        else if (field === "data") data.push(content);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
