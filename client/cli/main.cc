// eplbctl: declares the commands, parses the command line, runs the command that it names.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include <google/protobuf/stubs/logging.h>

#include "base/foreign_text.h"
#include "client/cli/commands.h"
#include "client/cli/watch.h"

namespace eplb::cli {
namespace {

constexpr void (*kCommands[])(const Flags& root) = {
    &AddPlan,      &AddReplay, &AddSweep,   &AddLint,     &AddConvert, &AddJoin,   &AddReport,
    &AddStatus,    &AddGet,    &AddExplain, &AddDiff,     &AddTop,     &AddDoctor, &AddWait,
    &AddRebalance, &AddPause,  &AddResume,  &AddRollback, &AddSet,     &AddForget, &AddContext};

int Main(int argc, char** argv) {
  CommandTree tree("eplbctl", "Plans, checks and watches the placement of experts on GPUs.");
  tree.SetVersion("eplbctl " EPLB_VERSION);
  Flags root = tree.root();
  std::string context;  // AddQueryOptions reads both
  std::string endpoint;
  root.Text("--context", "NAME", context,
            "Daemon to contact, by its name in the configuration file");
  root.Text("--endpoint", "HOST:PORT|unix:PATH", endpoint,
            "Daemon to contact, or several, A,B: the leading one answers");
  root.SetFooter("`eplbctl COMMAND --help` shows the flags of a command.");
  for (const auto add : kCommands) add(root);
  AddHelp(root, tree);
  AddCompletion(root, tree);
  AddMan(root, tree);
  return RunAndPrint(tree.Parse(argc, argv));
}

}  // namespace
}  // namespace eplb::cli

int main(int argc, char** argv) {
  // gRPC would log on stderr, which has one line.
  setenv("GRPC_VERBOSITY", "NONE", 0);
  google::protobuf::SetLogHandler(nullptr);
  // A file size limit must fail a write instead of killing the process with a file half written.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return eplb::cli::Main(argc, argv);
  } catch (const std::exception& error) {  // from a library, e.g. out of memory
    std::fprintf(stderr, "eplbctl: %s\n", eplb::Printable(error.what()).c_str());
    return eplb::cli::kError;
  }
}
