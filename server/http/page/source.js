// Where the figures come from: the daemon's API, or documents that stand in this very file.
"use strict";

eplb.source = (() => {
  // A report's documents, by the path that the API has for each; null on a daemon's page.
  const embedded = () => {
    const holder = document.getElementById("eplb-documents");
    return holder ? JSON.parse(holder.textContent) : null;
  };

  // errors: an Error whose message is one sentence.
  const fetchDocument = async (path, signal) => {
    let response;
    try {
      response = await fetch(path, { signal, cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("the daemon does not answer");
    }
    const body = await response.json().catch(() => null);
    if (!response.ok) throw Object.assign(new Error(body?.error || `HTTP ${response.status}`), { status: response.status });
    if (body === null) throw new Error(`${path} is not JSON`);
    return body;
  };

  const ofDaemon = () => {
    let stream = null;
    const watch = (handlers) => {
      stream = new EventSource("events");
      stream.addEventListener("open", () => handlers.connected());
      stream.addEventListener("error", () => {
        handlers.lost();
        // After an answer other than a stream a browser does not try again by itself.
        if (stream.readyState === EventSource.CLOSED) setTimeout(() => watch(handlers), 5000);
      });
      for (const name of ["job", "job_gone", "event"]) {
        stream.addEventListener(name, (message) => handlers[name](JSON.parse(message.data)));
      }
    };
    return { live: true, kind: "daemon", leftOut: [], get: fetchDocument, watch, close: () => stream?.close() };
  };

  // A file has each answer whole: without the parameters that ask for a part of a list.
  const whole = (path) => {
    const [what, query = ""] = path.split("?");
    const kept = query.split("&").filter((one) => one && !/^(after|limit)=/.test(one));
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
    close: () => {},
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
