// Source of the figures: the daemon's API, or documents in this file.
"use strict";

eplb.source = (() => {
  // A report's documents, by the path that the API has for each; null on a daemon's page.
  const embedded = () => {
    const holder = document.getElementById("eplb-documents");
    return holder ? JSON.parse(holder.textContent) : null;
  };

  // errors: an Error whose message is one sentence.
  // `lost`: there was no answer at all. `status`: of an answer that was an error.
  const ANSWER_MS = 10000;
  const fetchDocument = async (path) => {
    let response, body;
    try {
      response = await fetch(path, { signal: AbortSignal.timeout(ANSWER_MS), cache: "no-store" });
      body = await response.json().catch((error) => { if (error.name === "TimeoutError") throw error; return null; });
    } catch {
      throw Object.assign(new Error("the daemon does not answer"), { lost: true });
    }
    if (!response.ok) throw Object.assign(new Error(body?.error || `HTTP ${response.status}`), { status: response.status });
    if (body === null) throw new Error(`${path} is not JSON`);
    return body;
  };

  const ofDaemon = () => ({ live: true, kind: "daemon", leftOut: [], get: fetchDocument });

  // A file has each answer whole: without the parameters that ask for a part of a list.
  const whole = (path) => {
    const [what, query = ""] = path.split("?");
    const kept = query.split("&").filter((one) => one && !/^(after|limit|ranks)=/.test(one));
    return kept.length ? `${what}?${kept.join("&")}` : what;
  };
  // kind: "run", of a run's directory, or "trace", of a replay. left_out: panels that it knows nothing for.
  const ofFile = (documents) => ({
    live: false,
    kind: documents.kind,
    leftOut: documents.left_out,
    made: documents.made,
    get: async (path) => {
      const key = whole(path);
      if (!Object.hasOwn(documents.paths, key)) throw Object.assign(new Error("this report does not hold it"), { status: 404 });
      return documents.paths[key];
    },
  });

  const open = () => {
    const documents = embedded();
    return documents ? ofFile(documents) : ofDaemon();
  };
  const ofJob = (job, what, query = {}) => {
    const text = Object.entries(query).filter(([, value]) => value !== undefined && value !== null)
      .map(([key, value]) => `${key}=${encodeURIComponent(value)}`).join("&");
    return `api/v1/jobs/${encodeURIComponent(job)}${what ? `/${what}` : ""}${text ? `?${text}` : ""}`;
  };
  return { open, ofJob };
})();
