#include "client/cli/explain.h"

#include "absl/strings/str_cat.h"

#include "base/invalid_input.h"
#include "base/status_macros.h"
#include "client/cli/explain_text.h"
#include "client/cli/explanation.h"
#include "client/cli/explanation_json.h"
#include "client/cli/flags.h"
#include "client/cli/watch.h"

namespace eplb::cli {
namespace {

absl::Status CheckRange(const char* flag, int32_t value, int32_t count, const char* what) {
  if (value < count) return absl::OkStatus();
  return InvalidInput(flag, " is ", value, ", the job has ", what, " 0..", count - 1);
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
  if (options.expert >= 0 && options.layer < 0) return InvalidInput("--expert needs --layer");
  EPLB_ASSIGN_OR_RETURN(const Explanation explanation, AskExplanation(options.query, options.job));
  EPLB_RETURN_IF_ERROR(CheckOptions(options, explanation));
  if (options.query.format == Format::kJson) {
    return ExplanationToJson(explanation, options.layer, options.expert);
  }
  if (options.layer < 0) return ExplainJob(explanation, terminal);
  if (options.expert < 0) return ExplainLayer(explanation, options.layer, terminal);
  return ExplainExpert(explanation, options.layer, options.expert, terminal);
}

void AddExplain(const Flags& root) {
  auto [flags, options] = AddCommand<ExplainOptions>(
      root, "explain", "Explain why the placement is as it is", &RunExplain);
  AddCount(flags, "--layer", "L", options.layer, "Show one layer's GPUs and what moved");
  AddCount(flags, "--expert", "E", options.expert, "Show one expert of --layer");
  AddJobOption(flags, options.job);
  AddQueryOptions(flags, options.query, {kNotFound});
  AddWatched(flags);
}

}  // namespace eplb::cli
