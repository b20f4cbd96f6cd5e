#include "client/cli/daemon/resume.h"

#include <memory>

#include "client/cli/daemon/run_change.h"

#include <CLI/CLI.hpp>

namespace eplb::cli {

Output RunResume(const ResumeOptions& options) {
  return RunChange(options.change, v1::ResumeRequest());
}

void AddResume(CLI::App& root, Command& command) {
  const auto options = std::make_shared<ResumeOptions>();
  CLI::App& app = *root.add_subcommand("resume", "Proposals again: ends a pause and a QUARANTINE");
  AddChangeOptions(app, options->change);
  app.callback([options, &command] {
    command = [options](const Terminal& /*terminal*/) { return RunResume(*options); };
  });
}

}  // namespace eplb::cli
