#include "client/cli/plan_losses.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/errors.h"
#include "base/status_macros.h"
#include "client/cli/text.h"
#include "proto/wire/placement_json.h"

#include <nlohmann/json.hpp>

namespace eplb::cli {
namespace {

constexpr size_t kMaxExpertsNamed = 12;

std::string FiguresToJson(const Evaluation& evaluation) {
  const auto figure = [](const std::optional<double>& value) {
    return value ? nlohmann::json(*value).dump() : std::string("null");
  };
  return absl::StrCat("{\"mean\":", figure(evaluation.mean_balancedness),
                      ",\"min\":", figure(evaluation.min_balancedness), "}");
}

}  // namespace

Loss LossOf(const Placement& before, const GpuSpeeds& speeds, const Placement& after) {
  const Topology& topology = before.topology();
  Loss loss;
  for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
    if (before.Holds(GpuId{gpu}) && !speeds.Usable(GpuId{gpu})) loss.gpus.push_back(gpu);
  }
  const auto is_gone = [&](int32_t slot) { return !speeds.Usable(topology.GpuOf(SlotId{slot})); };
  for (int32_t layer = 0; layer < topology.num_layers(); ++layer) {
    std::vector<int32_t>& lost = loss.lost.emplace_back();
    for (int32_t expert = 0; expert < topology.num_experts(); ++expert) {
      const auto replicas = before.ReplicasOf(LayerId{layer}, ExpertId{expert});
      if (std::ranges::all_of(replicas, is_gone)) lost.push_back(expert);
    }
  }
  const IndexMatrix& held = after.physical_to_logical_map();
  loss.slots_to_fill = (held >= 0 && held != before.physical_to_logical_map()).count();
  return loss;
}

std::string LossToJson(const Loss& loss) {
  return absl::StrCat("\"gpus\":[", absl::StrJoin(loss.gpus, ","),
                      "],\"slots_to_fill\":", loss.slots_to_fill,
                      ",\"num_experts_lost\":", CountExperts(loss.lost),
                      ",\"experts_lost\":", ExpertsToJson(loss.lost));
}

std::string LossText(const Loss& loss, const Terminal& terminal) {
  std::vector<std::string> named;
  for (size_t layer = 0; layer < loss.lost.size(); ++layer) {
    for (const int32_t expert : loss.lost[layer]) {
      if (named.size() == kMaxExpertsNamed) break;
      named.push_back(absl::StrCat(layer, "/", expert));
    }
  }
  const int64_t lost = CountExperts(loss.lost);
  const char* const gpus = loss.gpus.size() == 1 ? "GPU " : "GPUs ";
  std::string text = absl::StrCat("Loss of ", gpus, absl::StrJoin(loss.gpus, ", "), ": ",
                                  Counted(loss.slots_to_fill, "slot"), " to fill. ");
  if (lost == 0) return Paragraph(text + "Every expert has a live replica.", terminal);
  absl::StrAppend(&text, Counted(lost, "expert"),
                  " in all layers have no live replica and need their weights from a checkpoint "
                  "(layer/expert): ",
                  absl::StrJoin(named, ", "), lost > std::ssize(named) ? ", .." : "", ".");
  return Paragraph(text, terminal);
}

absl::StatusOr<LossAnswers> PlanEachLoss(const ShapeOptions& frame, const PlanProblem& problem) {
  const GpuSpeeds& all = problem.speeds;
  const Load& load = problem.loads.load;
  LossAnswers result;
  EPLB_ASSIGN_OR_RETURN(const GpuSpeeds held, SpeedsBefore(all, *problem.previous));
  EPLB_ASSIGN_OR_RETURN(result.before, Evaluate(load, *problem.previous, {.speeds = &held}));
  const auto start = std::chrono::steady_clock::now();
  for (int32_t gpu = 0; gpu < all.num_gpus(); ++gpu) {
    if (!all.Usable(GpuId{gpu})) continue;
    std::vector<double> numbers;
    std::vector<int32_t> unusable = {gpu};
    for (int32_t other = 0; other < all.num_gpus(); ++other) {
      const bool usable = all.Usable(GpuId{other});
      numbers.push_back(usable ? all.SpeedOf(GpuId{other}) : 1);
      if (!usable) unusable.push_back(other);
    }
    EPLB_ASSIGN_OR_RETURN(const GpuSpeeds speeds,
                          GpuSpeeds::Make(all.num_gpus(), numbers, unusable));
    absl::StatusOr<PlanAnswer> answer = SolvePlan(frame, false,
                                                  {.loads = problem.loads,
                                                   .topology = problem.topology,
                                                   .speeds = speeds,
                                                   .previous = problem.previous});
    if (!answer.ok()) return InvalidInput("without GPU ", gpu, ": ", answer.status().message());
    EPLB_ASSIGN_OR_RETURN(Evaluation after, Evaluate(load, answer->placement, {.speeds = &speeds}));
    result.answers.push_back({LossOf(*problem.previous, speeds, answer->placement),
                              std::move(answer->placement), std::move(after)});
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  result.solve_seconds = seconds.count();
  return result;
}

std::string LossAnswersToJson(const LossAnswers& answers) {
  std::string text =
      absl::StrCat("{\"policy\":\"", std::string(kIncrementalPolicyName),
                   "\",\"balancedness_before\":", FiguresToJson(answers.before), ",\"losses\":[");
  for (const LossAnswers::Answer& one : answers.answers) {
    absl::StrAppend(&text, text.back() == '[' ? "{" : ",{", LossToJson(one.loss),
                    ",\"balancedness\":", FiguresToJson(one.after),
                    ",\"placement\":", wire::PlacementToJson(one.placement), "}");
  }
  return absl::StrCat(text, "],\"solve_seconds\":", nlohmann::json(answers.solve_seconds).dump(),
                      "}\n");
}

std::string LossAnswersToTable(const LossAnswers& answers, const Terminal& terminal) {
  Table table({">lost GPU", ">balancedness", ">worst layer", ">slots to fill", ">experts lost"});
  for (const LossAnswers::Answer& one : answers.answers) {
    table.rows.push_back({absl::StrJoin(one.loss.gpus, ","),
                          FigureText(one.after.mean_balancedness),
                          FigureText(one.after.min_balancedness), Grouped(one.loss.slots_to_fill),
                          Grouped(CountExperts(one.loss.lost))});
  }
  return absl::StrCat(
      Heading("Placements after the loss of one GPU", terminal),
      Paragraph(absl::StrCat("Balancedness before: ", FigureText(answers.before.mean_balancedness),
                             ", worst layer ", FigureText(answers.before.min_balancedness),
                             ". Solved in ", Seconds(answers.solve_seconds), "."),
                terminal),
      FormatTable(table, terminal),
      Paragraph("Experts lost, in all layers, have no live replica: their weights come from a "
                "checkpoint. -o json and --out DIR give the placements.",
                terminal));
}

}  // namespace eplb::cli
