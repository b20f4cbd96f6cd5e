#include "client/cli/man.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

#include <CLI/CLI.hpp>

namespace eplb::cli {
namespace {

// A line of text as roff takes it: '-' as typed, no leading '.' or '\''.
std::string Roff(const std::string& text) {
  std::string result = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}});
  if (absl::StartsWith(result, ".") || absl::StartsWith(result, "'")) result.insert(0, "\\&");
  return result;
}

std::string FlagText(const FlagEntry& flag) {
  std::vector<std::string> names;
  for (const std::string& name : flag.names) names.push_back("\\fB" + Roff(name) + "\\fR");
  std::string text = absl::StrJoin(names, ", ");
  const std::string& value = flag.place.empty() ? flag.type : flag.place;
  if (!value.empty()) absl::StrAppend(&text, text.empty() ? "" : " ", "\\fI", Roff(value), "\\fR");
  return absl::StrCat(".TP\n", text, flag.required ? " (required)" : "", "\n", Roff(flag.help),
                      "\n");
}

// Examples and exit codes keep their lines.
std::string FooterText(const std::string& footer) {
  if (footer.empty()) return "";
  std::string text = ".PP\n.nf\n";
  for (const absl::string_view line : absl::StrSplit(footer, '\n')) {
    absl::StrAppend(&text, Roff(std::string(line)), "\n");
  }
  return text + ".fi\n";
}

std::string CommandText(const CommandEntry& command) {
  std::string text =
      absl::StrCat(".SS \"eplbctl ", command.name, "\"\n", Roff(command.help), ".\n");
  for (const FlagEntry& flag : command.flags) {
    const bool help = !flag.names.empty() && flag.names.back() == "--help";
    if (!help) text += FlagText(flag);
  }
  return text + FooterText(command.footer);
}

constexpr char kTail[] = R"(.SH EXIT STATUS
0 ok, 1 error, 2 usage or unusable input, 3 unreachable, 4 denied, 5 not found, 6 conflict,
7 timeout, 8 condition not met (lint, report, diff, doctor, wait, rebalance \-\-wait).
.SH ENVIRONMENT
.TP
.B EPLB_ENDPOINT
The daemon, as HOST:PORT or unix:PATH, when there is no \-\-endpoint.
.TP
.BR EPLB_TLS_CA ", " EPLB_TLS_CERT ", " EPLB_TLS_KEY ", " EPLB_TLS_SERVER_NAME
Each when its flag is not given: \-\-tls\-ca, \-\-tls\-cert, \-\-tls\-key, \-\-tls\-server\-name.
.TP
.BR XDG_CONFIG_HOME ", " HOME ", " XDG_RUNTIME_DIR
Where the configuration file and a socket are looked for, see FILES.
.TP
.BR NO_COLOR ", " TERM ", " COLUMNS
Colour is shown on a terminal only, and not with NO_COLOR or TERM=dumb; COLUMNS overrides its width.
.TP
.BR LC_ALL ", " LC_CTYPE ", " LANG
Bars are drawn with block characters when the first of them that is set names UTF\-8.
.SH FILES
.TP
.IR $XDG_CONFIG_HOME/eplb/eplbctl.toml ", " ~/.config/eplb/eplbctl.toml
endpoint = "HOST:PORT", when neither the flag nor EPLB_ENDPOINT is given; and a table [tls] with ca,
cert, key and server_name, for that endpoint, or for every one when the file has no endpoint. The
second is read only where XDG_CONFIG_HOME is not set.
.TP
.IR /run/eplb/eplbd.sock ", " $XDG_RUNTIME_DIR/eplb/eplbd.sock
Asked next; the last resort is 127.0.0.1:29610.
)";

}  // namespace

std::string ManualPage(const std::vector<CommandEntry>& commands, const std::string& version) {
  std::string text = absl::StrCat(
      ".TH EPLBCTL 1 \"\" \"eplb ", version, "\" \"Expert-parallel load balancer\"\n",
      ".SH NAME\neplbctl \\- plans, checks and watches the placement of experts on GPUs\n",
      ".SH SYNOPSIS\n.B eplbctl\n.I COMMAND\n.RI [ FLAG ...]\n.SH DESCRIPTION\n",
      "Commands with a \\fB\\-\\-endpoint\\fR ask a running eplbd; the others work offline on "
      "files. ",
      "Data goes to stdout, messages to stderr; \\fB\\-o json\\fR is the stable form for "
      "scripts.\n",
      ".SH COMMANDS\n");
  for (const CommandEntry& command : commands) {
    // A command that only holds others, as `get`, has nothing to say.
    if (!command.name.empty() && command.subcommands.empty()) text += CommandText(command);
  }
  return text + kTail;
}

void AddMan(CLI::App& root, Command& command) {
  CLI::App& app = *root.add_subcommand("man", "Print the manual page: eplbctl man | man -l -");
  app.footer("Exit codes: 0 ok, 1 error, 2 wrong flag.");
  app.callback([&root, &command] {
    command = [&root](const Terminal& /*terminal*/) {
      Output output;
      output.out = ManualPage(ListCommands(root), EPLB_VERSION);
      return output;
    };
  });
}

}  // namespace eplb::cli
