#include "client/cli/daemon/rollback.h"

#include <memory>
#include <utility>

#include "client/cli/daemon/run_change.h"

#include <CLI/CLI.hpp>

namespace eplb::cli {

Output RunRollback(const RollbackOptions& options) {
  v1::RollbackRequest request;
  if (options.to >= 0) request.set_to_version(static_cast<uint64_t>(options.to));
  return RunChange(options.change, std::move(request));
}

void AddRollback(CLI::App& root, Command& command) {
  const auto options = std::make_shared<RollbackOptions>();
  CLI::App& app = *root.add_subcommand(
      "rollback", "Back to an earlier placement; pauses the job, so that it stays");
  app.add_option("--to", options->to, "Version to go back to [before the newest rebalance]")
      ->check(&CheckNotNegative)
      ->type_name("V");
  AddChangeOptions(app, options->change);
  app.callback([options, &command] {
    command = [options](const Terminal& /*terminal*/) { return RunRollback(*options); };
  });
}

}  // namespace eplb::cli
