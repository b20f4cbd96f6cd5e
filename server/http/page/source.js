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
  const ANSWER_MS = 10000, SILENCE_MS = 35000, RETRY_MS = 5000;
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

  // Pushed events while the page is visible: a browser has few connections to one host, and each page holds one.
  const ofDaemon = () => {
    const watch = (handlers) => {
      let stream = null, heard = 0, retry = null;
      const close = () => { stream?.close(); stream = null; clearTimeout(retry); };
      const open = () => {
        close();
        if (document.hidden) return;
        heard = Date.now();
        stream = new EventSource("events");
        stream.addEventListener("open", () => { heard = Date.now(); handlers.connected(); });
        stream.addEventListener("error", () => {
          handlers.lost();
          // After an answer that is no stream, or none at all, a browser may not try again by itself.
          if (stream?.readyState === EventSource.CLOSED) retry = setTimeout(open, RETRY_MS);
        });
        for (const name of ["jobs", "job", "job_gone", "event", "alive"]) {
          stream.addEventListener(name, () => { heard = Date.now(); if (name !== "alive") handlers.news(); });
        }
      };
      // A daemon that is frozen, or a network that drops, ends no stream.
      setInterval(() => { if (stream?.readyState === EventSource.OPEN && Date.now() - heard > SILENCE_MS) { handlers.lost(); open(); } }, 5000);
      document.addEventListener("visibilitychange", () => { if (document.hidden) close(); else open(); });
      open();
    };
    return { live: true, kind: "daemon", leftOut: [], get: fetchDocument, watch };
  };

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
    watch: () => {},
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
