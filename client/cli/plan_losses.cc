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

namespace eplb::cli {
namespace {

constexpr size_t kMaxExpertsNamed = 12;
constexpr size_t kMostJson = size_t{256} << 20;

std::string FiguresToJson(const Evaluation& evaluation) {
  return absl::StrCat("{\"mean\":", Number(evaluation.mean_balancedness),
                      ",\"min\":", Number(evaluation.min_balancedness), "}");
}

absl::StatusOr<LossAnswers::Answer> PlanLoss(const ShapeOptions& frame, const PlanProblem& problem,
                                             int32_t gpu) {
  std::vector<double> numbers(problem.speeds.speeds().begin(), problem.speeds.speeds().end());
  std::vector<int32_t> unusable = {gpu};
  for (int32_t other = 0; other < problem.speeds.num_gpus(); ++other) {
    if (problem.speeds.Usable(GpuId{other})) continue;
    numbers[static_cast<size_t>(other)] = 1;
    unusable.push_back(other);
  }
  EPLB_ASSIGN_OR_RETURN(const GpuSpeeds speeds,
                        GpuSpeeds::Make(problem.speeds.num_gpus(), numbers, unusable));
  const PlanProblem without = {.loads = problem.loads,
                               .topology = problem.topology,
                               .speeds = speeds,
                               .previous = problem.previous,
                               .lost_gpus = {&gpu, 1}};
  EPLB_ASSIGN_OR_RETURN(PlanAnswer answer, SolvePlan(frame, false, without));
  EPLB_ASSIGN_OR_RETURN(Evaluation after,
                        Evaluate(problem.loads.load, answer.placement, {.speeds = &speeds}));
  Loss loss = LossOf(without, answer.placement);
  return LossAnswers::Answer{gpu, std::move(loss), std::move(answer.placement), std::move(after)};
}

}  // namespace

Loss LossOf(const PlanProblem& problem, const Placement& after) {
  const Placement& before = *problem.previous;
  const Topology& topology = problem.topology;
  const GpuSpeeds& speeds = problem.speeds;
  Loss loss;
  for (int32_t gpu = 0; gpu < topology.num_gpus(); ++gpu) {
    if (speeds.Usable(GpuId{gpu})) continue;
    const bool is_named = std::ranges::count(problem.lost_gpus, gpu) > 0;
    if (is_named || before.Holds(GpuId{gpu})) loss.gpus.push_back(gpu);
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
  LossAnswers result;
  EPLB_ASSIGN_OR_RETURN(const GpuSpeeds held, SpeedsBefore(all, *problem.previous));
  EPLB_ASSIGN_OR_RETURN(result.before,
                        Evaluate(problem.loads.load, *problem.previous, {.speeds = &held}));
  const auto start = std::chrono::steady_clock::now();
  for (int32_t gpu = 0; gpu < all.num_gpus(); ++gpu) {
    if (!all.Usable(GpuId{gpu})) continue;
    absl::StatusOr<LossAnswers::Answer> answer = PlanLoss(frame, problem, gpu);
    if (!answer.ok()) return InvalidInput("without GPU ", gpu, ": ", answer.status().message());
    result.answers.push_back(*std::move(answer));
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  result.solve_seconds = seconds.count();
  return result;
}

absl::StatusOr<std::string> LossAnswersToJson(const LossAnswers& answers) {
  std::string text =
      absl::StrCat("{\"policy\":\"", std::string(kIncrementalPolicyName),
                   "\",\"balancedness_before\":", FiguresToJson(answers.before), ",\"losses\":[");
  for (const LossAnswers::Answer& one : answers.answers) {
    absl::StrAppend(&text, text.back() == '[' ? "{" : ",{", "\"gpu\":", one.gpu, ",",
                    LossToJson(one.loss), ",\"balancedness\":", FiguresToJson(one.after),
                    ",\"placement\":", wire::PlacementToJson(one.placement), "}");
    if (text.size() > kMostJson) {
      return InvalidInput("the JSON of ", answers.answers.size(),
                          " placements is above 256 MiB: give --out DIR, without -o json");
    }
  }
  return absl::StrCat(text, "],\"solve_seconds\":", Number(answers.solve_seconds), "}\n");
}

std::string LossAnswersToTable(const LossAnswers& answers, const Terminal& terminal) {
  Table table({">lost GPU", ">balancedness", ">worst layer", ">slots to fill", ">experts lost"});
  for (const LossAnswers::Answer& one : answers.answers) {
    table.rows.push_back({absl::StrCat(one.gpu), FigureText(one.after.mean_balancedness),
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
