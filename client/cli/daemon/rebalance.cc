#include "client/cli/daemon/rebalance.h"

#include <memory>
#include <utility>

#include "client/cli/daemon/run_change.h"

#include <CLI/CLI.hpp>

namespace eplb::cli {

Output RunRebalance(const RebalanceOptions& options) {
  v1::RebalanceRequest request;
  request.set_force(options.force);
  return RunChange(options.change, std::move(request));
}

void AddRebalance(CLI::App& root, Command& command) {
  const auto options = std::make_shared<RebalanceOptions>();
  CLI::App& app = *root.add_subcommand("rebalance", "Decide now, from the newest windows");
  app.add_flag("--force", options->force,
               "Propose what the policy changes, without asking whether it pays");
  AddChangeOptions(app, options->change);
  app.callback([options, &command] {
    command = [options](const Terminal& /*terminal*/) { return RunRebalance(*options); };
  });
}

}  // namespace eplb::cli
