// `eplbctl help` and `eplbctl man`: pages about the commands, from the tree of commands.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

#include "base/errors.h"
#include "base/foreign_text.h"
#include "client/cli/commands.h"

namespace eplb::cli {
namespace {

// The same words and numbers as docs/costs.md.
constexpr char kCosts[] =
    R"(How costs decide whether a new placement is applied

With cost.token_ns (eplbd) or --expert-bytes (eplbctl replay) a decision counts
seconds. Without them policy auto of eplbd measures its prices, and other
policies go by min_gain alone. The rule is the same for every policy.

  peak GPU load    per layer the tokens of its fullest GPU; summed over layers
  migration        bytes of the busiest link / its bandwidth + cost.stall
  replicas         training only: weights and gradients that replicas on other
                   GPUs send each step, beyond those of the current placement
  back-test        the policy decides on the job's own windows as if its
                   placements ran; later windows show what they are worth
  predicted gain   fall of the peak GPU load on the windows that the decision
                   covers
  share            part of earlier predicted gains that later windows showed;
                   one half before the first comparison
  horizon          steps that a gain counts over: four decisions, at most
                   horizon_steps
  missed           what the back-test's placements have certainly saved since
                   the current placement took effect
  loss budget      0.3 % of the time without any move + saved - spent so far

A new placement is applied when all of this holds:
  1. the peak GPU load of these steps would fall by at least min_gain;
  2. the back-test has a candidate that beats doing nothing;
  3. share * predicted gain * horizon - replicas is more than the migration
     (four migrations before the first comparison), or the missed seconds are.
A migration above the loss budget goes by figures with more of their scatter
taken off. If nothing is proved and the starting placement is certainly ahead,
the job returns to it.

Example. 1.51 ms a step are predicted, the share is 62 %, the horizon 200 steps,
the migration takes 20 ms. There are no replicas.
  3. 0.62 * 1.51 ms * 200 = 190 ms > 20 ms: it is applied.

More: docs/costs.md.
)";

constexpr char kCostsTopic[] = "costs";
constexpr char kTopics[] = "costs (how costs decide whether a new placement is applied)";
constexpr size_t kMaxTopic = 80;

// A line of text as roff takes it: '-' as typed, no leading '.' or '\''.
std::string Roff(const std::string& text) {
  std::string result = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}});
  if (absl::StartsWith(result, ".") || absl::StartsWith(result, "'")) result.insert(0, "\\&");
  return result;
}

// The help of a command, whose lines stay as they are.
std::string CommandText(const CommandTree& tree, const std::string& command) {
  std::string text = absl::StrCat(".SS \"eplbctl ", command, "\"\n.nf\n");
  const std::string help = tree.HelpOf(absl::StrSplit(command, ' '));
  for (const absl::string_view line : absl::StrSplit(help, '\n')) {
    absl::StrAppend(&text, Roff(std::string(line)), "\n");
  }
  return text + ".fi\n";
}

constexpr char kTail[] = R"(.SH EXIT STATUS
0 ok, 1 error, 2 usage or unusable input, 3 unreachable, 4 denied, 5 not found, 6 conflict,
7 timeout, 8 condition not met (lint, report, diff, doctor, wait, rebalance \-\-wait).
.SH ENVIRONMENT
.TP
.B EPLB_ENDPOINT
Daemon to contact, as HOST:PORT or unix:PATH, or several separated by commas; used without \-\-endpoint.
.TP
.BR EPLB_TLS_CA ", " EPLB_TLS_CERT ", " EPLB_TLS_KEY ", " EPLB_TLS_SERVER_NAME
Used if the flag is not given: \-\-tls\-ca, \-\-tls\-cert, \-\-tls\-key, \-\-tls\-server\-name.
.TP
.B EPLB_CONTEXT
Name of a daemon in the configuration file; used without \-\-context, \-\-endpoint and EPLB_ENDPOINT.
.TP
.BR XDG_CONFIG_HOME ", " HOME ", " XDG_RUNTIME_DIR
Folders in which the configuration file and a socket are searched, see FILES.
.TP
.BR NO_COLOR ", " TERM ", " COLUMNS
Colour is used only on a terminal, and not with NO_COLOR or TERM=dumb; COLUMNS overrides the width.
.TP
.BR LC_ALL ", " LC_CTYPE ", " LANG
Bars are drawn with block characters if the first of these variables that is set names UTF\-8.
.SH FILES
.TP
.IR $XDG_CONFIG_HOME/eplb/eplbctl.toml ", " ~/.config/eplb/eplbctl.toml
endpoint = "HOST:PORT", used if neither the flag nor EPLB_ENDPOINT is given; and a table [tls] with ca,
cert, key and server_name, for that endpoint, or for every endpoint if the file has none. The second
path is read only if XDG_CONFIG_HOME is not set.
.TP
.IR /run/eplb/eplbd.sock ", " $XDG_RUNTIME_DIR/eplb/eplbd.sock
Used next, if a daemon serves them; the last resort is 127.0.0.1:29610.
)";

// Returns the page of a topic, the help of the command that the words name, or that of the program
// without words. Exit 2, naming the topics, if there is no such page.
Output RunHelp(const CommandTree& tree, const std::vector<std::string>& words) {
  if (words == std::vector<std::string>{kCostsTopic}) return std::string(kCosts);
  std::string page = tree.HelpOf(words);
  if (!page.empty()) return page;
  return InvalidInput("no page on \"", Clipped(absl::StrJoin(words, " "), kMaxTopic),
                      "\", expected a command or one of: ", kTopics);
}

// Returns the manual page in roff, for section 1.
std::string ManualPage(const CommandTree& tree) {
  std::string text =
      ".TH EPLBCTL 1 \"\" \"eplb " EPLB_VERSION
      "\" \"Expert-parallel load balancer\"\n"
      ".SH NAME\neplbctl \\- plans, checks and watches the placement of experts on GPUs\n"
      ".SH SYNOPSIS\n.B eplbctl\n.I COMMAND\n.RI [ FLAG ...]\n.SH DESCRIPTION\n"
      "Commands with a \\fB\\-\\-endpoint\\fR ask a running eplbd; the others work offline on "
      "files.\n"
      "Data is written to stdout, messages to stderr; \\fB\\-o json\\fR is the stable form for "
      "scripts.\n"
      ".SH COMMANDS\n";
  for (const std::string& command : tree.Commands()) text += CommandText(tree, command);
  return text + kTail;
}

}  // namespace

void AddHelp(const Flags& root, const CommandTree& tree) {
  const auto words = std::make_shared<std::vector<std::string>>();
  Flags flags = root.AddCommand(
      "help",
      absl::StrCat("Show the flags of a command, or explain words of the output: ", kTopics),
      [words, &tree](const Terminal& /*terminal*/) { return RunHelp(tree, *words); });
  flags.Texts("topic", "TOPIC", *words, "Command or topic [this program]");
  flags.SetFooter(
      "Examples:\n"
      "  eplbctl help get placement\n"
      "  eplbctl help costs\n"
      "Exit codes: 0 ok, 2 no such page.");
}

void AddMan(const Flags& root, const CommandTree& tree) {
  const Flags flags =
      root.AddCommand("man", "Print the manual page: eplbctl man | man -l -",
                      [&tree](const Terminal& /*terminal*/) -> Output { return ManualPage(tree); });
  flags.SetFooter("Exit codes: 0 ok, 1 error, 2 wrong flag.");
}

}  // namespace eplb::cli
