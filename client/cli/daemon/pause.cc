#include "client/cli/daemon/pause.h"

#include <memory>

#include "client/cli/daemon/run_change.h"

#include <CLI/CLI.hpp>

namespace eplb::cli {

Output RunPause(const PauseOptions& options) {
  return RunChange(options.change, v1::PauseRequest());
}

void AddPause(CLI::App& root, Command& command) {
  const auto options = std::make_shared<PauseOptions>();
  CLI::App& app = *root.add_subcommand("pause", "No more proposals for a job until it is resumed");
  AddChangeOptions(app, options->change);
  app.callback([options, &command] {
    command = [options](const Terminal& /*terminal*/) { return RunPause(*options); };
  });
}

}  // namespace eplb::cli
