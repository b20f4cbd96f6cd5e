// `eplbctl top`: a job on one screen, which is drawn again and again.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

#include "base/status_macros.h"
#include "client/cli/commands.h"
#include "client/cli/explanation.h"
#include "client/cli/flags.h"
#include "client/cli/job_text.h"
#include "client/cli/text.h"
#include "client/cli/watch.h"

namespace eplb::cli {
namespace {

// [G], summed over layers: what a GPU works in a step.
std::vector<double> SumOverLayers(const Evaluation& evaluation) {
  const auto sums = evaluation.gpu_loads.colwise().sum().eval();
  return {sums.data(), sums.data() + sums.size()};
}

// Beside the static layout what the GPUs got, or what they would get where that is not known.
std::string GpusText(const Explanation& explanation, const Terminal& terminal) {
  const std::vector<double> before = SumOverLayers(*explanation.unmoved);
  const std::vector<double> after = SumOverLayers(*explanation.shown());
  const std::string picture = DrawJobLoads(explanation,
                                           {.before_name = "static",
                                            .after_name = explanation.shown_name(),
                                            .before = before,
                                            .after = after},
                                           terminal);
  if (picture.empty()) return "";
  const std::string heading =
      absl::StrFormat("GPU loads, all layers, steps %d..%d", explanation.load->window.first_step,
                      explanation.load->window.last_step);
  return absl::StrCat("\n", Heading(heading, terminal), picture);
}

// How far the rebalance in flight is on its ranks; empty when none is.
std::string InFlightText(const Explanation& explanation) {
  const v1::JobStatus& job = explanation.job;
  const bool in_flight = job.state() == v1::JOB_STATE_PREPARING ||
                         job.state() == v1::JOB_STATE_VOTING ||
                         job.state() == v1::JOB_STATE_CANCELLING;
  if (!in_flight) return "";
  std::string text = "in flight: ";
  for (const v1::Plan& plan : explanation.plans) {
    // A newer decision may wait for it.
    if (plan.result() != v1::PLAN_RESULT_PROPOSED || plan.first_version() == 0) continue;
    absl::StrAppend(&text, "decision ", plan.plan(), ", chunk ", plan.chunks_committed() + 1,
                    " of ", plan.num_chunks(), ", ");
    break;
  }
  int prepared = 0;
  int applied = 0;
  const v1::RankStatus* slowest = nullptr;
  for (const v1::RankStatus& rank : job.ranks()) {
    const bool has_applied = rank.answer() == v1::RANK_ANSWER_APPLIED;
    if (has_applied) ++applied;
    if (!has_applied && rank.answer() != v1::RANK_ANSWER_PREPARED) continue;
    ++prepared;
    if (slowest == nullptr || rank.answer_seconds() > slowest->answer_seconds()) slowest = &rank;
  }
  absl::StrAppend(&text, prepared, " of ", job.world_size(), " ranks were PREPARED");
  if (slowest != nullptr && slowest->has_answer_seconds()) {
    absl::StrAppend(&text, ", rank ", slowest->rank(), " last, after ",
                    Seconds(slowest->answer_seconds()));
  }
  if (job.state() != v1::JOB_STATE_PREPARING)
    absl::StrAppend(&text, "; ", applied, " have switched");
  return text;
}

// The most important first: a window too low for all of it shows the beginning.
std::string ScreenText(const Explanation& explanation, LayerOrder order, const Terminal& terminal) {
  const v1::JobStatus& job = explanation.job;
  std::string text = absl::StrCat(
      Paint(terminal, Colour::kBold, Printable(job.job())), "  ", StateText(job), " ",
      Seconds(job.state_seconds()), "  ranks ", OrDash(job.has_world_size(), RanksText(job)), "  ",
      StepText(job), "  version ", job.version(),
      job.run_number() == 0 ? "" : absl::StrCat("  run ", job.run_number()), "\n",
      Paragraph(SavedText(job), terminal), Paragraph(BalancednessText(job), terminal),
      StateNotes(job, "", terminal), Paragraph(InFlightText(explanation), terminal));
  if (!job.last_reason().empty()) {
    text += Paragraph("last decision: " + ShortReason(job.last_reason()), terminal);
  }
  if (explanation.shown() == nullptr) return text;
  return absl::StrCat(text, GpusText(explanation, terminal),
                      LayersText(explanation, order, explanation.layers.size(), terminal));
}

}  // namespace

Output RunTop(const TopOptions& options, const Terminal& terminal) {
  EPLB_ASSIGN_OR_RETURN(const Explanation explanation, AskExplanation(options.query, options.job));
  if (options.query.format == Format::kJson) return ExplanationToJson(explanation, -1, -1);
  Output output = ScreenText(explanation, *options.order, terminal);
  output.sort = [order = options.order] {
    *order = order->load() == LayerOrder::kWorst    ? LayerOrder::kNumber
             : order->load() == LayerOrder::kNumber ? LayerOrder::kExpert
                                                    : LayerOrder::kWorst;
  };
  return output;
}

void AddTop(const Flags& root) {
  auto [flags, options] =
      AddCommand<TopOptions>(root, "top", "Show a job's GPU loads and worst layers, live", &RunTop);
  AddJobOption(flags, options.job);
  const auto store = [order = options.order](const std::string& word) {
    *order = word == "layer"    ? LayerOrder::kNumber
             : word == "expert" ? LayerOrder::kExpert
                                : LayerOrder::kWorst;
    return true;
  };
  flags.Word("--sort", {"worst", "layer", "expert"}, store, "Order of the layers [worst]");
  AddQueryOptions(flags, options.query, {kNotFound});
  AddLive(flags);
  flags.SetFooter(absl::StrCat(
      "Keys: s changes the order of the layers, q quits. Arrows, j and k, PageUp and\n"
      "PageDown, space and b, g and G scroll, as they do in every command with --watch.\n",
      flags.footer()));
}

}  // namespace eplb::cli
