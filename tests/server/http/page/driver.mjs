// A real browser under the control of a test: one JSON command a line on stdin, one JSON answer a line on stdout.
//   node driver.mjs CHROMIUM      with NODE_PATH's playwright-core and axe-core
import { createRequire } from "node:module";
import readline from "node:readline";

const require = createRequire(process.env.EPLB_NODE_MODULES + "/");
const { chromium } = require("playwright-core");
const TIMEOUT_MS = 30000;

const browser = await chromium.launch({ executablePath: process.argv[2], args: ["--no-sandbox", "--disable-gpu"] });
let page = null;
let inspector = null;
let seen = { errors: [], requests: [] };

// By the inspector's protocol: the page's policy forbids eval, which the library's own calls use.
const evaluate = async (expression) => {
  const { result, exceptionDetails } = await inspector.send("Runtime.evaluate", { expression, returnByValue: true, awaitPromise: true });
  if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
  return result.value;
};
const until = async (expression) => {
  const end = Date.now() + TIMEOUT_MS;
  while (!(await evaluate(expression))) {
    if (Date.now() > end) throw new Error(`not within ${TIMEOUT_MS} ms: ${expression}`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
};

const commands = {
  // Opens a fresh page; what it logs and asks for is kept for `seen`.
  open: async ({ url, width = 1440, height = 900, theme = "light" }) => {
    await page?.close();
    seen = { errors: [], requests: [] };
    page = await browser.newPage({ viewport: { width, height }, colorScheme: theme, reducedMotion: "reduce" });
    page.setDefaultTimeout(TIMEOUT_MS);
    inspector = await page.context().newCDPSession(page);
    page.on("console", (message) => { if (["error", "warning"].includes(message.type())) seen.errors.push(message.text()); });
    page.on("pageerror", (error) => seen.errors.push(String(error)));
    page.on("request", (request) => seen.requests.push(request.url()));
    await page.goto(url);
  },
  evaluate: async ({ script }) => evaluate(script),
  wait: async ({ script }) => until(script),
  key: async ({ name }) => page.keyboard.press(name),
  hover: async ({ selector }) => page.hover(selector),
  click: async ({ selector }) => page.click(selector),
  focus: async ({ selector }) => page.focus(selector),
  offline: async ({ offline }) => page.context().setOffline(offline),
  screenshot: async ({ path, full = true }) => { await page.screenshot({ path, fullPage: full }); },
  seen: async () => seen,
  // Returns the findings of axe-core, with their impact.
  axe: async () => {
    await evaluate(`${require("axe-core").source};undefined`);
    return evaluate(`axe.run(document, { resultTypes: ["violations"] }).then((found) => found.violations.map((one) =>
      ({ id: one.id, impact: one.impact, nodes: one.nodes.map((node) => node.html.slice(0, 200) + " " + node.failureSummary) })))`);
  },
};

for await (const line of readline.createInterface({ input: process.stdin })) {
  const { command, ...rest } = JSON.parse(line);
  let answer;
  try {
    answer = { value: (await commands[command](rest)) ?? null };
  } catch (error) {
    answer = { error: String(error) };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
await browser.close();
