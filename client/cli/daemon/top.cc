#include "client/cli/daemon/top.h"

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "client/cli/daemon/explain_text.h"
#include "client/cli/daemon/explanation.h"
#include "client/cli/daemon/job_text.h"
#include "client/cli/gpu_picture.h"
#include "client/cli/text.h"
#include "client/cli/watch.h"

#include <CLI/CLI.hpp>

namespace eplb::cli {
namespace {

constexpr size_t kTopLayers = 5;
constexpr int kTopIndent = 2;

// [G], summed over layers: what a GPU works in a step.
std::vector<double> SumOverLayers(const Evaluation& evaluation) {
  const auto sums = evaluation.gpu_loads.colwise().sum().eval();
  return {sums.data(), sums.data() + sums.size()};
}

// Beside the static layout what the GPUs got, or what they would get where that is not known.
std::string GpusText(const Explanation& explanation, const Terminal& terminal) {
  const std::vector<double> before = SumOverLayers(*explanation.unmoved);
  const std::vector<double> after = SumOverLayers(*explanation.shown());
  double mean = 0;
  for (const double tokens : after) mean += tokens / static_cast<double>(after.size());
  if (!(mean > 0)) return "";
  const Placement& placement = explanation.body->placement;
  GpuPicture picture{.before_name = "static",
                     .after_name = explanation.shown_name(),
                     .before = before,
                     .after = after,
                     .unusable = {},
                     .mean = mean};
  for (int32_t gpu = 0; gpu < placement.topology().num_gpus(); ++gpu) {
    picture.unusable.push_back(!placement.Holds(GpuId{gpu}));
  }
  const std::string heading =
      absl::StrFormat("GPU loads, all layers, steps %d..%d", explanation.load->window.first_step,
                      explanation.load->window.last_step);
  return absl::StrCat("\n", Paint(terminal, Colour::kBold, heading), "\n",
                      DrawGpuLoads(picture, terminal));
}

// The most important first: a window too low for all of it shows the beginning.
std::string ScreenText(const Explanation& explanation, const Terminal& terminal) {
  const v1::JobStatus& job = explanation.job;
  std::string text = absl::StrCat(
      Paint(terminal, Colour::kBold, Printable(job.job())), "  ", StateText(job), " ",
      Seconds(job.state_seconds()), "  ranks ", job.connected_ranks(), "/", job.world_size(),
      "  step ", Grouped(static_cast<int64_t>(job.step())), "  version ", job.version(),
      job.launch() == 0 ? "" : absl::StrCat("  launch ", job.launch()), "\n",
      Wrapped(BalancednessText(job), terminal.width, kTopIndent), "\n",
      StateNotes(job, "", terminal));
  if (explanation.shown() != nullptr) {
    absl::StrAppend(&text, GpusText(explanation, terminal),
                    WorstLayers(explanation, kTopLayers, terminal));
  }
  if (!job.last_reason().empty()) {
    absl::StrAppend(
        &text, "\n",
        Wrapped("last decision: " + Printable(job.last_reason()), terminal.width, kTopIndent),
        "\n");
  }
  return text;
}

}  // namespace

Output RunTop(const TopOptions& options, const Terminal& terminal) {
  const absl::StatusOr<Explanation> explanation = AskExplanation(options.query, options.job);
  if (!explanation.ok()) return QueryFailure(explanation.status());
  return {.exit_code = kOk,
          .out = options.query.format == Format::kJson ? ExplanationToJson(*explanation, -1, -1)
                                                       : ScreenText(*explanation, terminal),
          .message = {}};
}

void AddTop(CLI::App& root, Command& command) {
  const auto options = std::make_shared<TopOptions>();
  CLI::App& app = *root.add_subcommand("top", "A job's GPU loads and worst layers, live");
  AddJobOption(app, options->job);
  AddQueryOptions(app, options->query, {kNotFound});
  AddLive(app, command, [options](const Terminal& terminal) { return RunTop(*options, terminal); });
}

}  // namespace eplb::cli
