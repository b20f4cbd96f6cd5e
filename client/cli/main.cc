// eplbctl. A command is a file of its own, with its flags and what runs it, and a row of the table.
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include <google/protobuf/stubs/logging.h>

#include "base/suggestion.h"
#include "client/cli/change_commands.h"
#include "client/cli/convert.h"
#include "client/cli/diff.h"
#include "client/cli/doctor.h"
#include "client/cli/explain.h"
#include "client/cli/flags.h"
#include "client/cli/get.h"
#include "client/cli/lint.h"
#include "client/cli/manual.h"
#include "client/cli/plan.h"
#include "client/cli/replay.h"
#include "client/cli/report.h"
#include "client/cli/status.h"
#include "client/cli/sweep.h"
#include "client/cli/terminal.h"
#include "client/cli/wait.h"
#include "client/cli/watch.h"

#include <CLI/CLI.hpp>

namespace eplb::cli {
namespace {

constexpr void (*kCommands[])(CLI::App& root, Command& command) = {
    &AddPlan,   &AddReplay,    &AddSweep,      &AddLint,   &AddConvert,  &AddReport,
    &AddStatus, &AddGet,       &AddExplain,    &AddDiff,   &AddTop,      &AddDoctor,
    &AddWait,   &AddRebalance, &AddPause,      &AddResume, &AddRollback, &AddSet,
    &AddForget, &AddHelp,      &AddCompletion, &AddMan};

// The innermost subcommand that was named, e.g. "eplbctl get placement".
std::string NameOf(const CLI::App& app, const std::string& name) {
  const std::vector<CLI::App*> named = app.get_subcommands();
  if (named.empty()) return name;
  return NameOf(*named.front(), name + " " + named.front()->get_name());
}

// The innermost subcommand that was named, or the program itself.
const CLI::App& InnermostOf(const CLI::App& app) {
  const std::vector<CLI::App*> named = app.get_subcommands();
  return named.empty() ? app : InnermostOf(*named.front());
}

std::string UnknownFlag(const CLI::App& command, const std::string& word) {
  const std::string flag = word.substr(0, word.find('='));
  std::vector<std::string> known;
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  return "unknown flag " + flag + Suggestion(flag, known);
}

std::string UnknownCommand(const CLI::App& parent, const std::string& word) {
  std::vector<std::string> known;
  for (const CLI::App* command : parent.get_subcommands([](const CLI::App*) { return true; })) {
    known.push_back(command->get_name());
  }
  return "unknown command \"" + word + "\"" + Suggestion(word, known);
}

// "Could not convert: --gpus = abc" in words of a user; other messages of CLI11 as they are.
std::string ExplainConversion(const std::string& message) {
  static const std::regex conversion("Could not convert: (\\S+) = (.*)");
  std::smatch parts;
  if (!std::regex_match(message, parts, conversion)) return message;
  static const std::regex integer("[+-]?[0-9]+");
  const std::string value = parts[2].str();
  double number = 0;
  std::string expected = "expected a number";
  if (std::regex_match(value, integer)) {
    expected = value.front() == '-' ? "the number is too low" : "the number is too large";
  } else if (absl::SimpleAtod(value, &number) && std::isfinite(number)) {
    expected = "expected an integer";
  }
  return parts[1].str() + " is \"" + value + "\", " + expected;
}

// CLI11 calls an unknown command a missing one, and looks for required flags before unknown ones.
std::string Explain(const CLI::App& root, const CLI::ParseError& error) {
  const std::vector<std::string> rest = root.remaining(true);
  const CLI::App& command = InnermostOf(root);
  for (const std::string& word : rest) {
    if (word.rfind("--", 0) == 0) return UnknownFlag(command, word);
  }
  std::string message = error.what();
  if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) {
    return ExplainConversion(message);
  }
  if (rest.empty()) return message;
  const bool about_commands = message.find("subcommand is required") != std::string::npos;
  if (about_commands) return UnknownCommand(command, rest.front());
  const bool about_rest = dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr;
  return about_rest ? "unexpected argument \"" + rest.front() + "\"" : message;
}

// --help and --version, which CLI11 ends without a newline after a footer.
int PrintHelp(const CLI::App& root, const CLI::ParseError& error) {
  std::ostringstream text;
  (void)root.exit(error, text, text);
  Output output;
  output.out = text.str();
  if (output.out.empty() || output.out.back() != '\n') output.out += '\n';
  return Print(output);
}

// A flag of the commands that were named whose value is empty, as of a shell variable that is not
// set; no flag takes that. Empty: none.
std::string FlagWithoutValue(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    const std::vector<std::string>& values = option->results();
    if (std::find(values.begin(), values.end(), "") != values.end()) return option->get_name();
  }
  for (const CLI::App* named : app.get_subcommands()) {
    std::string flag = FlagWithoutValue(*named);
    if (!flag.empty()) return flag;
  }
  return {};
}

// Nothing was computed, and --help tells the rest.
Output WrongUsage(const CLI::App& root, const std::string& what) {
  return UsageFailure(
      absl::InvalidArgumentError(what + " (see " + NameOf(root, "eplbctl") + " --help)"));
}

int Main(int argc, char** argv) {
  CLI::App root("Plans, checks and watches the placement of experts on GPUs.", "eplbctl");
  root.set_version_flag("--version", "eplbctl " EPLB_VERSION);
  root.require_subcommand(1);
  root.footer("`eplbctl COMMAND --help` shows the flags of a command.");
  Command command;
  for (const auto add : kCommands) add(root, command);
  try {
    root.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return PrintHelp(root, error);
    return Print(WrongUsage(root, Explain(root, error)));
  }
  const std::string flag = FlagWithoutValue(root);
  if (!flag.empty()) return Print(WrongUsage(root, flag + " has an empty value"));
  return RunAndPrint(command);
}

}  // namespace
}  // namespace eplb::cli

int main(int argc, char** argv) {
  // gRPC logs on stderr, where one line is promised.
  setenv("GRPC_VERBOSITY", "NONE", 0);
  google::protobuf::SetLogHandler(nullptr);
  // A file size limit shall fail a write, not kill the process with a file half written.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return eplb::cli::Main(argc, argv);
  } catch (const std::exception& error) {  // of a library, e.g. out of memory
    std::fprintf(stderr, "eplbctl: %s\n", error.what());
    return eplb::cli::kError;
  }
}
