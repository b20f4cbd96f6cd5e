// eplbctl. A command is a file of its own, with its flags and what runs it, and a row of the table.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

#include <google/protobuf/stubs/logging.h>

#include "base/command_line.h"
#include "base/foreign_text.h"
#include "base/invalid_input.h"
#include "client/cli/change_commands.h"
#include "client/cli/context.h"
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
    &AddPlan,   &AddReplay,    &AddSweep,   &AddLint,       &AddConvert,  &AddReport,
    &AddStatus, &AddGet,       &AddExplain, &AddDiff,       &AddTop,      &AddDoctor,
    &AddWait,   &AddRebalance, &AddPause,   &AddResume,     &AddRollback, &AddSet,
    &AddForget, &AddContext,   &AddHelp,    &AddCompletion, &AddMan};

// The innermost subcommand that was named, e.g. "eplbctl get placement".
std::string NameOf(const CLI::App& app, const std::string& name) {
  const std::vector<CLI::App*> named = app.get_subcommands();
  if (named.empty()) return name;
  return NameOf(*named.front(), name + " " + named.front()->get_name());
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

// Nothing was computed, and --help tells the rest.
Output WrongUsage(const CLI::App& root, const std::string& what) {
  return UsageFailure(InvalidInput(what + " (see " + NameOf(root, "eplbctl") + " --help)"));
}

int Main(int argc, char** argv) {
  CLI::App root("Plans, checks and watches the placement of experts on GPUs.", "eplbctl");
  root.set_version_flag("--version", "eplbctl " EPLB_VERSION);
  root.require_subcommand(1);
  std::string context;  // both are read where a command asks a daemon
  std::string endpoint;
  root.add_option("--context", context, "As behind a command that asks a daemon")
      ->type_name("NAME");
  root.add_option("--endpoint", endpoint, "As behind a command that asks a daemon")
      ->type_name("HOST:PORT|unix:PATH");
  root.footer("`eplbctl COMMAND --help` shows the flags of a command.");
  Command command;
  for (const auto add : kCommands) add(root, command);
  try {
    root.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return PrintHelp(root, error);
    return Print(WrongUsage(root, ExplainParseError(root, error)));
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
    std::fprintf(stderr, "eplbctl: %s\n", eplb::Printable(error.what()).c_str());
    return eplb::cli::kError;
  }
}
