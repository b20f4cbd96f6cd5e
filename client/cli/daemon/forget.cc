#include "client/cli/daemon/forget.h"

#include <memory>
#include <string>

#include "client/cli/daemon/run_change.h"

#include <CLI/CLI.hpp>

namespace eplb::cli {

Output RunForget(const ForgetOptions& options) {
  if (options.change.job.empty()) {
    return UsageFailure(absl::InvalidArgumentError("no job is named, expected eplbctl forget JOB"));
  }
  return RunChange(options.change, v1::ForgetRequest());
}

void AddForget(CLI::App& root, Command& command) {
  const auto options = std::make_shared<ForgetOptions>();
  CLI::App& app = *root.add_subcommand(
      "forget", "Remove a job that has no connected rank; its audit log stays");
  const auto place = std::make_shared<std::string>();
  CLI::Option* named = app.add_option("job", *place, "The job to remove")->type_name("JOB");
  AddChangeOptions(app, options->change);
  named->excludes(app.get_option("--job"));
  app.callback([options, place, &command] {
    if (!place->empty()) options->change.job = *place;
    command = [options](const Terminal& /*terminal*/) { return RunForget(*options); };
  });
}

}  // namespace eplb::cli
