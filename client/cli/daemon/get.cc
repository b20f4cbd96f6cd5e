#include "client/cli/daemon/get.h"

#include "client/cli/daemon/get_events.h"
#include "client/cli/daemon/get_jobs.h"
#include "client/cli/daemon/get_placement.h"
#include "client/cli/daemon/get_plans.h"
#include "client/cli/daemon/get_ranks.h"

#include <CLI/CLI.hpp>

namespace eplb::cli {

void AddGet(CLI::App& root, Command& command) {
  CLI::App& app =
      *root.add_subcommand("get", "One thing of the daemon: jobs, ranks, placement, plans, events");
  app.require_subcommand(1);
  AddGetJobs(app, command);
  AddGetRanks(app, command);
  AddGetPlacement(app, command);
  AddGetPlans(app, command);
  AddGetEvents(app, command);
}

}  // namespace eplb::cli
