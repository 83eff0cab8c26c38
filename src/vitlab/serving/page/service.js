// Questions to the service. Its refusals become errors with a code that words.js can say in the visitor's language.

const PATIENCE = 3; // how often a full queue is asked again

export class ServiceError extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

let token = null;

/** The bearer token for what is asked from now on; it is kept nowhere else. */
export function useToken(text) {
  token = text;
}

/** A file of the page's own. */
export async function fetchFile(path) {
  try {
    const response = await fetch(path);
    if (response.ok) return await response.blob();
  } catch {
    // said below
  }
  throw new ServiceError("unreachable", `The service does not give ${path}.`);
}

/** The JSON that a path answers with; a body makes it a POST. */
export async function ask(path, body = null, signal = undefined) {
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  if (body) headers["content-type"] = body.type || "application/octet-stream";
  for (let tries = 1; ; tries++) {
    let response;
    try {
      response = await fetch(path, { method: body ? "POST" : "GET", headers, body, signal });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ServiceError("unreachable", "The service does not answer.");
    }
    if (response.ok) return response.json();
    const { code, message } = await refusal(response);
    if (response.status !== 503 || tries === PATIENCE) throw new ServiceError(code, message);
    await new Promise((wake) => setTimeout(wake, 1000 * Math.min(5, Number(response.headers.get("retry-after")) || 1)));
  }
}

async function refusal(response) {
  try {
    return (await response.json()).error;
  } catch {
    return { code: "internal", message: `${response.status} ${response.statusText}` };
  }
}

/** Answers for one picture, each asked for once; what is not awaited any more is given up with the picture. */
export class Answers {
  constructor(body) {
    this.body = body;
    this.kept = new Map();
    this.end = new AbortController();
  }

  get(path) {
    if (!this.kept.has(path)) {
      const answer = ask(path, this.body, this.end.signal);
      answer.catch(() => this.kept.delete(path));
      this.kept.set(path, answer);
    }
    return this.kept.get(path);
  }

  drop() {
    this.end.abort();
  }
}
