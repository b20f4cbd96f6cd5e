#include "client/cli/daemon/explain.h"

#include <memory>

#include "absl/strings/str_cat.h"

#include "client/cli/daemon/explain_text.h"
#include "client/cli/daemon/explanation.h"
#include "client/cli/watch.h"

#include <CLI/CLI.hpp>

namespace eplb::cli {
namespace {

absl::Status CheckRange(const char* flag, int32_t value, int32_t count, const char* what) {
  if (value < count) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " is ", value, ", the job has ", what, " 0..", count - 1));
}

absl::Status CheckOptions(const ExplainOptions& options, const Explanation& explanation) {
  if (options.layer < 0) return absl::OkStatus();
  if (explanation.shown() == nullptr) {
    return absl::NotFoundError(absl::StrCat("nothing is known of the layers of job ",
                                            explanation.job.job(),
                                            " yet: no complete load window, or no placement"));
  }
  const Topology& shape = explanation.body->placement.topology();
  absl::Status status = CheckRange("--layer", options.layer, shape.num_layers(), "layers");
  status.Update(CheckRange("--expert", options.expert, shape.num_experts(), "experts"));
  return status;
}

}  // namespace

Output RunExplain(const ExplainOptions& options, const Terminal& terminal) {
  if (options.expert >= 0 && options.layer < 0) {
    return UsageFailure(absl::InvalidArgumentError("--expert needs --layer"));
  }
  const absl::StatusOr<Explanation> explanation = AskExplanation(options.query, options.job);
  if (!explanation.ok()) return QueryFailure(explanation.status());
  if (const absl::Status status = CheckOptions(options, *explanation); !status.ok()) {
    return QueryFailure(status);
  }
  Output output;
  if (options.query.format == Format::kJson) {
    output.out = ExplanationToJson(*explanation, options.layer, options.expert);
  } else if (options.layer < 0) {
    output.out = ExplainJob(*explanation, terminal);
  } else if (options.expert < 0) {
    output.out = ExplainLayer(*explanation, options.layer, terminal);
  } else {
    output.out = ExplainExpert(*explanation, options.layer, options.expert, terminal);
  }
  return output;
}

void AddExplain(CLI::App& root, Command& command) {
  const auto options = std::make_shared<ExplainOptions>();
  CLI::App& app = *root.add_subcommand("explain", "Why is the placement as it is?");
  app.add_option("--layer", options->layer, "One layer's GPUs and what moved")
      ->check(&CheckNotNegative)
      ->type_name("L");
  app.add_option("--expert", options->expert, "One expert of --layer")
      ->check(&CheckNotNegative)
      ->type_name("E");
  AddJobOption(app, options->job);
  AddQueryOptions(app, options->query, {kNotFound});
  AddWatched(app, command,
             [options](const Terminal& terminal) { return RunExplain(*options, terminal); });
}

}  // namespace eplb::cli
